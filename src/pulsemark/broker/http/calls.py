"""Requests from one broker of a cluster to another, over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

import h11

from ..ownership import Found

__all__ = ["CallFailedError", "call_broker"]

CALL_TIMEOUT_S = 30.0
MAX_HOPS = 5


class CallFailedError(Exception):
    """Another broker refused the request, or did not answer (status 503)."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status
        self.reason = reason


async def call_broker(
    found: Found,
    method: str,
    target: str,
    body: bytes = b"",
    *,
    headers: Mapping[str, str] | None = None,
    cafile: str | os.PathLike[str] | None = None,
) -> bytes:
    """The body of the answer. Redirects are followed. Raises CallFailedError.

    `cafile`: what a broker with TLS only is checked by.
    """
    url = f"{found.http_url or found.http_url_tls}{target}"
    sent = list((headers or {}).items())
    for _ in range(MAX_HOPS):
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                status, location, answer = await _exchange(url, method, sent, body, cafile)
        except (OSError, TimeoutError, h11.ProtocolError) as error:
            raise CallFailedError(503, f"the broker at {url} does not answer: {error!r}") from error
        if status != 307:
            break
        url = location
    if status >= 300:
        raise CallFailedError(status, _reason(answer))
    return answer


async def _exchange(
    url: str,
    method: str,
    headers: list[tuple[str, str]],
    body: bytes,
    cafile: str | os.PathLike[str] | None,
) -> tuple[int, str, bytes]:
    parts = urlsplit(url)
    tls = ssl.create_default_context(cafile=cafile) if parts.scheme == "https" else None
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=tls)
    try:
        connection = h11.Connection(h11.CLIENT)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        head = [("host", parts.netloc), ("content-length", str(len(body))), *headers]
        writer.write(
            connection.send(h11.Request(method=method, target=target, headers=head))
            + (connection.send(h11.Data(data=body)) if body else b"")
            + connection.send(h11.EndOfMessage())
        )
        return await _answer(reader, connection)
    finally:
        writer.close()


async def _answer(
    reader: asyncio.StreamReader, connection: h11.Connection
) -> tuple[int, str, bytes]:
    status, location, answer = 0, "", bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(65_536))
        elif isinstance(event, h11.Response):
            status = event.status_code
            location = dict(event.headers).get(b"location", b"").decode()
        elif isinstance(event, h11.Data):
            answer += event.data
        elif isinstance(event, h11.EndOfMessage):
            return status, location, bytes(answer)
        elif isinstance(event, h11.ConnectionClosed):
            raise ConnectionError("the connection was closed before the answer's end")


def _reason(answer: bytes) -> str:
    try:
        reason = json.loads(answer).get("reason", "")
    except (ValueError, AttributeError):
        reason = answer.decode(errors="replace")
    return str(reason)
