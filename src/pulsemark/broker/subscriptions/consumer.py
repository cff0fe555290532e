"""One consumer of a subscription, as the dispatcher sees it.

Permits count messages, not entries: a client with room for one message may be sent a batch of a
thousand, and its permits then stand at -999 until FLOW has brought them back above zero. An entry
is sent while permits are positive, whatever its size.

The connection behind a consumer is an `Outlet`. The dispatcher asks it only whether it takes more
data now; when it does not, dispatch to all its consumers waits for `Outlet` to call
`Consumer.resume`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Protocol

from ...compaction.compacted_log import CompactedLog
from ...ledger import Entry, Position
from ...metadata import Buffer, client_prefix
from ...proto.pulsar_api_pb2 import CommandSubscribe, KeySharedMeta
from ...wire import commands

if TYPE_CHECKING:
    from ..connection.memory import Reservation
    from .subscription import Subscription

__all__ = ["Consumer", "Outlet"]


class Outlet(Protocol):
    """The connection a consumer or producer lives on."""

    #: Text form of the peer's address, for stats.
    address: str
    #: Whether MESSAGE frames carry the broker entry metadata here (PIP-90).
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
        """Tell the client that the broker closed a consumer of it."""
        ...

    def is_alive(self) -> Awaitable[bool]:
        """PING the peer; False when it did not answer in time (its connection is then closed)."""
        ...


class Consumer:
    """A consumer's state: what it may be sent, and what it has not acknowledged yet."""

    __slots__ = (
        "bytes_out",
        "compacted",
        "connected_since_ms",
        "consumer_id",
        "entries_out",
        "epoch",
        "has_left",
        "key_shared_meta",
        "messages_out",
        "messages_redelivered",
        "name",
        "outlet",
        "pending",
        "permits",
        "priority_level",
        "properties",
        "reservation",
        "subscription",
        "unacked_messages",
    )

    def __init__(
        self, outlet: Outlet, command: CommandSubscribe, name: str, connected_since_ms: int
    ) -> None:
        self.outlet = outlet
        self.consumer_id: int = command.consumer_id
        self.name = name
        self.priority_level: int = command.priority_level
        # A copy: a part of a command keeps all of it alive.
        self.key_shared_meta = KeySharedMeta()
        self.key_shared_meta.CopyFrom(command.keySharedMeta)
        #: Redelivery generation of Exclusive and Failover; -1: the client does not use it.
        self.epoch: int = command.consumer_epoch if command.HasField("consumer_epoch") else -1
        self.properties = {pair.key: pair.value for pair in command.metadata}
        self.connected_since_ms = connected_since_ms
        #: The topic's compacted form, for a consumer that reads it; None: it reads the log.
        self.compacted: CompactedLog | None = None
        #: The subscription it is connected to; None before, and once it is disconnected.
        self.subscription: Subscription | None = None
        #: Closed for good: it may not be connected to a subscription any more.
        self.has_left = False
        #: Counts what the client makes the broker keep for it.
        self.reservation: Reservation | None = None
        self.permits = 0
        #: Entries delivered and not acknowledged, with their unacknowledged message counts (kept
        #: for Shared and Key_Shared only).
        self.pending: dict[Position, int] = {}
        self.unacked_messages = 0
        self.messages_out = 0
        self.bytes_out = 0
        self.entries_out = 0
        self.messages_redelivered = 0

    def frame(
        self, entry: Entry, redelivery_count: int, ack_set: Sequence[int] = ()
    ) -> list[Buffer]:
        """The MESSAGE frame for `entry`: header bytes, then views on the stored entry."""
        ledger_id, entry_id = entry.position
        subscription = self.subscription
        parts: list[Buffer] = [entry.body]
        if self.outlet.exposes_entry_metadata and entry.prefix_size_bytes:
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

    def count_sent(self, messages: int, size_bytes: int) -> None:
        """Take a sent entry's `messages` off the permits and into the statistics."""
        self.permits -= messages
        self.messages_out += messages
        self.bytes_out += size_bytes
        self.entries_out += 1

    def hold(self, position: Position, messages: int) -> None:
        """Remember a delivered entry until it is acknowledged or given back."""
        self.pending[position] = messages
        self.unacked_messages += messages

    def release(self, position: Position) -> bool:
        """Forget a delivered entry; False if it was not held here."""
        messages = self.pending.pop(position, None)
        if messages is None:
            return False
        self.unacked_messages -= messages
        return True

    def release_some(self, position: Position, remaining: int) -> None:
        """Part of a batch was acknowledged; `remaining` of its messages are still out."""
        before = self.pending.get(position)
        if before is not None:
            self.pending[position] = remaining
            self.unacked_messages -= before - remaining

    def release_all(self) -> list[Position]:
        """Give back everything held, in delivery order."""
        positions = list(self.pending)
        self.pending.clear()
        self.unacked_messages = 0
        return positions

    def leave(self) -> None:
        """End: the client closed it, or its connection is lost. Twice is once."""
        self.has_left = True
        if self.subscription is not None:
            self.subscription.consumers_left((self,))

    def resume(self) -> None:
        """The outlet takes data again."""
        if self.subscription is not None:
            self.subscription.offered(self)
