"""TCP keep-alive: whether a client's host is still there."""

from __future__ import annotations

import socket
from typing import Any

__all__ = ["keep_alive"]

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
