"""Reads one Fetch request's partitions, and waits for new entries.

A fetch that finds fewer than `min_bytes` waits until a commit adds entries to one of its
partitions, or until its time is over. It registers with its partitions, and has one deadline among
all deadlines of the endpoint: no thread and no timer for each client. The connection takes no other
request meanwhile, so a client has one waiting fetch on each connection.

Reading is done in pieces: one partition, one read of entries, or the conversion of one entry. They
run at once while this turn of the event loop has time for them (`ports.Turns`), and otherwise in
later turns, which all clients share. So hundreds of clients that fetch much hold up the others no
longer than one does.

Stored bytes go out as they are, but for the fields that a fetch writes (`records.fetch`). Entries
that the client's version cannot read are converted one by one, by their own format. A large one is
converted in a thread, since it would hold up all other clients for seconds: reading stops before
it, and if it is the first one, the partitions are read again when it is there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..ledger import Entry, LedgerError
from ..metadata import Buffer
from .access import Operation
from .deadlines import Deadline
from .errors import Code, KafkaError
from .partitions import KafkaPartition
from .records import CodecError, max_magic_of
from .shown_entries import NeedsThreadError, ShownEntries

if TYPE_CHECKING:
    from .session import KafkaSession

__all__ = ["AT_ONCE_PARTITIONS", "Asked", "FetchWork", "Read"]

log = logging.getLogger(__name__)

#: With more partitions, they are looked up in turns.
AT_ONCE_PARTITIONS = 200
#: From this version of Fetch on, a first batch that is larger than the limits is sent whole.
WHOLE_FIRST_BATCH_VERSION = 3
#: How long one fetch may read and convert, without the time in which it waits for its turns. It
#: answers what it has by then, one batch at least.
READ_S = 0.05
#: The most that is read in one piece.
PIECE_BYTES = 1024 * 1024
#: After a look that found too little, a fetch waits for so many times as long as the look took.
LOOKS_SHARE = 10


@dataclass(slots=True, eq=False)
class Asked:
    """One partition of a Fetch request."""

    topic: str
    index: int
    offset: int
    max_bytes: int
    leader_epoch: int
    partition: KafkaPartition | None = None


@dataclass(slots=True)
class Read:
    """What one partition's part of the answer is."""

    code: Code = Code.NONE
    high_watermark: int = -1
    first_offset: int = -1
    size_bytes: int = 0
    parts: list[Buffer] = field(default_factory=list)


class FetchWork:
    """One Fetch request."""

    def __init__(
        self,
        session: KafkaSession,
        version: int,
        asked: list[Asked],
        max_bytes: int,
        min_bytes: int,
        answer: Callable[[list[Read]], Coroutine[Any, Any, None] | None],
    ) -> None:
        self._session = session
        self._version = version
        self._shown = ShownEntries(session.endpoint.figures, max_magic_of(version))
        self.asked = asked
        self._max_bytes = min(max_bytes, session.options.max_fetch_bytes)
        self._min_bytes = min_bytes
        self._answer = answer
        self._deadline: Deadline | None = None
        self._is_woken = False
        self._look_s = 0.0
        self._until_s = 0.0
        #: The large entry at which reading stopped.
        self._large: NeedsThreadError | None = None
        #: Reads in later turns, or converts a large entry.
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        #: Reading took so long that the rest is left for the next fetch.
        self._is_cut = False
        self._is_answered = False

    def needs_no_wait(self) -> bool:
        """Whether all partitions are open, and so few that they are looked up at once."""
        if len(self.asked) > AT_ONCE_PARTITIONS:
            return False
        get = self._session.endpoint.partitions.get
        for asked in self.asked:
            if self._may_read(asked):
                asked.partition = get(asked.topic, asked.index)
        return all(asked.partition is not None for asked in self.asked)

    def _may_read(self, asked: Asked) -> bool:
        return self._session.access.may(Operation.READ, asked.topic)

    async def open(self) -> None:
        """Open the partitions. Those that cannot be opened are answered with an error."""
        turns = self._session.endpoint.ports.turns
        for asked in self.asked:
            if not turns.has_time():
                await turns.next()
            if asked.partition is None and self._may_read(asked):
                try:
                    asked.partition = await self._session.endpoint.partitions.open(
                        asked.topic, asked.index
                    )
                except KafkaError as refusal:
                    log.debug("%s: %s", self._session.address, refusal)

    # -- waiting --------------------------------------------------------------------------------

    def begin(self, max_wait_ms: int) -> bool:
        """Answer if there is enough, or something is wrong; else begin to wait.

        Return whether it was answered.
        """
        if max_wait_ms > 0:
            deadlines = self._session.endpoint.deadlines
            self._deadline = deadlines.after(max_wait_ms / 1000, self._over)
        else:
            self._is_over = True
        self._look()
        return self._is_answered and self._task is None

    def _look(self) -> None:
        """Read all partitions, at once or in turns; then answer, convert or wait."""
        self._is_woken = False
        if self._task is not None or self._is_answered:
            return
        reads: list[Read] = []
        pieces = self._read_all(reads)
        turns = self._session.endpoint.ports.turns
        if turns.run_now(pieces):
            self._looked(reads)
        else:
            self._start(self._look_in_turns(pieces, reads))

    async def _look_in_turns(self, pieces: Iterator[None], reads: list[Read]) -> None:
        await self._session.endpoint.ports.turns.work(pieces)
        self._task = None
        self._looked(reads)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)
        # Cancelled before its first step, the coroutine never begins.
        self._task.add_done_callback(lambda _: work.close())

    def _looked(self, reads: list[Read]) -> None:
        if self._large is not None:
            self._start(self._convert_and_answer())
        elif self._is_over or self._is_enough(reads):
            self._finish(reads)
        elif any(
            asked.partition is not None and asked.partition.end_offset != read.high_watermark
            for asked, read in zip(self.asked, reads, strict=True)
        ):
            self._wake()  # a commit came while they were read
        else:
            for asked in self.asked:
                assert asked.partition is not None
                asked.partition.waiting[self] = self._wake

    def _is_enough(self, reads: list[Read]) -> bool:
        if self._is_cut or any(read.code is not Code.NONE for read in reads) or not reads:
            return True
        return sum(read.size_bytes for read in reads) >= self._min_bytes

    def _wake(self) -> None:
        """A commit added entries: look again in the next turn, once for many commits."""
        if not self._is_woken and not self._is_answered:
            self._is_woken = True
            # A client that waits for many bytes has them read again at each look.
            delay_s = 0.0 if self._min_bytes <= 1 else LOOKS_SHARE * self._look_s
            self._session.endpoint.deadlines.after(delay_s, self._look)

    def _over(self) -> None:
        """The time is over: answer what there is."""
        self._is_over = True
        self._look()

    def _finish(self, reads: list[Read]) -> None:
        self._stop_waiting()
        work = self._answer(reads)
        if work is not None:
            self._start(work)

    def give_up(self) -> None:
        """The connection is lost: stop."""
        self._stop_waiting()
        if self._task is not None:
            self._task.cancel()

    def _stop_waiting(self) -> None:
        self._is_answered = True
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        for asked in self.asked:
            if asked.partition is not None:
                asked.partition.waiting.pop(self, None)

    # -- large entries --------------------------------------------------------------------------

    async def _convert_and_answer(self) -> None:
        """Convert the first entry in a thread, read all again, and answer."""
        ports = self._session.endpoint.ports
        reads: list[Read] = []
        while (large := self._large) is not None:
            made: Future[Any] = Future()
            try:
                made.set_result(await ports.run_blocking(large.make))
            except Exception as error:  # noqa: BLE001 - `_result` raises it again
                made.set_exception(error)
            # Only the first entry of an answer is converted here: one at a time is kept.
            self._shown.made = {large.place: made}
            reads = []
            await ports.turns.work(self._read_all(reads))
        self._shown.made = {}
        self._task = None
        self._finish(reads)

    # -- reading --------------------------------------------------------------------------------

    def _read_all(self, reads: list[Read]) -> Iterator[None]:
        """Read each partition into `reads`, in pieces."""
        self._large = None
        began_s = time.monotonic()
        self._until_s = began_s + READ_S
        self._is_cut = False
        rest_bytes = self._max_bytes
        is_first = True
        for asked in self.asked:
            # Reading what is too large for the rest of the answer takes time, too.
            if not is_first and time.monotonic() > self._until_s:
                self._is_cut = True
            read = yield from self._read_one(asked, rest_bytes, is_first=is_first)
            rest_bytes -= read.size_bytes
            is_first = is_first and not read.size_bytes
            reads.append(read)
            yield from self._turn()
        self._look_s = max(0.0, time.monotonic() - (self._until_s - READ_S))

    def _turn(self) -> Iterator[None]:
        """The end of a piece. The time until the next one is not counted."""
        left_s = time.monotonic()
        yield
        self._until_s += time.monotonic() - left_s

    def _read_one(
        self, asked: Asked, rest_bytes: int, *, is_first: bool
    ) -> Generator[None, None, Read]:
        partition = asked.partition
        if not self._may_read(asked):
            # Also after it has waited: the permission may have been revoked meanwhile.
            return Read(Code.TOPIC_AUTHORIZATION_FAILED)
        if partition is None:
            return Read(Code.UNKNOWN_TOPIC_OR_PARTITION)
        if not partition.opened.is_open:
            return Read(Code.NOT_LEADER_OR_FOLLOWER)
        read = Read(high_watermark=partition.end_offset, first_offset=partition.first_offset)
        try:
            partition.check_epoch(asked.leader_epoch)
            yield from self._fill(read, partition, asked, rest_bytes, is_first=is_first)
        except KafkaError as refusal:
            return Read(refusal.code)
        except CodecError:
            return Read(Code.UNSUPPORTED_COMPRESSION_TYPE)
        except (LedgerError, OSError) as error:
            log.error("%s: could not be read: %s", partition.opened.name, error)
            return Read(Code.KAFKA_STORAGE_ERROR)
        except Exception:
            # A fetch that waits must be answered: its connection takes no other request before.
            log.exception("%s: reading at offset %d failed", partition.opened.name, asked.offset)
            return Read(Code.UNKNOWN_SERVER_ERROR)
        return read

    def _fill(
        self,
        read: Read,
        partition: KafkaPartition,
        asked: Asked,
        rest_bytes: int,
        *,
        is_first: bool,
    ) -> Iterator[None]:
        """Read entries up to the limits. The first batch of an answer is sent whole from v3 on."""
        limit_bytes, offset = min(asked.max_bytes, rest_bytes), asked.offset
        epoch_of: Callable[[Entry], int] | None = None
        while not self._is_cut and (
            read.size_bytes < limit_bytes or (is_first and not read.size_bytes)
        ):
            if not partition.opened.is_open:
                return  # it was closed since the last piece
            rest = max(limit_bytes - read.size_bytes, 0)
            entries = partition.read(offset, min(rest, PIECE_BYTES))
            if not entries:
                return
            epoch_of = epoch_of or partition.epochs()
            for entry in entries:
                may_be_whole = is_first and not read.size_bytes
                parts = self._shown_parts(partition, entry, epoch_of, asked, first=may_be_whole)
                if parts is None:
                    return
                size_bytes = sum(map(len, parts))
                is_whole = may_be_whole and self._sends_whole
                if read.size_bytes + size_bytes > limit_bytes and not is_whole:
                    return
                read.parts += parts
                read.size_bytes += size_bytes
                if parts and time.monotonic() > self._until_s:
                    self._is_cut = True
                    return
                yield from self._turn()
            if (offset := entries[-1].index + 1) >= partition.end_offset:
                return

    def _shown_parts(
        self,
        partition: KafkaPartition,
        entry: Entry,
        epoch_of: Callable[[Entry], int],
        asked: Asked,
        *,
        first: bool,
    ) -> tuple[Buffer, ...] | None:
        """An entry as the client gets it; None: it is large, and reading stops before it."""
        time_ms = entry.time_ms if partition.rules().log_append_time else None
        try:
            return self._shown.parts(partition, entry, epoch_of(entry), asked.offset, time_ms)
        except NeedsThreadError as large:
            self._is_cut = True
            if first:
                self._large = large
            return None

    @property
    def _sends_whole(self) -> bool:
        return self._version >= WHOLE_FIRST_BATCH_VERSION
