"""How a subscription's entries reach its consumers.

A dispatcher owns the read position: the next entry never yet sent. It runs on the event loop and
is called whenever something may have made progress possible: new entries became durable, permits
came (FLOW), the connection's buffer drained, a consumer came or went, the cursor was reset. Each
call sends what can be sent, at most one round (`dispatch_round_bytes`, `ROUND_ENTRIES`), and asks
for another turn if there is more. Entries that are only stepped over count, too.

Never sent: control entries (acknowledged on sight, so that they do not hold the cursor back) and
entries that are acknowledged already. In front of a damaged entry dispatch stops and says so,
unless `auto_skip_non_recoverable_data` is set.

`SingleActiveDispatcher` serves Exclusive and readers, and Failover, where the consumer in front
by (priority level, name) is active; with partitions, partition i goes to consumer i mod n.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...ledger import CorruptEntryError, Entry, EntryKind, Position
from ...metadata import Buffer
from ...proto.pulsar_api_pb2 import CommandSubscribe
from ...wire import commands
from .consumer import Consumer
from .positions import count_open, messages_in
from .ranked_consumers import Rank, RankedConsumers

if TYPE_CHECKING:
    from .subscription import Subscription

__all__ = ["Dispatcher", "SingleActiveDispatcher"]

log = logging.getLogger(__name__)

MAX_ENTRIES_PER_READ = 200
#: Entries of one dispatch round, however small they are, and entries looked at for one to send.
ROUND_ENTRIES = 500
#: Reads of one dispatch round, where entries to be sent again do not lie side by side.
ROUND_READS = 100
ACTIVE_CONSUMER_CHANGE_SINCE = 12
RETRY_S = 0.25


class Dispatcher(ABC):
    """What all subscription types share: reading forward, stepping over what is not to be sent."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.log = subscription.log
        self.cursor = subscription.cursor
        self.config = subscription.topic.config
        self.consumers = RankedConsumers(self.rank)
        self.read_position = self.cursor.first_unacked
        #: The damaged entry in front of which dispatch stands, if any.
        self.damaged: CorruptEntryError | None = None
        self._messages_per_entry = 1.0
        self._is_closed = False
        self._turn: asyncio.Handle | None = None
        self._retry: asyncio.TimerHandle | None = None

    # -- what each subscription type decides ----------------------------------------------------

    @abstractmethod
    def add(self, consumer: Consumer) -> None:
        """Take in a consumer, or raise `RefusedError`."""

    @property
    def sole_consumer(self) -> Consumer | None:
        """The consumer that keeps every other one out; None where there is none."""
        return None

    @abstractmethod
    def remove(self, consumers: Sequence[Consumer]) -> None:
        """Let consumers go, all in one step; what they held goes to the others."""

    @staticmethod
    def rank(consumer: Consumer) -> Rank:
        """What the consumers are ordered by."""
        return consumer.priority_level, ""

    @abstractmethod
    def dispatch(self) -> None:
        """Send what can be sent now."""

    def offered(self, consumer: Consumer) -> None:
        """A consumer can take more: it got permits, or its connection drained."""
        self.dispatch()

    @abstractmethod
    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """Send `positions` again (None: everything the consumer has not acknowledged)."""

    @abstractmethod
    def acked(self, consumer: Consumer, position: Position, remaining: int) -> None:
        """An entry was acknowledged; `remaining` of its messages were not."""

    @abstractmethod
    def given_up(self, last: Position) -> None:
        """Everything up to ``last`` counts as acknowledged, though no consumer said so."""

    def is_blocked(self, consumer: Consumer) -> bool:
        """Whether too many unacknowledged messages keep a consumer from getting more."""
        return False

    def rewind(self) -> None:
        """Start again from the cursor."""
        self.read_position = self.cursor.first_unacked
        self.damaged = None

    # -- shared machinery -----------------------------------------------------------------------

    def close(self) -> None:
        """Stop dispatching for good."""
        self._is_closed = True
        for handle in (self._turn, self._retry):
            if handle is not None:
                handle.cancel()
        self._turn = self._retry = None

    @property
    def is_stopped(self) -> bool:
        """Whether nothing is to be sent: the topic is closed, or a seek is under way."""
        subscription = self.subscription
        return self._is_closed or subscription.is_fenced or not subscription.topic.is_open

    def next_turn(self) -> None:
        """Go on after the others on the event loop had theirs."""
        if self._turn is None and not self._is_closed:
            self._turn = asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        self.dispatch()

    def entries_for(self, permits: int) -> int:
        """How many entries to read for so many permits, by the batch sizes seen lately."""
        return max(1, min(MAX_ENTRIES_PER_READ, round(permits / self._messages_per_entry)))

    def cost_bytes(self, entry: Entry) -> int:
        """What an entry takes of a round's bytes; a small one takes its share of the entries."""
        return max(len(entry.stored), self.config.dispatch_round_bytes // ROUND_ENTRIES)

    @property
    def read_cost_bytes(self) -> int:
        """What a read takes of a round's bytes at least, however little it finds."""
        return self.config.dispatch_round_bytes // ROUND_READS

    def may_look_ahead(self) -> bool:
        """Whether entries that are not sent now may be read and remembered."""
        return True

    def fetch(self, max_entries: int) -> list[Entry]:
        """The next entries to send, from the read position on, which moves past them.

        A long stretch of entries that are not to be sent is left after a round; the next turn
        goes on there.
        """
        looked_at_bytes = 0
        wanted: list[Entry] = []
        while self.may_look_ahead():
            # What is not wanted is gone through quickly, whatever the permits.
            count = MAX_ENTRIES_PER_READ if looked_at_bytes else max_entries
            entries = self.read(self.read_position, count)
            if not entries:
                return []
            last = entries[0]
            for last in entries:
                looked_at_bytes += self.cost_bytes(last)
                if self.is_wanted(last):
                    wanted.append(last)
                    if len(wanted) == max_entries:
                        break
            position = last.position
            self.read_position = Position(position.ledger_id, position.entry_id + 1)
            if wanted:
                messages = sum(entry.message_count for entry in wanted) / len(wanted)
                self._messages_per_entry += (max(messages, 1.0) - self._messages_per_entry) / 4
                return wanted
            # A long acknowledged stretch is jumped over instead of being read.
            self.read_position = max(self.read_position, self.cursor.next_unacked(position))
            if looked_at_bytes >= self.config.dispatch_round_bytes:
                self.next_turn()
                return []
        return []

    def is_wanted(self, entry: Entry) -> bool:
        """Whether an entry is to be sent at all."""
        if entry.kind is EntryKind.CONTROL:
            self.cursor.ack(entry.position)
            return False
        return not self.cursor.is_acked(entry.position)

    def read(self, position: Position, max_entries: int) -> list[Entry]:
        """Entries from `position`; [] at the end, and in front of damage where it stops us."""
        while True:
            try:
                return self.log.read(
                    position, max_entries=max_entries, max_bytes=self.config.dispatch_round_bytes
                )
            except CorruptEntryError as damage:
                if not self.steps_over(damage):
                    return []
                position = damage.next_position
                self.read_position = max(self.read_position, position)
            except OSError as error:
                self.read_failed(error)
                return []

    def read_failed(self, error: OSError) -> None:
        """The disk or the process' limits refuse a read for now: try again in a moment."""
        log.error("%s: cannot be read, trying again: %s", self.subscription, error)
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._try_again)

    @property
    def waits_for_disk(self) -> bool:
        """Whether a read failed a moment ago and is to be tried again."""
        return self._retry is not None

    def _try_again(self) -> None:
        self._retry = None
        self.dispatch()

    def steps_over(self, damage: CorruptEntryError) -> bool:
        """Report a damaged entry once; whether dispatch goes on behind it."""
        known = self.damaged is not None and self.damaged.position == damage.position
        if not known:
            self.damaged = damage
            self.subscription.topic.counters.damaged_entries += 1
            log.error("%s: %s", self.subscription, damage)
        if not self.config.auto_skip_non_recoverable_data:
            return False
        self.cursor.ack(damage.position)
        return True

    def frame_entry(
        self, consumer: Consumer, entry: Entry, redelivery_count: int
    ) -> tuple[list[Buffer], int]:
        """The MESSAGE frame, and how many messages in it are not acknowledged yet.

        As in Pulsar the index goes by the number that SEND says, and what a consumer was sent by
        the number that the batch says: who sends one message and says a thousand takes no
        permits of consumers.
        """
        ack_set = self.subscription.ack_set(entry.position)
        messages = max(1, entry.message_count)
        if messages > 1:
            messages = messages_in(entry.body, messages)
        if ack_set:
            messages = min(messages, count_open(ack_set))
        return consumer.frame(entry, redelivery_count, ack_set), messages


class SingleActiveDispatcher(Dispatcher):
    """One consumer at a time, in order, without tracking what it has not acknowledged."""

    def __init__(self, subscription: Subscription, sub_type: CommandSubscribe.SubType) -> None:
        super().__init__(subscription)
        self.exclusive = sub_type == CommandSubscribe.Exclusive
        self.active: Consumer | None = None
        self._switch: asyncio.TimerHandle | None = None

    @property
    def sole_consumer(self) -> Consumer | None:
        """The consumer of an Exclusive subscription."""
        return self.consumers[0] if self.exclusive and self.consumers else None

    def add(self, consumer: Consumer) -> None:
        """Exclusive: the only one. Failover: queue it by rank."""
        self.consumers.add(consumer)
        if self._choose():
            return
        if not self.exclusive and self.active is not None and self._switch is None:
            self._tell_active(consumer)

    def remove(self, consumers: Sequence[Consumer]) -> None:
        """Another consumer becomes active; without one the next to come starts at the cursor."""
        if self.consumers.remove(consumers):
            self._choose()

    @staticmethod
    def rank(consumer: Consumer) -> Rank:
        """What the active consumer is chosen by."""
        return consumer.priority_level, consumer.name

    def dispatch(self) -> None:
        """Send to the active consumer while it has permits and takes data."""
        consumer = self.active
        if consumer is None or self._switch is not None or self.is_stopped:
            return
        sent_bytes = 0
        while consumer.permits > 0 and consumer.outlet.writable:
            if sent_bytes >= self.config.dispatch_round_bytes:
                self.next_turn()
                return
            entries = self.fetch(self.entries_for(consumer.permits))
            if not entries:
                return
            sent_bytes += self._send(consumer, entries)

    def offered(self, consumer: Consumer) -> None:
        """Of interest only for the active consumer."""
        if consumer is self.active:
            self.dispatch()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """To keep the order, any redelivery starts over at the first unacknowledged entry."""
        if consumer is self.active and self._switch is None:
            self.rewind()
            self.dispatch()

    def acked(self, consumer: Consumer, position: Position, remaining: int) -> None:
        """The cursor knows; nothing else is kept for a consumer that has all to itself."""

    def given_up(self, last: Position) -> None:
        """The cursor knows."""

    def close(self) -> None:
        """Stop dispatching for good."""
        super().close()
        if self._switch is not None:
            self._switch.cancel()
            self._switch = None

    def _send(self, consumer: Consumer, entries: Sequence[Entry]) -> int:
        buffers: list[Buffer] = []
        sent_bytes = 0
        for entry in entries:
            if consumer.permits <= 0:
                self.read_position = entry.position
                break
            frame, messages = self.frame_entry(consumer, entry, 0)
            buffers += frame
            size_bytes = len(entry.stored)
            consumer.count_sent(messages, size_bytes)
            self.subscription.count_sent(messages, size_bytes)
            sent_bytes += self.cost_bytes(entry)
        consumer.outlet.write_gathered(buffers)
        return sent_bytes

    def _choose(self) -> bool:
        """Pick the active consumer; True if another one than before."""
        chosen = self._first_in_rank()
        if chosen is self.active:
            return False
        before, self.active = self.active, chosen
        if self._switch is not None:
            self._switch.cancel()
            self._switch = None
        delay_ms = self.config.active_consumer_failover_delay_ms
        if chosen is None:
            pass
        elif self.exclusive or before is None or delay_ms == 0:
            self._start()
        else:
            # What the old one was sent last may still be acknowledged: reading again only after
            # a while spares the new one duplicates.
            self._switch = asyncio.get_running_loop().call_later(delay_ms / 1000, self._start)
        return True

    def _start(self) -> None:
        self._switch = None
        if self.active is not None:
            self.log = self.subscription.read_as(self.active.compacted)
        self.rewind()
        if not self.exclusive:
            for consumer in self.consumers:
                self._tell_active(consumer)
        self.dispatch()

    def _first_in_rank(self) -> Consumer | None:
        if not self.consumers:
            return None
        best_level = self.consumers[0].priority_level
        of_best = bisect_right(self.consumers, best_level, key=lambda c: c.priority_level)
        return self.consumers[max(self.subscription.topic.partition_index, 0) % of_best]

    def _tell_active(self, consumer: Consumer) -> None:
        if consumer.outlet.protocol_version >= ACTIVE_CONSUMER_CHANGE_SINCE:
            consumer.outlet.write(
                commands.active_consumer_change(consumer.consumer_id, consumer is self.active)
            )
