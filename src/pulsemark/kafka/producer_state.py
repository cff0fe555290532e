"""Idempotent producers: the last batches of each producer id on one partition (KIP-98).

A batch has a producer id, an epoch and a sequence number. The next batch's number is the last one
plus 1 (after 2^31-1 comes 0); a new epoch begins at 0. A batch that repeats one of the last five is
answered with its old offset and not stored again. An unknown id may begin with any number.

Nothing of this is stored: the batches in the log say it. After a start the state is made again of
the newest entries of the partition, when the first idempotent batch comes. A client repeats a batch
only while it has no answer, and has five batches on their way at most. So the newest entries have
it, unless thousands of other batches came in between.

Producer ids are never given twice. They are taken from the broker in blocks, so that most of them
cost no write (`ProducerIds`).
"""

from __future__ import annotations

import asyncio
import struct
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import NamedTuple

from ..ledger import Entry, EntryKind, ManagedLedger, Position
from ..ledger.topic_log import entries_of
from ..metadata import peek
from ..metadata.source_stamp import source_stamp_of
from .errors import Code, KafkaError
from .ports import Ports

__all__ = ["BATCHES_KEPT", "Batch", "ProducerIds", "Sequences", "Stored", "read_sequences"]

BATCHES_KEPT = 5
SEQUENCE_END = 2**31
#: So many of the newest entries are read, or fewer if they are large.
NEWEST_ENTRIES = (5_000, 1_000, 200, 40)
MAX_BYTES = 64 * 1024 * 1024
_HEADER_BYTES = 61
_MAGIC_AT = 16
# producerId i64, producerEpoch i16, baseSequence i32 of a batch of magic 2
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = 43
#: So many producer ids are taken from the broker at once.
BLOCK = 1_000


class Batch(NamedTuple):
    """What a batch says about its producer."""

    producer_id: int
    epoch: int
    first_sequence: int
    records: int

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record."""
        return (self.first_sequence + self.records - 1) % SEQUENCE_END


class Stored(NamedTuple):
    """A batch that was stored."""

    batch: Batch
    base_offset: int
    time_ms: int


@dataclass(slots=True)
class _Producer:
    epoch: int
    batches: deque[Stored]


class Sequences:
    """The idempotent producers of one partition; those that sent last are kept."""

    def __init__(self, max_producers: int) -> None:
        self._max_producers = max_producers
        self._producers: OrderedDict[int, _Producer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, batch: Batch) -> Stored | None:
        """The batch that this one repeats; None: it is the next one.

        Raises KafkaError: its number is not the next one, or its epoch is old.
        """
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            return None
        if batch.epoch < producer.epoch:
            raise KafkaError(
                Code.INVALID_PRODUCER_EPOCH,
                f"producer {batch.producer_id} has epoch {producer.epoch}, not {batch.epoch}",
            )
        if batch.epoch > producer.epoch:
            expected = 0
        else:
            for stored in producer.batches:
                if stored.batch == batch:
                    return stored
            expected = (producer.batches[-1].batch.last_sequence + 1) % SEQUENCE_END
        if batch.first_sequence != expected:
            raise KafkaError(
                Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {batch.producer_id} sent sequence number {batch.first_sequence}, "
                f"and the next one is {expected}",
            )
        return None

    def add(self, batch: Batch, base_offset: int, time_ms: int) -> None:
        """A batch was appended."""
        producer = self._producers.pop(batch.producer_id, None)
        if producer is None or batch.epoch != producer.epoch:
            producer = _Producer(batch.epoch, deque(maxlen=BATCHES_KEPT))
        producer.batches.append(Stored(batch, base_offset, time_ms))
        self._producers[batch.producer_id] = producer
        if len(self._producers) > self._max_producers:
            self._producers.popitem(last=False)


def read_sequences(ledger: ManagedLedger, max_producers: int) -> Sequences:
    """What the newest entries say. Blocks. Raises LedgerError, OSError."""
    sequences = Sequences(max_producers)
    start = _start(ledger)
    if start is not None:
        for entry in entries_of(ledger, start, skip_damaged=True):
            batch = _batch_of(entry)
            if batch is not None:
                sequences.add(batch, entry.first_index, -1)
    return sequences


def _start(ledger: ManagedLedger) -> Position | None:
    first, end = ledger.first_position, ledger.end_position
    if first is None:
        return None
    count = ledger.count_entries(first, end)
    for newest in NEWEST_ENTRIES:
        start = ledger.entry_after(first, max(0, count - newest))
        if start is None or _size_bytes(ledger, start) <= MAX_BYTES:
            break
    return start


def _size_bytes(ledger: ManagedLedger, start: Position) -> int:
    return sum(
        run.row(end - 1).end_offset - run.row(first).offset
        for run, first, end in ledger.stretches(start)
    )


def _batch_of(entry: Entry) -> Batch | None:
    """The batch of an idempotent producer in an entry; None: it is not one.

    Pulsar's entries do not begin with two zero bytes, or have another byte where the magic is.
    """
    body = entry.body
    if entry.kind is not EntryKind.DATA or len(body) < _HEADER_BYTES or body[_MAGIC_AT] != 2:
        return None
    if bytes(body[:8]) != bytes(8):
        return None
    producer_id, epoch, sequence = _PRODUCER.unpack_from(body, _PRODUCER_AT)
    if producer_id < 0 or source_stamp_of(peek(entry.prefix)) is not None:
        return None  # a mirrored batch has the number of another cluster's producer
    return Batch(producer_id, epoch, sequence, entry.message_count)


class ProducerIds:
    """The producer ids of one endpoint."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._next = self._end = 0
        self._taking = asyncio.Lock()

    async def take(self) -> int:
        """An id that no producer had before. Raises LedgerError."""
        async with self._taking:
            if self._next == self._end:
                first = await self._ports.next_producer_ids(BLOCK)
                self._next, self._end = first, first + BLOCK
            self._next += 1
            return self._next - 1
