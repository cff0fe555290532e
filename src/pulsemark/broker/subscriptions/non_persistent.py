"""Subscriptions of non-persistent topics: a consumer with permits gets a message, or none does.

Nothing is stored or remembered. A message is dropped for a subscription if the consumer that is to
get it has no permits, or if its connection does not accept data. There is no dispatcher: so
acknowledgements and redeliveries have no effect, and a seek is a success that moves nothing.

=====================  ==========================================================================
Exclusive, Failover    the active consumer, or none
Shared                 the next consumer, round robin, that can take the message; by priority level
Key_Shared             the consumer of the key, or none
=====================  ==========================================================================

Permits count as in persistent topics. All messages have the same id, so a client that could not
open a batch does not say which one: what the largest of the latest ones took is given back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...ledger import Entry
from ...proto.pulsar_api_pb2 import CommandSubscribe, MessageIdData
from ..counters import NOTHING
from .consumer import Consumer, RankedConsumers
from .seek import messages_in
from .sticky_keys import Selector, check_key_shared_meta, selector_for, sticky_hash
from .subscription import Subscription

if TYPE_CHECKING:
    from .subscription import HomeTopic

SubType = CommandSubscribe.SubType
SINGLE = (CommandSubscribe.Exclusive, CommandSubscribe.Failover)
#: The number of a consumer's latest batches whose permits are remembered.
REMEMBERED_BATCHES = 100


class NonPersistentSubscription(Subscription):
    """One subscription of a non-persistent topic, without cursor and log."""

    def __init__(self, topic: HomeTopic, command: CommandSubscribe) -> None:
        self._begin(topic, command.subscription, durable=command.durable)
        #: Messages that no consumer could take.
        self.messages_dropped = 0
        #: Their rate in the last period.
        self.drops = NOTHING
        self._properties = {pair.key: pair.value for pair in command.subscription_properties}
        self._members = RankedConsumers(lambda one: (one.priority_level, one.name))
        self._selector: Selector | None = None
        self._next = 0
        #: The permits that a consumer's latest batches took, if more than one each.
        self._batches: dict[Consumer, deque[int]] = {}

    @property
    def properties(self) -> dict[str, str]:
        """The properties that the client gave when it created the subscription."""
        return self._properties

    @property
    def backlog_entries(self) -> int:
        """Always 0: nothing waits."""
        return 0

    # -- consumers ------------------------------------------------------------------------------

    @property
    def consumers(self) -> Sequence[Consumer]:
        """The connected consumers."""
        self.remove_leaving()
        return self._members

    async def add_consumer(self, consumer: Consumer, sub_type: SubType) -> None:
        """Connect a consumer, or raise `RefusedError` (ConsumerBusy, ConsumerAssignError)."""
        await self.make_room(consumer, sub_type)
        # No `await` between the last check and connecting the consumer: nothing can change.
        if not self._members:
            self.sub_type = sub_type
            self._selector = None
            if sub_type == CommandSubscribe.Key_Shared:
                self._selector = selector_for(consumer.key_shared_meta, self.topic.config)
        if self._selector is not None:
            for first in self._members[:1]:
                check_key_shared_meta(first.key_shared_meta, consumer.key_shared_meta)
            self._selector.add(consumer)
        self._members.add(consumer)
        consumer.subscription = self

    @property
    def sole_consumer(self) -> Consumer | None:
        """The consumer of an exclusive subscription."""
        is_exclusive = self.sub_type == CommandSubscribe.Exclusive
        return self._members[0] if is_exclusive and self._members else None

    def remove_consumers(self, consumers: Sequence[Consumer]) -> None:
        """Disconnect consumers."""
        for consumer in consumers:
            consumer.subscription = None
            self._batches.pop(consumer, None)
        self._members.remove(consumers)
        if self._selector is not None:
            self._selector.remove(consumers)
            if not self._members:
                self._selector = None

    def end_if_unused(self) -> None:
        """Remove a reader's subscription with its last consumer."""
        if not self.durable and not self._members:
            self.topic.subscriptions.pop(self.name, None)

    def detach_all(self) -> list[Consumer]:
        """Disconnect every consumer at once; the caller notifies their clients."""
        consumers = list(self.consumers)
        self.remove_consumers(consumers)
        return consumers

    # -- delivery -------------------------------------------------------------------------------

    def publish(self, entry: Entry) -> None:
        """Send an entry to the consumer that is to get it, or drop it."""
        if self._leaving:
            self.remove_leaving()
        count = max(1, entry.message_count)
        messages = messages_in(entry.body, count) if count > 1 else 1
        consumer = self._taker(entry)
        if consumer is None:
            self.messages_dropped += messages
            return
        frame = consumer.frame(entry, 0)
        size_bytes = len(entry.stored)
        if messages > 1:
            batches = self._batches.setdefault(consumer, deque(maxlen=REMEMBERED_BATCHES))
            batches.append(messages)
        consumer.count_sent(messages, size_bytes, 1, self.topic.config.clock.now_ms())
        self.messages_out += messages
        self.bytes_out += size_bytes
        consumer.connection.write_gathered(frame)

    def _taker(self, entry: Entry) -> Consumer | None:
        if not self._members:
            return None
        if self._selector is not None:
            chosen = self._selector.select(self._selector.slot_of(sticky_hash(entry.body)))
        elif self.sub_type in SINGLE:
            chosen = self._active()
        else:
            return self._next_ready()
        return chosen if chosen is not None and _can_take(chosen) else None

    def _active(self) -> Consumer:
        """The consumer of lowest level and name; partition i goes to consumer i mod n."""
        best = self._members[0].priority_level
        of_best = sum(one.priority_level == best for one in self._members)
        return self._members[max(self.topic.partition_index, 0) % of_best]

    def _next_ready(self) -> Consumer | None:
        """The next consumer of the best priority level at which one can take a message."""
        ready = [one for one in self._members if _can_take(one)]
        if not ready:
            return None
        best = [one for one in ready if one.priority_level == ready[0].priority_level]
        chosen = best[self._next % len(best)]
        self._next += 1
        return chosen

    def return_permits(self, consumer: Consumer, ids: Sequence[MessageIdData]) -> None:
        """Give back permits for entries that a client could not open."""
        batches = self._batches.get(consumer) or deque[int]()
        for _ in ids[: len(batches)]:
            largest = max(batches)
            batches.remove(largest)
            consumer.permits += largest - 1

    def when_persisted(self, callback: Callable[[BaseException | None], None]) -> None:
        """Call back at once: there is nothing to store."""
        callback(None)


def _can_take(consumer: Consumer) -> bool:
    return consumer.permits > 0 and consumer.connection.writable
