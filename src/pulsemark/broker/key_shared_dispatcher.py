"""Key_Shared subscriptions: all messages of a key to one consumer, in order.

Every entry has a slot (see `sticky_keys`), every slot a consumer. Order within a slot is kept by
holding back: an entry that cannot go out now waits in the replay queue, and no later entry of its
slot overtakes it. It cannot go out while

- its consumer has no permits, a full buffer or too many unacknowledged messages, or
- another consumer still holds entries of the slot: when consumers come or go a slot moves, and the
  new owner starts only after the old one has acknowledged or given back what it had
  (`allowOutOfOrderDelivery` waives this).

Looking ahead for slots that can move on is limited, so that one slow consumer cannot make the
broker read the whole topic into the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..ledger import Entry, Position
from ..metadata import Buffer
from ..proto.pulsar_api_pb2 import KeySharedMeta
from .consumer import Consumer
from .shared_dispatcher import SharedDispatcher
from .sticky_keys import Selector, selector_for, slot_of

if TYPE_CHECKING:
    from .subscription import Subscription

__all__ = ["KeySharedDispatcher"]

LOOK_AHEAD_ENTRIES = 2_000
READ_ENTRIES = 100


class KeySharedDispatcher(SharedDispatcher):
    """Hands entries to the consumers of their slots."""

    def __init__(self, subscription: Subscription, meta: KeySharedMeta) -> None:
        super().__init__(subscription)
        self._selector: Selector = selector_for(meta)
        self._allows_disorder = meta.allowOutOfOrderDelivery
        #: Slots of entries that are out or wait.
        self._slots: dict[Position, int] = {}
        #: Who holds entries of a slot, and how many.
        self._holders: dict[int, tuple[Consumer, int]] = {}

    def add(self, consumer: Consumer) -> None:
        """Take in another consumer, if its key settings fit the others'."""
        self._selector.add(consumer)
        super().add(consumer)
        self.next_turn()

    def remove(self, consumer: Consumer) -> None:
        """Its slots go to the others, with what it held."""
        self._selector.remove(consumer)
        super().remove(consumer)

    def rewind(self) -> None:
        """Start again from the cursor, with nothing held."""
        super().rewind()
        self._slots.clear()
        self._holders.clear()

    def dispatch(self) -> None:
        """Send what waits, then what is new, as far as order allows."""
        if self.subscription.is_fenced or not any(self.is_ready(c) for c in self.consumers):
            return
        held: set[int] = set()
        sent_bytes = self._send_waiting(held)
        while sent_bytes < self.config.dispatch_round_bytes:
            if len(self.replay) >= LOOK_AHEAD_ENTRIES:
                return
            if not any(self.is_ready(consumer) for consumer in self.consumers):
                return
            entries = self.fetch(READ_ENTRIES)
            if not entries:
                return
            sent_bytes += self._send_or_hold(entries, held)
        self.next_turn()

    def released(self, positions: Iterable[Position]) -> None:
        """Entries are not out any more: their slots may move on."""
        for position in positions:
            slot = self._slots.get(position)
            if slot is None or slot not in self._holders:
                continue
            holder, count = self._holders[slot]
            if count > 1:
                self._holders[slot] = (holder, count - 1)
            else:
                del self._holders[slot]
                if self.replay:
                    self.next_turn()

    def forgotten(self, position: Position) -> None:
        """An entry is acknowledged."""
        self._slots.pop(position, None)

    def send_one(self, consumer: Consumer, entry: Entry, buffers: list[Buffer]) -> int:
        """Also note whose the slot is now."""
        slot = self._slots[entry.position]
        _, count = self._holders.get(slot, (consumer, 0))
        self._holders[slot] = (consumer, count + 1)
        return super().send_one(consumer, entry, buffers)

    def _send_waiting(self, held: set[int]) -> int:
        """Send from the replay queue, oldest first; slots that must wait are put into `held`."""
        ready: list[Position] = []
        for position in self.replay:
            slot = self._slots.get(position)
            if slot is None or (slot not in held and self._taker(slot) is not None):
                ready.append(position)
            elif slot is not None:
                held.add(slot)
            if len(ready) >= READ_ENTRIES:
                break
        sent_bytes = 0
        for run in _runs(ready):
            for position in run:
                self.replay.discard(position)
            sent_bytes += self._send_or_hold(self.take_again(run), held)
        if len(ready) >= READ_ENTRIES:
            # The rest of the queue was not looked at: nothing new may go before it.
            self.next_turn()
            return self.config.dispatch_round_bytes
        return sent_bytes

    def _send_or_hold(self, entries: Sequence[Entry], held: set[int]) -> int:
        """Give each entry to its consumer, or put it into the queue."""
        outgoing: dict[Consumer, list[Buffer]] = {}
        sent_bytes = 0
        for entry in entries:
            slot = self._slots.get(entry.position)
            if slot is None:
                slot = self._slots[entry.position] = slot_of(entry.body)
            taker = None if slot in held else self._taker(slot)
            if taker is None:
                held.add(slot)
                self.replay.add(entry.position)
                continue
            sent_bytes += self.send_one(taker, entry, outgoing.setdefault(taker, []))
        for consumer, buffers in outgoing.items():
            consumer.outlet.write_gathered(buffers)
        return sent_bytes

    def _taker(self, slot: int) -> Consumer | None:
        """The slot's consumer, if it can be sent an entry of the slot now."""
        owner = self._selector.select(slot)
        if owner is None or not self.is_ready(owner) or self.is_blocked(owner):
            return None
        holder = self._holders.get(slot)
        if holder is not None and holder[0] is not owner and not self._allows_disorder:
            return None
        return owner


def _runs(positions: Sequence[Position]) -> list[list[Position]]:
    """Cut a sorted list into runs of neighbours in one ledger."""
    runs: list[list[Position]] = []
    for position in positions:
        last = runs[-1][-1] if runs else None
        if last is not None and position == (last.ledger_id, last.entry_id + 1):
            runs[-1].append(position)
        else:
            runs.append([position])
    return runs
