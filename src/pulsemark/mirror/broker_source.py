"""Reads topics from a broker, pulsemark's or Pulsar's, over Pulsar's protocol.

A durable subscription holds the position, so that the source keeps what is not mirrored yet. It is
acknowledged when the target has an entry durably. Where mirroring goes on is decided by the target
alone: the subscription is moved there when a topic is opened.

Entries come with index and broker time if the source has them and shows them to clients that ask
(PIP-90, `exposingBrokerEntryMetadataToClientEnabled`). If not, positions are used instead.
"""

from __future__ import annotations

import time

from ..client import (
    BrokerConnection,
    ConnectionLostError,
    RawConsumer,
    RequestRefusedError,
    Service,
)
from ..client.connection import RawMessage
from ..ledger.limits import MAX_MESSAGE_COUNT
from ..metadata import (
    MessageFormatError,
    PrefixError,
    message_count_of,
    read_message_metadata,
    split,
    strip,
)
from ..metadata.source_stamp import STORED_PROPERTY, WITH_CONTROL, SourceStamp, record_set_tags_of
from ..proto import pulsar_api_pb2 as pb
from ..proto.broker_entry_pb2 import CONTROL
from ..wire import EARLIEST, MessageId
from .entries import Gap, Options, Resume, Source, SourceEntry, SourcePosition, TopicSource
from .errors import KafkaEntryError, OtherSourceError, SourceBusyError, TopicMissingError

#: About how many bytes of a topic are on their way to the mirror, or wait in it.
READ_AHEAD_BYTES = 16 * 1024 * 1024
PERMITS_MIN, PERMITS_MAX = 16, 50_000
#: After this silence the source is asked whether it still has the awaited messages.
QUIET_S = 1.0
_BUSY = (pb.ConsumerBusy,)
_MISSING = (pb.TopicNotFound, pb.InvalidTopicName, pb.MetadataError)


class BrokerSource(Source):
    """A cluster as a source. Raises ServiceUrlError."""

    def __init__(self, url: str, options: Options) -> None:
        self._service = Service(
            url,
            ssl_context=options.tls(url),
            feature_flags=pb.FeatureFlags(supports_broker_entry_metadata=True),
            token=options.source_token,
        )
        super().__init__(url, self._service)
        self.cluster = options.source_cluster
        self.subscription = options.subscription

    def topics(self, namespaces: list[str]) -> list[str]:
        """Ask with GET_TOPICS_OF_NAMESPACE. Raises TopicMissingError for an absent namespace."""
        found: list[str] = []
        for namespace in namespaces:
            try:
                found += self._service.first().topics(namespace)
            except RequestRefusedError as error:
                raise TopicMissingError(self.endpoint, namespace, str(error)) from error
        return found

    def partitions(self, topic: str) -> int | None:
        """Ask with PARTITIONED_METADATA; None for a topic that does not exist."""
        try:
            return self._service.first().partitions(topic, create=False)
        except RequestRefusedError as error:
            if error.error in _MISSING:
                return None
            raise

    def open(self, topic: str, resume: Resume) -> BrokerTopic:
        """Subscribe. Raises TopicMissingError, OtherSourceError, SourceBusyError, ClientError."""
        try:
            return BrokerTopic(self, self._service.connection(topic), topic, resume)
        except RequestRefusedError as error:
            if error.error in _BUSY:
                raise SourceBusyError(
                    self.endpoint, topic, self.subscription, error.message
                ) from error
            if error.error in _MISSING:
                raise TopicMissingError(self.endpoint, topic, str(error)) from error
            raise


class BrokerTopic(TopicSource):
    """One topic, read with a consumer."""

    def __init__(
        self, source: BrokerSource, connection: BrokerConnection, topic: str, resume: Resume
    ) -> None:
        self._cluster = source.cluster
        self._connection = connection
        self._topic = topic
        self._waiting: list[RawMessage] = []
        self._consumer: RawConsumer = connection.subscribe(
            topic,
            source.subscription,
            earliest=True,
            consumer_name=source.subscription,
            properties={STORED_PROPERTY: WITH_CONTROL},
            force_topic_creation=False,
        )
        self._bytes_read = 0
        self._messages_read = 0
        self._permits = 0
        self._quiet_since_s = time.monotonic()
        self._passed: SourcePosition = resume.position or (-1, -1)
        self._last_index = resume.index
        self.has_holes = False
        """Whether the broker has said that the topic is compacted."""
        if resume.position is not None:
            self._seek(MessageId(*resume.position))
        elif resume.sequence_id is None:
            self._seek(EARLIEST)
        last, done = self._consumer.get_last_message_id()
        if resume.position is not None and last.entry_id >= 0 and last[:2] < resume.position:
            known, end = (f"{one[0]}:{one[1]}" for one in (resume.position, last))
            reason = f"it has the source's entry {known}, but the source ends at {end}"
            raise OtherSourceError(topic, reason)
        self._last: SourcePosition | None = None
        if last.entry_id >= 0 and (done is None or done[:2] < last[:2]):
            self._last = last.ledger_id, last.entry_id
        self._allow()

    def take(self, max_entries: int, max_bytes: int) -> list[SourceEntry | Gap]:
        """The messages that have arrived. Raises ConnectionLostError, KafkaEntryError."""
        if self._consumer.is_closed and not self._waiting:
            raise ConnectionLostError(f"messages of {self._topic}: the broker closed the consumer")
        taken: list[SourceEntry | Gap] = []
        size_bytes = used = 0
        while used < len(self._waiting) and len(taken) < max_entries and size_bytes < max_bytes:
            message = self._waiting[used]
            try:
                entry = self._entry(message)
            except KafkaEntryError:
                if taken:
                    break  # what is before it is copied first
                raise
            size_bytes += len(message.headers_and_payload)
            taken.append(entry)
            used += 1
            self._passed = message.message_id[:2]
        del self._waiting[:used]
        self._allow()
        if not taken and not self.is_caught_up(self._passed):
            taken += self._removed()
        return taken

    def _removed(self) -> list[Gap]:
        """The opening's messages that the source has removed, as gaps, after a silence."""
        if time.monotonic() - self._quiet_since_s < QUIET_S:
            return []
        self._quiet_since_s = time.monotonic()
        last, _ = self._consumer.get_last_message_id()
        self.attend()
        if self._waiting:  # they were on their way when the source was asked
            return []
        there = (last.ledger_id, last.entry_id) if last.entry_id >= 0 else None
        expected = self._last
        assert expected is not None
        if there is not None and there >= expected:
            return []
        self._last = there
        what = f"entries up to {expected[0]}:{expected[1]} were removed before they were mirrored"
        return [Gap(self._topic, what)]

    def attend(self) -> None:
        """Read arrived messages. Raises ConnectionLostError."""
        self._connection.pump()
        self._connection.unsolicited.clear()
        arrived = self._consumer.arrived()
        self._waiting += arrived
        if arrived:
            self._quiet_since_s = time.monotonic()

    def confirm(self, position: SourcePosition) -> None:
        """Acknowledge everything up to here."""
        self._consumer.ack(MessageId(*position), cumulative=True, wait=False)

    def is_caught_up(self, position: SourcePosition | None) -> bool:
        """Whether the last message of the opening was taken."""
        return self._last is None or (position is not None and position >= self._last)

    def rewind(self, position: SourcePosition | None = None) -> None:
        """Start again, at the entry with `position` or after it; None: at the first."""
        self._waiting.clear()
        self._passed, self._last_index = (-1, -1), None
        self._seek(EARLIEST if position is None else MessageId(*position))
        self._permits = 0
        self._allow()

    def schema(self, version: int) -> pb.Schema | None:
        """Ask the broker."""
        try:
            found, _ = self._connection.schema(self._topic, version.to_bytes(8, "big"))
        except RequestRefusedError:
            return None
        return found

    def close(self) -> None:
        """Close the consumer. The subscription stays, so that the source keeps what follows."""
        if not (self._connection.is_closed or self._consumer.is_closed):
            self._consumer.close()

    def _seek(self, message_id: MessageId) -> None:
        """Move the subscription; the broker closes the consumer meanwhile."""
        self._consumer.seek(message_id=message_id)
        self._consumer.resubscribe()

    def _allow(self) -> None:
        """Permit messages of about READ_AHEAD_BYTES, by their size so far."""
        wanted = PERMITS_MIN
        if self._messages_read:
            each = max(self._bytes_read // self._messages_read, 1)
            wanted = min(max(READ_AHEAD_BYTES // each, 1), PERMITS_MAX)
        more = wanted - self._permits
        if more > 0 and more * 2 >= wanted:
            self._consumer.flow(more)
            self._permits += more

    def _entry(self, message: RawMessage) -> SourceEntry | Gap:
        position = message.message_id.ledger_id, message.message_id.entry_id
        try:
            prefix, body = split(message.headers_and_payload)
            self.has_holes = self.has_holes or (prefix is not None and prefix.log_has_holes)
            tags = record_set_tags_of(prefix)
            is_control = prefix is not None and prefix.entry_kind == CONTROL
            if prefix is not None and is_control:
                stated, schema_version = max(prefix.message_count, 1), b""
            elif tags is not None:
                stated, schema_version = tags.message_count, b""
            elif is_record_set(message.headers_and_payload):
                raise unknown_format(self._topic, position)
            else:
                header = read_message_metadata(body)
                stated, schema_version = message_count_of(header), header.schema_version
        except (PrefixError, MessageFormatError) as error:
            self._permits -= 1
            return Gap(self._topic, f"entry {position[0]}:{position[1]} cannot be read: {error}")
        index = time_ms = None
        if prefix is not None:
            index = prefix.index if prefix.HasField("index") else None
            time_ms = prefix.broker_timestamp if prefix.HasField("broker_timestamp") else None
        count = self._count(stated, index)
        self._permits -= count
        self._messages_read += max(count, 1)
        self._bytes_read += len(message.headers_and_payload)
        stamp = SourceStamp(self._cluster, *position, index, time_ms, tags)
        return SourceEntry(stamp, count, None if is_control else body, schema_version)

    def _count(self, stated: int, index: int | None) -> int:
        """An entry's messages: its header's number, at most the indexes that it took."""
        if index is not None:
            known = self._last_index
            before = -1 if known is None or known >= index else known
            stated, self._last_index = min(stated, index - before), index
        return min(stated, MAX_MESSAGE_COUNT)


def is_record_set(headers_and_payload: bytes) -> bool:
    """Whether a stored entry is a Kafka record set, by its first bytes."""
    return bytes(strip(headers_and_payload)[:4]) == bytes(4)


def unknown_format(topic: str, position: SourcePosition) -> KafkaEntryError:
    """The error for a record set that comes without its tags."""
    reason = "the broker does not say its format: it is an older pulsemark"
    return KafkaEntryError(topic, position, reason)
