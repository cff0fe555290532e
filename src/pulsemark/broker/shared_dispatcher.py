"""Shared subscriptions: every entry to one consumer, any consumer, each acknowledged by itself.

What was delivered and not acknowledged is held per consumer. It comes back in three ways, and all
of them put it into the replay queue, which goes before new entries:

- its consumer closes: redelivered with its redelivery count unchanged;
- its consumer asks (negative acknowledgement, acknowledgement timeout): the count grows by one;
- the subscription's last consumer leaves: counts are forgotten, and the next consumer starts at
  the cursor.

A consumer with too many unacknowledged messages is passed over until it has acknowledged half of
them; the same limit, higher, stands over the subscription as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..ledger import CorruptEntryError, Entry, Position
from ..metadata import Buffer
from .consumer import Consumer
from .delayed import DelayedEntries, deliver_at_ms
from .dispatcher import Dispatcher
from .replay import ReplayQueue

if TYPE_CHECKING:
    from .subscription import Subscription

__all__ = ["SharedDispatcher"]

#: Entries one consumer gets before it is the next one's turn.
ROUND_ROBIN_ENTRIES = 20


class SharedDispatcher(Dispatcher):
    """Round robin over the consumers that can take something, by priority level."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self.replay = ReplayQueue()
        self.redelivery_counts: dict[Position, int] = {}
        self.unacked_messages = 0
        self.delayed = DelayedEntries(self.config.clock, self._delayed_due)
        self._turn_index = 0
        self._blocked: set[Consumer] = set()
        self._all_blocked = False

    def add(self, consumer: Consumer) -> None:
        """Take in another consumer; the first one starts at the cursor."""
        self._join(consumer)

    def _join(self, consumer: Consumer) -> None:
        if not self.consumers:
            self.rewind()
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda c: c.priority_level)

    def remove(self, consumer: Consumer) -> None:
        """What the consumer held goes back, with its redelivery counts as they were."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        self._blocked.discard(consumer)
        self.unacked_messages -= consumer.unacked_messages
        positions = consumer.release_all()
        self.released(positions)
        if self.consumers:
            self.replay.update(positions)
            self.dispatch()
        else:
            self.rewind()

    def rewind(self) -> None:
        """Start again from the cursor, with nothing held and no redelivery counted."""
        super().rewind()
        self.replay.clear()
        self.delayed.clear()
        self.redelivery_counts.clear()
        for consumer in self.consumers:
            consumer.release_all()
        self.unacked_messages = 0
        self._blocked.clear()
        self._all_blocked = False

    def dispatch(self) -> None:
        """Hand entries round while somebody can take them."""
        sent_bytes = 0
        while not self.subscription.is_fenced:
            consumer = self._next_ready()
            if consumer is None:
                return
            if sent_bytes >= self.config.dispatch_round_bytes:
                self.next_turn()
                return
            entries = self._take(min(ROUND_ROBIN_ENTRIES, self.entries_for(consumer.permits)))
            if not entries:
                return
            sent_bytes += self._send(consumer, entries)

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """Queue what the consumer holds for another delivery, counted."""
        before = consumer.unacked_messages
        if positions is None:
            released = consumer.release_all()
        else:
            released = [position for position in positions if consumer.release(position)]
        self._unacked_changed(consumer, consumer.unacked_messages - before)
        self.released(released)
        for position in released:
            self.redelivery_counts[position] = self.redelivery_counts.get(position, 0) + 1
            self.replay.add(position)
        consumer.messages_redelivered += before - consumer.unacked_messages
        self.dispatch()

    def acked(self, consumer: Consumer, position: Position, remaining: int) -> None:
        """Release the entry at whoever holds it: after a redelivery that may be another one."""
        holder = consumer if position in consumer.pending else self._holder_of(position)
        if holder is not None:
            before = holder.unacked_messages
            if remaining:
                holder.release_some(position, remaining)
            else:
                holder.release(position)
                self.released((position,))
            self._unacked_changed(holder, holder.unacked_messages - before)
        if not remaining:
            self.replay.discard(position)
            self.redelivery_counts.pop(position, None)
            self.forgotten(position)

    def released(self, positions: Iterable[Position]) -> None:
        """Entries are no longer held by a consumer: they wait, or are acknowledged."""

    def forgotten(self, position: Position) -> None:
        """An entry is acknowledged, wherever it was."""

    def close(self) -> None:
        """Stop dispatching for good."""
        super().close()
        self.delayed.clear()

    def _delayed_due(self, positions: list[Position]) -> None:
        self.replay.update(positions)
        self.dispatch()

    # -- sending --------------------------------------------------------------------------------

    def is_wanted(self, entry: Entry) -> bool:
        """Whether a new entry is to be sent, and now."""
        return super().is_wanted(entry) and not self.delayed.holds_back(
            entry.position, deliver_at_ms(entry.body)
        )

    def fetch(self, max_entries: int) -> list[Entry]:
        """The next new entries; none while too many are known that must wait for their time."""
        if len(self.delayed) >= self.config.max_delayed_entries_per_subscription:
            return []
        return super().fetch(max_entries)

    def _take(self, max_entries: int) -> list[Entry]:
        """Entries to send next: those that wait for another delivery, then new ones."""
        while self.replay:
            entries = self.take_again(self.replay.pop_run(max_entries))
            if entries:
                return entries
        return self.fetch(max_entries)

    def take_again(self, run: Sequence[Position]) -> list[Entry]:
        """Read positions that lie side by side; acknowledged, trimmed and damaged ones fall out.

        An entry damaged since its first delivery is not sent again and stays unacknowledged: the
        others need not wait for it.
        """
        wanted = {position for position in run if not self.cursor.is_acked(position)}
        found: list[Entry] = []
        if not wanted:
            return found
        at, last = min(wanted), max(wanted)
        while at <= last:
            try:
                entries = self.log.read(
                    at,
                    max_entries=last.entry_id - at.entry_id + 1,
                    max_bytes=self.config.dispatch_round_bytes,
                )
            except CorruptEntryError as damage:
                self.steps_over(damage)
                at = damage.next_position
                continue
            except OSError as error:
                self.replay.update(position for position in wanted if position >= at)
                self.read_failed(error)
                break
            if not entries:
                break
            found += [entry for entry in entries if entry.position in wanted]
            at = Position(entries[-1].position.ledger_id, entries[-1].position.entry_id + 1)
        return found

    def _send(self, consumer: Consumer, entries: Sequence[Entry]) -> int:
        buffers: list[Buffer] = []
        sent_bytes = 0
        for number, entry in enumerate(entries):
            if consumer.permits <= 0 or self.is_blocked(consumer):
                self.replay.update(entry.position for entry in entries[number:])
                break
            sent_bytes += self.send_one(consumer, entry, buffers)
        consumer.outlet.write_gathered(buffers)
        return sent_bytes

    def send_one(self, consumer: Consumer, entry: Entry, buffers: list[Buffer]) -> int:
        """Frame one entry for a consumer that holds it from now on; returns its size."""
        position = entry.position
        frame, messages = self.frame_entry(consumer, entry, self.redelivery_counts.get(position, 0))
        buffers += frame
        consumer.hold(position, messages)
        self._unacked_changed(consumer, messages)
        size_bytes = len(entry.stored)
        consumer.count_sent(messages, size_bytes)
        self.subscription.count_sent(messages, size_bytes)
        return size_bytes

    def _next_ready(self) -> Consumer | None:
        """The next consumer of the best priority level that has one ready."""
        if self._all_blocked:
            return None
        ready = [consumer for consumer in self.consumers if self.is_ready(consumer)]
        if not ready:
            return None
        level = ready[0].priority_level
        same_level = [consumer for consumer in ready if consumer.priority_level == level]
        self._turn_index += 1
        return same_level[self._turn_index % len(same_level)]

    def is_ready(self, consumer: Consumer) -> bool:
        """Whether a consumer can be sent something now."""
        return consumer.permits > 0 and consumer.outlet.writable and consumer not in self._blocked

    def is_blocked(self, consumer: Consumer) -> bool:
        """Whether too many unacknowledged messages keep a consumer from getting more."""
        return self._all_blocked or consumer in self._blocked

    # -- unacknowledged messages ----------------------------------------------------------------

    def _holder_of(self, position: Position) -> Consumer | None:
        return next((c for c in self.consumers if position in c.pending), None)

    def _unacked_changed(self, consumer: Consumer, change: int) -> None:
        if not change:
            return
        self.unacked_messages += change
        limit = self.config.max_unacked_messages_per_consumer
        limit_all = self.config.max_unacked_messages_per_subscription
        if change > 0:
            if consumer.unacked_messages >= limit:
                self._blocked.add(consumer)
            if self.unacked_messages >= limit_all:
                self._all_blocked = True
            return
        resumes = False
        if consumer in self._blocked and consumer.unacked_messages <= limit // 2:
            self._blocked.discard(consumer)
            resumes = True
        if self._all_blocked and self.unacked_messages <= limit_all // 2:
            self._all_blocked = False
            resumes = True
        if resumes:
            self.next_turn()
