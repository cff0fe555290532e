"""The dispatcher of Exclusive and Failover subscriptions: one consumer at a time, in order.

In Failover, a consumer that becomes active waits before it starts, also the first one: the old one
may still acknowledge its last entries, so the new one gets fewer duplicates. All consumers are then
notified which of them is active. A consumer that comes and does not become active is notified at
once.

An Exclusive consumer may name ranges of key hashes, as for Key_Shared with STICKY (a reader with
`keyHashRange`). Then it gets the entries of these keys only. The others are not acknowledged.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...ledger import Entry, Position
from ...ledger.errors import BeingReadError
from ...ledger.would_block import arrival
from ...proto.pulsar_api_pb2 import CommandSubscribe, KeySharedMode
from ...wire import commands
from .consumer import Consumer
from .conversions import Waiting
from .dispatcher import MAX_ENTRIES_PER_READ, Dispatcher
from .failover_ring import FailoverRing
from .ranked_consumers import Rank
from .sticky_keys import StickyRanges, sticky_hash

if TYPE_CHECKING:
    from .subscription import Subscription

__all__ = ["SingleActiveDispatcher"]

ACTIVE_CONSUMER_CHANGE_SINCE = 12


class SingleActiveDispatcher(Dispatcher):
    """Sends to one consumer at a time, in order. It does not track unacknowledged entries."""

    def __init__(self, subscription: Subscription, sub_type: CommandSubscribe.SubType) -> None:
        super().__init__(subscription)
        self.exclusive = sub_type == CommandSubscribe.Exclusive
        self._switch: asyncio.TimerHandle | Waiting | None = None
        #: The key hashes that the Exclusive consumer wants; None: all.
        self._wanted_ranges: StickyRanges | None = None
        #: During a seek no consumer is active.
        self._is_paused = False
        #: Chooses the active consumer of Failover on a topic without partitions.
        self._ring: FailoverRing | None = None
        if not self.exclusive and subscription.topic.partition_index < 0:
            self._ring = FailoverRing(subscription.topic.name)

    @property
    def sole_consumer(self) -> Consumer | None:
        """The consumer of an Exclusive subscription."""
        return self.consumers[0] if self.exclusive and self.consumers else None

    def add(self, consumer: Consumer) -> None:
        """Add a consumer. Exclusive: it is the only one. Failover: it is ordered by rank."""
        self._wanted_ranges = self._ranges_of(consumer) if self.exclusive else None
        self.consumers.add(consumer)
        if self._ring is not None:
            self._ring.add(consumer)
        if not self._choose() and not self.exclusive:
            self._tell_active(consumer)

    @staticmethod
    def _ranges_of(consumer: Consumer) -> StickyRanges | None:
        """The ranges of key hashes that a consumer names, if it does."""
        meta = consumer.key_shared_meta
        if meta.keySharedMode != KeySharedMode.STICKY or not meta.hashRanges:
            return None
        ranges = StickyRanges()
        ranges.add(consumer)
        return ranges

    @property
    def is_selective(self) -> bool:
        """Whether only the entries of some keys are wanted."""
        return self._wanted_ranges is not None

    def is_wanted(self, entry: Entry) -> bool:
        """Whether an entry is not acknowledged, and its key one of those that are wanted."""
        if not super().is_wanted(entry):
            return False
        ranges = self._wanted_ranges
        return ranges is None or ranges.select(ranges.slot_of(sticky_hash(entry.body))) is not None

    def remove(self, consumers: Sequence[Consumer]) -> None:
        """Remove consumers; another one becomes active. It starts at the cursor."""
        if not (gone := self.consumers.remove(consumers)):
            return
        if self._ring is not None:
            self._ring.remove(gone)
        self._choose()

    def pause(self, asked_by: Consumer | None) -> list[Consumer]:
        """Remove the active consumer and the one that seeks, for a seek, and return them.

        The others stay, as in Pulsar. None of them becomes active before `resume`.
        """
        leaving = [one for one in self.consumers if one is self.active or one is asked_by]
        self.consumers.remove(leaving)
        for consumer in leaving:
            consumer.subscription = None
        if self._ring is not None:
            self._ring.remove(leaving)
        self._is_paused = True
        self.active = None
        self._cancel_switch()
        return leaving

    def resume(self) -> None:
        """The seek has ended: choose the active consumer."""
        self._is_paused = False
        self._choose()

    @staticmethod
    def rank(consumer: Consumer) -> Rank:
        """The order in which consumers become active."""
        return consumer.priority_level, consumer.name

    def dispatch(self) -> None:
        """Send to the active consumer while it has permits and its connection accepts data."""
        consumer = self.active
        if consumer is None or self._switch is not None or self.is_stopped:
            return
        sent_bytes = 0
        while consumer.permits > 0 and consumer.connection.writable:
            if self.is_throttled() or not self.has_time():
                return
            if sent_bytes >= self.config.dispatch_round_bytes:
                self.next_turn()
                return
            most = self.entries_within_rates(min(consumer.permits, MAX_ENTRIES_PER_READ))
            if not (entries := self.fetch(most)):
                return
            messages = sum([1 if e.message_count <= 1 else self.messages_of(e) for e in entries])
            sent_bytes += self.send(consumer, entries, messages)

    def read_log(self, position: Position, max_entries: int) -> Sequence[Entry]:
        """As the base's; a mirror gets all entries as they are stored."""
        if self.active is None or not self.active.wants_stored:
            return super().read_log(position, max_entries)
        max_bytes = self.config.dispatch_round_bytes
        return self.log.read(position, max_entries=max_entries, max_bytes=max_bytes)

    def offered(self, consumer: Consumer) -> None:
        """Dispatch if the consumer is the active one."""
        if consumer is self.active:
            self.dispatch()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """Start again at the first unacknowledged entry: any redelivery must keep the order."""
        if consumer is self.active and self._switch is None:
            try:
                self.rewind()
            except BeingReadError as error:
                self._switch = Waiting(arrival(error), self._start)
            self.dispatch()

    def acked(self, position: Position, remaining: int) -> None:
        """Nothing to do: the cursor has the acknowledgement, and nothing else is tracked."""

    def given_up(self, last: Position) -> None:
        """The cursor knows."""

    def close(self) -> None:
        """Stop dispatching."""
        super().close()
        self._cancel_switch()
        self._ring = None

    def _choose(self) -> bool:
        """Choose the active consumer; True if it is another one than before."""
        chosen = None if self._is_paused else self._first_in_rank()
        if chosen is self.active:
            return False
        self.active = chosen
        delay_ms = self.config.active_consumer_failover_delay_ms
        if chosen is None:
            self._cancel_switch()
        elif self.exclusive or delay_ms == 0:
            self._start()
        elif self._switch is None:
            self._switch = asyncio.get_running_loop().call_later(delay_ms / 1000, self._start)
        return True

    def _cancel_switch(self) -> None:
        if self._switch is not None:
            self._switch.cancel()
            self._switch = None

    def _start(self) -> None:
        self._switch = None
        try:
            if self.active is not None:
                self.log = self.subscription.read_as(self.active.compacted)
            self.rewind()
        except BeingReadError as error:
            self._switch = Waiting(arrival(error), self._start)
            return
        if not self.exclusive:
            for consumer in self.consumers:
                self._tell_active(consumer)
        self.dispatch()

    def _first_in_rank(self) -> Consumer | None:
        if self._ring is not None:
            return self._ring.first()
        if not self.consumers:
            return None
        best_level = self.consumers[0].priority_level
        of_best = bisect_right(self.consumers, best_level, key=lambda c: c.priority_level)
        return self.consumers[self.subscription.topic.partition_index % of_best]

    def _tell_active(self, consumer: Consumer) -> None:
        if consumer.connection.protocol_version >= ACTIVE_CONSUMER_CHANGE_SINCE:
            consumer.connection.write(
                commands.active_consumer_change(consumer.consumer_id, consumer is self.active)
            )
