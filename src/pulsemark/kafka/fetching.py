"""Reads one Fetch request's partitions, and waits for new entries.

A fetch that finds fewer than `min_bytes` waits until a commit adds entries to one of its
partitions, or until its time is over. It registers with its partitions, and has one deadline among
all deadlines of the endpoint: no thread and no timer for each client. The connection takes no other
request meanwhile, so a client has one waiting fetch on each connection.

Stored bytes go out as they are, but for the fields that a fetch writes (`records.fetch`). Entries
that the client's version cannot read are converted one by one, by their own format. A large one is
converted in a thread, since it would hold up all other clients for seconds: reading stops before
it, and if it is the first one, the partitions are read again when it is there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
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

__all__ = ["Asked", "FetchWork", "Read"]

log = logging.getLogger(__name__)

#: From this version of Fetch on, a first batch that is larger than the limits is sent whole.
WHOLE_FIRST_BATCH_VERSION = 3
#: How long one fetch may read and convert. It answers what it has by then, one batch at least.
READ_S = 0.05
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
        answer: Callable[[list[Read]], None],
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
        self._converting: asyncio.Task[None] | None = None
        #: Reading took so long that the rest is left for the next fetch.
        self._is_cut = False

    def needs_no_wait(self) -> bool:
        """Whether all partitions are open."""
        get = self._session.endpoint.partitions.get
        for asked in self.asked:
            if self._may_read(asked):
                asked.partition = get(asked.topic, asked.index)
        return all(asked.partition is not None for asked in self.asked)

    def _may_read(self, asked: Asked) -> bool:
        return self._session.access.may(Operation.READ, asked.topic)

    async def open(self) -> None:
        """Open the partitions. Those that cannot be opened are answered with an error."""
        for asked in self.asked:
            if asked.partition is None and self._may_read(asked):
                try:
                    asked.partition = await self._session.endpoint.partitions.open(
                        asked.topic, asked.index
                    )
                except KafkaError as refusal:
                    log.debug("%s: %s", self._session.address, refusal)

    # -- waiting --------------------------------------------------------------------------------

    def answer_or_wait(self, max_wait_ms: int) -> bool:
        """Answer if there is enough, or something is wrong; else begin to wait.

        Return whether it was answered.
        """
        reads = self._read_all()
        if self._large is not None:
            self._convert()
            return False
        if max_wait_ms <= 0 or self._is_enough(reads):
            self._answer(reads)
            return True
        for asked in self.asked:
            assert asked.partition is not None
            asked.partition.waiting[self] = self._wake
        deadlines = self._session.endpoint.deadlines
        self._deadline = deadlines.after(max_wait_ms / 1000, self._over)
        return False

    def _is_enough(self, reads: list[Read]) -> bool:
        if self._is_cut or any(read.code is not Code.NONE for read in reads) or not reads:
            return True
        return sum(read.size_bytes for read in reads) >= self._min_bytes

    def _wake(self) -> None:
        """A commit added entries: look again in the next turn, once for many commits."""
        if not self._is_woken and self._deadline is not None:
            self._is_woken = True
            # A client that waits for many bytes has them read again at each look.
            delay_s = 0.0 if self._min_bytes <= 1 else LOOKS_SHARE * self._look_s
            self._session.endpoint.deadlines.after(delay_s, self._look)

    def _look(self) -> None:
        self._is_woken = False
        if self._deadline is None:
            return
        began_s = time.monotonic()
        reads = self._read_all()
        self._look_s = time.monotonic() - began_s
        if self._large is not None or self._is_enough(reads):
            self._stop_waiting()
            self._answer_or_convert(reads)

    def _over(self) -> None:
        """The time is over: answer what there is."""
        self._stop_waiting()
        self._answer_or_convert(self._read_all())

    def give_up(self) -> None:
        """The connection is lost: stop."""
        self._stop_waiting()
        if self._converting is not None:
            self._converting.cancel()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        for asked in self.asked:
            if asked.partition is not None:
                asked.partition.waiting.pop(self, None)

    # -- large entries --------------------------------------------------------------------------

    def _answer_or_convert(self, reads: list[Read]) -> None:
        """Answer, unless the first entry has to be converted in a thread first."""
        if self._large is None:
            self._answer(reads)
        else:
            self._convert()

    def _convert(self) -> None:
        """Convert the entry in a thread, read all again, and answer."""
        self._converting = asyncio.get_running_loop().create_task(self._convert_and_answer())

    async def _convert_and_answer(self) -> None:
        while (large := self._large) is not None:
            made: Future[Any] = Future()
            try:
                made.set_result(await self._session.endpoint.ports.run_blocking(large.make))
            except Exception as error:  # noqa: BLE001 - `_result` raises it again
                made.set_exception(error)
            # Only the first entry of an answer is converted here: one at a time is kept.
            self._shown.made = {large.place: made}
            reads = self._read_all()
        self._shown.made = {}
        self._converting = None
        self._answer(reads)

    # -- reading --------------------------------------------------------------------------------

    def _read_all(self) -> list[Read]:
        reads = []
        self._large = None
        self._until_s = time.monotonic() + READ_S
        self._is_cut = False
        rest_bytes = self._max_bytes
        is_first = True
        for asked in self.asked:
            # Reading what is too large for the rest of the answer takes time, too.
            if not is_first and time.monotonic() > self._until_s:
                self._is_cut = True
            read = self._read_one(asked, rest_bytes, is_first=is_first)
            rest_bytes -= read.size_bytes
            is_first = is_first and not read.size_bytes
            reads.append(read)
        return reads

    def _read_one(self, asked: Asked, rest_bytes: int, *, is_first: bool) -> Read:
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
            self._fill(read, partition, asked, rest_bytes, is_first=is_first)
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
    ) -> None:
        """Read entries up to the limits. The first batch of an answer is sent whole from v3 on."""
        limit_bytes, offset = min(asked.max_bytes, rest_bytes), asked.offset
        epoch_of: Callable[[Entry], int] | None = None
        while not self._is_cut and (
            read.size_bytes < limit_bytes or (is_first and not read.size_bytes)
        ):
            entries = partition.read(offset, max(limit_bytes - read.size_bytes, 0))
            if not entries:
                return
            epoch_of = epoch_of or partition.epochs()
            shows_broker_time = partition.rules().log_append_time
            for entry in entries:
                time_ms = entry.time_ms if shows_broker_time else None
                try:
                    epoch = epoch_of(entry)
                    parts = self._shown.parts(partition, entry, epoch, asked.offset, time_ms)
                except NeedsThreadError as large:
                    self._is_cut = True
                    if is_first and not read.size_bytes:
                        self._large = large
                    return
                size_bytes = sum(map(len, parts))
                whole = is_first and not read.size_bytes and self._sends_whole
                if read.size_bytes + size_bytes > limit_bytes and not whole:
                    return
                read.parts += parts
                read.size_bytes += size_bytes
                if parts and time.monotonic() > self._until_s:
                    self._is_cut = True
                    return
            if (offset := entries[-1].index + 1) >= partition.end_offset:
                return

    @property
    def _sends_whole(self) -> bool:
        return self._version >= WHOLE_FIRST_BATCH_VERSION
