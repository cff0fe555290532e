"""The headers that every answer has, whatever its handler: Date and Server, Vary, and gzip.

Answers 200 to GET are compressed for clients that accept it, as by Pulsar's web server: from 32
bytes on. A long body is compressed in a thread.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from email.utils import formatdate
from typing import Any

from ..version import HTTP_SERVER
from .messages import Response

__all__ = ["accepts_gzip", "compressed", "date_and_server"]

#: Bodies below this size are sent as they are.
SMALLEST_BYTES = 32
#: Bodies above this size would hold up the event loop.
AT_ONCE_BYTES = 32 * 1024
#: A level that costs half the time of the usual one, for a body that is a little larger.
LEVEL = 4
VARY = ("vary", "Accept-Encoding, User-Agent")

Headers = list[tuple[bytes, bytes]]


def accepts_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding names gzip, without the quality 0 that excludes it (RFC 9110)."""
    for one in accepted.lower().split(","):
        coding, _, quality = one.replace(" ", "").partition(";q=")
        if coding == "gzip":
            return quality.rstrip("0") not in ("0.", "0", "") if quality else True
    return False


async def compressed(
    response: Response, accepted: str, run_blocking: Callable[..., Awaitable[Any]]
) -> Response:
    """The answer to a GET, compressed if the client accepts it; other answers stay as they are.

    The answer given is never changed: it may be one that the handler keeps for the next client.
    """
    if response.status != 200 or any(name == "vary" for name, _ in response.headers):
        return response
    headers = (*response.headers, VARY)
    size_bytes = response.size_bytes
    if size_bytes < SMALLEST_BYTES or not accepts_gzip(accepted):
        return replace(response, headers=headers)
    whole = (response.body, *response.more)
    body = _gzip(whole) if size_bytes <= AT_ONCE_BYTES else await run_blocking(_gzip, whole)
    headers = (*headers, ("content-encoding", "gzip"))
    return replace(response, body=body, more=(), headers=headers)


def _gzip(parts: tuple[bytes, ...]) -> bytes:
    return gzip.compress(b"".join(parts), LEVEL, mtime=0)


def date_and_server() -> Headers:
    """When the answer was made, by the machine's clock, and who made it."""
    return [(b"date", formatdate(time.time(), usegmt=True).encode()), SERVER]


SERVER = (b"server", HTTP_SERVER.encode())
