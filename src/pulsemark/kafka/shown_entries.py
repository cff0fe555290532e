"""What a Kafka client gets of an entry: the stored set, a converted one, or a hole.

A large conversion would hold up all other clients for seconds, so it is left to a thread: the
caller gets a `NeedsThreadError` with the function to run there, puts its result into `made`, and
asks again. `Conversions` runs such functions: each once, however many clients ask for its entry.

It also keeps small results that took a compression. A compressed set of magic 0 needs one for every
client, since its inner offsets are absolute: so it is compressed once for all who read it together.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..ledger import Entry, EntryKind, Position
from ..metadata import Buffer, peek
from .partitions import KafkaPartition
from .ports import Figures
from .records import (
    CodecError,
    Fetched,
    RecordSetError,
    StoredSet,
    UnconvertibleEntryError,
    Work,
    batch_as_stored,
    control_batch,
    empty_batch,
    fetch,
    magic_of,
    pulsar_set,
    read_pulsar,
)
from .records.layout import MAX_MAGIC, stored_magic

__all__ = ["Conversions", "NeedsThreadError", "ShownEntries"]

log = logging.getLogger(__name__)

#: An entry with more records, or larger when it is decompressed, is converted in a thread.
CONVERTED_AT_ONCE_RECORDS = 1_000
CONVERTED_AT_ONCE_BYTES = 128 * 1024
#: How long what was converted is kept after a client asked for it last, and how much of it.
KEPT_S = 5.0
KEPT_BYTES = 32 * 1024 * 1024
#: What a kept result takes beside its bytes.
KEPT_OVERHEAD_BYTES = 1024


def _none(_entry: Entry, _epoch_of: Callable[[Entry], int]) -> None:
    """No entry is sent as it is stored."""


Place = tuple[KafkaPartition, Position, int, int, int | None]
"""An entry, the offset from which on a client gets it, the client's magic, the broker's time."""


class NeedsThreadError(Exception):
    """A large entry has to be converted in a thread first, by `make`."""

    def __init__(self, place: Place, make: Callable[[], Fetched]) -> None:
        super().__init__(place)
        self.place = place
        self.make = make


class ShownEntries:
    """Entries as the clients of one version of Fetch get them."""

    def __init__(self, figures: Figures, conversions: Conversions, max_magic: int) -> None:
        self._figures = figures
        self._conversions = conversions
        self._max_magic = max_magic
        #: What was made in a thread.
        self.made: dict[Place, asyncio.Future[Fetched]] = {}

    def as_stored(
        self, partition: KafkaPartition
    ) -> Callable[[Entry, Callable[[Entry], int]], tuple[Buffer, ...] | None]:
        """A function for the entries that the client gets as they are stored; None for others.

        It is given an entry and what says its leader epoch. It is for a partition's batches of
        magic 2 and clients that understand them, and `parts` for everything else.
        """
        if self._max_magic < MAX_MAGIC or partition.rules().log_append_time:
            return _none
        figures, peeked = self._figures, peek

        def shown(entry: Entry, epoch_of: Callable[[Entry], int]) -> tuple[Buffer, ...] | None:
            stored, at = entry.stored, entry.prefix_size_bytes
            if entry.kind is not EntryKind.DATA or not at:
                return None
            metadata = peeked(stored[:at])
            if metadata is None or magic_of(metadata.source_format) != MAX_MAGIC:
                return None
            parts = batch_as_stored(stored[at:], entry.first_index, epoch_of(entry))
            figures.sets_out += parts is not None
            return parts

        return shown

    def parts(
        self,
        partition: KafkaPartition,
        entry: Entry,
        epoch: int,
        fetch_offset: int,
        broker_time_ms: int | None,
    ) -> tuple[Buffer, ...]:
        """What the client gets of an entry. Raises CodecError, NeedsThreadError.

        ``broker_time_ms`` is the entry's time if the topic shows the broker's time, else None.
        """
        if entry.kind is EntryKind.CONTROL:
            metadata = peek(entry.prefix)
            kind = 0 if metadata is None else metadata.control_type
            batch = control_batch(entry.index, kind, entry.time_ms, self._max_magic, epoch)
            return (batch,) if batch else ()
        metadata = peek(entry.prefix)
        if metadata is None or magic_of(metadata.source_format) is None:
            try:
                return self._converted(partition, entry, epoch, fetch_offset, broker_time_ms)
            except UnconvertibleEntryError as error:
                return self._hole(partition, entry, epoch, error.reason)
        stored = StoredSet(entry.body, entry.first_index, epoch, broker_time_ms)
        try:
            fetched = self._fetched(partition, entry, stored, fetch_offset)
        except CodecError:
            raise
        except RecordSetError as error:
            return self._hole(partition, entry, epoch, str(error))
        if stored_magic(stored.body) > self._max_magic:
            self._figures.sets_converted += 1
        else:
            self._figures.sets_out += 1
        return fetched.parts

    def _fetched(
        self, partition: KafkaPartition, entry: Entry, stored: StoredSet, fetch_offset: int
    ) -> Fetched:
        """A stored set as the client gets it. Raises RecordSetError, NeedsThreadError."""

        def make() -> Fetched:
            return fetch(stored, self._max_magic, fetch_offset)

        # A set of magic 2 that the client understands is not looked into.
        if stored_magic(stored.body) == MAX_MAGIC == self._max_magic:
            return make()
        metadata = peek(entry.prefix)
        raw_bytes = 0 if metadata is None else metadata.raw_size_bytes
        # Of a compressed set a client gets all, wherever it begins to read.
        offset = stored.base_offset if raw_bytes > len(stored.body) else fetch_offset
        place = partition, entry.position, offset, self._max_magic, stored.broker_time_ms
        return self._result(place, max(raw_bytes, len(stored.body)), entry.message_count, make)

    def _converted(
        self,
        partition: KafkaPartition,
        entry: Entry,
        epoch: int,
        fetch_offset: int,
        broker_time_ms: int | None,
    ) -> tuple[Buffer, ...]:
        """A Pulsar entry as a record set. Raises UnconvertibleEntryError, NeedsThreadError."""
        prefix = peek(entry.prefix)
        tombstone = prefix is not None and prefix.tombstone

        def make() -> Fetched:
            records = read_pulsar(
                entry.body,
                entry.message_count,
                tombstone=tombstone,
                tombstone_property=partition.opened.tombstone_property,
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
        self._figures.sets_converted += 1
        return converted.parts

    def _hole(
        self, partition: KafkaPartition, entry: Entry, epoch: int, reason: str
    ) -> tuple[Buffer, ...]:
        """Offsets that consumers jump over."""
        log.info(
            "%s: the entry at offset %d is left out for Kafka's consumers: %s",
            partition.opened.name,
            entry.index,
            reason,
        )
        batch = empty_batch(entry.first_index, entry.message_count, self._max_magic, epoch)
        return (batch,) if batch else ()

    def _result(
        self, place: Place, size_bytes: int, records: int, make: Callable[[], Fetched]
    ) -> Fetched:
        """What `make` returns. Raises NeedsThreadError: it is large, and was not made yet."""
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

    Clients that ask for the same one share it. It is kept while it is asked for (`KEPT_BYTES`), and
    counted once, when it was made.
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
        """Keep what was made at once."""
        task = asyncio.get_running_loop().create_future()
        task.set_result(fetched)
        known = self._kept[place] = _Conversion(task, self._now_s())
        self._used(place, known)
        self.drop_unused()

    async def result(self, place: Place, make: Callable[[], Fetched]) -> asyncio.Future[Fetched]:
        """A future that is done, with what `make` returned or raised."""
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
        """A client has asked for a conversion that is done."""
        known.used_s = self._now_s()
        if not known.size_bytes:
            known.size_bytes = _size_of(known.task) + KEPT_OVERHEAD_BYTES
            self._kept_bytes += known.size_bytes
        self._kept.move_to_end(place)

    def drop_unused(self) -> None:
        """Forget what was not asked for lately, and what is too much."""
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


def _size_of(made: asyncio.Future[Fetched]) -> int:
    is_failed = made.cancelled() or made.exception() is not None
    return 0 if is_failed else made.result().size_bytes
