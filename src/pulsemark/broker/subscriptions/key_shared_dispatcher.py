"""Key_Shared subscriptions: all messages of a key go to one consumer, in order.

Every entry has a slot (see `sticky_keys`), and every slot has a consumer. An entry that cannot be
sent now waits in its slot's queue, and later entries of the slot wait after it. This keeps the
order within a slot. An entry cannot be sent while

- its consumer has no permits, a full send buffer or too many unacknowledged messages, or
- another consumer still holds entries of the slot. When consumers come or leave, slots move. The
  new consumer starts only after the old one has acknowledged or given back its entries of the
  slot (not with `allowOutOfOrderDelivery`).

All chunks of a message have the same slot: they share their key, or their producer and sequence id.

The broker reads ahead to find entries of slots that can go on. This is limited, so that one slow
consumer cannot make the broker read the whole topic into the queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...ledger import Entry, Position
from ...proto.pulsar_api_pb2 import KeySharedMeta, KeySharedMode
from .consumer import Consumer
from .shared_dispatcher import Runs, SharedDispatcher
from .sticky_keys import HashRange, Selector, check_key_shared_meta, selector_for, sticky_hash
from .waiting_entries import ANY, WaitingSlots

if TYPE_CHECKING:
    from .subscription import Subscription

LOOK_AHEAD_ENTRIES = 2_000
READ_ENTRIES = 100
#: Slots that are offered to their new consumers in one turn, after consumers came or left.
OFFERED_SLOTS = 1_000


class KeySharedDispatcher(SharedDispatcher):
    """Sends entries to the consumers of their slots."""

    def hash_ranges(self) -> Iterator[HashRange]:
        """Each consumer's ranges of key hashes, in order."""
        return self._selector.ranges()

    @property
    def drains(self) -> bool:
        """Whether a moved slot waits for its former consumer's entries (AUTO_SPLIT)."""
        return self._meta.keySharedMode == KeySharedMode.AUTO_SPLIT and not self._allows_disorder

    def draining(self) -> Iterator[tuple[Consumer, int, int]]:
        """Moved slots: the consumer that still holds entries of each, and how many."""
        for slot, (holder, count) in tuple(self._holders.items()):
            if self._selector.select(slot) is not holder:
                yield holder, slot, count

    def __init__(self, subscription: Subscription, meta: KeySharedMeta) -> None:
        super().__init__(subscription)
        self._meta = meta
        self._selector: Selector = selector_for(meta, self.config)
        self._allows_disorder = meta.allowOutOfOrderDelivery
        #: Slots of the entries that consumers hold or that wait.
        self._slots: dict[Position, int] = {}
        #: The consumer that holds entries of a slot, and how many.
        self._holders: dict[int, tuple[Consumer, int]] = {}
        self.waiting: WaitingSlots = WaitingSlots(self._selector.select)
        self._slots_moved = False

    def add(self, consumer: Consumer) -> None:
        """Add a consumer, if its key settings agree with the others'."""
        check_key_shared_meta(self._meta, consumer.key_shared_meta)
        self._selector.add(consumer)
        self._slots_moved = True
        super().add(consumer)
        self.next_turn()

    def remove(self, consumers: Sequence[Consumer]) -> None:
        """Remove consumers; their slots and the entries they held go to the others."""
        self._selector.remove(consumers)
        self._slots_moved = True
        super().remove(consumers)
        if self.consumers:
            self.subscription.work.add(self._selector.sweeping())

    def rewind(self) -> None:
        """Start again from the cursor, with nothing held."""
        super().rewind()
        self._slots.clear()
        self._holders.clear()

    def may_take(self, consumer: Consumer) -> None:
        """A consumer may have become ready."""
        self.waiting.can_take(consumer)
        super().may_take(consumer)

    def dispatch(self) -> None:
        """Send waiting entries, then new ones, as far as the order allows."""
        if self.is_stopped or self.all_blocked or not self.ready.has_ready():
            return
        if not self.has_time():
            return
        if self._slots_moved:
            self._slots_moved = False
            self.waiting.reassign()
        if self.waiting.offer_more(OFFERED_SLOTS):
            self.next_turn()
        sent_bytes = self._send_waiting()
        while sent_bytes < self.config.dispatch_round_bytes:
            if not self.ready.has_ready() or self.is_throttled() or not self.has_time():
                return
            if not (entries := self._take_any(self.entries_within_rates(READ_ENTRIES))):
                return
            sent_bytes += self._send_or_hold(entries)
        self.next_turn()

    @property
    def is_below_limit(self) -> bool:
        """Whether few enough entries wait for a certain consumer."""
        return len(self.waiting) < LOOK_AHEAD_ENTRIES

    def wait_again(self, positions: Iterable[Position]) -> None:
        """Entries wait for another delivery."""
        for position in positions:
            self.waiting.add(position, self._slots.get(position, ANY))

    def take_again(self, run: Sequence[Position]) -> list[Entry]:
        """Read positions again, and forget the slots of those that are gone."""
        found = super().take_again(run)
        if len(found) < len(run):
            for position in set(run).difference(entry.position for entry in found):
                if position not in self.waiting:
                    self._slots.pop(position, None)
        return found

    def released(self, positions: Iterable[Position]) -> None:
        """Consumers no longer hold these entries: their slots may go on."""
        for position in positions:
            self._holders_of.pop(position, None)
            slot = self._slots.get(position)
            if slot is None or slot not in self._holders:
                continue
            holder, count = self._holders[slot]
            if count > 1:
                self._holders[slot] = (holder, count - 1)
                continue
            del self._holders[slot]
            if self.drains and self._selector.select(slot) is not holder:
                holder.sendings.drained_slots += 1
            if self.waiting.first(slot) is not None:
                self.waiting.offer(slot)
                self.next_turn()

    def forgotten(self, position: Position) -> None:
        """An entry is acknowledged."""
        super().forgotten(position)
        self._slots.pop(position, None)

    def hold(self, consumer: Consumer, entry: Entry) -> int:
        """As the base's; note that the consumer holds an entry of the slot."""
        slot = self._slots[entry.position]
        _, count = self._holders.get(slot, (consumer, 0))
        self._holders[slot] = (consumer, count + 1)
        return super().hold(consumer, entry)

    def _take_any(self, max_entries: int) -> Sequence[Entry]:
        """The next entries: first those that were delayed until now, then new ones."""
        while self._waits_in(ANY) and not self.waits_for_disk:
            if entries := self.take_again(self.waiting.pop_run(ANY, max_entries)):
                return entries
        return self.fetch(max_entries)

    def _send_waiting(self) -> int:
        """Send waiting entries to the consumers that can take them, oldest first for each."""
        to_serve = self.waiting.to_serve
        sent_bytes = 0
        round_bytes = self.config.dispatch_round_bytes
        while to_serve and sent_bytes < round_bytes and not self.waits_for_disk:
            if self.is_throttled() or self.all_blocked:
                break
            consumer = next(iter(to_serve))
            if not self.is_ready(consumer):
                del to_serve[consumer]
                continue
            count = self.entries_within_rates(min(READ_ENTRIES, consumer.permits))
            for run in _runs(self.waiting.take(consumer, count, self._may_go)):
                cost_bytes = self._send_or_hold(self.take_again(run))
                sent_bytes += max(self.read_cost_bytes, cost_bytes)
        return sent_bytes

    def _send_or_hold(self, entries: Sequence[Entry]) -> int:
        """Send each entry to its consumer, or let it wait after the waiting ones of its slot."""
        runs = Runs(self)
        waiting = 0
        for entry in entries:
            slot = self._slots.get(entry.position)
            if slot is None:
                slot = self._slots[entry.position] = self._slot_of(entry)
            first = self.waiting.first(slot)
            waits = first is not None and first < entry.position
            taker = None if waits else self._taker(slot, runs)
            if taker is None:
                self.waiting.add(entry.position, slot)
                waiting += 1
            else:
                runs.add(taker, entry)
        return runs.send() + self.cost_bytes(0, waiting)

    def _slot_of(self, entry: Entry) -> int:
        return self._selector.slot_of(sticky_hash(entry.body))

    def _may_go(self, slot: int) -> bool:
        """Whether no other consumer holds entries of the slot."""
        if self._allows_disorder:
            return True
        holder = self._holders.get(slot)
        return holder is None or holder[0] is self._selector.select(slot)

    def _taker(self, slot: int, runs: Runs) -> Consumer | None:
        """The slot's consumer, if it can be sent an entry of the slot now."""
        owner = self._selector.select(slot)
        if owner is None or owner in self.blocked or not owner.connection.writable:
            return None
        # As many entries as it had permits, however many messages they are.
        if self.all_blocked or owner.permits <= runs.count_for(owner):
            return None
        return owner if self._may_go(slot) else None


def _runs(positions: Sequence[Position]) -> list[list[Position]]:
    """Split a sorted list into runs of adjacent positions in one ledger."""
    runs: list[list[Position]] = []
    for position in positions:
        last = runs[-1][-1] if runs else None
        if last is not None and position == (last.ledger_id, last.entry_id + 1):
            runs[-1].append(position)
        else:
            runs.append([position])
    return runs
