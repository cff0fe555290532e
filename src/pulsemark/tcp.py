"""TCP's facts about a client, without reading from it: whether it has ended, or its host is gone.

A connection that is not read does not see its end, which comes after the bytes that wait. So code
that pauses reading asks here. Where the system has no TCP_INFO, nothing is known.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

#: States of TCP (tcp_states.h): the client has reset the connection, or sent its last byte.
CLOSED, CLOSE_WAIT = 7, 8
#: The size of the system's tcp_info up to tcpi_bytes_acked, and where that is.
INFO_SIZE_BYTES, BYTES_ACKED_AT = 128, 120

#: So many probes without an answer end a connection.
PROBES = 4


def keep_alive(near: Any, interval_ms: int) -> None:
    """Let the system end the connection within two intervals if the client's host is gone.

    A client that waits (a long poll, a JoinGroup) sends nothing, and a host that vanished does not
    even say so. Without this its request would wait until its own time-out, which may be weeks.
    """
    seconds = max(1, interval_ms // 1000)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", seconds),
        ("TCP_KEEPINTVL", max(1, seconds // PROBES)),
        ("TCP_KEEPCNT", PROBES),
    ):
        if hasattr(socket, name):  # not every system has them
            near.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def has_ended(transport: asyncio.BaseTransport | None) -> bool:
    """Whether the client has ended the connection, also if bytes before the end are unread."""
    info = _info(transport)
    return bool(info) and info[0] in (CLOSED, CLOSE_WAIT)


def bytes_confirmed(transport: asyncio.BaseTransport | None) -> int | None:
    """How many bytes the client's system has confirmed so far; None: that is not known."""
    info = _info(transport)
    if len(info) < INFO_SIZE_BYTES:
        return None
    return int.from_bytes(info[BYTES_ACKED_AT:INFO_SIZE_BYTES], sys.byteorder)


def _info(transport: asyncio.BaseTransport | None) -> bytes:
    near = None if transport is None else transport.get_extra_info("socket")
    if near is None or near.fileno() < 0 or not hasattr(socket, "TCP_INFO"):
        return b""
    found: bytes = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_SIZE_BYTES)
    return found
