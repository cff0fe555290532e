"""The gRPC server of the seek service: port, TLS, token, health, reflection, orderly stop.

A `SeekServer` belongs to the asyncio loop on which it is started (uvloop or the standard one). The
loop may do other work too.

- Health (grpc.health.v1) answers for "" and for the service. It changes to NOT_SERVING when the
  server begins to stop. It is the only call that needs no token, because probes cannot send one.
- Reflection lets tools such as grpcurl call the service without its proto file.
- Tokens are compared in constant time. Without TLS, everyone on the network path can read them. So
  a server that is reachable from other machines logs a warning if it has a token but no TLS.
- AppendControl, the only call that writes entries, has a token of its own; without one it is off.
  That token is good for every other call, too. The other token is not good for AppendControl.
- Requests are small: a request larger than MAX_REQUEST_BYTES is refused before it is parsed.
- Single calls and streams have separate limits, so streams never block single calls. A stream whose
  client does not read is ended (`StreamSlots`).
- A client that does not answer gRPC's pings is disconnected.
- A connection has at most MAX_CALLS_PER_CONNECTION calls at a time; more calls wait in the client.
- The certificate of TLS is read again after it was renewed (`ServerTls`).

**Without a broker** (`folder_server`) the service is read-only over a data folder.
A broker may write to the folder at the same time. Reading takes no lock and stops after the last
durable entry, so a restart of the broker never takes an answer back. The next call sees new
entries. Only the broker can change cursors: ResetCursor answers FAILED_PRECONDITION.

**Admission.** Before a call begins an `Admit` is awaited, with the caller and the request. It says
how long the caller's credentials last: a call that outlives them is ended as UNAUTHENTICATED. Here
it compares tokens; a program that has users of its own, such as the broker, gives the server
another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import math
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ..ledger import FolderReader, TopicLog
from ..ledger.tail_cache import Lru
from ..maintenance.expected import Expected, LogEnds, ends_of, expected_of
from ..maintenance.verify_catalog import follow_transactions
from ..tls_files import Renewed
from . import rpc
from .arguments import is_loopback
from .errors import BindError
from .forwarding import Context, Forwarding
from .service import (
    MAX_CALLS,
    MAX_STREAMS,
    STALL_TIMEOUT_S,
    SeekServicer,
    TopicSource,
    full_name,
    handler,
)
from .stream import MAX_LINGERING, StreamSlots

if TYPE_CHECKING:
    from ..ledger.bookkeeper.reader import BookKeeperReader

MAX_REQUEST_BYTES = 64 * 1024
MAX_CALLS_PER_CONNECTION = 100
#: Additional calls for health checks, reflection, and calls that are being refused.
SPARE_CALLS = 64
MAX_CONNECTIONS = 1_000
MAX_TOPICS = 1024
_PING_INTERVAL_MS = 30_000
_PING_TIMEOUT_MS = 20_000
HEALTH_PREFIX = f"/{health.SERVICE_NAME}/"
_CLIENT_PING_INTERVAL_MS = 10_000
#: gRPC's name for the common name of a client's certificate.
COMMON_NAME = "x509_common_name"
#: The prefix of the paths of the service's calls.
PREFIX = f"/{rpc.SERVICE_NAME}/"
EXPIRED = "the credentials in 'authorization' expired during the call"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of a server. Port 0 picks a free port. Raises ValueError that names the field."""

    host: str = "127.0.0.1"
    port: int | None = 0
    tls: ServerTls | None = None
    tls_port: int | None = None
    """An additional port with `tls`; `port`, if it is given, has no TLS then."""
    token: str | None = field(default=None, repr=False)
    """The token that callers must send; None: everyone may call, except AppendControl."""
    control_token: str | None = field(default=None, repr=False)
    """The token that callers of AppendControl must send; None: the call is off."""
    max_concurrent_calls: int = MAX_CALLS
    """The most single calls at a time; more are refused with RESOURCE_EXHAUSTED."""
    max_streams: int = MAX_STREAMS
    """The most streams (ReadEntries) at a time; `stream_slots` says what happens to more."""
    stream_stall_timeout_s: float = STALL_TIMEOUT_S
    """How long a stream may wait until its receiver reads."""
    search_threads: int = 4
    stop_grace_s: float = 2.0
    """How long running calls may still take when the server stops."""

    def __post_init__(self) -> None:
        for token in (self.token, self.control_token):
            if token is not None:
                rpc.bearer(token)
        for name in ("max_concurrent_calls", "max_streams", "search_threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, is {getattr(self, name)}")


class SeekServer:
    """Serves a source of topics over gRPC between `start` and `stop`, or as a context manager."""

    def __init__(
        self,
        source: TopicSource,
        options: ServerOptions | None = None,
        *,
        admit: Admit | None = None,
        forwarding: Forwarding | None = None,
    ) -> None:
        """`admit` is asked before each call, instead of comparing tokens."""
        self._source = source
        self._admit = admit
        self._options = options or ServerOptions()
        self._forwarding = forwarding
        self._server: grpc.aio.Server | None = None
        self._health: health.aio.HealthServicer | None = None
        self._threads: ThreadPoolExecutor | None = None
        #: The port that the server listens on, and the additional one with TLS, after `start`.
        self.port = self.tls_port = 0

    @property
    def target(self) -> str:
        """`host:port`, as a client needs it."""
        return _address(self._options.host, self.port)

    @property
    def tls_target(self) -> str:
        """The same for the additional port with TLS."""
        return _address(self._options.host, self.tls_port)

    async def start(self) -> None:
        """Listen and serve.

        Raises BindError if it cannot listen on the address. Raises OSError or ssl.SSLError (an
        OSError too) if a TLS file is missing or certificate and key do not belong together.
        """
        assert self._server is None, "started twice"
        options = self._options
        credentials = server_credentials(options.tls) if options.tls else None
        server = grpc.aio.server(
            interceptors=self._interceptors(),
            # Above the service's own limits, which count calls, streams and ended streams apart.
            maximum_concurrent_rpcs=sum(
                (options.max_concurrent_calls, options.max_streams, MAX_LINGERING, SPARE_CALLS)
            ),
            options=(
                # Without this, two servers on one port would share its connections at random.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
                ("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION),
                ("grpc.http2.min_ping_interval_without_data_ms", _CLIENT_PING_INTERVAL_MS),
                ("grpc.keepalive_time_ms", _PING_INTERVAL_MS),
                ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
                ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
                ("grpc.keepalive_permit_without_calls", 1),
            ),
        )
        if options.tls_port is not None:
            assert credentials is not None, "a port with TLS needs `tls`"
            self.tls_port = _bind(server, options.host, options.tls_port, credentials)
            credentials = None
        if options.port is not None:
            self.port = _bind(server, options.host, options.port, credentials)
        self._threads = ThreadPoolExecutor(options.search_threads, "pulsemark-seek")
        await self._register(server)
        await server.start()
        self._server = server
        if _has_tokens(options) and not options.tls and not is_loopback(options.host):
            _log.warning(
                "gRPC on %s accepts its token without TLS, so others on the network can read it: "
                "configure a certificate and a key",
                self.target,
            )
        _log.info("gRPC seek service listens on %s", self.target)

    def _interceptors(self) -> tuple[grpc.aio.ServerInterceptor, ...]:
        admit = self._admit
        if admit is None and _has_tokens(self._options):
            admit = partial(_admit_bearer, self._options.token, self._options.control_token)
        return () if admit is None else (_AdmissionGate(admit),)

    async def _register(self, server: grpc.aio.Server) -> None:
        assert self._threads is not None
        servicer = SeekServicer(
            self._source,
            executor=self._threads,
            max_calls=self._options.max_concurrent_calls,
            streams=StreamSlots(self._options.max_streams, self._options.stream_stall_timeout_s),
            may_append=self._options.control_token is not None or self._admit is not None,
            forwarding=self._forwarding,
        )
        server.add_generic_rpc_handlers((handler(servicer),))
        self._health = health.aio.HealthServicer()
        await self._health.set(rpc.SERVICE_NAME, health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (rpc.SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)

    async def stop(self, grace_s: float | None = None) -> None:
        """Refuse new calls, and stop after `grace_s` (default: the options') for running ones."""
        server, self._server = self._server, None
        if server is None:
            return
        assert self._health is not None
        assert self._threads is not None
        await self._health.enter_graceful_shutdown()
        await server.stop(self._options.stop_grace_s if grace_s is None else grace_s)
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._forwarding is not None:
            await self._forwarding.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def _has_tokens(options: ServerOptions) -> bool:
    return options.token is not None or options.control_token is not None


def _bind(
    server: grpc.aio.Server, host: str, wanted: int, credentials: grpc.ServerCredentials | None
) -> int:
    address = _address(host, wanted)
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise BindError(host, wanted) from error
    if port == 0:  # older versions of grpcio report a failure in this way
        raise BindError(host, wanted)
    return int(port)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """The server's certificate chain and key (PEM files).

    With `client_ca`, only clients with a certificate from it are accepted. With `refresh_check_s`,
    files that have changed are read again, at a handshake, at most once in so many seconds.
    """

    certificate: str | os.PathLike[str]
    key: str | os.PathLike[str]
    client_ca: str | os.PathLike[str] | None = None
    refresh_check_s: float | None = None


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Make gRPC's credentials of the files. Raises OSError, also for files that do not match."""
    files = tls.certificate, tls.key, tls.client_ca
    interval_s = math.inf if tls.refresh_check_s is None else tls.refresh_check_s
    latest = Renewed("gRPC", files, partial(_configuration, tls), OSError, interval_s)
    first = known = latest()

    def renewed() -> Any:
        """Called by gRPC at each handshake, on threads of its own: the new files, or None."""
        nonlocal known
        before, known = known, latest()
        return None if known is before else known

    return grpc.dynamic_ssl_server_credentials(first, renewed, tls.client_ca is not None)


def _configuration(tls: ServerTls) -> Any:
    # gRPC notices a key that does not fit only at the first handshake, and reports no error.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key, password="")
    if tls.client_ca is not None:
        context.load_verify_locations(tls.client_ca)
    return grpc.ssl_server_certificate_configuration(
        [(Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes())],
        root_certificates=None if tls.client_ca is None else Path(tls.client_ca).read_bytes(),
    )


LogOf = Callable[[Any, str], Any]
"""What is read as a topic's log, from a reader and the topic's name. It has `first_index` and
`refresh`, as the logs of a `FolderReader`."""


class FolderSource(TopicSource):
    """The topics of a data folder, for `SeekServer`. The last MAX_TOPICS used ones stay loaded.

    Raises ForeignFolderError, UnsupportedVersionError.
    """

    def __init__(
        self,
        folder: Path | BookKeeperReader,
        log_of: LogOf | None = None,
        normalise: Callable[[str], str] = full_name,
    ) -> None:
        """``folder``: the path of one, or the reader of another store, which is then closed.

        ``log_of``: what is read as a topic's log; None: the log itself. `log_of_folder` of
        `compaction.current_view` gives the compacted form of topics that are cleaned as Kafka's.

        ``normalise``: turns a topic name as clients write it into a full name; raises ValueError.
        """
        self._normalise = normalise
        self._reader: Any = FolderReader(folder) if isinstance(folder, Path) else folder
        self._log_of: LogOf = log_of or type(self._reader).log
        self._logs: Lru[str, tuple[Any, int]] = Lru(MAX_TOPICS)
        """Each with its first index when it was opened."""
        self._folder = folder if isinstance(folder, Path) else None
        self._expected, self._expected_stamp = Expected(), cast("int | None", None)

    def log(self, topic: str) -> Any:
        """The topic as it is on disk now. Raises TopicNotFoundError."""
        known = self._logs.get(topic)
        if known is not None:
            log, first_index = known
            log.refresh()
            # The first cleaning of a log removes its head.
            if log.first_index == first_index:
                return log
        log = self._log_of(self._reader, topic)
        self._logs.put(topic, (log, log.first_index))
        return log

    def ends(self, topic: str) -> LogEnds:
        """The ends of the topic, by all that the folder's files say. Raises TopicNotFoundError."""
        reader, log, folder = self._reader, self.log(topic), self._folder
        if folder is None or not isinstance(reader, FolderReader):
            return LogEnds(log.next_index)
        written = log if isinstance(log, TopicLog) else log.log
        follow_transactions(folder, [written])
        stamp = reader.names_stamp()
        if stamp is None or stamp != self._expected_stamp:
            self._expected, self._expected_stamp = expected_of(reader, folder), stamp
        if isinstance(log, TopicLog):
            return ends_of(log, self._expected)
        lost_after = self._expected.lost_after(log.log)
        return LogEnds(log.next_index, lost_after=lost_after, has_holes=True)

    def full_name(self, topic: str) -> str:
        """The full name. Raises ValueError."""
        return self._normalise(topic)

    def close(self) -> None:
        """Close the folder's files."""
        self._reader.close()


@contextlib.asynccontextmanager
async def folder_server(
    folder: Path | BookKeeperReader,
    options: ServerOptions | None = None,
    *,
    normalise: Callable[[str], str] = full_name,
    log_of: LogOf | None = None,
) -> AsyncIterator[SeekServer]:
    """A server over a data folder. Raises as FolderSource and SeekServer.start."""
    source = await asyncio.to_thread(FolderSource, folder, log_of, normalise)
    try:
        async with SeekServer(source, options) as server:
            yield server
    finally:
        await asyncio.to_thread(source.close)


@dataclass(frozen=True, slots=True)
class Caller:
    """The method and the caller, as the call states them."""

    #: Such as `SeekByTime`; the whole path for calls of other services.
    method: str
    #: The call's metadata, by names in lower case. One that came several times is left out.
    headers: Mapping[str, str]
    #: The common name of the client's certificate, which TLS verified.
    common_name: str | None


class CallRefusedError(Exception):
    """A call is refused, with a status and a text for the caller."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


#: The seconds until the caller's credentials expire; None: never. Raises CallRefusedError. The
#: request is None for calls of other services.
Admit: TypeAlias = Callable[[Caller, Any], Awaitable[float | None]]
Check: TypeAlias = Callable[[Any, Context], Awaitable[float | None]]


async def _admit_bearer(token: str | None, control: str | None, caller: Caller, _: Any) -> None:
    """Admit calls with one of the tokens. Raises CallRefusedError."""
    given = caller.headers.get("authorization", "").encode()
    is_known, is_all = (
        wanted is not None and hmac.compare_digest(given, rpc.bearer(wanted).encode())
        for wanted in (token, control)
    )
    if is_all:
        return
    is_control = control is not None and caller.method == "AppendControl"
    if is_control and is_known:
        text = "the bearer token is not for AppendControl"
        raise CallRefusedError(grpc.StatusCode.PERMISSION_DENIED, text)
    if not is_known and (is_control or token is not None):
        text = "a bearer token is needed in 'authorization'"
        raise CallRefusedError(grpc.StatusCode.UNAUTHENTICATED, text)


class _AdmissionGate(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets a call begin after `admit` has returned; health checks need no admission."""

    def __init__(self, admit: Admit) -> None:
        self._admit = admit

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """The call's handler, which asks first."""
        found = await continuation(details)
        if found is None or details.method.startswith(HEALTH_PREFIX):
            return found
        method, headers = details.method, _headers(details.invocation_metadata)
        method = method.removeprefix(PREFIX)

        async def check(request: Any, context: Context) -> float | None:
            caller = Caller(method, headers, _common_name(context))
            try:
                return await self._admit(caller, request)
            except CallRefusedError as refusal:
                await context.abort(refusal.code, refusal.text, ())
                raise AssertionError("abort raises") from refusal

        return _guarded(found, check)


def _guarded(handler: grpc.RpcMethodHandler, check: Check) -> grpc.RpcMethodHandler:
    """The handler with a check before it, for unary calls and streams of answers."""
    codec = {
        "request_deserializer": handler.request_deserializer,
        "response_serializer": handler.response_serializer,
    }
    if handler.unary_unary is not None:
        single = _awaited(handler.unary_unary, check)
        return grpc.unary_unary_rpc_method_handler(single, **codec)
    if handler.unary_stream is not None:
        # It writes to the context, and yields nothing.
        writing = _awaited(handler.unary_stream, check)
        return grpc.unary_stream_rpc_method_handler(writing, **codec)

    async def both_ways(requests: Any, context: Context) -> AsyncIterator[Any]:
        async with _admitted(check, None, context):
            async for answer in handler.stream_stream(requests, context):
                yield answer

    return grpc.stream_stream_rpc_method_handler(both_ways, **codec)


@contextlib.asynccontextmanager
async def _admitted(check: Check, request: Any, context: Context) -> AsyncIterator[None]:
    """A call, which ends when its credentials expire."""
    left_s = await check(request, context)
    try:
        async with asyncio.timeout(left_s):
            yield
    except TimeoutError:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, EXPIRED, ())


def _awaited(
    call: Callable[[Any, Context], Awaitable[Any]], check: Check
) -> Callable[[Any, Context], Awaitable[Any]]:
    async def checked(request: Any, context: Context) -> Any:
        async with _admitted(check, request, context):
            return await call(request, context)

    return checked


def _headers(metadata: Any) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for name, value in metadata or ():
        if isinstance(value, str):
            found.setdefault(name.lower(), []).append(value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _common_name(context: Context) -> str | None:
    names = context.auth_context().get(COMMON_NAME, ())
    return names[-1].decode("utf-8", "replace") if names else None
