"""The seek service's five calls, over a source of topics, on asyncio.

Files are read on worker threads, never on the loop. A search whose index and pages are warm takes
microseconds, but nobody can know that beforehand: a cold page costs a disk read, the first look at
a folder scans a segment, and a stretch of entries without stamps is scanned. The hop to a thread
and back costs about 0.1 ms, so it is made always.

A call that is cancelled or past its deadline stops working: gRPC cancels the handler, the handler
sets a flag, and the thread meets it at its next read. So an abandoned scan over gigabytes does not
hold a thread, of which there are few.

Topic names are made canonical by a function the caller passes: the finder stands without the wire
protocol and must not know Pulsar's short forms, while a broker or a command line has the parser at
hand. Without one, only full names are taken.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, NoReturn, Protocol, TypeVar

import grpc

from ..ledger import EARLIEST, Position, TopicLog
from ..proto import seek_pb2 as pb
from . import messages, rpc
from .errors import InvalidFieldError, NotPossibleError, ServerFullError
from .search import Finder
from .stream import ReadPlan, entry_responses
from .stream_slots import StreamSlots

_log = logging.getLogger(__name__)

#: Streams at a time, and how long one may wait for its receiver, if nothing else is said.
MAX_CALLS = 256
MAX_STREAMS = 32
STALL_TIMEOUT_S = 30.0

Answer = TypeVar("Answer")

Normalise = Callable[[str], str]
"""Turns a topic name as clients write it into the full one; raises ValueError for a bad name."""

ResetCursor = Callable[[str, str, Position], Awaitable[None]]
"""Puts the cursor of (topic, subscription) on the entry at a position, with what that entails for
connected consumers. Raises SubscriptionNotFoundError, CursorBusyError or NotPossibleError."""


class TopicSource(Protocol):
    """Where the service finds topics. Called on worker threads, several at a time; may block."""

    def log(self, topic: str) -> TopicLog:
        """The topic's log, by its full name.

        Raises TopicNotFoundError, or NotPossibleError where the topic keeps no entries.
        """


class CallContext(Protocol):
    """What the service uses of grpc.aio.ServicerContext, which has no types."""

    async def abort(
        self, code: grpc.StatusCode, details: str, trailing_metadata: rpc.Metadata
    ) -> NoReturn:
        """End the call with a status."""

    async def write(self, message: Any) -> None:
        """Send one message of a stream; waits while the receiver is slow."""

    def peer(self) -> str:
        """Address and port of the client."""
        ...

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call it when gRPC has nothing left of the call."""


class SearchStoppedError(Exception):
    """The caller of this search is gone."""


def full_name(topic: str) -> str:
    """The normaliser for servers without Pulsar's parser: full names pass, others are refused."""
    domain, separator, rest = topic.partition("://")
    if not separator or domain not in ("persistent", "non-persistent") or rest.count("/") < 2:
        raise ValueError(f"{topic!r} is not a full name like persistent://public/default/orders")
    return topic


class SeekServicer:
    """The calls of pulsemark.seek.v1.SeekService; `handler` makes statuses of what they raise."""

    def __init__(
        self,
        source: TopicSource,
        *,
        executor: Executor,
        max_calls: int = MAX_CALLS,
        streams: StreamSlots | None = None,
        normalise: Normalise = full_name,
        reset_cursor: ResetCursor | None = None,
    ) -> None:
        self._source = source
        self._executor = executor
        #: Single calls under way, and how many there may be.
        self.calls = 0
        self.max_calls = max_calls
        self._streams = streams or StreamSlots(MAX_STREAMS, STALL_TIMEOUT_S)
        self._normalise = normalise
        self._reset_cursor = reset_cursor

    async def seek_by_time(
        self, request: pb.SeekByTimeRequest, context: CallContext
    ) -> pb.SeekByTimeResponse:
        """The first entry at or after a time (SeekByTime)."""
        topic = self._topic(request.topic)
        time_ms = messages.required(request, "time_ms")
        road = messages.road_of(request.road)
        found = await self._search(topic, lambda finder: finder.by_time(time_ms, road=road))
        return messages.found_message(found)

    async def seek_by_index(
        self, request: pb.SeekByIndexRequest, context: CallContext
    ) -> pb.SeekByIndexResponse:
        """The entry that holds an index (SeekByIndex)."""
        topic = self._topic(request.topic)
        index = messages.required(request, "index")
        road = messages.road_of(request.road)
        answer = await self._search(topic, lambda finder: finder.by_index(index, road=road))
        return messages.index_place_message(answer)

    async def range(self, request: pb.RangeRequest, context: CallContext) -> pb.RangeResponse:
        """The indexes between two times (Range)."""
        topic = self._topic(request.topic)
        from_ms = messages.required(request, "from_ms")
        to_ms = messages.required(request, "to_ms")
        if to_ms < from_ms:
            raise InvalidFieldError("to_ms", f"{to_ms} is before from_ms {from_ms}")
        road = messages.road_of(request.road)
        answer = await self._search(topic, lambda finder: finder.range(from_ms, to_ms, road=road))
        return messages.range_message(answer)

    async def read_entries(self, request: pb.ReadEntriesRequest, context: CallContext) -> None:
        """Entries from a position on (ReadEntries)."""
        topic = self._topic(request.topic)
        plan = ReadPlan(
            start=messages.place(request.start, "start") if request.HasField("start") else EARLIEST,
            end=messages.place(request.end, "end") if request.HasField("end") else None,
            max_entries=messages.not_negative(request.max_entries, "max_entries") or None,
            prefixes_only=messages.prefixes_only(request.content),
        )
        with self._streams.open(context) as slot:
            responses = await self._run(lambda _: entry_responses(self._source.log(topic), plan))
            while (response := await self._run(lambda _: next(responses, None))) is not None:
                await slot.write(response)

    async def reset_cursor(
        self, request: pb.ResetCursorRequest, context: CallContext
    ) -> pb.ResetCursorResponse:
        """Put a subscription on a time, an index or a position (ResetCursor)."""
        if self._reset_cursor is None:
            raise NotPossibleError("this server only reads: cursors belong to the broker")
        topic = self._topic(request.topic)
        subscription = messages.name_field(request.subscription, "subscription")
        response = await self._target(topic, request)
        await self._reset_cursor(topic, subscription, rpc.position_of(response.position))
        return response

    def _topic(self, name: str) -> str:
        messages.name_field(name, "topic")
        try:
            return self._normalise(name)
        except ValueError as error:
            raise InvalidFieldError("topic", str(error)) from error

    async def _search(self, topic: str, ask: Callable[[Finder], Answer]) -> Answer:
        return await self._run(lambda check: ask(Finder(self._source.log(topic), check=check)))

    async def _run(self, work: Callable[[Callable[[], None]], Answer]) -> Answer:
        """Do blocking work on a thread; leaving early makes its `check` raise there."""
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
                    position=rpc.position_message(answer.position),
                    batch_index=answer.batch_index,
                )
            case "position":
                wanted = messages.place(request.position, "position")
                place, end = await self._run(lambda _: _existing(self._source.log(topic), wanted))
                return pb.ResetCursorResponse(position=rpc.position_message(place), end=end)
        raise InvalidFieldError("target", "one of time_ms, index, position must be set")


def _existing(log: TopicLog, wanted: Position) -> tuple[Position, bool]:
    """The first existing entry at or after a position, or the end and True."""
    place = log.next_position(Position(wanted.ledger_id, wanted.entry_id - 1))
    return place, place == log.end_position


def handler(servicer: SeekServicer) -> grpc.GenericRpcHandler:
    """The servicer as gRPC takes it."""
    unary: dict[str, Callable[[Any, CallContext], Awaitable[Any]]] = {
        "SeekByTime": servicer.seek_by_time,
        "SeekByIndex": servicer.seek_by_index,
        "Range": servicer.range,
        "ResetCursor": servicer.reset_cursor,
    }
    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(
            _answered(_counted(servicer, call)), **rpc.server_codec(name)
        )
        for name, call in unary.items()
    }
    handlers["ReadEntries"] = grpc.unary_stream_rpc_method_handler(
        _answered(servicer.read_entries), **rpc.server_codec("ReadEntries")
    )
    return grpc.method_handlers_generic_handler(rpc.SERVICE_NAME, handlers)


def _counted(
    servicer: SeekServicer, call: Callable[[Any, CallContext], Awaitable[Answer]]
) -> Callable[[Any, CallContext], Awaitable[Answer]]:
    """The call, while there are not too many of them."""

    async def counted(request: Any, context: CallContext) -> Answer:
        if servicer.calls >= servicer.max_calls:
            raise ServerFullError(f"{servicer.max_calls} calls are under way, the limit")
        servicer.calls += 1
        try:
            return await call(request, context)
        finally:
            servicer.calls -= 1

    return counted


def _answered(
    call: Callable[[Any, CallContext], Awaitable[Answer]],
) -> Callable[[Any, CallContext], Awaitable[Answer]]:
    """The call as gRPC wants it: every error, a request that is no protobuf too, has its status."""

    async def answer(request: Any, context: CallContext) -> Answer:
        try:
            if request is None:
                raise InvalidFieldError("request", "is not a message of this call's type")
            return await call(request, context)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a status
            status = _status_of(error)
        # Out here the error is gone, and with it the call's frames and what they hold: a client
        # that does not read keeps this waiting.
        return await context.abort(*status)

    return answer


def _status_of(error: Exception) -> tuple[grpc.StatusCode, str, rpc.Metadata]:
    status = rpc.encode(error)
    if status is not None:
        return status
    _log.error("a seek call failed", exc_info=error)
    return grpc.StatusCode.INTERNAL, "internal error, see the server's log", ()
