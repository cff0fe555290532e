"""A consumer on a connection, and the order among a subscription's consumers.

Permits count messages, not entries. An entry is sent if permits are positive, whatever its size. A
client with one permit may get a batch of a thousand messages; its permits are then -999, and it
gets nothing until FLOW has brought them above zero again. As in Pulsar, a consumer of Exclusive,
Failover and Key_Shared gets as many entries at once as it had permits, also if they are batches.

The order of a subscription's consumers: which one is active, and which one gets entries next.

- `RankedConsumers`: ordered by rank; consumers of equal rank by arrival.
- `failover_ring`: the order for a Failover subscription on a topic without partitions, as in
  Pulsar; the first consumer is active. The consumers of a priority level have points on a ring, 100
  each, that depend on their names. The topic's name is a place on the ring, and the consumer with
  the next point is the first one. So the topics of many such subscriptions are spread over their
  consumers. Of consumers with the same name, the one that came last is first.
- `ReadyRing`: round robin over the ready consumers of Shared types, by priority level. A consumer
  enters when it may have become ready (permits, a drained buffer, acknowledgements), and is removed
  when it is first and not ready. So it costs nothing how many others wait without permits.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, overload

from ...ledger import Entry, EntryKind, Position
from ...metadata import (
    PREFIX_HEADER_SIZE_BYTES,
    BrokerEntryMetadata,
    Buffer,
    client_prefix,
    pack,
    peek,
)
from ...metadata.prefix import pack_encoded
from ...metadata.source_stamp import (
    CONTROL_FIELDS,
    RECORD_SET_FIELDS,
    STORED_PROPERTY,
    WITH_CONTROL,
    record_set_tags_of,
)
from ...proto.broker_entry_pb2 import CONTROL
from ...proto.pulsar_api_pb2 import CommandSubscribe, KeySharedMeta
from ...wire import commands
from .sticky_keys import murmur3_32

if TYPE_CHECKING:
    from ...compaction.compacted_log import CompactedLog
    from ..memory import Reservation
    from .subscription import Subscription


#: The types whose messages name the consumer's epoch.
EPOCH_TYPES = (CommandSubscribe.Exclusive, CommandSubscribe.Failover)
#: A mirror is told so of a compacted log: else it would take what was removed for a loss.
_HAS_HOLES = BrokerEntryMetadata(log_has_holes=True).SerializeToString()


class ConsumerConnection(Protocol):
    """The connection of a consumer or producer.

    A dispatcher to which it is not `writable` waits until the connection calls `Consumer.resume`.
    """

    #: The peer's address as text, for stats.
    address: str
    #: The client's facts about itself, for stats.
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
    """Averages of the messages and entries sent to a consumer at once, as Pulsar counts them."""

    #: An average over sendings, the latest of which counts a tenth.
    messages_per_entry: float = 0.0
    #: The messages and entries that are in the average.
    messages: int = 0
    entries: int = 0
    #: Key_Shared: slots that moved to other consumers, and whose entries are all released.
    drained_slots: int = 0

    def add(self, messages: int, entries: int) -> None:
        """Count one sending of messages and entries."""
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
        #: Whether the consumer takes any schema of the topic (AUTO_CONSUME).
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

    @property
    def wants_control(self) -> bool:
        """Whether the consumer gets control entries, too."""
        return self.properties.get(STORED_PROPERTY) == WITH_CONTROL

    def frame(
        self, entry: Entry, redelivery_count: int, ack_set: Sequence[int] = ()
    ) -> list[Buffer]:
        """The MESSAGE frame for `entry`: header bytes, then views of the stored entry."""
        ledger_id, entry_id = entry.position
        subscription = self.subscription
        prefix = self._prefix(entry)
        if self.compacted is not None and self.wants_control:
            prefix = pack_encoded(prefix[PREFIX_HEADER_SIZE_BYTES:] + _HAS_HOLES)
        parts: list[Buffer] = [prefix] if prefix else []
        if entry.kind is not EntryKind.CONTROL:
            parts.append(entry.body)
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
        """The MESSAGE frames of entries that are sent whole and for the first time."""
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

    def _prefix(self, entry: Entry) -> bytes:
        """The fields that the client gets in front of the producer's bytes."""
        subscription = self.subscription
        if entry.kind is EntryKind.CONTROL:
            return self._control_prefix(entry)
        if self.wants_stored and record_set_tags_of(peek(entry.prefix)) is not None:
            return self._record_set_prefix(entry)
        if self.connection.exposes_entry_metadata and entry.prefix_size_bytes:
            delivered = frozenset() if subscription is None else subscription.topic.delivered_fields
            return client_prefix(entry.prefix, delivered)
        return b""

    def _record_set_prefix(self, entry: Entry) -> bytes:
        """The prefix with which a mirror gets a Kafka record set."""
        if self.connection.exposes_entry_metadata:
            return client_prefix(entry.prefix, RECORD_SET_FIELDS)
        metadata = BrokerEntryMetadata()
        tags = record_set_tags_of(peek(entry.prefix))
        assert tags is not None
        tags.write(metadata)
        return pack(metadata)

    def _control_prefix(self, entry: Entry) -> bytes:
        """The prefix with which a mirror gets a control entry, or an aborted one.

        Both look the same to it. An aborted one may have taken several indexes.
        """
        shown = None
        if self.connection.exposes_entry_metadata:
            shown = peek(client_prefix(entry.prefix, CONTROL_FIELDS))
        shown = shown or BrokerEntryMetadata()
        shown.entry_kind = CONTROL
        if entry.message_count > 1:
            shown.message_count = entry.message_count
        return pack(shown)

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


#: Values that can be compared, the priority level first; the smallest comes first.
Rank = tuple[Any, ...]
#: If more than 1/FEW_PART of all leave, the list is built again instead of deleting one by one.
FEW_PART = 100
POINTS_PER_CONSUMER = 100
#: The size of a `failover_ring`: the hash has 31 bits.
RING_SIZE = 1 << 31


class RankedConsumers(Sequence[Consumer]):
    """Consumers ordered by `rank`, which must not change while a consumer is in the list.

    One connection can have tens of thousands of them, which leave in one step. So each is found by
    binary search.
    """

    def __init__(self, rank: Callable[[Consumer], Rank], *, latest_first: bool = False) -> None:
        """`latest_first`: of equal rank, the consumer that came last is first."""
        self._rank = rank
        self._step = -1 if latest_first else 1
        #: Sorted by rank and arrival number. Numbers differ, so consumers are never compared.
        self._places: list[tuple[Rank, int, Consumer]] = []
        self._place_of: dict[Consumer, tuple[Rank, int, Consumer]] = {}
        self._added = 0

    def add(self, consumer: Consumer) -> None:
        """Add a consumer."""
        self._added += self._step
        place = self._place_of[consumer] = (self._rank(consumer), self._added, consumer)
        insort(self._places, place)

    def remove(self, consumers: Iterable[Consumer]) -> list[Consumer]:
        """Remove consumers; return those that were in the list."""
        found = [self._place_of.pop(one) for one in consumers if one in self._place_of]
        if len(found) * FEW_PART < len(self._places):
            # From the end, so that fewer list items have to move.
            for place in sorted(found, reverse=True):
                del self._places[bisect_left(self._places, place)]
        elif found:
            self._places = [place for place in self._places if place[2] in self._place_of]
        return [consumer for _, _, consumer in found]

    def __contains__(self, consumer: object) -> bool:
        return consumer in self._place_of

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Consumer]:
        return (consumer for _, _, consumer in self._places)

    @overload
    def __getitem__(self, at: int) -> Consumer: ...
    @overload
    def __getitem__(self, at: slice) -> list[Consumer]: ...
    def __getitem__(self, at: int | slice) -> Consumer | list[Consumer]:
        if isinstance(at, slice):
            return [consumer for _, _, consumer in self._places[at]]
        return self._places[at][2]


def failover_ring(topic: str) -> RankedConsumers:
    """Consumers by level, and by the distance on the ring from the topic to their next point."""
    place = murmur3_32(topic.encode())

    def rank(consumer: Consumer) -> Rank:
        name = consumer.name
        way = min(
            (murmur3_32(f"{name}{at}".encode()) - place) % RING_SIZE
            for at in range(POINTS_PER_CONSUMER)
        )
        return consumer.priority_level, way

    return RankedConsumers(rank, latest_first=True)


class ReadyRing:
    """Consumers that may be ready; `is_ready` says whether one still is."""

    def __init__(self, is_ready: Callable[[Consumer], bool]) -> None:
        self._is_ready = is_ready
        #: By priority level. In an ordered dict a consumer is removed in constant time.
        self._rings: dict[int, OrderedDict[Consumer, None]] = {}
        self._levels: list[int] = []

    def close(self) -> None:
        """Remove all consumers, and drop the reference to `is_ready`."""
        self._is_ready = lambda _: False
        self._rings.clear()
        self._levels.clear()

    def add(self, consumer: Consumer) -> None:
        """A consumer may be ready. Nothing happens if it is in the ring already."""
        level = consumer.priority_level
        ring = self._rings.get(level)
        if ring is None:
            ring = self._rings[level] = OrderedDict()
            insort(self._levels, level)
        ring.setdefault(consumer, None)

    def remove(self, consumer: Consumer) -> None:
        """A consumer left."""
        ring = self._rings.get(consumer.priority_level)
        if ring is not None:
            ring.pop(consumer, None)

    def first(self) -> Consumer | None:
        """The next ready consumer of the best level. Consumers that are not ready are removed."""
        for level in self._levels:
            ring = self._rings[level]
            while ring:
                consumer = next(iter(ring))
                if self._is_ready(consumer):
                    return consumer
                del ring[consumer]
        return None

    def move_to_end(self, consumer: Consumer) -> None:
        """Move a consumer that was sent something to the end of its ring."""
        ring = self._rings[consumer.priority_level]
        if ring and next(iter(ring)) is consumer:
            ring.move_to_end(consumer)

    def has_ready(self) -> bool:
        """Whether any consumer is ready."""
        return self.first() is not None
