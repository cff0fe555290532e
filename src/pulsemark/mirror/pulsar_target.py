"""Writes topics to an Apache Pulsar broker, which keeps no tags but can deduplicate.

Each entry's sequence id is its index in the source, or its position as one number if the source
shows no indexes. The producer's name is always the same, so a broker that deduplicates knows how
far it came, and stores no entry twice.

Two things need more than that:

- Whether a broker deduplicates is seen only when a producer with entries is opened again: it then
  answers with their last sequence id. So after the first entry the producer is opened again. A
  broker without deduplication is refused, or used with `without_deduplication`.
- After a crash Pulsar reads its newest entries again to learn the sequence ids, and takes them from
  the producers' own headers, which a mirror does not change. So its answer may be older than its
  entries. The topic's last entry is compared with the source's next ones, byte by byte: what is
  there already is found (`tail`). Without deduplication this comparison is all there is.
  It needs a topic that only the mirror writes to.

Chunks are sent as plain entries (`is_chunk` unset): else Pulsar would deduplicate only the last
one of a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..client import EntryRefusedError, RawProducer, SendRefusedError
from ..metadata import strip
from ..proto import pulsar_api_pb2 as pb
from ..wire import LATEST
from .broker_target import LOOK, BrokerTopic
from .entries import Resume, SourceEntry
from .errors import KafkaEntryError, NoDeduplicationError, TargetNotEmptyError

if TYPE_CHECKING:
    from .broker_target import BrokerTarget

__all__ = ["PulsarTopic"]


class PulsarTopic(BrokerTopic):
    """One topic of a Pulsar broker.

    Attributes: tail (the topic's last entry, which may be newer than the sequence id that the
    broker knows; None: there is none).
    """

    def __init__(self, target: BrokerTarget, topic: str) -> None:
        producer = target.producer(topic, target.producer_name)
        last = producer.last_sequence_id
        super().__init__(target, producer, Resume(sequence_id=last if last >= 0 else None))
        self._topic = topic
        self._is_checked = last >= 0 or target.without_deduplication
        self.tail = self._last_entry()

    def check_may_begin(self) -> None:
        """Raise TargetNotEmptyError, for a topic whose last entry is not the source's."""
        if not self._target.append:
            raise TargetNotEmptyError(self._target.place, self._topic, self._target.cluster)

    def put(self, entry: SourceEntry) -> None:
        """Publish the entry; the first one ever also shows whether the broker deduplicates."""
        super().put(entry)
        if not self._is_checked:
            self._check_deduplication()

    def _publish(self, entry: SourceEntry) -> None:
        assert entry.body is not None
        if entry.stamp.record_set is not None:
            self._producer.flush()  # what is before it is copied first
            reason = (
                "an Apache Pulsar broker cannot serve it; Kafka's MirrorMaker copies such a topic"
            )
            raise KafkaEntryError(self._topic, entry.place, reason)
        self._producer.publish(
            entry.body, num_messages=entry.message_count, sequence_id=entry.sequence_id
        )

    def stored(self) -> int:
        """The receipts that have arrived, and those that the check has waited for."""
        waited, self._waited = self._waited, 0
        return waited + super().stored()

    _waited = 0

    def _check_deduplication(self) -> None:
        try:
            self._waited = len(self._producer.flush())
        except (EntryRefusedError, SendRefusedError) as error:
            self._refused(error)
        self._producer.close()
        self._producer = self._again()
        if self._producer.last_sequence_id < 0:
            self._producer.close()
            raise NoDeduplicationError(self._target.place, self._topic)
        self._is_checked = True

    def _again(self) -> RawProducer:
        return self._target.producer(self._topic, self._target.producer_name)

    def _last_entry(self) -> bytes | None:
        """The bytes of the topic's last entry; None if it has none."""
        connection = self._target.service.connection(self._topic)
        consumer = connection.subscribe(self._topic, LOOK, durable=False, start_message_id=LATEST)
        try:
            last, _ = consumer.get_last_message_id()
            if last.entry_id < 0:
                return None
        finally:
            consumer.close()
        reader = connection.subscribe(
            self._topic,
            LOOK,
            sub_type=pb.CommandSubscribe.Exclusive,
            durable=False,
            start_message_id=last._replace(batch_index=-1),
        )
        try:
            reader.flow(1)
            return bytes(strip(reader.receive().headers_and_payload))
        finally:
            reader.close()
