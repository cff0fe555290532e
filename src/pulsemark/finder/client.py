"""A typed client of the seek service, for synchronous code.

    with SeekClient("127.0.0.1:6680") as seek:
        found = seek.by_time("persistent://public/default/orders", yesterday_ms)

The calls have the same names as those of `Finder`, return the same dataclasses and raise the same
errors. So the same code works with a local folder and with a remote server. Errors of the network
call itself derive from `SeekCallError`. Several threads may share one client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ..audit.report import Report
from ..ledger import EpochHistory, LedgerExtent, Position
from ..maintenance.expected import LogEnds
from ..proto import seek_pb2 as pb
from ..proto.broker_entry_pb2 import ControlType
from . import messages, requests, rpc
from .errors import SeekCallError
from .following import StoreState, state_of_answer
from .messages import (
    ControlAppended,
    ControlRequest,
    EntryAssembler,
    RemoteEntry,
    appended_of,
    ends_of_answer,
    history_of,
    ledgers_of,
    request_message,
)
from .requests import CursorPlace, SeekStubs
from .search import Found, IndexPlace, IndexRange, SearchMethod


class SeekClient(SeekStubs):
    """Calls a seek server at ``target`` ("host:port").

    Raises InvalidFieldError (a ValueError) for another target, ValueError for a token that a header
    cannot hold, OSError for a TLS file that cannot be read.

    Times are unix milliseconds or a `datetime` with a zone; another type raises TypeError.

    Calls block, so asyncio code uses `AsyncSeekClient`: in a thread that runs an asyncio loop a
    call raises BlockingCallError. Every call fails
    after ``timeout_s`` (DeadlineExceededError); only `read_entries` has no time limit unless it is
    given one. All calls can raise TopicNotFoundError, InvalidFieldError, NotPossibleError,
    CorruptEntryError and the subclasses of SeekCallError, ClientClosedError after `close`.
    """

    _grpc = grpc

    def by_time(
        self,
        topic: str,
        time_ms: int | datetime,
        *,
        method: SearchMethod = SearchMethod.INDEX,
        timeout_s: float | None = None,
    ) -> Found:
        """The first entry whose time is >= ``time_ms``; `end` is True if there is no such entry."""
        request = requests.by_time_request(topic, time_ms, method)
        return messages.found_of(self._call(self._by_time, request, timeout_s))

    def by_index(
        self,
        topic: str,
        index: int,
        *,
        method: SearchMethod = SearchMethod.INDEX,
        timeout_s: float | None = None,
    ) -> IndexPlace:
        """The entry that holds the message ``index``, and the message's place in the batch.

        Raises IndexOutOfRangeError for an index that is not (or no longer) in the topic.
        """
        request = requests.by_index_request(topic, index, method)
        return messages.index_place_of(self._call(self._by_index, request, timeout_s))

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
        request = requests.range_request(topic, from_ms, to_ms, method)
        return messages.range_of(self._call(self._range, request, timeout_s))

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
        timeout_s: float | None = None,
    ) -> Iterator[RemoteEntry]:
        """The entries from ``start`` (default: the first) to before ``end`` (default: all), lazily.

        With ``control_only`` only control entries come, and only they count for ``max_entries``;
        `control_of(entry.prefix)` says what they are. ``stored`` is for followers: the log itself,
        not its compacted form. The call starts when the first entry is read.
        Leaving the loop early ends it on the server too. Raises CorruptEntryError at a damaged
        entry, after all entries before it.
        """
        requests.refuse_on_a_loop("read_entries")
        request = requests.read_request(
            topic,
            (start, end),
            max_entries,
            prefixes_only=prefixes_only,
            control_only=control_only,
        )
        request.stored = stored
        assembler = EntryAssembler(prefixes_only=prefixes_only)
        call = self._started(self._read_entries, request, timeout_s)
        try:
            for response in call:
                for piece in response.pieces:
                    entry = assembler.add(piece)
                    if entry is not None:
                        yield entry
        except grpc.RpcError as error:
            raise requests.raised(error) from error
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

        Raises SubscriptionNotFoundError, CursorBusyError, IndexOutOfRangeError.
        """
        request = requests.reset_request(topic, subscription, time_ms, index, position)
        return requests.cursor_place(self._call(self._reset_cursor, request, timeout_s))

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
        return appended_of(
            self._call(self._append_control, request_message(topic, request), timeout_s)
        )

    def epochs(self, topic: str, *, timeout_s: float | None = None) -> EpochHistory:
        """Where each leader epoch of a topic begins, and where the last one ends.

        `ledger.common_point` compares the epochs of two logs.
        """
        return history_of(self._call(self._epochs, pb.EpochsRequest(topic=topic), timeout_s))

    def history(
        self, topic: str, *, timeout_s: float | None = None
    ) -> tuple[EpochHistory, tuple[LedgerExtent, ...]]:
        """A topic's epochs, and its ledgers: for `ledger.common_point` and `ledger.common_end`."""
        answer = self._call(self._epochs, pb.EpochsRequest(topic=topic, stored=True), timeout_s)
        return history_of(answer), ledgers_of(answer)

    def follow_state(
        self, known_digest: bytes = b"", *, timeout_s: float | None = None
    ) -> StoreState:
        """What a follower needs beside the entries. Raises NotPossibleError."""
        requests.refuse_on_a_loop("follow_state")
        request = pb.FollowStateRequest(known_digest=known_digest)
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            answer = self._started(self._follow_state, request, limit_s)
            return state_of_answer(answer, known_digest)
        except grpc.RpcError as error:
            raise requests.raised(error) from error

    def ends(self, topic: str, *, timeout_s: float | None = None) -> LogEnds:
        """Where a topic ends, and why messages before its first or after its last one are lost."""
        request = pb.EpochsRequest(topic=topic)
        return ends_of_answer(self._call(self._epochs, request, timeout_s))

    def audit(
        self,
        topic: str,
        by: Sequence[str] = (),
        *,
        from_ms: int | datetime | None = None,
        to_ms: int | datetime | None = None,
        timeout_s: float | None = None,
    ) -> Report:
        """What the broker counted of a topic, by time and tags, with all that is durable now.

        ``by`` are some of the tags that it counts by. Raises NotPossibleError if it keeps no audit.
        """
        request = requests.audit_request(topic, by, from_ms, to_ms)
        answer = self._call(self._audit, request, timeout_s)
        return messages.report_of(topic, answer)

    def is_serving(self, *, timeout_s: float | None = None) -> bool:
        """Whether the server says that it accepts calls (grpc.health.v1); needs no token."""
        stub = health_pb2_grpc.HealthStub(self._channel)
        request = health_pb2.HealthCheckRequest(service=rpc.SERVICE_NAME)
        response = self._call(stub.Check, request, timeout_s)
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    def close(self) -> None:
        """Close the connection. Running calls fail; later ones raise ClientClosedError."""
        self._is_closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _call(
        self, call: grpc.UnaryUnaryMultiCallable, request: Any, timeout_s: float | None
    ) -> Any:
        requests.refuse_on_a_loop("a call")
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            return self._started(call, request, limit_s)
        except grpc.RpcError as error:
            raise requests.raised(error) from error
