"""Reads the partitions of one Fetch request, in pieces.

A piece is one read of entries, the conversion of one entry, or some cheap steps: entries that are
sent as they are stored, and partitions that have nothing new. Between pieces other clients' work
may run (`cooperative.Turns`).

What a client gets of an entry (`ShownEntries`) is the stored set, but for the fields that a fetch
writes (`records.fetch`), a converted one, or a hole. A large conversion would hold up all other
clients for seconds. So reading stops before it (`large`), a thread runs the function of the
`NeedsThreadError`, and its result is put into `made` before all is read again. `Conversions` runs
each such function once, however many clients ask for its entry. It also keeps small results that
took a compression, such as a mirrored set of magic 0, which has other offsets inside.

The memory of what is read is reserved before (`OutputMemory.reserve`), until it is written and
counts as unsent: else hundreds of clients that ask at once would have an answer each in memory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...connection_memory import OutputMemory
from ...kafka.errors import Code, KafkaError
from ...kafka.records import (
    MAX_RAW_BYTES,
    CodecError,
    Fetched,
    RecordSetError,
    StoredSet,
    UnconvertibleEntryError,
    Work,
    batch_as_stored,
    codec_of,
    control_batch,
    empty_batch,
    ends_before,
    fetch,
    magic_of,
    pulsar_set,
    read_pulsar,
)
from ...kafka.records.layout import MAX_MAGIC, stored_magic
from ...ledger import Entry, EntryKind, LedgerError, Position
from ...ledger.would_block import in_pieces
from ...metadata import BrokerEntryMetadata, Buffer, peek
from ..counters import TopicCounters
from .access import Access, Operation
from .partitions import KafkaPartition

log = logging.getLogger(__name__)

#: From this version of Fetch on, a first batch that is larger than the limits is sent whole.
WHOLE_FIRST_BATCH_VERSION = 3
#: How long one fetch may read, without the time in which it waits for its turns: if entries have
#: to be converted, and if all are sent as they are stored. It answers what it has by then, one
#: batch at least.
READ_S = 0.05
STORED_READ_S = 0.25
#: The most that is read in one piece.
PIECE_BYTES = 1024 * 1024
#: So many cheap steps are one piece.
PIECE_STEPS = 32


@dataclass(slots=True, eq=False)
class Asked:
    """One partition of a Fetch request."""

    topic: str
    index: int
    offset: int
    max_bytes: int
    leader_epoch: int
    partition: KafkaPartition | None = None
    #: Why there is no partition.
    refusal: Code = Code.UNKNOWN_TOPIC_OR_PARTITION


@dataclass(slots=True)
class Read:
    """The part of an answer about one partition."""

    code: Code = Code.NONE
    high_watermark: int = -1
    first_offset: int = -1
    size_bytes: int = 0
    parts: list[Buffer] = field(default_factory=list)
    #: Among `parts`: record sets as they are stored, and sets converted for the client.
    stored_sets: int = 0
    converted_sets: int = 0
    #: Whether the partition has more records, which did not fit into the answer or its time.
    has_more: bool = False
    stable_offset: int = -1
    #: For READ_COMMITTED: the aborted transactions among the records, by producer id and first
    #: offset.
    aborted: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Figures:
    """Counts since the broker was started; `rows` describes each."""

    sets_in: int = 0
    sets_in_place: int = 0
    sets_out: int = 0
    sets_converted: int = 0
    compressions: int = 0
    decompressions: int = 0
    converted_records: int = 0

    def produced(self, counters: TopicCounters, version: int, *, in_place: bool) -> None:
        """Count a set that was stored."""
        self.sets_in += 1
        self.sets_in_place += in_place
        _count(counters, ("produce", version, not in_place), 1)

    def fetched(self, counters: TopicCounters, version: int, stored: int, converted: int) -> None:
        """Count an answer's sets: those sent as they are stored, and those converted."""
        self.sets_out += stored
        self.sets_converted += converted
        _count(counters, ("fetch", version, False), stored)
        _count(counters, ("fetch", version, True), converted)

    def add(self, work: Work) -> None:
        """Count the work on one set."""
        self.compressions += work.compressions
        self.decompressions += work.decompressions
        self.converted_records += work.converted_records

    def rows(self) -> tuple[tuple[str, str, int], ...]:
        """Name and text of each metric, and its value."""
        texts = {
            "sets_in": "Record sets stored",
            "sets_in_place": "Record sets stored with the bytes of their records as sent",
            "sets_out": "Record sets sent as stored",
            "sets_converted": "Record sets converted for a client",
            "compressions": "Record sets compressed, on the way in or out",
            "decompressions": "Record sets decompressed, to check or to convert them",
            "converted_records": "Records written again",
        }
        return tuple(
            (f"pulsemark_kafka_{name}", texts[name], getattr(self, name)) for name in texts
        )


def _count(counters: TopicCounters, use: tuple[str, int, bool], sets: int) -> None:
    if sets:
        counters.kafka_sets[use] = counters.kafka_sets.get(use, 0) + sets


class PartitionsReader:
    """Reads the partitions of one request, again and again until it is answered."""

    def __init__(
        self,
        access: Callable[[], Access],
        shown: ShownEntries,
        output: OutputMemory,
        version: int,
        asked: list[Asked],
        max_bytes: int,
        *,
        is_committed: bool,
    ) -> None:
        """`is_committed`: READ_COMMITTED, up to the last stable offset."""
        self._access = access
        self._is_committed = is_committed
        self._output = output
        #: Reserved output memory, for what was read and is not written yet.
        self._reserved_bytes = 0
        self._shown = shown
        self._sends_whole = version >= WHOLE_FIRST_BATCH_VERSION
        self._asked = asked
        self._max_bytes = max_bytes
        #: The largest answer, in bytes.
        self._wanted_bytes = max(1, min(max_bytes, sum(each.max_bytes for each in asked)))
        self._has_converted = False
        self._steps = 0
        #: How long the last pass over all partitions took, without the time between pieces.
        self.look_s = 0.0
        #: When the present piece began.
        self._resumed_s = 0.0
        #: The answer is full, or reading took so long that the rest is left for the next fetch.
        self.is_cut = False
        #: The large entry at which reading stopped.
        self.large: NeedsThreadError | None = None

    def read_all(self, reads: list[Read]) -> Iterator[object]:
        """Read each partition into `reads`, in pieces."""
        self.large, self.look_s = None, 0.0
        self._has_converted = self.is_cut = False
        pieces = self._read_all(reads)
        while True:
            self._resumed_s = time.monotonic()
            try:
                piece = next(pieces)
            except StopIteration:
                return
            finally:
                self.look_s += time.monotonic() - self._resumed_s
            yield piece

    def _read_all(self, reads: list[Read]) -> Iterator[object]:
        rest_bytes: int | None = None
        read_bytes, is_first = 0, True
        for asked in self._asked:
            read = self._without_entries(asked)
            if read is None:
                # Reading what is too large for the rest of the answer takes time, too.
                if rest_bytes is None:
                    rest_bytes = yield from self._reserve()
                if not is_first:
                    self._check_time()
                read = yield from self._read_one(asked, rest_bytes, is_first=is_first)
                rest_bytes -= read.size_bytes
                read_bytes += read.size_bytes
                if read_bytes > self._reserved_bytes:
                    self._output.reserve_more(read_bytes - self._reserved_bytes)
                    self._reserved_bytes = read_bytes
                is_first = is_first and not read.size_bytes
                yield None
            elif self._is_piece():
                yield None
            reads.append(read)

    def _reserve(self) -> Generator[object, None, int]:
        """Reserve memory for the answer before reading."""
        self.release()
        while not (granted := self._output.reserve(self._wanted_bytes)):
            yield self._output.room_freed()
        self._reserved_bytes = granted
        return granted if granted < self._wanted_bytes else self._max_bytes

    def release(self) -> None:
        """Release the reserved memory: the answer is written or dropped."""
        reserved_bytes, self._reserved_bytes = self._reserved_bytes, 0
        if reserved_bytes:
            self._output.give_back(reserved_bytes)

    def _is_piece(self) -> bool:
        """Count a cheap step. Return whether a piece is complete."""
        self._steps += 1
        return not self._steps % PIECE_STEPS

    def _without_entries(self, asked: Asked) -> Read | None:
        """The answer for a partition with an error or nothing new; None if it must be read."""
        partition = asked.partition
        if not self._access().may(Operation.READ, asked.topic):
            # Also after it has waited: the permission may have been revoked meanwhile.
            return Read(Code.TOPIC_AUTHORIZATION_FAILED)
        if partition is None:
            return Read(asked.refusal)
        if not partition.opened.is_open:
            return Read(Code.NOT_LEADER_OR_FOLLOWER)
        try:
            partition.check_epoch(asked.leader_epoch)
        except KafkaError as refusal:
            return Read(refusal.code)
        end_offset, stable_offset = partition.end_offset, partition.stable_offset
        least = stable_offset if self._is_committed else end_offset
        if not least <= asked.offset <= end_offset:
            return None
        partition.ledger.recent.reached_end()
        return Read(Code.NONE, end_offset, partition.first_offset, stable_offset=stable_offset)

    def _read_one(
        self, asked: Asked, rest_bytes: int, *, is_first: bool
    ) -> Generator[object, None, Read]:
        partition = asked.partition
        assert partition is not None, "the others have no entries"
        read = Read(
            Code.NONE,
            partition.end_offset,
            partition.first_offset,
            has_more=True,
            stable_offset=partition.stable_offset,
        )
        try:
            yield from self._fill(read, partition, asked, rest_bytes, is_first=is_first)
        except KafkaError as refusal:
            return Read(refusal.code)
        except CodecError:
            return Read(Code.UNSUPPORTED_COMPRESSION_TYPE)
        except (LedgerError, OSError) as error:
            log.error("%s: a fetch could not read the topic: %s", partition.opened.name, error)
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
    ) -> Iterator[object]:
        """Read entries up to the limits."""
        limit_bytes, offset = min(asked.max_bytes, rest_bytes), asked.offset
        while read.size_bytes < limit_bytes or (is_first and not read.size_bytes):
            if self.is_cut or not partition.opened.is_open:
                return
            rest = max(limit_bytes - read.size_bytes, 0)
            end = partition.end_offset
            entries = yield from in_pieces(partition.read, offset, min(rest, PIECE_BYTES))
            if not entries:
                # Compaction has removed all that there was up to the end: so consumers reach it.
                batch = self._shown.hole(offset, end - offset)
                read.parts.append(batch)
                read.size_bytes += len(batch)
                break
            if self._is_committed and not (entries := self._committed(read, partition, entries)):
                break
            has_room = yield from self._add(
                read, partition, entries, asked, limit_bytes, is_first=is_first
            )
            if not has_room:
                # A full answer has no room for other partitions' entries, either.
                if rest_bytes == limit_bytes and (read.size_bytes or not is_first):
                    self.is_cut = True
                return
            if (offset := entries[-1].index + 1) >= partition.end_offset:
                break
            if read.parts and self._check_time():
                return
            yield None
        else:
            return
        read.has_more = False

    def _committed(
        self, read: Read, partition: KafkaPartition, entries: list[Entry]
    ) -> list[Entry]:
        """The entries that a client with READ_COMMITTED gets."""
        if entries := partition.committed(entries):
            found = partition.aborted(entries[0].first_index, entries[-1].index)
            read.aborted += [each for each in found if each not in read.aborted]
        return entries

    def _add(
        self,
        read: Read,
        partition: KafkaPartition,
        entries: list[Entry],
        asked: Asked,
        limit_bytes: int,
        *,
        is_first: bool,
    ) -> Generator[None, None, bool]:
        """Add entries. Return False if not all fit. From v3 on the first batch is sent whole.

        Before v3 the first bytes of a too large first batch are sent: so the client learns that its
        limit is too low, instead of asking again and again.
        """
        epoch_of, as_stored = partition.epochs(), self._shown.as_stored(partition)
        for entry in entries:
            may_be_whole = is_first and not read.size_bytes
            parts, stored_sets, converted_sets = as_stored(entry, epoch_of), 1, 0
            is_cheap = parts is not None
            if parts is None:
                self._has_converted = self._has_converted or entry.kind is EntryKind.DATA
                try:
                    shown = self._shown.show(partition, entry, epoch_of(entry), asked.offset)
                except NeedsThreadError as large:
                    self.is_cut = True
                    self.large = large if may_be_whole else None
                    return False
                parts, stored_sets, converted_sets = shown
            size_bytes = sum(map(len, parts))
            fits = read.size_bytes + size_bytes <= limit_bytes
            if not fits and not (may_be_whole and self._sends_whole):
                if not (self._sends_whole or read.size_bytes) and size_bytes > asked.max_bytes:
                    read.parts, read.size_bytes = _cut(parts, limit_bytes), limit_bytes
                return False
            read.parts += parts
            read.size_bytes += size_bytes
            read.stored_sets += stored_sets
            read.converted_sets += converted_sets
            if is_cheap and not self._is_piece():
                continue
            if read.parts and self._check_time():
                return False
            yield
        return True

    def _check_time(self) -> bool:
        """Whether reading has to stop: its time is over, or `is_cut` is set."""
        limit_s = READ_S if self._has_converted else STORED_READ_S
        read_s = self.look_s + time.monotonic() - self._resumed_s
        self.is_cut = self.is_cut or read_s > limit_s
        return self.is_cut


def _cut(parts: Sequence[Buffer], size_bytes: int) -> list[Buffer]:
    """The first bytes of buffers."""
    cut: list[Buffer] = []
    for part in parts:
        if size_bytes > 0:
            cut.append(memoryview(part)[:size_bytes])
        size_bytes -= len(part)
    return cut


#: An entry with more records, or larger when it is decompressed, is converted in a thread.
CONVERTED_AT_ONCE_RECORDS = 1_000
CONVERTED_AT_ONCE_BYTES = 128 * 1024
#: How long what was converted is kept after a client asked for it last, and how much of it.
KEPT_S = 5.0
KEPT_BYTES = 32 * 1024 * 1024
#: The overhead of a kept result, in bytes.
KEPT_OVERHEAD_BYTES = 1024


#: The content sent for an entry in which nothing is left from the client's offset on.
NOTHING = Fetched((), 0, Work())


def _none(_entry: Entry, _epoch_of: Callable[[Entry], int]) -> None:
    """Returns None: no entry is sent as it is stored."""


Place = tuple[KafkaPartition, Position, int, int, int | None]
"""An entry, the offset from which on a client gets it, the client's magic, the broker's time."""


class NeedsThreadError(Exception):
    """A large entry must be converted first, by `make` in a thread."""

    def __init__(self, place: Place, make: Callable[[], Fetched]) -> None:
        super().__init__(place)
        self.place = place
        self.make = make


class Shown(NamedTuple):
    """An entry as a client gets it. A control entry and a hole count as neither kind of set."""

    parts: tuple[Buffer, ...]
    stored_sets: int = 0
    converted_sets: int = 0


class ShownEntries:
    """Converts entries for the clients of one version of Fetch."""

    def __init__(self, figures: Figures, conversions: Conversions, max_magic: int) -> None:
        self._figures = figures
        self._conversions = conversions
        self._max_magic = max_magic
        #: The conversions made in a thread.
        self.made: dict[Place, asyncio.Future[Fetched]] = {}

    def as_stored(
        self, partition: KafkaPartition
    ) -> Callable[[Entry, Callable[[Entry], int]], tuple[Buffer, ...] | None]:
        """A function: the buffers of an entry that the client takes as it is stored, else None.

        Its arguments are an entry and a function for the leader epoch. It serves batches of magic 2
        and clients that understand them; `show` serves everything else.
        """
        if self._max_magic < MAX_MAGIC or partition.rules().log_append_time:
            return _none
        peeked = peek

        def shown(entry: Entry, epoch_of: Callable[[Entry], int]) -> tuple[Buffer, ...] | None:
            stored, at = entry.stored, entry.prefix_size_bytes
            if entry.kind is not EntryKind.DATA or not at:
                return None
            metadata = peeked(stored[:at])
            if metadata is None or magic_of(metadata.source_format) != MAX_MAGIC:
                return None
            return batch_as_stored(stored[at:], entry.first_index, epoch_of(entry))

        return shown

    def show(self, partition: KafkaPartition, entry: Entry, epoch: int, fetch_offset: int) -> Shown:
        """An entry as the client gets it. Raises CodecError, NeedsThreadError."""
        if entry.kind is EntryKind.CONTROL:
            control = peek(entry.prefix) or BrokerEntryMetadata()
            kind, name = control.control_type, str(control.control_name)
            batch = control_batch(entry.index, kind, entry.time_ms, self._max_magic, epoch, name)
            return Shown((batch,) if batch else ())
        broker_time_ms = entry.time_ms if partition.rules().log_append_time else None
        metadata = peek(entry.prefix)
        if metadata is None or magic_of(metadata.source_format) is None:
            try:
                return self._converted(partition, entry, epoch, fetch_offset, broker_time_ms)
            except UnconvertibleEntryError as error:
                return self._hole(partition, entry, epoch, str(error))
        inner = metadata.inner_base_offset if metadata.HasField("inner_base_offset") else None
        stored = StoredSet(entry.body, entry.first_index, epoch, broker_time_ms, inner)
        try:
            fetched = self._fetched(partition, entry, stored, fetch_offset)
        except CodecError:
            raise
        except RecordSetError as error:
            return self._hole(partition, entry, epoch, str(error))
        is_converted = stored_magic(stored.body) > self._max_magic or fetched.work.compressions > 0
        return Shown(fetched.parts, not is_converted, is_converted)

    def _fetched(
        self, partition: KafkaPartition, entry: Entry, stored: StoredSet, fetch_offset: int
    ) -> Fetched:
        """A stored set as the client gets it. Raises RecordSetError, NeedsThreadError."""

        def make() -> Fetched:
            return fetch(stored, self._max_magic, fetch_offset)

        # A set of magic 2 that the client understands is not looked into.
        magic = stored_magic(stored.body)
        if magic == MAX_MAGIC == self._max_magic:
            return make()
        metadata = peek(entry.prefix)
        # 0: it is not known, because a mirror brought the set.
        raw_bytes = (metadata.raw_size_bytes if metadata is not None else 0) or MAX_RAW_BYTES
        # A client gets all of a compressed set, wherever it begins to read.
        offset = stored.base_offset if codec_of(stored.body, magic) else fetch_offset
        place = partition, entry.position, offset, self._max_magic, stored.broker_time_ms
        size_bytes = max(raw_bytes, len(stored.body))
        fetched = self._result(place, size_bytes, entry.message_count, make)
        is_over = min(magic, self._max_magic) < MAX_MAGIC and ends_before(
            fetched.parts, fetch_offset
        )
        return NOTHING if is_over else fetched

    def _converted(
        self,
        partition: KafkaPartition,
        entry: Entry,
        epoch: int,
        fetch_offset: int,
        broker_time_ms: int | None,
    ) -> Shown:
        """A Pulsar entry as a record set. Raises UnconvertibleEntryError, NeedsThreadError."""
        prefix = peek(entry.prefix)
        tombstone = prefix is not None and prefix.tombstone

        def make() -> Fetched:
            records = read_pulsar(
                entry.body,
                entry.message_count,
                tombstone=tombstone,
                tombstone_property=partition.opened.tombstone_property,
                schema_numbers=partition.opened.schema_numbers,
            )
            made = pulsar_set(
                records,
                entry.first_index,
                entry.message_count,
                self._max_magic,
                fetch_offset=fetch_offset,
                leader_epoch=epoch,
                broker_time_ms=broker_time_ms,
            )
            parts = (made,) if made else ()
            return Fetched(parts, len(made), Work(converted_records=len(records)))

        offset = max(fetch_offset, entry.first_index)
        place = partition, entry.position, offset, self._max_magic, broker_time_ms
        converted = self._result(place, len(entry.body), entry.message_count, make)
        return Shown(converted.parts, converted_sets=1)

    def hole(self, offset: int, count: int) -> bytes:
        """An empty batch for offsets without records; b"" for none, and for old clients."""
        return empty_batch(offset, count, self._max_magic) if count > 0 else b""

    def _hole(self, partition: KafkaPartition, entry: Entry, epoch: int, reason: str) -> Shown:
        """Log why an entry cannot be shown, and return a hole that consumers skip."""
        log.info(
            "%s: the entry at offset %d is left out for Kafka's consumers: %s",
            partition.opened.name,
            entry.index,
            reason,
        )
        batch = empty_batch(entry.first_index, entry.message_count, self._max_magic, epoch)
        return Shown((batch,) if batch else ())

    def _result(
        self, place: Place, size_bytes: int, records: int, make: Callable[[], Fetched]
    ) -> Fetched:
        """Return what `make` returns. Raises NeedsThreadError if it is large and not yet made."""
        made = self.made.get(place) or self._conversions.known(place)
        if made is not None:
            return made.result()
        if records > CONVERTED_AT_ONCE_RECORDS or size_bytes > CONVERTED_AT_ONCE_BYTES:
            raise NeedsThreadError(place, make)
        fetched = make()
        self._figures.add(fetched.work)
        if fetched.work.compressions:
            self._conversions.keep(place, fetched)
        return fetched


@dataclass(slots=True, eq=False)
class _Conversion:
    """One conversion, running or done."""

    task: asyncio.Future[Fetched]
    used_s: float
    waiting: int = 0
    size_bytes: int = 0


class Conversions:
    """Conversions for all clients of an endpoint; large ones are made in threads.

    Clients that ask for the same conversion share it. It is kept while it is asked for
    (`KEPT_BYTES`), and counted once.
    """

    def __init__(
        self,
        figures: Figures,
        run: Callable[[Callable[[], Fetched]], Awaitable[Fetched]],
        now_s: Callable[[], float],
    ) -> None:
        self._figures = figures
        self._run = run
        self._now_s = now_s
        #: By the time of use, the newest last.
        self._kept: OrderedDict[Place, _Conversion] = OrderedDict()
        self._kept_bytes = 0

    def known(self, place: Place) -> asyncio.Future[Fetched] | None:
        """The conversion, if it is kept and done."""
        known = self._kept.get(place)
        if known is None or not known.task.done():
            return None
        self._used(place, known)
        return known.task

    def keep(self, place: Place, fetched: Fetched) -> None:
        """Keep a result that was made at once."""
        task = asyncio.get_running_loop().create_future()
        task.set_result(fetched)
        known = self._kept[place] = _Conversion(task, self._now_s())
        self._used(place, known)
        self.drop_unused()

    async def result(self, place: Place, make: Callable[[], Fetched]) -> asyncio.Future[Fetched]:
        """Run `make` in a thread, once for all callers. Return its completed future."""
        known = self._kept.get(place)
        if known is None:
            task = asyncio.get_running_loop().create_task(self._made(make))
            known = self._kept[place] = _Conversion(task, self._now_s())
        known.waiting += 1
        try:
            await asyncio.wait([known.task])
        finally:
            known.waiting -= 1
            if not known.waiting and not known.task.done():
                # Nobody asks for it any more.
                known.task.cancel()
                del self._kept[place]
        if place in self._kept:
            self._used(place, known)
        self.drop_unused()
        return known.task

    async def _made(self, make: Callable[[], Fetched]) -> Fetched:
        fetched = await self._run(make)
        self._figures.add(fetched.work)
        return fetched

    def _used(self, place: Place, known: _Conversion) -> None:
        """Note that a client has asked for a finished conversion."""
        known.used_s = self._now_s()
        if not known.size_bytes:
            is_failed = known.task.cancelled() or known.task.exception() is not None
            size_bytes = 0 if is_failed else known.task.result().size_bytes
            known.size_bytes = size_bytes + KEPT_OVERHEAD_BYTES
            self._kept_bytes += known.size_bytes
        self._kept.move_to_end(place)

    def drop_unused(self) -> None:
        """Drop results that were not asked for lately, or exceed the memory limit."""
        old_s = self._now_s() - KEPT_S
        gone = []
        for place, each in self._kept.items():
            if each.waiting or not each.task.done():
                continue
            if self._kept_bytes <= KEPT_BYTES and each.used_s >= old_s:
                break
            self._kept_bytes -= each.size_bytes
            gone.append(place)
        for place in gone:
            del self._kept[place]
