"""Fetch: reads the partitions that a request and its session name, and waits for new entries.

A fetch that finds fewer than `min_bytes` waits until a commit adds entries to one of its
partitions, or until its time is over. The connection takes no other request meanwhile.

Reading is done in pieces (`reading`). They run at once while this turn of the event loop has time
for them (`cooperative.Turns`), and otherwise in later turns, which all clients share. So hundreds
of clients that fetch much hold up the others no longer than one does. A large entry that has to be
converted goes to a thread: reading stops before it, and if it is the first one, the partitions are
read again when it is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from typing import Any

from kafka.protocol.consumer import FetchResponse

from ....kafka.errors import Code, KafkaError
from ....kafka.protocol import RECORDS_MARK, Request
from ....kafka.records import max_magic_of
from ....metadata import Buffer
from ..access import Operation
from ..endpoint import Handler, KafkaSession, parts_of
from ..fetch_sessions import FINAL_EPOCH, NO_SESSION, FetchContext, Key, Wanted
from ..partitions import READ_COMMITTED
from ..reading import Asked, PartitionsReader, Read, ShownEntries

log = logging.getLogger(__name__)

INT_MAX = 2**31 - 1
#: From these versions of Fetch on, a request has a session, and its partitions leader epochs.
SESSIONS_VERSION, EPOCHS_VERSION = 7, 9
#: With more partitions, they are looked up in turns.
AT_ONCE_PARTITIONS = 200
#: After a look that found too little, a fetch waits for so many times as long as the look took.
LOOKS_SHARE = 10
_Topic = FetchResponse.FetchableTopicResponse
_Partition = _Topic.PartitionData
_Aborted = _Partition.AbortedTransaction


def fetch(session: KafkaSession, request: Request) -> Coroutine[Any, Any, None] | None:
    """Answer with entries from some offsets on; wait for new ones."""
    body = request.body
    count = sum(len(topic.partitions or ()) for topic in body.topics or ())
    if request.version >= SESSIONS_VERSION:
        count += sum(len(topic.partitions or ()) for topic in body.forgotten_topics_data or ())
    if count > AT_ONCE_PARTITIONS:
        return _fetch_many(session, request)
    return _fetch(session, request, dict(_named(request)), list(_forgotten(request)))


async def _fetch_many(session: KafkaSession, request: Request) -> None:
    wanted = {key: place async for key, place in session.in_turns(_named(request))}
    forgotten = [key async for key in session.in_turns(_forgotten(request))]
    work = _fetch(session, request, wanted, forgotten)
    if work is not None:
        await work


def _named(request: Request) -> Iterator[tuple[Key, Wanted]]:
    has_epochs = request.version >= EPOCHS_VERSION
    for topic in request.body.topics or ():
        name = topic.topic or ""
        for each in topic.partitions or ():
            epoch = max(each.current_leader_epoch, -1) if has_epochs else -1
            most = max(each.partition_max_bytes, 0)
            yield (name, each.partition), Wanted(each.fetch_offset, most, epoch)


def _forgotten(request: Request) -> Iterator[Key]:
    if request.version >= SESSIONS_VERSION:
        for topic in request.body.forgotten_topics_data or ():
            name = topic.topic or ""
            for index in topic.partitions or ():
                yield name, index


def _fetch(
    session: KafkaSession, request: Request, wanted: dict[Key, Wanted], forgotten: list[Key]
) -> Coroutine[Any, Any, None] | None:
    """Read what the request names and its session has."""
    try:
        context = _context(session, request, wanted, forgotten)
    except KafkaError as refusal:
        session.answer(request, _refusal(refusal.code, NO_SESSION))
        return None
    if len(context.wanted) > AT_ONCE_PARTITIONS:
        return _read_many(session, request, context)
    asked = [Asked(*key, *place) for key, place in context.wanted]
    work = FetchWork(session, request, context, asked)
    if work.needs_no_wait():
        work.begin()
        return None
    return work.open_and_begin()


def _context(
    session: KafkaSession, request: Request, wanted: dict[Key, Wanted], forgotten: list[Key]
) -> FetchContext:
    """The context of the request. Raises KafkaError if its session cannot go on."""
    session_id, epoch = NO_SESSION, FINAL_EPOCH
    if request.version >= SESSIONS_VERSION:
        session_id, epoch = request.body.session_id, request.body.session_epoch
    role = None if session.admitted is None else session.admitted.role
    return session.endpoint.fetch_sessions.context(role, session_id, epoch, wanted, forgotten)


async def _read_many(session: KafkaSession, request: Request, context: FetchContext) -> None:
    asked = [Asked(*key, *place) async for key, place in session.in_turns(context.wanted)]
    await FetchWork(session, request, context, asked).open_and_begin()


def _refusal(code: Code, session_id: int) -> Any:
    return FetchResponse(throttle_time_ms=0, error_code=code, session_id=session_id, responses=[])


class _Answer:
    """The partitions of an answer by topic, and their records in the order of encoding."""

    def __init__(self, context: FetchContext, is_committed: bool) -> None:
        self._context = context
        #: Another request of the session came while this one waited: it gets no partitions.
        self._code = context.code
        self._is_committed = is_committed
        self.parts = 0
        self._topics: dict[str, list[Any]] = {}
        self._records: dict[str, list[list[Buffer]]] = {}

    def add(self, asked: Asked, read: Read) -> None:
        """Add a partition, unless its session has nothing new of it."""
        if self._code is not Code.NONE:
            return
        if not self._context.must_answer((asked.topic, asked.index), read):
            return
        self.parts += 1
        made = _partition(asked, read, is_committed=self._is_committed)
        self._topics.setdefault(asked.topic, []).append(made)
        if read.parts:
            self._records.setdefault(asked.topic, []).append(read.parts)

    def records(self) -> list[list[Buffer]]:
        return [parts for topic in self._topics for parts in self._records.get(topic, ())]

    def response(self) -> Any:
        if self._code is not Code.NONE:
            return _refusal(self._code, self._context.session_id())
        return FetchResponse(
            throttle_time_ms=0,
            error_code=Code.NONE,
            session_id=self._context.session_id(),
            responses=[_Topic(topic=name, partitions=each) for name, each in self._topics.items()],
        )


def _partition(asked: Asked, read: Read, *, is_committed: bool) -> Any:
    return _Partition(
        partition_index=asked.index,
        error_code=read.code,
        high_watermark=read.high_watermark,
        last_stable_offset=read.stable_offset,
        log_start_offset=read.first_offset,
        aborted_transactions=[_Aborted(producer_id=i, first_offset=o) for i, o in read.aborted]
        if is_committed
        else None,
        preferred_read_replica=-1,
        records=RECORDS_MARK if read.parts else b"",
    )


class FetchWork:
    """One Fetch request."""

    def __init__(
        self, session: KafkaSession, request: Request, context: FetchContext, asked: list[Asked]
    ) -> None:
        self._session, self._request, self._context = session, request, context
        body, version, endpoint = request.body, request.version, session.endpoint
        #: READ_COMMITTED: the client drops aborted records, and needs the list of transactions.
        self._is_committed = version >= 4 and body.isolation_level == READ_COMMITTED
        self._shown = ShownEntries(endpoint.figures, endpoint.conversions, max_magic_of(version))
        self.asked = asked
        max_bytes = max(body.max_bytes, 0) if version >= 3 else INT_MAX
        self._reader = PartitionsReader(
            lambda: session.access,
            self._shown,
            endpoint.services.output,
            version,
            asked,
            min(max_bytes, session.config.max_kafka_fetch_bytes),
            is_committed=self._is_committed,
        )
        self._min_bytes: int = body.min_bytes
        self._deadline: asyncio.TimerHandle | None = None
        self._is_woken = False
        #: The task that reads in later turns, or converts a large entry.
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self._is_answered = False

    def needs_no_wait(self) -> bool:
        """Whether all partitions are open, and few enough to be looked up at once."""
        if len(self.asked) > AT_ONCE_PARTITIONS:
            return False
        get = self._session.endpoint.partitions.get
        for asked in self.asked:
            if self._may_read(asked):
                asked.partition = get(asked.topic, asked.index)
        return all(asked.partition is not None for asked in self.asked)

    def _may_read(self, asked: Asked) -> bool:
        return self._session.access.may(Operation.READ, asked.topic)

    async def open_and_begin(self) -> None:
        """Open the partitions. Those that cannot be opened are answered with an error."""
        async for asked in self._session.in_turns(self.asked):
            if asked.partition is None and self._may_read(asked):
                try:
                    asked.partition = await self._session.endpoint.partitions.open(
                        asked.topic, asked.index
                    )
                except KafkaError as refusal:
                    if refusal.code is Code.NOT_LEADER_OR_FOLLOWER:
                        asked.refusal = refusal.code
                    log.debug("%s: %s", self._session.address, refusal)
        self.begin()

    def begin(self) -> None:
        """Answer if there is enough, or an error; else begin to wait."""
        loop, unsent = self._session.endpoint.loop, self._session.unsent_records
        max_wait_ms = unsent.wait_ms(self.asked, self._request.body.max_wait_ms, loop.time())
        if max_wait_ms > 0:
            self._deadline = loop.call_later(max_wait_ms / 1000, self._over)
        else:
            self._is_over = True
        self._look()
        if not self._is_answered or self._task is not None:
            self._session.block(self._request, self.give_up)

    def _look(self) -> None:
        """Read all partitions, at once or in turns; then answer, convert or wait."""
        self._is_woken = False
        if self._task is not None or self._is_answered:
            return
        reads: list[Read] = []
        pieces = self._reader.read_all(reads)
        turns = self._session.endpoint.turns
        if turns.run_now(pieces):
            self._looked(reads)
        else:
            self._start(self._look_in_turns(pieces, reads))

    async def _look_in_turns(self, pieces: Iterator[object], reads: list[Read]) -> None:
        await self._session.endpoint.turns.work(pieces)
        self._task = None
        self._looked(reads)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._task = task = asyncio.get_running_loop().create_task(work)
        # Cancelled before its first step, the coroutine never begins.
        task.add_done_callback(lambda _: work.close())
        return task

    def _looked(self, reads: list[Read]) -> None:
        if self._reader.large is not None:
            self._start(self._convert_and_answer())
        elif self._is_over or self._is_enough(reads):
            self._finish(reads)
            return
        # The records read are dropped, and read again after the wait.
        self._reader.release()
        if any(
            asked.partition is not None and asked.partition.end_offset != read.high_watermark
            for asked, read in zip(self.asked, reads, strict=True)
        ):
            self._wake()  # a commit came while they were read
        else:
            for asked in self.asked:
                assert asked.partition is not None
                asked.partition.waiting[self] = self._wake

    def _is_enough(self, reads: list[Read]) -> bool:
        if self._reader.is_cut or any(read.code is not Code.NONE for read in reads) or not reads:
            return True
        return sum(read.size_bytes for read in reads) >= self._min_bytes

    def _wake(self) -> None:
        """After commits: look again, once in the next turn of the loop."""
        if not self._is_woken and not self._is_answered:
            self._is_woken = True
            # A client that waits for many bytes has them read again at each look.
            delay_s = 0.0 if self._min_bytes <= 1 else LOOKS_SHARE * self._reader.look_s
            self._session.endpoint.loop.call_later(delay_s, self._look)

    def _over(self) -> None:
        """The time is over: answer with what there is."""
        self._is_over = True
        self._look()

    def _finish(self, reads: list[Read]) -> None:
        self._stop_waiting()
        now_s = self._session.endpoint.loop.time()
        self._session.unsent_records.answered(self.asked, reads, now_s)
        self._count(reads)
        work = None
        try:
            work = self._answer(reads)
        finally:
            if work is None:
                self._reader.release()
        if work is not None:
            self._start(work).add_done_callback(lambda _: self._reader.release())

    def _answer(self, reads: list[Read]) -> Coroutine[Any, Any, None] | None:
        answer = _Answer(self._context, self._is_committed)
        if len(self.asked) > AT_ONCE_PARTITIONS:
            return self._answer_many(answer, reads)
        for each, read in zip(self.asked, reads, strict=True):
            answer.add(each, read)
        self._session.answer(self._request, answer.response(), answer.records())
        return None

    async def _answer_many(self, answer: _Answer, reads: list[Read]) -> None:
        session = self._session
        async for each, read in session.in_turns(zip(self.asked, reads, strict=True)):
            answer.add(each, read)
        records = answer.records()
        await session.answer_by_size(self._request, answer.response(), answer.parts, records)

    def _count(self, reads: list[Read]) -> None:
        """Count the record sets of an answer, by topic and by this request's version."""
        count = self._session.endpoint.figures.fetched
        for asked, read in zip(self.asked, reads, strict=True):
            if read.parts and asked.partition is not None:
                counters = asked.partition.opened.counters
                count(counters, self._request.version, read.stored_sets, read.converted_sets)

    def give_up(self) -> None:
        """The connection is lost: stop."""
        self._stop_waiting()
        if self._task is not None:
            self._task.cancel()
        self._reader.release()

    def _stop_waiting(self) -> None:
        self._is_answered = True
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        for asked in self.asked:
            if asked.partition is not None:
                asked.partition.waiting.pop(self, None)

    async def _convert_and_answer(self) -> None:
        """Convert the first entry in a thread, read all again, and answer."""
        turns = self._session.endpoint.turns
        reads: list[Read] = []
        while (large := self._reader.large) is not None:
            self._reader.release()
            made = await self._session.endpoint.conversions.result(large.place, large.make)
            # Only the first entry of an answer is converted here: one at a time is kept.
            self._shown.made = {large.place: made}
            reads = []
            await turns.work(self._reader.read_all(reads))
        self._shown.made = {}
        self._task = None
        self._finish(reads)


_parts_of_topics, _parts_of_forgotten = (
    parts_of(field, "partitions") for field in ("topics", "forgotten_topics_data")
)


def _parts(session: KafkaSession, request: Request) -> int:
    forgotten = 0
    if request.version >= SESSIONS_VERSION:
        forgotten = _parts_of_forgotten(session, request)
    return forgotten + _parts_of_topics(session, request)


HANDLERS: dict[int, Handler] = {1: Handler(fetch, _parts)}
