"""One consumer of a subscription, as the dispatcher uses it.

Permits count messages, not entries. An entry is sent if permits are positive, whatever its size. A
client with one permit may get a batch of a thousand messages; its permits are then -999, and it
gets nothing until FLOW has brought them above zero again. As in Pulsar, a consumer of Exclusive,
Failover and Key_Shared gets as many entries at once as it had permits, also if they are batches.

A consumer's connection is a `ConsumerConnection`. The dispatcher asks it whether it accepts more
data now. If not, dispatch to all its consumers waits until the connection calls `Consumer.resume`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ...compaction.compacted_log import CompactedLog
from ...ledger import Entry, Position
from ...metadata import BrokerEntryMetadata, Buffer, client_prefix, pack, peek
from ...metadata.source_stamp import RECORD_SET_FIELDS, STORED_PROPERTY, record_set_tags_of
from ...proto.pulsar_api_pb2 import CommandSubscribe, KeySharedMeta
from ...wire import commands

if TYPE_CHECKING:
    from ..memory import Reservation
    from .subscription import Subscription

__all__ = ["CLOSED_AT_ONCE", "Consumer", "ConsumerConnection", "closing"]


#: The types whose messages name the consumer's epoch.
EPOCH_TYPES = (CommandSubscribe.Exclusive, CommandSubscribe.Failover)


class ConsumerConnection(Protocol):
    """The connection of a consumer or producer."""

    #: The peer's address as text, for stats.
    address: str
    #: What the client says of itself, for stats.
    client_version: str
    #: Whether MESSAGE frames on this connection carry the broker entry metadata (PIP-90).
    exposes_entry_metadata: bool
    protocol_version: int

    @property
    def writable(self) -> bool:
        """Whether the send buffer is below its high-water mark."""
        ...

    def write(self, data: bytes) -> None:
        """Send one finished frame."""
        ...

    def write_gathered(self, buffers: Sequence[Buffer]) -> None:
        """Send buffers in order, without joining them."""
        ...

    def close_consumer(self, consumer: Consumer) -> None:
        """Tell the client that the broker closed one of its consumers."""
        ...

    def is_alive(self) -> Awaitable[bool]:
        """PING the peer. Without an answer in time, close the connection and return False."""
        ...


@dataclass(slots=True)
class Sendings:
    """What is known of the entries that were sent to a consumer together, as Pulsar counts it."""

    #: An average over sendings, the latest of which counts a tenth.
    messages_per_entry: float = 0.0
    #: The messages and entries that are in the average.
    messages: int = 0
    entries: int = 0
    #: Of Key_Shared: slots that had moved to others, and of which nothing is held any more.
    drained_slots: int = 0

    def add(self, messages: int, entries: int) -> None:
        """Something was sent: so many messages and entries in all."""
        if entries > self.entries:
            average = (messages - self.messages) / (entries - self.entries)
            before = self.messages_per_entry
            self.messages_per_entry = average if before < 1 else 0.9 * before + 0.1 * average
        self.messages, self.entries = messages, entries


class Consumer:
    """A consumer's state: its permits, and the entries that it has not acknowledged yet."""

    __slots__ = (
        "bytes_out",
        "compacted",
        "connected_since_ms",
        "connection",
        "consumer_id",
        "entries_out",
        "epoch",
        "follows_schema",
        "has_epoch",
        "has_left",
        "key_shared_meta",
        "last_acked_ms",
        "last_consumed_ms",
        "last_flow_ms",
        "messages_out",
        "name",
        "pending",
        "permits",
        "priority_level",
        "properties",
        "reservation",
        "sendings",
        "subscription",
        "unacked_messages",
        "wants_stored",
    )

    def __init__(
        self,
        connection: ConsumerConnection,
        command: CommandSubscribe,
        name: str,
        connected_since_ms: int,
    ) -> None:
        self.connection = connection
        self.consumer_id: int = command.consumer_id
        self.name = name
        self.priority_level: int = command.priority_level
        # A copy: a reference to a part of a command keeps the whole command in memory.
        self.key_shared_meta = KeySharedMeta()
        self.key_shared_meta.CopyFrom(command.keySharedMeta)
        self.has_epoch = command.subType in EPOCH_TYPES
        is_set = self.has_epoch and command.HasField("consumer_epoch")
        #: Consumer epoch of Exclusive and Failover; -1: the client does not use epochs.
        self.epoch: int = command.consumer_epoch if is_set else -1
        #: Whether it takes any schema of the topic (AUTO_CONSUME).
        self.follows_schema = False
        self.properties = {pair.key: pair.value for pair in command.metadata}
        #: Whether it gets entries in Kafka's format as they are stored.
        self.wants_stored = STORED_PROPERTY in self.properties
        self.connected_since_ms = connected_since_ms
        #: The topic's compacted form, if the consumer reads that; None: it reads the log.
        self.compacted: CompactedLog | None = None
        #: The subscription it is connected to; None before, and after it was disconnected.
        self.subscription: Subscription | None = None
        #: Whether it was closed: it must not be connected to a subscription again.
        self.has_left = False
        #: Counts the memory that the broker needs for it.
        self.reservation: Reservation | None = None
        #: Delivered and unacknowledged entries, with the number of their unacknowledged messages
        #: (only for Shared and Key_Shared).
        self.pending: dict[Position, int] = {}
        self.permits = self.unacked_messages = 0
        self.messages_out = self.bytes_out = self.entries_out = 0
        self.sendings = Sendings()
        #: When it acknowledged something, and when it granted permits; 0: never.
        self.last_acked_ms = self.last_consumed_ms = self.last_flow_ms = 0

    def frame(
        self, entry: Entry, redelivery_count: int, ack_set: Sequence[int] = ()
    ) -> list[Buffer]:
        """The MESSAGE frame for `entry`: header bytes, then views of the stored entry."""
        ledger_id, entry_id = entry.position
        subscription = self.subscription
        parts: list[Buffer] = [entry.body]
        if self.wants_stored and record_set_tags_of(peek(entry.prefix)) is not None:
            parts.insert(0, self._record_set_prefix(entry))
        elif self.connection.exposes_entry_metadata and entry.prefix_size_bytes:
            delivered = frozenset() if subscription is None else subscription.topic.delivered_fields
            parts.insert(0, client_prefix(entry.prefix, delivered))
        return commands.message_frame(
            self.consumer_id,
            ledger_id,
            entry_id,
            redelivery_count,
            ack_set,
            parts,
            partition=-1 if subscription is None else subscription.topic.partition_index,
            consumer_epoch=self.epoch if self.epoch >= 0 else None,
        )

    def frames(self, entries: Sequence[Entry]) -> list[Buffer]:
        """The MESSAGE frames of a run of entries that are sent for the first time, as a whole."""
        first_ledger, last_ledger = entries[0].position[0], entries[-1].position[0]
        if (
            self.wants_stored
            or self.connection.exposes_entry_metadata
            or first_ledger != last_ledger
        ):
            return [part for entry in entries for part in self.frame(entry, 0)]
        subscription = self.subscription
        return commands.message_frames(
            self.consumer_id,
            first_ledger,
            [(entry.position[1], entry.stored[entry.prefix_size_bytes :]) for entry in entries],
            partition=-1 if subscription is None else subscription.topic.partition_index,
            consumer_epoch=self.epoch if self.epoch >= 0 else None,
        )

    def _record_set_prefix(self, entry: Entry) -> bytes:
        """What a mirror needs to know of a Kafka client's set, whatever is exposed to others."""
        if self.connection.exposes_entry_metadata:
            return client_prefix(entry.prefix, RECORD_SET_FIELDS)
        metadata = BrokerEntryMetadata()
        tags = record_set_tags_of(peek(entry.prefix))
        assert tags is not None
        tags.write(metadata)
        return pack(metadata)

    def count_sent(self, messages: int, size_bytes: int, entries: int, now_ms: int) -> None:
        """Entries were sent together: take their `messages` off the permits, and count them."""
        self.permits -= messages
        self.messages_out += messages
        self.bytes_out += size_bytes
        self.entries_out += entries
        self.last_consumed_ms = now_ms
        self.sendings.add(self.messages_out, self.entries_out)

    def hold(self, position: Position, messages: int) -> None:
        """Remember a delivered entry until it is acknowledged or given back."""
        self.pending[position] = messages
        self.unacked_messages += messages

    def release(self, position: Position) -> bool:
        """Forget a delivered entry; False if this consumer did not hold it."""
        messages = self.pending.pop(position, None)
        if messages is None:
            return False
        self.unacked_messages -= messages
        return True

    def release_some(self, position: Position, remaining: int) -> None:
        """Part of a batch was acknowledged; `remaining` of its messages are unacknowledged."""
        before = self.pending.get(position)
        if before is not None:
            self.pending[position] = remaining
            self.unacked_messages -= before - remaining

    def release_all(self) -> list[Position]:
        """Forget all held entries, and return them in delivery order."""
        positions = list(self.pending)
        self.pending.clear()
        self.unacked_messages = 0
        return positions

    def leave(self) -> None:
        """Leave: the client closed it, or its connection is lost. May be called twice."""
        self.has_left = True
        if self.subscription is not None:
            self.subscription.consumers_left((self,))

    def resume(self) -> None:
        """The connection accepts data again."""
        if self.subscription is not None:
            self.subscription.offered(self)


#: Consumers that are closed in one piece.
CLOSED_AT_ONCE = 100


def closing(consumers: Sequence[Consumer], *, but: Consumer | None = None) -> Iterator[None]:
    """Forget the entries that disconnected consumers held, and send CLOSE_CONSUMER for each.

    `but` gets no CLOSE_CONSUMER: its client closed it itself.
    """
    for number, consumer in enumerate(consumers, start=1):
        consumer.release_all()
        if consumer is not but:
            consumer.connection.close_consumer(consumer)
        if number % CLOSED_AT_ONCE == 0:
            yield
