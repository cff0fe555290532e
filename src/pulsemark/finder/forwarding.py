"""Forwards calls to the server that has their topic, where several share the topics.

A server with only a part of the topics gets a `Forwarding`. It finds the owner of a topic, and
sends the call on with the caller's metadata: every server on the way, and the one that answers,
checks the caller's credentials.

- A call goes on at most MAX_HOPS times. A server that is not the owner yet may be asked to become
it
  (`pulsemark-authoritative`), as a lookup does.
- The caller's deadline goes with the call, and its end ends the call everywhere.
- The server shows no certificate of its own, because the permissions that it grants are not the
  caller's. So with servers that ask for certificates, a call over TLS is not sent on: its caller is
  told whom to ask.
- A call that came over TLS is sent on over TLS only.
- Unary calls share a connection to each server. Each stream has one of its own: a receiver that
does
  not read must not hold up others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

from . import rpc
from .client import CHANNEL_OPTIONS
from .errors import InvalidFieldError, NotPossibleError, ServerUnavailableError

HOPS_HEADER = "pulsemark-hops"
AUTHORITATIVE_HEADER = "pulsemark-authoritative"
#: The metadata that identifies the caller of a forwarded call.
SENT_ON = ("authorization", "x-original-principal", "x-pulsar-auth-method-name")
MAX_HOPS = 4
MAX_CHANNELS = 64
CLOSE_GRACE_S = 30.0
#: A server that has been restarted must be found again soon.
OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
#: A stream has a connection of its own, and reads no more ahead than its receiver takes soon.
STREAM_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 262_144),
)
_TLS = b"ssl"


@dataclass(frozen=True, slots=True)
class Owner:
    """The server of a topic: `host:port` without and with TLS, "" if it has none."""

    name: str
    target: str = ""
    tls_target: str = ""
    #: Whether the server was chosen to take the topic over.
    authoritative: bool = False


Context: TypeAlias = grpc.aio.ServicerContext

FindOwner = Callable[[str, bool], Awaitable[Owner | None]]
"""The server of a topic, by its full name; None: this one. The second argument says that another
server has chosen this one. Raises ServerUnavailableError, TopicNotFoundError, NotPossibleError."""


class ForwardedError(Exception):
    """Another server has refused a call, with this status."""

    def __init__(self, code: grpc.StatusCode, text: str, trailers: rpc.Metadata) -> None:
        super().__init__(text)
        self.status = (code, text, trailers)


class Forwarding:
    """Finds the servers of topics, and forwards calls. On one event loop."""

    def __init__(
        self,
        find: FindOwner,
        *,
        roots: Callable[[], bytes | None] = lambda: None,
        asks_for_certificates: bool = False,
    ) -> None:
        """`roots`: CA certificates (PEM) for servers; None: the machine's own."""
        self._find = find
        self._roots = roots
        self._asks = asks_for_certificates
        self._channels: OrderedDict[tuple[str, bool], Any] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    async def owner(self, topic: str, context: Context) -> Owner | None:
        """The topic's server; None: this one. Raises ServerUnavailableError, NotPossibleError."""
        hops = _hops(context)
        authoritative = "true" in _sent(context, AUTHORITATIVE_HEADER)
        found = await self._find(topic, authoritative)
        if found is not None and hops >= MAX_HOPS:
            text = f"{topic} is on its way from one broker to another"
            raise ServerUnavailableError(grpc.StatusCode.UNAVAILABLE.name, text)
        return found

    async def call(self, owner: Owner, method: str, request: Any, context: Context) -> Any:
        """The other server's answer to a unary call. Raises ForwardedError, NotPossibleError."""
        place = self._place(owner, context)
        stub = self._channel(*place).unary_unary(rpc.path(method), **rpc.client_codec(method))
        try:
            return await stub(request, **_beside(owner, context))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                self._forget(place)
            raise _refused(error) from error

    async def stream(
        self, owner: Owner, method: str, request: Any, context: Context
    ) -> AsyncGenerator[Any, None]:
        """The other server's answers. Raises as `call`."""
        channel = self._open(*self._place(owner, context), *STREAM_OPTIONS)
        stub = channel.unary_stream(rpc.path(method), **rpc.client_codec(method))
        call = stub(request, **_beside(owner, context))
        try:
            # Not `async for`: a call that is left in the middle of one is garbage in a cycle, with
            # megabytes that wait for the collector.
            while (response := await call.read()) is not grpc.aio.EOF:
                yield response
        except grpc.aio.AioRpcError as error:
            raise _refused(error) from error
        finally:
            call.cancel()  # else it would stay, with what it has received, though its channel ends
            await channel.close()

    async def close(self) -> None:
        """Close all connections."""
        channels = list(self._channels.values())
        self._channels.clear()
        await asyncio.gather(*(channel.close() for channel in channels))
        for task in tuple(self._closing):
            task.cancel()

    def _place(self, owner: Owner, context: Context) -> tuple[str, bool]:
        """The address to connect to, and whether with TLS. Raises NotPossibleError."""
        came_by_tls = _TLS in context.auth_context().get("transport_security_type", ())
        if owner.target and not came_by_tls:
            return owner.target, False
        if not owner.tls_target:
            what = "no gRPC port with TLS" if owner.target else "no gRPC port"
            raise NotPossibleError(f"the topic is served by {owner.name}, which has {what}")
        if self._asks:
            reason = "calls of callers with certificates are not sent on"
            raise NotPossibleError(
                f"the topic is served by {owner.name}: ask it at {owner.tls_target}; {reason}"
            )
        return owner.tls_target, True

    def _channel(self, target: str, with_tls: bool) -> Any:
        key = target, with_tls
        if key not in self._channels:
            self._channels[key] = self._open(target, with_tls)
            if len(self._channels) > MAX_CHANNELS:
                self._forget(next(iter(self._channels)))
        self._channels.move_to_end(key)
        return self._channels[key]

    def _open(self, target: str, with_tls: bool, *options: tuple[str, int]) -> Any:
        chosen = (*OPTIONS, *options)
        if not with_tls:
            return grpc.aio.insecure_channel(target, chosen)
        credentials = grpc.ssl_channel_credentials(self._roots())
        return grpc.aio.secure_channel(target, credentials, chosen)

    def _forget(self, key: tuple[str, bool]) -> None:
        """Connect again with the next call; running calls may end."""
        channel = self._channels.pop(key, None)
        if channel is not None:
            task = asyncio.ensure_future(channel.close(CLOSE_GRACE_S))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def _sent(context: Context, name: str) -> list[str]:
    found = [value for key, value in context.invocation_metadata() or () if key == name]
    return [value for value in found if isinstance(value, str)]


def _hops(context: Context) -> int:
    """How often the call was forwarded. Raises InvalidFieldError."""
    sent = _sent(context, HOPS_HEADER)
    if not sent:
        return 0
    if len(sent) > 1 or sent[0] not in map(str, range(MAX_HOPS + 1)):
        raise InvalidFieldError(HOPS_HEADER, "is set by brokers, to a small number")
    return int(sent[0])


def _beside(owner: Owner, context: Context) -> dict[str, Any]:
    """The deadline and metadata of a forwarded call."""
    kept = [(name, value) for name in SENT_ON for value in _sent(context, name)]
    added = [(HOPS_HEADER, str(_hops(context) + 1))]
    if owner.authoritative:
        added.append((AUTHORITATIVE_HEADER, "true"))
    return {"metadata": (*kept, *added), "timeout": context.time_remaining()}


def _refused(error: grpc.aio.AioRpcError) -> ForwardedError:
    code = error.code()
    if code is grpc.StatusCode.CANCELLED:  # by the other server, which ends
        code = grpc.StatusCode.UNAVAILABLE
    details = [(key, value) for key, value in error.trailing_metadata() if key == rpc.DETAILS_KEY]
    return ForwardedError(code, error.details() or "", tuple(details))
