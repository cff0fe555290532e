"""One HTTP connection: h11 between the socket and the handlers.

Requests are answered one after the other. The whole body is read first (at most
`max_http_body_bytes`). Reading pauses while a request is handled and until the client has read the
answer, so that neither requests nor answers collect in memory.

The broker closes the connection if a request is not complete within `http_idle_timeout_ms`, or if
the client reads nothing of an answer in that time. It also closes a connection that violates the
protocol, after an error answer if one is still possible. Bodies and answers count in `memory`, over
all connections.

A request with both Content-Length and Transfer-Encoding is refused: a proxy in front of the broker
may have used the other length (RFC 9112, 6.1).

Answers 200 to GET are compressed for clients that accept it, as by Pulsar's web server: from 32
bytes on. A long body is compressed in a thread.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, cast
from wsgiref.handlers import format_date_time

import h11

from ..security.authentication import UNAUTHENTICATED, PeerCertificate, Principal
from ..version import HTTP_SERVER
from .authentication import UnauthenticatedError, check_origin, principal_of
from .messages import HttpError, Request, Response, accepts_gzip
from .routing import answer

if TYPE_CHECKING:
    from ..connection.services import Services


class TestControls(Protocol):
    """Answers the requests below its path; the broker's own credentials do not count there."""

    path: str

    def __call__(self, request: Request, /) -> Awaitable[Response]:
        """Answer a request. Raises `HttpError`."""


log = logging.getLogger(__name__)
MAX_HEADER_BYTES = 64 * 1024
#: Above this much unsent data of an answer no further request is read.
HIGH_WATER_BYTES = 64 * 1024


class HttpConnection(asyncio.Protocol):
    """A client of the HTTP port."""

    def __init__(self, services: Services, test_controls: TestControls | None = None) -> None:
        self._services = services
        self._test_controls = test_controls
        self._loop = asyncio.get_running_loop()
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
        self._transport: asyncio.Transport | None = None
        self._certificate: PeerCertificate | None = None
        self._is_tls = False
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._writable = True
        #: Bytes read since h11 last needed data: at least what h11 holds of waiting requests.
        self._read_bytes = 0
        self._answer_bytes = 0
        self._unsent_at_check_bytes = 0

    # -- what the schema registry does in another way -------------------------------------------

    async def principal(
        self, target: str, headers: dict[str, str], certificate: PeerCertificate | None
    ) -> Principal:
        """The principal of a request. Raises UnauthenticatedError."""
        return await principal_of(self._services, target, headers, certificate)

    async def answer(self, request: Request) -> Response:
        """The answer to a request. Raises HttpError."""
        return await answer(request)

    def error(self, status: int, reason: str) -> Response:
        """The answer to a request that no handler has answered."""
        return Response.of_error(status, reason)

    # -- asyncio's calls ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is established."""
        self._transport = cast("asyncio.Transport", transport)
        self._certificate = transport.get_extra_info("peercert") or None
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=0)
        connections = self._services.http_connections
        connections.add(self)
        if len(connections) > self._services.config.max_http_connections:
            self._refuse(503, "too many HTTP connections; try again later")
            return
        self._wait_for_client()

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        self._read_bytes += len(data)
        self._feed(data)
        self._count_input(begins=False)

    def eof_received(self) -> bool:
        """The client sends no more. If a request is being handled, its answer is still sent."""
        self._feed(b"")
        return self._task is not None

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended. A request that is being handled still runs to its end."""
        services = self._services
        services.http_connections.discard(self)
        services.input.forget(self)
        services.output.forget(self)
        if self._idle is not None:
            self._idle.cancel()
        self._transport = None

    def pause_writing(self) -> None:
        """The client reads more slowly than the broker writes."""
        self._writable = False

    def resume_writing(self) -> None:
        """The client has read the answer: go on with the next request."""
        self._writable = True
        self._services.output.wrote(self)
        if self._task is None and self._transport is not None and self._is_answered:
            self._go_on()

    def close(self) -> None:
        """Send buffered data, then close."""
        if self._transport is not None:
            self._transport.close()
            if self._idle is None or self._idle.cancelled():
                self._wait_for_client()

    # -- memory ---------------------------------------------------------------------------------

    def unsent_bytes(self) -> int:
        """Data written that the socket has not accepted yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def held_output_bytes(self) -> int:
        """The memory of that data. An answer is held until its last byte is sent."""
        return max(self._answer_bytes, self.unsent_bytes()) if self.unsent_bytes() else 0

    def output_freed(self) -> None:
        """Nothing to do: answers do not wait for output memory, one connection has only one."""

    def give_up_output(self) -> None:
        """Output memory is full, and this client has read nothing for the longest time."""
        if self._transport is not None:
            self._transport.abort()

    def give_up_input(self) -> None:
        """Input memory is full, and this request began to arrive first."""
        if self._task is not None and self._transport is not None:
            self._transport.abort()
        else:
            reason = "the broker's input memory is full, and this request arrives too slowly"
            self._refuse(503, reason)

    def _count_input(self, *, begins: bool) -> None:
        if self._transport is not None:
            size_bytes = len(self._body) + self._read_bytes
            self._services.input.hold(self, size_bytes, begins=begins)

    # -- requests -------------------------------------------------------------------------------

    @property
    def _is_answered(self) -> bool:
        """Whether the latest request has its answer, and no other request has begun."""
        return self._h11.our_state in (h11.DONE, h11.MUST_CLOSE, h11.ERROR)

    def _wait_for_client(self) -> None:
        """Close if no request comes, or if the client reads nothing, within the idle timeout."""
        if self._idle is not None:
            self._idle.cancel()
        self._unsent_at_check_bytes = self.unsent_bytes()
        timeout_s = self._services.config.http_idle_timeout_ms / 1000
        self._idle = self._loop.call_later(timeout_s, self._check_client)

    def _check_client(self) -> None:
        unsent_bytes = self.unsent_bytes()
        if self._transport is None:
            return
        if not unsent_bytes:
            self._transport.close()
        elif unsent_bytes < self._unsent_at_check_bytes:
            self._wait_for_client()
        else:
            self._transport.abort()

    def _feed(self, data: bytes | None) -> None:
        """Handle what was received; None: what h11's buffer has already."""
        try:
            if data is not None:
                self._h11.receive_data(data)
            self._next_events()
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint or 400, _reason(error))

    def _next_events(self) -> None:
        while self._task is None and self._transport is not None:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                self._read_bytes = 0
                if self._h11.they_are_waiting_for_100_continue:
                    self._send(h11.InformationalResponse(status_code=100, headers=[]))
                return
            if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                self.close()
                return
            if isinstance(event, h11.Request):
                try:
                    _check_head(event, self._services)
                except HttpError as problem:
                    self._refuse(problem.status, problem.reason)
                    return
                self._request = event
                self._body.clear()
                self._count_input(begins=True)
            elif isinstance(event, h11.Data):
                self._body += event.data
                limit_bytes = self._services.config.max_http_body_bytes
                if len(self._body) > limit_bytes:
                    self._refuse(413, f"the body exceeds {limit_bytes} bytes")
                    return
            elif isinstance(event, h11.EndOfMessage) and self._request is not None:
                self._begin(self._request)

    def _begin(self, request: h11.Request) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if self._transport is not None:
            self._transport.pause_reading()
        self._task = self._loop.create_task(self._work(request, bytes(self._body)))

    async def _work(self, head: h11.Request, body: bytes) -> None:
        target, headers = origin_form(head.target.decode("ascii")), headers_of(head)
        try:
            controls = self._test_controls
            if controls is not None and not target.startswith(controls.path):
                controls = None
            principal = UNAUTHENTICATED
            if controls is None:
                principal = await self.principal(target, headers, self._certificate)
            method = head.method.decode("ascii")
            services, is_tls = self._services, self._is_tls
            request = Request(method, target, body, services, headers, principal, is_tls)
            response = await (controls or self.answer)(request)
            if request.method == "GET":
                accepted = headers.get("accept-encoding", "")
                response = await compressed(response, accepted, self._services.run_blocking)
        except UnauthenticatedError as refusal:
            log.info("%s: HTTP request refused: %s", target.partition("?")[0], refusal)
            response = self.error(401, "Authentication required")
        except HttpError as error:
            response = error.response
        except Exception:
            log.exception(
                "HTTP request %s %s failed and was answered with 500",
                head.method.decode("ascii", "replace"),
                head.target.decode("ascii", "replace"),
            )
            response = self.error(500, "the request failed; see the broker's log")
        self._body.clear()
        self._count_input(begins=False)
        self._respond(response, head_only=head.method == b"HEAD")
        self._task = None
        self._wait_for_client()
        if self._writable:
            self._go_on()

    def _go_on(self) -> None:
        if self._transport is None:
            return
        if self._h11.our_state is h11.MUST_CLOSE or self._h11.our_state is h11.ERROR:
            self.close()
            return
        self._h11.start_next_cycle()
        self._transport.resume_reading()
        self._wait_for_client()
        # The next request may be in h11's buffer already, if both arrived together.
        self._feed(None)

    # -- responses ------------------------------------------------------------------------------

    def _respond(self, response: Response, *, head_only: bool = False) -> None:
        self._answer_bytes = response.size_bytes
        headers = date_and_server()
        if response.status != 204:
            headers.append((b"content-length", str(response.size_bytes).encode()))
        if response.size_bytes:
            headers.append((b"content-type", response.content_type.encode("latin-1")))
        for name, value in response.headers:
            headers.append((name.encode("latin-1"), value.encode("latin-1")))
        reason = response.status_phrase
        self._send(h11.Response(status_code=response.status, headers=headers, reason=reason))
        if not head_only:
            for part in filter(None, (response.body, *response.more)):
                self._send(h11.Data(data=part))
        self._send(h11.EndOfMessage())

    def _refuse(self, status: int, reason: str) -> None:
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = self.error(status, reason)
            response.headers += (("connection", "close"),)
            self._respond(response)
        self.close()

    def _send(self, event: h11.Event) -> None:
        data = self._h11.send(event)
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            self._services.output.wrote(self)


def origin_form(target: str) -> str:
    """Path and query of a request's target, which may be a whole URL (RFC 9112, 3.2.2)."""
    if not target.startswith("/"):
        scheme, separator, rest = target.partition("://")
        if separator and scheme.lower() in ("http", "https"):
            _, slash, path = rest.partition("/")
            target = f"/{path}" if slash else "/"
    return target.partition("#")[0]


def headers_of(request: h11.Request) -> dict[str, str]:
    """A request's headers; those that came several times are joined by commas."""
    found: dict[str, str] = {}
    for raw_name, raw_value in request.headers:
        name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _check_head(request: h11.Request, services: Services) -> None:
    """Raise `HttpError` for a request that is refused by its headers."""
    headers = headers_of(request)
    if {"content-length", "transfer-encoding"} <= headers.keys():
        text = "a request must not have both Content-Length and Transfer-Encoding"
        raise HttpError(400, text)
    limit_bytes = services.config.max_http_body_bytes
    if int(headers.get("content-length", "0")) > limit_bytes:
        raise HttpError(413, f"the body exceeds {limit_bytes} bytes")
    is_open = services.authenticator is None or services.authenticator.admits_anonymous
    method = request.method.decode("ascii")
    check_origin(method, headers, services.config, any_host=not is_open)
    # h11 limits only incomplete headers; those that arrive at once are checked here.
    if sum(len(name) + len(value) for name, value in request.headers) > MAX_HEADER_BYTES:
        raise HttpError(431, f"the headers exceed {MAX_HEADER_BYTES} bytes")


def _reason(error: h11.RemoteProtocolError) -> str:
    """The fault of a request, without its bytes, which may hold credentials."""
    return str(error).partition(": bytearray(")[0].partition(": b'")[0]


#: Bodies below this size are sent as they are.
SMALLEST_BYTES = 32
#: Bodies above this size would hold up the event loop.
AT_ONCE_BYTES = 32 * 1024
#: A level that costs half the time of the usual one, for a body that is a little larger.
LEVEL = 4
VARY = ("vary", "Accept-Encoding, User-Agent")
Headers = list[tuple[bytes, bytes]]


async def compressed(
    response: Response, accepted: str, run_blocking: Callable[..., Awaitable[Any]]
) -> Response:
    """The answer to a GET, compressed if the client accepts it. The one given is not changed."""
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
    return [(b"date", format_date_time(time.time()).encode()), SERVER]


SERVER = (b"server", HTTP_SERVER.encode())
