"""Writes topics to a pulsemark broker, which keeps the source's facts as tags.

The producer says that it is a mirror, and the broker gives it the name of its source's mirror: so
both know that the other understands. The broker finds the topic's last entry from the source, and
answers with its position as the last sequence id. A broker that gives another name is Pulsar's: see
`PulsarTopic`.
"""

from __future__ import annotations

from typing import NoReturn

from ..client import EntryRefusedError, RawProducer, RequestRefusedError, SendRefusedError, Service
from ..client.errors import may_pass
from ..metadata import strip
from ..metadata.source_stamp import MIRROR_PRODUCER_PREFIX, MIRROR_PROPERTY, position_of_sequence_id
from ..proto import pulsar_api_pb2 as pb
from ..wire import LATEST, MessageId, TopicName
from .entries import Options, Resume, SourceEntry, Target, TopicTarget
from .errors import (
    KafkaEntryError,
    NoDeduplicationError,
    SchemaVersionError,
    TargetNotEmptyError,
    TargetRefusedError,
    TopicMissingError,
)

#: Refusals that pass: the topic moves, the connection of an earlier mirror is not gone yet, or the
#: disk fails. What was refused is sent again after the topic was opened again.
_MISSING = (pb.TopicNotFound, pb.InvalidTopicName)
LOOK = "pulsemark-mirror-look"


class BrokerTarget(Target):
    """A cluster as a target. Raises ServiceUrlError."""

    def __init__(self, url: str, options: Options) -> None:
        self.service = Service(url, ssl_context=options.tls(url), token=options.target_token)
        super().__init__(url, self.service)
        self.cluster = options.source_cluster
        self.append = options.append
        self.without_deduplication = options.without_deduplication

    @property
    def producer_name(self) -> str:
        """The producer's name of mirrors from this source."""
        return MIRROR_PRODUCER_PREFIX + self.cluster

    def partitions(self, topic: str) -> int | None:
        """Ask with PARTITIONED_METADATA; None for a topic that does not exist."""
        try:
            return self.service.first().partitions(topic, create=False)
        except RequestRefusedError as error:
            if error.error not in _MISSING:
                raise
            return None

    def open(self, topic: str) -> TopicTarget:
        """Open the mirror's producer.

        Raises TopicMissingError, TargetRefusedError, TargetNotEmptyError, NoDeduplicationError.
        """
        producer = self.producer(topic, None)
        if producer.name != self.producer_name:
            producer.close()
            return PulsarTopic(self, topic)
        position = position_of_sequence_id(producer.last_sequence_id)
        if position is None and not self.append and self.last_id(topic) is not None:
            producer.close()
            raise TargetNotEmptyError(self.endpoint, topic, self.cluster)
        next_index = producer.topic_epoch if position is not None else None
        index = None if next_index is None else next_index - 1
        return BrokerTopic(self, producer, Resume(position, index))

    def producer(self, topic: str, name: str | None) -> RawProducer:
        """Open a producer that declares itself a mirror."""
        try:
            return RawProducer(
                self.service,
                topic,
                name=name,
                properties={MIRROR_PROPERTY: self.cluster},
                reconnect_attempts=0,
                gathers=True,
            )
        except RequestRefusedError as error:
            if may_pass(error):
                raise
            if error.error in _MISSING:
                raise TopicMissingError(self.endpoint, topic, str(error)) from error
            raise TargetRefusedError(self.endpoint, topic, str(error)) from error

    def last_id(self, topic: str) -> MessageId | None:
        """The topic's last message; None if it has none."""
        consumer = self.service.connection(topic).subscribe(
            topic, LOOK, durable=False, start_message_id=LATEST
        )
        try:
            last, _ = consumer.get_last_message_id()
            return last if last.entry_id >= 0 else None
        finally:
            consumer.close()


class BrokerTopic(TopicTarget):
    """One topic of a broker, written with a RawProducer."""

    def __init__(self, target: BrokerTarget, producer: RawProducer, resume: Resume) -> None:
        self.resume = resume
        self._target = target
        self._producer = producer

    def has_room(self, entry: SourceEntry) -> bool:
        """Whether the producer's window has room."""
        return self._producer.has_room(0 if entry.body is None else len(entry.body))

    def put(self, entry: SourceEntry) -> None:
        """Publish the entry. Raises TargetRefusedError, ClientError."""
        try:
            self._publish(entry)
        except (EntryRefusedError, SendRefusedError) as error:
            self._refused(error)

    def _publish(self, entry: SourceEntry) -> None:
        assert entry.body is not None
        self._producer.publish(entry.body, num_messages=entry.message_count, source=entry.stamp)

    def stored(self) -> int:
        """The number of receipts that have arrived. Raises TargetRefusedError, ClientError."""
        try:
            return len(self._producer.receipts())
        except SendRefusedError as error:
            self._refused(error)

    def _refused(self, error: EntryRefusedError | SendRefusedError) -> NoReturn:
        if may_pass(error):
            raise error
        raise TargetRefusedError(self._target.endpoint, self._producer.topic, str(error)) from error

    def add_schema(self, version: int, schema: pb.Schema) -> int:
        """Register the schema. Raises SchemaVersionError, TargetRefusedError.

        The target's compatibility strategy decides, as for Pulsar's replication.
        """
        connection = self._target.service.connection(self._producer.topic)
        topic = str(TopicName.parse(self._producer.topic))
        try:
            return int.from_bytes(connection.register_schema(topic, schema), "big")
        except RequestRefusedError as error:
            if error.error == pb.IncompatibleSchema:
                reason = f"the target does not take it: {error}"
                raise SchemaVersionError(topic, version, reason) from error
            raise TargetRefusedError(self._target.endpoint, topic, str(error)) from error

    def close(self) -> None:
        """Close the producer."""
        self._producer.close()


class PulsarTopic(BrokerTopic):
    """One topic of an Apache Pulsar broker, which keeps no tags but can deduplicate.

    Each entry's sequence id is its index in the source, or its position as one number, and the
    producer's name is always the same. So a broker that deduplicates knows the progress. Whether it
    deduplicates is seen only when a producer with entries is opened again, so this is done after
    the first entry. After a crash its answer may be older than its entries (docs/mirror.md): then
    the progress is found by the bytes of the last entry, `tail`. Without deduplication there is
    only that.

    Chunks are sent as plain entries (`is_chunk` unset): else Pulsar would deduplicate only the last
    one of a message.
    """

    def __init__(self, target: BrokerTarget, topic: str) -> None:
        producer = target.producer(topic, target.producer_name)
        last = producer.last_sequence_id
        super().__init__(target, producer, Resume(sequence_id=last if last >= 0 else None))
        self._topic = topic
        self._is_checked = last >= 0 or target.without_deduplication
        self.tail = self._last_entry()

    def check_may_begin(self) -> None:
        """Raise TargetNotEmptyError for a topic whose last entry is not the source's."""
        if not self._target.append:
            raise TargetNotEmptyError(self._target.endpoint, self._topic, self._target.cluster)

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
            raise KafkaEntryError(self._topic, entry.position, reason)
        self._producer.publish(
            entry.body, num_messages=entry.message_count, sequence_id=entry.sequence_id
        )

    def stored(self) -> int:
        """The number of receipts that have arrived, with those that the check waited for."""
        waited, self._waited = self._waited, 0
        return waited + super().stored()

    _waited = 0

    def _check_deduplication(self) -> None:
        try:
            self._waited = len(self._producer.flush())
        except (EntryRefusedError, SendRefusedError) as error:
            self._refused(error)
        self._producer.close()
        self._producer = self._target.producer(self._topic, self._target.producer_name)
        if self._producer.last_sequence_id < 0:
            self._producer.close()
            raise NoDeduplicationError(self._target.endpoint, self._topic)
        self._is_checked = True

    def _last_entry(self) -> bytes | None:
        """The bytes of the topic's last entry; None if it has none."""
        last = self._target.last_id(self._topic)
        if last is None:
            return None
        reader = self._target.service.connection(self._topic).subscribe(
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
