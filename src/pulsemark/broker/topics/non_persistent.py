"""Non-persistent topics: messages go to the consumers that are connected, and nothing is stored.

A topic exists from its first use until it is deleted, unloaded, or the broker ends. Partitioned
non-persistent topics are stored in the catalog, as the persistent ones are; their partitions are
made when they are used. A receipt says only that the broker has read the message: its id is always
(0, 0), as in Pulsar.

`NonPersistentTopic` has producers and subscriptions like any topic, but no ledger: what needs one
asks `is_persistent` first.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ledger import Entry, EntryKind, Position
from ...ledger.writer import body_check_of
from ...metadata import Buffer
from ...proto.pulsar_api_pb2 import CommandSubscribe, ServerError
from ...wire import TopicName
from ..configuration.config import BrokerConfig
from ..counters import NOTHING
from ..errors import RefusedError
from ..subscriptions.non_persistent import NonPersistentSubscription
from ..subscriptions.subscription import HomeTopic
from .producers import TopicProducers
from .topic import Topic

#: The position of every message.
NOWHERE = Position(0, 0)


class NonPersistentTopic(Topic):
    """An open non-persistent topic."""

    is_persistent = False

    def __init__(self, topic_name: TopicName, config: BrokerConfig) -> None:
        HomeTopic.__init__(self, topic_name, config)
        self._begin()
        self.drops = NOTHING
        self.producers = TopicProducers(None, _store_nothing)
        self.subscriptions = {}

    @property
    def listeners(self) -> list[NonPersistentSubscription]:
        """The subscriptions."""
        found = tuple(self.subscriptions.values())
        return [one for one in found if isinstance(one, NonPersistentSubscription)]

    @property
    def messages_dropped(self) -> int:
        """Messages that subscriptions could not deliver, over all subscriptions there are."""
        return sum(one.messages_dropped for one in self.listeners)

    def update_rates(self, elapsed_s: float) -> None:
        """End a period of `elapsed_s`, and compute its rates."""
        super().update_rates(elapsed_s)
        self.drops = self.drops.after(self.messages_dropped, 0, elapsed_s)
        for one in self.listeners:
            one.drops = one.drops.after(one.messages_dropped, 0, elapsed_s)

    def take(self, body: Buffer, message_count: int) -> Entry:
        """Check and count a message. Raises `ChecksumError`."""
        stored = bytes(body)
        body_check_of(self.name, stored)
        messages = max(1, message_count)
        self.counters.messages_in += messages
        self.counters.bytes_in += len(stored)
        self.counters.entry_size_bytes.add(len(stored))
        now_ms = self.config.clock.now_ms()
        return Entry(NOWHERE, EntryKind.DATA, message_count, -1, now_ms, 0, memoryview(stored))

    def deliver(self, entry: Entry) -> None:
        """Send a message to every subscription that can take it."""
        for subscription in self.listeners:
            subscription.publish(entry)

    def listener_for(self, command: CommandSubscribe) -> NonPersistentSubscription:
        """The subscription for a SUBSCRIBE; created if it does not exist. Raises `RefusedError`."""
        self.check_is_open()
        if command.read_compacted:
            text = "readCompacted only valid on persistent topics"
            raise RefusedError(ServerError.NotAllowedError, text)
        found = self.subscriptions.get(command.subscription)
        if isinstance(found, NonPersistentSubscription):
            found.remove_leaving()
            if self.subscriptions.get(found.name) is found:
                return found
        if len(self.subscriptions) >= self.config.max_subscriptions_per_topic:
            text = f"Exceed the maximum number of subscriptions of the topic: {self.name}"
            raise RefusedError(ServerError.NotAllowedError, text)
        made = NonPersistentSubscription(self, command)
        self.subscriptions[made.name] = made
        return made

    def close(self) -> None:
        """Refuse new producers and consumers. The caller disconnects clients."""
        self.is_open = False
        self.producers.close()

    def drop_subscription(self, subscription: NonPersistentSubscription) -> Iterator[None]:
        """Remove a subscription; return what notifies its clients, in pieces."""
        self.subscriptions.pop(subscription.name, None)
        notifying = subscription.disconnecting()
        next(notifying, None)
        return notifying


async def _store_nothing(epoch: int) -> None:
    """Store nothing: a non-persistent topic's epoch ends with the topic."""
