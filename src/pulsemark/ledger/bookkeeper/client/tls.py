"""TLS to bookies: certificate files, and START_TLS.

Bookies serve TLS on their ordinary port. A client asks for it with START_TLS, unencrypted. If the
bookie answers OK, the handshake follows on the same connection. Nothing else is sent before that,
and a bookie without TLS is an error: the client never goes on unencrypted. Source: BookKeeper's
PerChannelBookieClient and TLSContextFactory.
"""

from __future__ import annotations

import asyncio
import math
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ....tls_files import Renewed
from .connection import BookieConnection
from .errors import (
    BookieError,
    BookieProtocolError,
    BookieTlsError,
    BookieUnreachableError,
    TlsFilesError,
)
from .frames import START_TLS, FrameReader, frame_start, parse_response, start_tls_request

_MAX_ANSWER_BYTES = 64 * 1024
_NUMBER = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class BookieTls:
    """The client's certificate, and the authorities that it trusts. Files are PEM."""

    trust_certs_file: str
    """The authorities of the bookies' certificates."""
    certificate_file: str | None = None
    """The client's certificate chain, for bookies that ask for one (tlsClientAuthentication)."""
    key_file: str | None = None
    """Its private key."""
    key_password_file: str | None = None
    """The password of the key, if it has one."""
    check_hostname: bool = False
    """Whether a bookie's certificate must name the host of the connection."""
    refresh_s: int = 300
    """How often changed files are looked for; 0: never."""

    def context(self) -> ssl.SSLContext:
        """Read the files. Raises TlsFilesError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        # Old certificates are of X.509 version 1.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        try:
            context.load_verify_locations(self.trust_certs_file)
        except (OSError, ValueError) as error:
            raise TlsFilesError(self.trust_certs_file, _said(error)) from error
        if self.certificate_file is None:
            return context
        try:
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(self.certificate_file, self.key_file, self._password())
        except (OSError, ValueError) as error:
            raise TlsFilesError(
                f"{self.certificate_file}, {self.key_file}", _said(error)
            ) from error
        return context

    def _password(self) -> str:
        if self.key_password_file is None:
            return ""
        try:
            return Path(self.key_password_file).read_text().strip()
        except (OSError, ValueError) as error:
            raise TlsFilesError(self.key_password_file, _said(error)) from error

    def renewed(self, now_s: Callable[[], float] = time.monotonic) -> Renewed[ssl.SSLContext]:
        """Make each new connection's context from the present files. Raises as `context`."""
        files = (
            self.trust_certs_file, self.certificate_file, self.key_file, self.key_password_file,
        )  # fmt: skip
        interval_s = self.refresh_s or math.inf
        return Renewed("bookies", files, self.context, TlsFilesError, interval_s, now_s)


class _Asking(asyncio.Protocol):
    """A new connection that sends START_TLS; `answer` is done when the handshake may begin."""

    def __init__(self, bookie: str, loop: asyncio.AbstractEventLoop) -> None:
        self._bookie = bookie
        self._reader = FrameReader(_MAX_ANSWER_BYTES)
        self.answer: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        request = start_tls_request()
        frame = frame_start(request, _NUMBER) + request.body
        cast("asyncio.WriteTransport", transport).write(frame)

    def data_received(self, data: bytes) -> None:
        try:
            frames = list(self._reader.feed(data))
            if frames:
                self._take(frames)
        except BookieError as error:
            error.bookie = self._bookie
            self._end(error)

    def _take(self, frames: list[bytes]) -> None:
        response = parse_response(frames[0])
        header = response.header
        if (header.operation, header.txnId) != (START_TLS, _NUMBER) or len(frames) > 1:
            raise BookieProtocolError("an answer to something else than START_TLS")
        if response.status:
            reason = f"it has no TLS: it answered START_TLS with status {response.status}"
            raise BookieTlsError(reason)
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(BookieUnreachableError("it closed the connection", bookie=self._bookie))

    def _end(self, error: BookieError | None) -> None:
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(None)
        else:
            self.answer.set_exception(error)


async def connect_with_tls(
    connection: BookieConnection, bookie: str, host: str, port: int, context: ssl.SSLContext
) -> None:
    """Connect a connection's protocol with TLS. Raises BookieError, OSError."""
    loop = asyncio.get_running_loop()
    transport, asking = await loop.create_connection(lambda: _Asking(bookie, loop), host, port)
    try:
        await asking.answer
        secured = await loop.start_tls(
            transport, connection, context, server_hostname=host if context.check_hostname else None
        )
    except ssl.SSLCertVerificationError as error:
        transport.abort()
        reason = f"its certificate is refused: {error.verify_message}"
        raise BookieTlsError(reason, bookie=bookie) from error
    except (ssl.SSLError, ConnectionError) as error:
        transport.abort()
        raise BookieTlsError(f"the handshake failed: {_said(error)}", bookie=bookie) from error
    except BaseException:
        transport.abort()
        raise
    assert secured is not None
    connection.connection_made(secured)


def _said(error: Exception) -> str:
    """An error's text, without OpenSSL's source position."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
