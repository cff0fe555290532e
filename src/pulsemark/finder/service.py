"""The seek service's calls, over a source of topics, on asyncio.

Files are read on worker threads, never on the loop. A search takes microseconds if its index and
pages are in memory. But it may need a disk read, or scan a segment at the first call for a folder,
or scan entries without stamps, and this is not known in advance. Using a thread costs only about
0.1 ms, so every search uses one.

A call that is cancelled or past its deadline stops its work: gRPC cancels the handler, the handler
sets a flag, and the thread checks the flag at its next read. So an abandoned scan over gigabytes
does not occupy one of the few threads.

The finder does not depend on the wire protocol, so it does not know Pulsar's short forms of topic
names; a broker or the command line does (`TopicSource.full_name`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from ..ledger import EARLIEST, Position, TopicLog
from ..maintenance.expected import LogEnds
from ..proto import seek_pb2 as pb
from . import messages, rpc
from .errors import InvalidFieldError, NotPossibleError, PermissionDeniedError, ServerFullError
from .following import VERSIONS, StoreState, agreed_version, state_messages
from .forwarding import Context, ForwardedError, Forwarding
from .messages import (
    ControlAppended,
    ControlRequest,
    control_request,
    history_message,
    message_of,
)
from .search import AnyFinder, finder_of
from .stream import ReadPlan, StreamSlots, entry_responses

if TYPE_CHECKING:
    from ..audit.report import Report
    from ..compaction.compacted_log import CompactedLog

_log = logging.getLogger(__name__)

#: The default number of streams at a time, and how long a stream may wait for its receiver.
MAX_CALLS = 256
MAX_STREAMS = 32
STALL_TIMEOUT_S = 30.0
NOT_FOLLOWED = "only a broker that has a whole data folder can be followed"

Answer = TypeVar("Answer")


class TopicSource:
    """The service's source of topics, and of operations on them.

    One that only reads has `log` and `ends`; what only a broker can do raises NotPossibleError
    here. Methods that are no coroutines are called on worker threads, several at a time, and may
    block.
    """

    def log(self, topic: str) -> TopicLog | CompactedLog:
        """The topic's log or its compacted form. Raises TopicNotFoundError, NotPossibleError."""
        raise NotImplementedError

    def ends(self, topic: str) -> LogEnds:
        """The ends of the topic's log, and what is lost beyond them. Raises as `log`."""
        raise NotImplementedError

    def full_name(self, topic: str) -> str:
        """The full name of a topic as clients write it. Raises ValueError for a bad name."""
        return full_name(topic)

    async def reset_cursor(self, topic: str, subscription: str, position: Position) -> None:
        """Move the cursor to the entry at a position, and its connected consumers with it.

        Raises SubscriptionNotFoundError, CursorBusyError, NotPossibleError.
        """
        raise NotPossibleError("this server only reads; the broker can reset cursors")

    async def append_control(self, topic: str, request: ControlRequest) -> ControlAppended:
        """Append a control entry, durably, by the broker's rules (`metadata.control`).

        Raises TopicNotFoundError, NotPossibleError, StaleEpochError, LedgerError.
        """
        raise NotPossibleError("this server only reads; the broker can append")

    async def audit(
        self, topic: str, by: Sequence[str], from_ms: int | None, to_ms: int | None
    ) -> Report:
        """The audit of a topic, by tags, in buckets between two times.

        Raises TopicNotFoundError, InvalidFieldError, or NotPossibleError if no audit is kept.
        """
        raise NotPossibleError("this server only reads; the broker keeps an audit")

    def state(self) -> StoreState:
        """The state that a follower needs beside the entries. Raises NotPossibleError."""
        raise NotPossibleError(NOT_FOLLOWED)

    def stored_log(self, name: str) -> TopicLog:
        """The stored log for followers, not its compacted form; also internal ones.

        Raises TopicNotFoundError, NotPossibleError.
        """
        raise NotPossibleError(NOT_FOLLOWED)


class SearchStoppedError(Exception):
    """The search was stopped, since its caller has gone."""


def full_name(topic: str) -> str:
    """The name function of servers without Pulsar's parser: refuses all but full names."""
    domain, separator, rest = topic.partition("://")
    if not separator or domain not in ("persistent", "non-persistent") or rest.count("/") < 2:
        raise ValueError(f"{topic!r} is not a full name like persistent://public/default/orders")
    return topic


class SeekServicer:
    """The calls of pulsemark.seek.v1.SeekService; `handler` turns their errors into statuses."""

    def __init__(
        self,
        source: TopicSource,
        *,
        executor: Executor,
        max_calls: int = MAX_CALLS,
        streams: StreamSlots | None = None,
        may_append: bool = False,
        forwarding: Forwarding | None = None,
    ) -> None:
        """``may_append``: whether callers may use AppendControl."""
        self._source = source
        self._executor = executor
        #: The number of running single calls, and its limit.
        self._calls = 0
        self._max_calls = max_calls
        self._streams = streams or StreamSlots(MAX_STREAMS, STALL_TIMEOUT_S)
        self._may_append = may_append
        self._forwarding = forwarding

    async def single(
        self,
        name: str,
        call: Callable[[Any, Context], Awaitable[Answer]],
        request: Any,
        context: Context,
    ) -> Answer:
        """Answer a single call, here or at the server of its topic. Raises ServerFullError."""
        if self._calls >= self._max_calls:
            raise ServerFullError(
                f"{self._max_calls} calls are running, which is the limit; try later"
            )
        self._calls += 1
        try:
            if self._forwarding is not None:
                owner = await self._forwarding.owner(self.topic(request.topic), context)
                if owner is not None:
                    answer: Answer = await self._forwarding.call(owner, name, request, context)
                    return answer
            return await call(request, context)
        finally:
            self._calls -= 1

    async def seek_by_time(
        self, request: pb.SeekByTimeRequest, context: Context
    ) -> pb.SeekByTimeResponse:
        """The first entry at or after a time (SeekByTime)."""
        topic = self.topic(request.topic)
        time_ms = messages.required(request, "time_ms")
        method = messages.method_of(request.method)
        found = await self._search(topic, lambda finder: finder.by_time(time_ms, method=method))
        return message_of(pb.SeekByTimeResponse, found)

    async def seek_by_index(
        self, request: pb.SeekByIndexRequest, context: Context
    ) -> pb.SeekByIndexResponse:
        """The entry that holds an index (SeekByIndex)."""
        topic = self.topic(request.topic)
        index = messages.required(request, "index")
        method = messages.method_of(request.method)
        answer = await self._search(topic, lambda finder: finder.by_index(index, method=method))
        return message_of(pb.SeekByIndexResponse, answer)

    async def range(self, request: pb.RangeRequest, context: Context) -> pb.RangeResponse:
        """The indexes between two times (Range)."""
        topic = self.topic(request.topic)
        from_ms = messages.required(request, "from_ms")
        to_ms = messages.required(request, "to_ms")
        if to_ms < from_ms:
            raise InvalidFieldError("to_ms", f"{to_ms} is before from_ms {from_ms}")
        method = messages.method_of(request.method)
        answer = await self._search(
            topic, lambda finder: finder.range(from_ms, to_ms, method=method)
        )
        return message_of(pb.RangeResponse, answer)

    async def read_entries(self, request: pb.ReadEntriesRequest, context: Context) -> None:
        """Entries from a position on (ReadEntries)."""
        log_of = self._source.stored_log if request.stored else self._source.log
        topic = request.topic if request.stored else self.topic(request.topic)
        plan = ReadPlan(
            start=messages.place(request.start, "start") if request.HasField("start") else EARLIEST,
            end=messages.place(request.end, "end") if request.HasField("end") else None,
            max_entries=messages.not_negative(request.max_entries, "max_entries") or None,
            prefixes_only=messages.prefixes_only(request.content),
            control_only=request.control_only,
            uncommitted=request.uncommitted or request.stored,
        )
        with self._streams.open(context) as slot:
            if self._forwarding is not None and not request.stored:
                owner = await self._forwarding.owner(topic, context)
                if owner is not None:
                    answers = self._forwarding.stream(owner, "ReadEntries", request, context)
                    async with aclosing(answers):
                        async for answer in answers:
                            await slot.write(answer)
                    return
            responses = await self._run(lambda _: entry_responses(log_of(topic), plan))
            while (response := await self._run(lambda _: next(responses, None))) is not None:
                await slot.write(response)

    async def reset_cursor(
        self, request: pb.ResetCursorRequest, context: Context
    ) -> pb.ResetCursorResponse:
        """Move a subscription to a time, an index or a position (ResetCursor)."""
        topic = self.topic(request.topic)
        subscription = messages.name_field(request.subscription, "subscription")
        response = await self._target(topic, request)
        await self._source.reset_cursor(topic, subscription, rpc.position_of(response.position))
        return response

    async def append_control(
        self, request: pb.AppendControlRequest, context: Context
    ) -> pb.AppendControlResponse:
        """Add a control entry (AppendControl)."""
        if not self._may_append:
            raise PermissionDeniedError(
                "PERMISSION_DENIED", "AppendControl is off: this server has no token for it"
            )
        topic = self.topic(request.topic)
        appended = await self._source.append_control(topic, control_request(request))
        return message_of(pb.AppendControlResponse, appended)

    async def epochs(self, request: pb.EpochsRequest, context: Context) -> pb.EpochsResponse:
        """Answer Epochs: the start of each leader epoch."""
        source = self._source
        if request.stored:
            return await self._run(lambda _: _stored_history(source.stored_log(request.topic)))
        topic = self.topic(request.topic)
        return history_message(
            *await self._run(lambda _: (source.log(topic).epoch_history(), source.ends(topic)))
        )

    async def follow_state(self, request: pb.FollowStateRequest, context: Context) -> None:
        """Answer FollowState: the facts that a follower needs beside the entries."""
        version = agreed_version((request.oldest_version, request.newest_version), VERSIONS)
        with self._streams.open(context) as slot:
            found = await self._run(lambda _: self._source.state())
            for message in state_messages(found, request.known_digest, version):
                await slot.write(message)

    async def audit(self, request: pb.AuditRequest, context: Context) -> pb.AuditResponse:
        """Answer Audit: the broker's counts of a topic."""
        topic = self.topic(request.topic)
        made = await self._source.audit(
            topic,
            messages.tags_of_request(request),
            messages.optional_time(request, "from_ms"),
            messages.optional_time(request, "to_ms"),
        )
        return messages.report_message(made)

    def topic(self, name: str) -> str:
        """The full name of a request's topic. Raises InvalidFieldError."""
        messages.name_field(name, "topic")
        try:
            return self._source.full_name(name)
        except ValueError as error:
            raise InvalidFieldError("topic", str(error)) from error

    async def _search(self, topic: str, ask: Callable[[AnyFinder], Answer]) -> Answer:
        log = self._source.log
        return await self._run(lambda check: ask(finder_of(log(topic), check=check)))

    async def _run(self, work: Callable[[Callable[[], None]], Answer]) -> Answer:
        """Do blocking work on a thread. If the call ends early, `check` raises on the thread."""
        stopped = threading.Event()

        def check() -> None:
            if stopped.is_set():
                raise SearchStoppedError

        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work, check)
        finally:
            stopped.set()

    async def _target(self, topic: str, request: pb.ResetCursorRequest) -> pb.ResetCursorResponse:
        match request.WhichOneof("target"):
            case "time_ms":
                time_ms = messages.not_negative(request.time_ms, "time_ms")
                found = await self._search(topic, lambda finder: finder.by_time(time_ms))
                return pb.ResetCursorResponse(
                    position=rpc.position_message(found.position), end=found.end
                )
            case "index":
                index = messages.not_negative(request.index, "index")
                answer = await self._search(topic, lambda finder: finder.by_index(index))
                return pb.ResetCursorResponse(
                    position=rpc.position_message(answer.position), batch_index=answer.batch_index
                )
            case "position":
                wanted = messages.place(request.position, "position")
                place, end = await self._run(lambda _: _existing(self._source.log(topic), wanted))
                return pb.ResetCursorResponse(position=rpc.position_message(place), end=end)
        raise InvalidFieldError("target", "one of time_ms, index, position must be set")


def _stored_history(log: TopicLog) -> pb.EpochsResponse:
    return history_message(log.epoch_history(), LogEnds(log.next_index), log.ledger_extents())


def _existing(log: TopicLog | CompactedLog, wanted: Position) -> tuple[Position, bool]:
    """The first existing entry at or after a position, or the end and True."""
    place = log.next_position(Position(wanted.ledger_id, wanted.entry_id - 1))
    return place, place == log.end_position


def handler(servicer: SeekServicer) -> grpc.GenericRpcHandler:
    """The servicer's calls, registered for gRPC."""
    unary: dict[str, Callable[[Any, Context], Awaitable[Any]]] = {
        "SeekByTime": servicer.seek_by_time,
        "SeekByIndex": servicer.seek_by_index,
        "Range": servicer.range,
        "ResetCursor": servicer.reset_cursor,
        "AppendControl": servicer.append_control,
        "Epochs": servicer.epochs,
        "Audit": servicer.audit,
    }
    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(
            _with_status(partial(servicer.single, name, call)),
            **rpc.server_codec(name),
        )
        for name, call in unary.items()
    }
    streams: dict[str, Callable[[Any, Context], Awaitable[None]]]
    streams = {"ReadEntries": servicer.read_entries, "FollowState": servicer.follow_state}
    for name, stream in streams.items():
        handlers[name] = grpc.unary_stream_rpc_method_handler(
            _with_status(stream), **rpc.server_codec(name)
        )
    return grpc.method_handlers_generic_handler(rpc.SERVICE_NAME, handlers)


def _with_status(
    call: Callable[[Any, Context], Awaitable[Answer]],
) -> Callable[[Any, Context], Awaitable[Answer]]:
    """The call with its errors as gRPC statuses, also for a request that is not protobuf."""

    async def answer(request: Any, context: Context) -> Answer:
        try:
            if request is None:
                raise InvalidFieldError("request", "is not a message of this call's type")
            return await call(request, context)
        except Exception as error:  # noqa: BLE001 - every error must reach the caller as a status
            status = _status_of(error)
        # Outside of `except`, the error is freed, and with it the call's frames and their objects.
        # This matters because a client that does not read keeps the next line waiting.
        await context.abort(*status)
        raise AssertionError("abort raises")

    return answer


def _status_of(error: Exception) -> tuple[grpc.StatusCode, str, rpc.Metadata]:
    status = error.status if isinstance(error, ForwardedError) else rpc.encode(error)
    if status is not None:
        return status
    _log.error(
        "a gRPC call failed with an unexpected error, and its client got INTERNAL", exc_info=error
    )
    return grpc.StatusCode.INTERNAL, "internal error, see the server's log", ()
