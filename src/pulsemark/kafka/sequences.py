"""Idempotent producers: the last batches of each producer id on one partition (KIP-98).

A batch has a producer id, an epoch and a sequence number. The next batch's number is the last one
plus 1 (after 2^31-1 comes 0); a new epoch begins at 0. A batch that repeats one of the last five is
answered with its old offset and not stored again. An unknown id may begin with any number.

Nothing of this is stored: the batches in the log say it. After a start the state is made again of
the newest entries of the partition, when the first idempotent batch comes. A client repeats a batch
only while it has no answer, and has five batches on their way at most. So the newest entries have
it, unless thousands of other batches came in between.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import NamedTuple

from .errors import Code, KafkaError

__all__ = ["BATCHES_KEPT", "Batch", "Sequences", "Stored"]

BATCHES_KEPT = 5
SEQUENCE_END = 2**31


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
