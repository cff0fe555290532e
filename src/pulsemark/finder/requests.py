"""What both clients of the seek service share: targets, times, requests and errors.

Here a time is checked and a request is made, so that `SeekClient` and `AsyncSeekClient` accept and
refuse the same arguments. Times are unix milliseconds or a `datetime` with a zone.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import grpc

from ..ledger import Position
from ..proto import seek_pb2 as pb
from . import messages, rpc
from .errors import BlockingCallError, ClientClosedError, InvalidFieldError
from .search import SearchMethod

HIGHEST_PORT = 65_535

CHANNEL_OPTIONS = (
    # As in Pulsar's clients, a proxy for web traffic is not used here.
    ("grpc.enable_http_proxy", 0),
    # A stream without a deadline must notice if its server is gone.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """How to trust the server, and this client's own certificate if the server asks (PEM files).

    If ``ca`` is None, the machine's own trust store is used. If ``server_name`` is given, it is
    checked against the server's certificate instead of the target's host.
    """

    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key must be given together, but one is missing")


@dataclass(frozen=True, slots=True)
class CursorPlace:
    """The place of a subscription after a reset.

    ``position`` is the position of the next entry to read. ``batch_index`` is the place of the
    wanted message in it (0 unless the reset was by index). ``end`` is True if there is no entry
    left to read now.
    """

    position: Position
    batch_index: int
    end: bool


def refuse_on_a_loop(call: str) -> None:
    """Raise BlockingCallError if this thread runs an asyncio loop, which the call would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise BlockingCallError(call)


def checked_target(target: str) -> str:
    """The target, if it is HOST:PORT (an IPv6 host in brackets).

    Raises InvalidFieldError if it is not: without a port gRPC would try port 443.
    """
    host, _, port = target.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) <= HIGHEST_PORT
    is_host = ":" not in host or (host.startswith("[") and host.endswith("]"))
    if not (is_port and host and is_host):
        raise InvalidFieldError("target", f"{target!r} is not of the form HOST:PORT")
    return target


def channel_options(tls: ClientTls | None) -> list[tuple[str, str | int]]:
    """The options of a channel."""
    options: list[tuple[str, str | int]] = list(CHANNEL_OPTIONS)
    if tls is not None and tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options


def channel_credentials(tls: ClientTls) -> grpc.ChannelCredentials:
    """The certificates of a channel with TLS. Raises OSError for a file that cannot be read."""
    return grpc.ssl_channel_credentials(
        root_certificates=Path(tls.ca).read_bytes() if tls.ca else None,
        private_key=Path(tls.key).read_bytes() if tls.key else None,
        certificate_chain=Path(tls.certificate).read_bytes() if tls.certificate else None,
    )


def milliseconds(time: int | datetime, field: str) -> int:
    """A time as unix milliseconds; between two milliseconds it is the later one.

    Raises TypeError for another type, InvalidFieldError for a datetime without a zone.
    """
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise InvalidFieldError(field, f"{time} has no zone; add one, such as tzinfo=UTC")
        # Rounded up, because no entry's time is between two milliseconds.
        return -((_EPOCH - time) // timedelta(milliseconds=1))
    return whole_number(time, field, "unix milliseconds as an int, or a datetime with a zone")


def whole_number(value: object, field: str, wanted: str = "an int") -> int:
    """The value; raises TypeError if it is not an int, InvalidFieldError beyond 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field} must be {wanted}, not {type(value).__name__} ({value!r})")
    if not -(2**63) <= value < 2**63:
        raise InvalidFieldError(field, f"{value} is beyond 64 bits")
    return value


def by_time_request(topic: str, time: int | datetime, method: SearchMethod) -> Any:
    """The request of `by_time`."""
    return pb.SeekByTimeRequest(
        topic=topic,
        time_ms=milliseconds(time, "time_ms"),
        method=messages.method_number(method),
    )


def by_index_request(topic: str, index: int, method: SearchMethod) -> Any:
    """The request of `by_index`."""
    return pb.SeekByIndexRequest(
        topic=topic, index=whole_number(index, "index"), method=messages.method_number(method)
    )


def range_request(
    topic: str, start: int | datetime, end: int | datetime, method: SearchMethod
) -> Any:
    """The request of `range`."""
    return pb.RangeRequest(
        topic=topic,
        from_ms=milliseconds(start, "from_ms"),
        to_ms=milliseconds(end, "to_ms"),
        method=messages.method_number(method),
    )


def read_request(
    topic: str,
    places: tuple[Position | None, Position | None],
    max_entries: int | None,
    *,
    prefixes_only: bool,
    control_only: bool,
) -> Any:
    """The request of `read_entries`; ``places`` are its start and its end."""
    request = pb.ReadEntriesRequest(
        topic=topic,
        max_entries=max_entries or 0,
        content=pb.CONTENT_PREFIXES if prefixes_only else pb.CONTENT_ENTRIES,
        control_only=control_only,
    )
    start, end = places
    if start is not None:
        request.start.CopyFrom(rpc.position_message(start))
    if end is not None:
        request.end.CopyFrom(rpc.position_message(end))
    return request


def reset_request(
    topic: str,
    subscription: str,
    time: int | datetime | None,
    index: int | None,
    position: Position | None,
) -> Any:
    """The request of `reset_cursor`. Raises ValueError unless exactly one target is given."""
    if sum(target is not None for target in (time, index, position)) != 1:
        raise ValueError("give exactly one of time_ms, index and position")
    request = pb.ResetCursorRequest(
        topic=topic,
        subscription=subscription,
        time_ms=None if time is None else milliseconds(time, "time_ms"),
        index=None if index is None else whole_number(index, "index"),
    )
    if position is not None:
        request.position.CopyFrom(rpc.position_message(position))
    return request


def audit_request(
    topic: str, by: Any, start: int | datetime | None, end: int | datetime | None
) -> Any:
    """The request of `audit`."""
    return pb.AuditRequest(
        topic=topic,
        by=by,
        from_ms=None if start is None else milliseconds(start, "from_ms"),
        to_ms=None if end is None else milliseconds(end, "to_ms"),
    )


def cursor_place(response: Any) -> CursorPlace:
    """The answer of `reset_cursor`."""
    return CursorPlace(rpc.position_of(response.position), response.batch_index, response.end)


def raised(error: Any) -> Exception:
    """The error of a gRPC call that failed, as `rpc.decode` reads it."""
    return rpc.decode(error.code(), error.details() or "", error.trailing_metadata() or ())


class SeekStubs:
    """A channel with a stub for each call of the seek service."""

    #: The module that makes channels: `grpc` or `grpc.aio`.
    _grpc: ClassVar[Any]

    def __init__(
        self,
        target: str,
        *,
        token: str | None = None,
        tls: ClientTls | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self._timeout_s = timeout_s
        self._is_closed = False
        self._metadata = (("authorization", rpc.bearer(token)),) if token is not None else ()
        self._channel = self._open_channel(checked_target(target), tls)
        self._by_time = self._unary("SeekByTime")
        self._by_index = self._unary("SeekByIndex")
        self._range = self._unary("Range")
        self._reset_cursor = self._unary("ResetCursor")
        self._append_control = self._unary("AppendControl")
        self._epochs = self._unary("Epochs")
        self._audit = self._unary("Audit")
        self._read_entries = self._stream("ReadEntries")
        self._follow_state = self._stream("FollowState")

    def _open_channel(self, target: str, tls: ClientTls | None) -> Any:
        options = channel_options(tls)
        if tls is None:
            return self._grpc.insecure_channel(target, options)
        return self._grpc.secure_channel(target, channel_credentials(tls), options)

    def _started(self, call: Any, request: Any, timeout_s: float | None) -> Any:
        """Start a call. Raises ClientClosedError."""
        if self._is_closed:
            raise ClientClosedError
        try:
            return call(request, timeout=timeout_s, metadata=self._metadata)
        except ValueError as error:  # grpc's, if another thread has closed the client meanwhile
            if self._is_closed:
                raise ClientClosedError from error
            raise

    def _unary(self, method: str) -> Any:
        return self._channel.unary_unary(rpc.path(method), **rpc.client_codec(method))

    def _stream(self, method: str) -> Any:
        return self._channel.unary_stream(rpc.path(method), **rpc.client_codec(method))
