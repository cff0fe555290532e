"""A typed client of the seek service.

    with SeekClient("127.0.0.1:6680") as seek:
        found = seek.by_time("persistent://public/default/orders", yesterday_ms)

The calls have the same names as those of `Finder`, return the same dataclasses and raise the same
errors. So the same code works with a local folder and with a remote server. Errors of the network
call itself derive from `SeekCallError`. Several threads may share one client.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ..audit.report import Report
from ..ledger import EpochHistory, LedgerExtent, Position
from ..maintenance.expected import LogEnds
from ..proto import seek_pb2 as pb
from ..proto.broker_entry_pb2 import ControlType
from . import messages, rpc
from .errors import BlockingCallError, ClientClosedError, InvalidFieldError, SeekCallError
from .following import VERSIONS, StoreState, state_of_answer
from .messages import (
    ControlAppended,
    ControlRequest,
    EntryAssembler,
    RemoteEntry,
    ends_of_answer,
    history_of,
    request_message,
)
from .search import Found, IndexPlace, IndexRange, SearchMethod

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
    """The position of a subscription after a reset: the next entry to read.

    ``batch_index`` is the wanted message in it (0 unless the reset was by index). ``end``: there is
    no entry left to read now.
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
    """A target HOST:PORT. Raises InvalidFieldError without a port: gRPC would try 443."""
    host, _, port = target.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) <= HIGHEST_PORT
    is_host = ":" not in host or (host.startswith("[") and host.endswith("]"))
    if not (is_port and host and is_host):
        raise InvalidFieldError("target", f"{target!r} is not of the form HOST:PORT")
    return target


def channel_to(target: str, tls: ClientTls | None) -> Any:
    """A channel to a target. Raises InvalidFieldError, OSError for an unreadable file."""
    options: list[tuple[str, str | int]] = list(CHANNEL_OPTIONS)
    if tls is None:
        return grpc.insecure_channel(checked_target(target), options)
    if tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    credentials = grpc.ssl_channel_credentials(
        root_certificates=Path(tls.ca).read_bytes() if tls.ca else None,
        private_key=Path(tls.key).read_bytes() if tls.key else None,
        certificate_chain=Path(tls.certificate).read_bytes() if tls.certificate else None,
    )
    return grpc.secure_channel(checked_target(target), credentials, options)


def milliseconds(time: int | datetime, field: str) -> int:
    """A time as unix milliseconds, rounded up.

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


def raised(error: Any) -> Exception:
    """The error of a gRPC call that failed, as `rpc.decode` reads it."""
    return rpc.decode(error.code(), error.details() or "", error.trailing_metadata() or ())


class SeekClient:
    """Calls a seek server at ``target`` ("host:port").

    Raises InvalidFieldError (a ValueError) for another target, ValueError for a token that a header
    cannot hold, OSError for a TLS file that cannot be read.

    Times are unix milliseconds or a `datetime` with a zone; another type raises TypeError.

    Calls block, so asyncio code makes them with `asyncio.to_thread`: in a thread that runs an
    asyncio loop a call raises BlockingCallError. Every call fails after ``timeout_s``
    (DeadlineExceededError); only `read_entries` has no time limit unless it is given one.

    All calls can raise TopicNotFoundError, InvalidFieldError, NotPossibleError, CorruptEntryError
    and the subclasses of SeekCallError, ClientClosedError after `close`.
    """

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
        self._channel = channel_to(target, tls)
        self._calls: dict[str, Any] = {
            method.name: self._stub(method.name, is_stream=method.server_streaming)
            for method in rpc.SERVICE.methods
        }
        self._calls["Check"] = health_pb2_grpc.HealthStub(self._channel).Check

    def by_time(
        self,
        topic: str,
        time_ms: int | datetime,
        *,
        method: SearchMethod = SearchMethod.INDEX,
        timeout_s: float | None = None,
    ) -> Found:
        """The first entry whose time is >= ``time_ms``; `end` is True if there is no such entry."""
        request = pb.SeekByTimeRequest(
            topic=topic,
            time_ms=milliseconds(time_ms, "time_ms"),
            method=messages.method_number(method),
        )
        return messages.answer_of(Found, self._call("SeekByTime", request, timeout_s))

    def by_index(
        self,
        topic: str,
        index: int,
        *,
        method: SearchMethod = SearchMethod.INDEX,
        timeout_s: float | None = None,
    ) -> IndexPlace:
        """The message ``index``, with its entry and place in it. Raises IndexOutOfRangeError."""
        request = pb.SeekByIndexRequest(
            topic=topic, index=whole_number(index, "index"), method=messages.method_number(method)
        )
        return messages.answer_of(IndexPlace, self._call("SeekByIndex", request, timeout_s))

    def range(
        self,
        topic: str,
        from_ms: int | datetime,
        to_ms: int | datetime,
        *,
        method: SearchMethod = SearchMethod.INDEX,
        timeout_s: float | None = None,
    ) -> IndexRange:
        """The messages with ``from_ms`` <= time < ``to_ms``, as half-open ranges."""
        request = pb.RangeRequest(
            topic=topic,
            from_ms=milliseconds(from_ms, "from_ms"),
            to_ms=milliseconds(to_ms, "to_ms"),
            method=messages.method_number(method),
        )
        return messages.answer_of(IndexRange, self._call("Range", request, timeout_s))

    def read_entries(
        self,
        topic: str,
        *,
        start: Position | None = None,
        end: Position | None = None,
        max_entries: int | None = None,
        prefixes_only: bool = False,
        control_only: bool = False,
        stored: bool = False,
        uncommitted: bool = False,
        timeout_s: float | None = None,
    ) -> Iterator[RemoteEntry]:
        """The entries from ``start`` (default: the first) to before ``end`` (default: all), lazily.

        With ``control_only`` only control entries come, and only they count for ``max_entries``;
        `control_of(entry.prefix)` says what they are. ``stored`` is for followers: the log itself,
        not its compacted form. ``uncommitted``: also entries of transactions that are open or
        aborted, and those after the first open one. The call starts when the first entry is read.
        Leaving the loop early ends it on the server too. Raises CorruptEntryError at a damaged
        entry, after all entries before it.
        """
        refuse_on_a_loop("read_entries")
        request = pb.ReadEntriesRequest(
            topic=topic,
            max_entries=max_entries or 0,
            content=pb.CONTENT_PREFIXES if prefixes_only else pb.CONTENT_ENTRIES,
            control_only=control_only,
        )
        if start is not None:
            request.start.CopyFrom(rpc.position_message(start))
        if end is not None:
            request.end.CopyFrom(rpc.position_message(end))
        request.stored, request.uncommitted = stored, uncommitted
        assembler = EntryAssembler(prefixes_only=prefixes_only)
        call = self._started("ReadEntries", request, timeout_s)
        try:
            for response in call:
                for piece in response.pieces:
                    entry = assembler.add(piece)
                    if entry is not None:
                        yield entry
        except grpc.RpcError as error:
            raise raised(error) from error
        finally:
            call.cancel()
        if assembler.incomplete:
            raise SeekCallError("INTERNAL", "the answer ended in the middle of an entry")

    def reset_cursor(
        self,
        topic: str,
        subscription: str,
        *,
        time_ms: int | datetime | None = None,
        index: int | None = None,
        position: Position | None = None,
        timeout_s: float | None = None,
    ) -> CursorPlace:
        """Move a subscription to a time, an index or a position: give exactly one of them.

        Raises SubscriptionNotFoundError, CursorBusyError, IndexOutOfRangeError; ValueError unless
        exactly one target is given.
        """
        if sum(target is not None for target in (time_ms, index, position)) != 1:
            raise ValueError("give exactly one of time_ms, index and position")
        request = pb.ResetCursorRequest(
            topic=topic,
            subscription=subscription,
            time_ms=None if time_ms is None else milliseconds(time_ms, "time_ms"),
            index=None if index is None else whole_number(index, "index"),
        )
        if position is not None:
            request.position.CopyFrom(rpc.position_message(position))
        answer = self._call("ResetCursor", request, timeout_s)
        return messages.answer_of(CursorPlace, answer)

    def append_control(
        self,
        topic: str,
        control_type: ControlType,
        name: str = "",
        *,
        tags: Mapping[str, bytes] | None = None,
        epoch: int | None = None,
        timeout_s: float | None = None,
    ) -> ControlAppended:
        """Add a control entry, durably: see `metadata.control` for its parts.

        A change of leader begins the leader epoch ``epoch`` (None: the next one). For other types
        ``epoch`` is the one in which the caller believes to lead. If the call fails without an
        answer, the entry may be stored or not. Raises PermissionDeniedError, UnauthenticatedError,
        StaleEpochError.
        """
        request = ControlRequest(control_type, name, tags or {}, epoch)
        message = request_message(topic, request)
        answer = self._call("AppendControl", message, timeout_s)
        return messages.answer_of(ControlAppended, answer)

    def epochs(self, topic: str, *, timeout_s: float | None = None) -> EpochHistory:
        """The start of each leader epoch of a topic, and the end of the last one."""
        return history_of(self._call("Epochs", pb.EpochsRequest(topic=topic), timeout_s))

    def history(
        self, topic: str, *, timeout_s: float | None = None
    ) -> tuple[EpochHistory, tuple[LedgerExtent, ...]]:
        """A topic's epochs, and its ledgers: for `ledger.common_point` and `ledger.common_end`."""
        answer = self._call("Epochs", pb.EpochsRequest(topic=topic, stored=True), timeout_s)
        ledgers = (messages.answer_of(LedgerExtent, each) for each in answer.ledgers)
        return history_of(answer), tuple(ledgers)

    def follow_state(
        self, known_digest: bytes = b"", *, timeout_s: float | None = None
    ) -> StoreState:
        """The state that a follower needs beside the entries. Raises NotPossibleError."""
        refuse_on_a_loop("follow_state")
        oldest, newest = VERSIONS
        request = pb.FollowStateRequest(
            known_digest=known_digest, oldest_version=oldest, newest_version=newest
        )
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            answer = self._started("FollowState", request, limit_s)
            return state_of_answer(answer, known_digest)
        except grpc.RpcError as error:
            raise raised(error) from error

    def ends(self, topic: str, *, timeout_s: float | None = None) -> LogEnds:
        """A topic's end, and why messages before its first or after its last one are lost."""
        request = pb.EpochsRequest(topic=topic)
        return ends_of_answer(self._call("Epochs", request, timeout_s))

    def audit(
        self,
        topic: str,
        by: Sequence[str] = (),
        *,
        from_ms: int | datetime | None = None,
        to_ms: int | datetime | None = None,
        timeout_s: float | None = None,
    ) -> Report:
        """The broker's counts of a topic by time and tags, with all that is durable now.

        ``by`` are some of the tags that it counts by. Raises NotPossibleError if it keeps no audit.
        """
        request = pb.AuditRequest(
            topic=topic,
            by=by,
            from_ms=None if from_ms is None else milliseconds(from_ms, "from_ms"),
            to_ms=None if to_ms is None else milliseconds(to_ms, "to_ms"),
        )
        answer = self._call("Audit", request, timeout_s)
        return messages.report_of(topic, answer)

    def is_serving(self, *, timeout_s: float | None = None) -> bool:
        """Whether the server says that it accepts calls (grpc.health.v1); needs no token."""
        request = health_pb2.HealthCheckRequest(service=rpc.SERVICE_NAME)
        response = self._call("Check", request, timeout_s)
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    def close(self) -> None:
        """Close the connection. Running calls fail; later ones raise ClientClosedError."""
        self._is_closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: str, request: Any, timeout_s: float | None) -> Any:
        refuse_on_a_loop("a call")
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            return self._started(method, request, limit_s)
        except grpc.RpcError as error:
            raise raised(error) from error

    def _started(self, method: str, request: Any, timeout_s: float | None) -> Any:
        """Start a call. Raises ClientClosedError."""
        if self._is_closed:
            raise ClientClosedError
        try:
            return self._calls[method](request, timeout=timeout_s, metadata=self._metadata)
        except ValueError as error:  # grpc's, if another thread has closed the client meanwhile
            if self._is_closed:
                raise ClientClosedError from error
            raise

    def _stub(self, method: str, *, is_stream: bool) -> Any:
        make = self._channel.unary_stream if is_stream else self._channel.unary_unary
        return make(rpc.path(method), **rpc.client_codec(method))
