"""Reads one Fetch request's partitions, and waits for new entries.

A fetch that finds fewer than `min_bytes` waits until a commit adds entries to one of its
partitions, or until its time is over. It registers with its partitions, and has one deadline among
all deadlines of the endpoint: no thread and no timer for each client. The connection takes no other
request meanwhile, so a client has one waiting fetch on each connection.

Stored bytes go out as they are, but for the fields that a fetch writes (`records.fetch`). Entries
that the client's version cannot read are converted one by one, by their own format.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..ledger import Entry, EntryKind, LedgerError
from ..metadata import Buffer, peek
from .deadlines import Deadline
from .errors import Code, KafkaError
from .partitions import KafkaPartition
from .records import (
    CodecError,
    RecordSetError,
    StoredSet,
    UnconvertibleEntryError,
    control_batch,
    empty_batch,
    fetch,
    magic_of,
    max_magic_of,
    pulsar_set,
    read_pulsar,
)

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
        self._max_magic = max_magic_of(version)
        self.asked = asked
        self._max_bytes = min(max_bytes, session.options.max_fetch_bytes)
        self._min_bytes = min_bytes
        self._answer = answer
        self._deadline: Deadline | None = None
        self._is_woken = False
        self._look_s = 0.0
        self._until_s = 0.0
        #: Reading took so long that the rest is left for the next fetch.
        self._is_cut = False

    def needs_no_wait(self) -> bool:
        """Whether all partitions are open."""
        get = self._session.endpoint.partitions.get
        for asked in self.asked:
            asked.partition = get(asked.topic, asked.index)
        return all(asked.partition is not None for asked in self.asked)

    async def open(self) -> None:
        """Open the partitions. Those that cannot be opened are answered with an error."""
        for asked in self.asked:
            if asked.partition is None:
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
        if self._is_enough(reads):
            self.give_up()
            self._answer(reads)

    def _over(self) -> None:
        """The time is over: answer what there is."""
        self.give_up()
        self._answer(self._read_all())

    def give_up(self) -> None:
        """Wait no longer."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        for asked in self.asked:
            if asked.partition is not None:
                asked.partition.waiting.pop(self, None)

    # -- reading --------------------------------------------------------------------------------

    def _read_all(self) -> list[Read]:
        reads = []
        self._until_s = time.monotonic() + READ_S
        self._is_cut = False
        rest_bytes = self._max_bytes
        is_first = True
        for asked in self.asked:
            read = self._read_one(asked, rest_bytes, is_first=is_first)
            rest_bytes -= read.size_bytes
            is_first = is_first and not read.size_bytes
            reads.append(read)
        return reads

    def _read_one(self, asked: Asked, rest_bytes: int, *, is_first: bool) -> Read:
        partition = asked.partition
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
        limit_bytes = min(asked.max_bytes, rest_bytes)
        offset = asked.offset
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
                broker_time = entry.time_ms if shows_broker_time else None
                parts = self._parts(partition, entry, epoch_of(entry), asked.offset, broker_time)
                size_bytes = sum(map(len, parts))
                whole = is_first and not read.size_bytes and self._sends_whole
                if read.size_bytes + size_bytes > limit_bytes and not whole:
                    return
                read.parts += parts
                read.size_bytes += size_bytes
                if parts and time.monotonic() > self._until_s:
                    self._is_cut = True
                    return
            offset = entries[-1].index + 1
            if offset >= partition.end_offset:
                return

    @property
    def _sends_whole(self) -> bool:
        return self._version >= WHOLE_FIRST_BATCH_VERSION

    def _parts(
        self,
        partition: KafkaPartition,
        entry: Entry,
        epoch: int,
        fetch_offset: int,
        broker_time_ms: int | None,
    ) -> tuple[Buffer, ...]:
        """What the client gets of an entry."""
        metadata = peek(entry.prefix)
        if entry.kind is EntryKind.CONTROL:
            kind = 0 if metadata is None else metadata.control_type
            batch = control_batch(entry.index, kind, entry.time_ms, self._max_magic, epoch)
            return (batch,) if batch else ()
        if metadata is None or magic_of(metadata.source_format) is None:
            try:
                return self._converted(partition, entry, epoch, fetch_offset, broker_time_ms)
            except UnconvertibleEntryError as error:
                return self._hole(partition, entry, epoch, error.reason)
        stored = StoredSet(entry.body, entry.first_index, epoch, broker_time_ms)
        try:
            fetched = fetch(stored, self._max_magic, fetch_offset)
        except CodecError:
            raise
        except RecordSetError as error:
            return self._hole(partition, entry, epoch, str(error))
        figures = self._session.endpoint.figures
        figures.add(fetched.work)
        if fetched.work.converted_records:
            figures.sets_converted += 1
        else:
            figures.sets_out += 1
        return fetched.parts

    def _converted(
        self,
        partition: KafkaPartition,
        entry: Entry,
        epoch: int,
        fetch_offset: int,
        broker_time_ms: int | None,
    ) -> tuple[Buffer, ...]:
        """A Pulsar entry as a record set. Raises UnconvertibleEntryError."""
        prefix = peek(entry.prefix)
        tombstone = prefix is not None and prefix.tombstone
        records = read_pulsar(
            entry.body,
            entry.message_count,
            tombstone=tombstone,
            tombstone_property=partition.opened.tombstone_property,
        )
        converted = pulsar_set(
            records,
            entry.first_index,
            entry.message_count,
            self._max_magic,
            fetch_offset=fetch_offset,
            leader_epoch=epoch,
            broker_time_ms=broker_time_ms,
        )
        figures = self._session.endpoint.figures
        figures.sets_converted += 1
        figures.converted_records += len(records)
        return (converted,) if converted else ()

    def _hole(
        self, partition: KafkaPartition, entry: Entry, epoch: int, reason: str
    ) -> tuple[Buffer, ...]:
        """Offsets that consumers jump over."""
        log.info("%s: left out at offset %d: %s", partition.opened.name, entry.index, reason)
        batch = empty_batch(entry.first_index, entry.message_count, self._max_magic, epoch)
        return (batch,) if batch else ()
