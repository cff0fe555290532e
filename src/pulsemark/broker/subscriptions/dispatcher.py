"""Dispatchers: they send a subscription's entries to its consumers.

A dispatcher owns the read position: the next entry that was never sent. It runs on the event loop.
It is called after each event that may make progress possible: new entries became durable, permits
came (FLOW), the connection's send buffer drained, a consumer came or left, the cursor was reset.
Each call sends at most one round (`dispatch_round_bytes`, `ROUND_ENTRIES`), in which skipped
entries count, too. If there is more to send, it schedules another turn.

Entries that were acknowledged are never sent. Neither are control entries, those of aborted
transactions, and those that the subscription's filter rejects: they are acknowledged when they are
read, so that the cursor can move past them. Dispatch stops at the last stable position
(`ledger.transactions`), at a damaged entry (unless `auto_skip_non_recoverable_data` is set), and
where entries have to come over a network: it goes on when they are there.

`SingleActiveDispatcher` serves Exclusive subscriptions, readers and Failover subscriptions. In
Failover, partition i of a topic goes to consumer i mod n, in the order of (priority level, name).
Without partitions the first one of a `failover_ring` is active. It waits before it starts: the one
before it may still acknowledge its last entries, and fewer are sent twice. All consumers are then
notified which of them is active; one that comes later and does not become active is notified at
once. An Exclusive consumer that names ranges of key hashes (a reader with `keyHashRange`) gets the
entries of these keys only. The others are not acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence, Sized
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...ledger import LATEST, CorruptEntryError, Entry, EntryKind, LedgerError, Position
from ...ledger.errors import WouldBlockError
from ...ledger.would_block import arrival
from ...metadata import Buffer
from ...proto.pulsar_api_pb2 import CommandActiveConsumerChange, CommandSubscribe, KeySharedMode
from ...wire import commands
from ..cooperative import Due, FairTurns
from .consumer import Consumer, Rank, RankedConsumers, failover_ring
from .kafka_entries import read_entries
from .seek import count_open, messages_in
from .sticky_keys import StickyRanges, sticky_hash

if TYPE_CHECKING:
    from .subscription import Subscription

log = logging.getLogger(__name__)

MAX_ENTRIES_PER_READ = 200
#: The most entries of one dispatch round, sent or skipped, however small they are.
ROUND_ENTRIES = 500
#: The most reads of one dispatch round, if the entries to be sent again are not adjacent.
ROUND_READS = 100
RETRY_S = 0.25
#: The protocol version from which on clients take ACTIVE_CONSUMER_CHANGE.
ACTIVE_CONSUMER_CHANGE_SINCE = 12


class Dispatcher(ABC):
    """The base of all subscription types: reads forward, and skips entries."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.log = subscription.log
        self.cursor = subscription.cursor
        self.config = subscription.topic.config
        self.consumers = RankedConsumers(self.rank)
        self.read_position = self.cursor.first_unacked
        #: The damaged entry that dispatch met last, if any.
        self.damaged: CorruptEntryError | None = None
        self._messages_per_entry = 1.0
        self._is_closed = False
        self._turns = FairTurns.of_running_loop()
        self._turn: asyncio.Handle | Due | None = None
        self._retry: asyncio.Handle | Due | None = None

    # -- what each subscription type decides ----------------------------------------------------

    @abstractmethod
    def add(self, consumer: Consumer) -> None:
        """Add a consumer, or raise `RefusedError`."""

    #: The consumer that gets the messages, of Exclusive and Failover.
    active: Consumer | None = None

    @property
    def sole_consumer(self) -> Consumer | None:
        """The consumer that excludes all others, if there is one."""
        return None

    @abstractmethod
    def remove(self, consumers: Sequence[Consumer]) -> None:
        """Remove consumers, all in one step; the entries they held go to the others."""

    @staticmethod
    def rank(consumer: Consumer) -> Rank:
        """The order of the consumers."""
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
    def deliver_again(self, positions: Collection[Position]) -> None:
        """Deliver entries again that an aborted transaction had acknowledged."""

    def acked(self, position: Position, remaining: int) -> None:  # noqa: B027 - as below
        """An entry was acknowledged; `remaining` of its messages were not."""

    def acked_run(self, ledger_id: int, first: int, end: int) -> None:  # noqa: B027 - as above
        """The entries of a ledger from ``first`` to before ``end`` were acknowledged."""

    def forget_count(self, position: Position) -> None:  # noqa: B027 - only some types count
        """Forget how often an entry was delivered again."""

    def given_up(self, last: Position) -> None:  # noqa: B027 - as above
        """Everything up to ``last`` counts as acknowledged, though no consumer said so."""

    def removed_before(self, first: Position) -> None:  # noqa: B027 - only some types remember
        """Everything before ``first`` was removed from the log, acknowledged or not."""

    #: Consumers with too many unacknowledged messages, and whether the subscription has too many.
    blocked: Collection[Consumer] = ()
    all_blocked = False
    #: Entries that were read, and wait for their time or for a consumer.
    delayed: Sized = ()
    waiting: Sized = ()

    def rules_changed(self) -> None:
        """The topic's policies have changed: go on by the new ones."""
        self.dispatch()

    def rewind(self) -> None:
        """Start again from the cursor."""
        self.read_position = self.cursor.first_unacked
        self.damaged = None

    # -- shared by all types --------------------------------------------------------------------

    def close(self) -> None:
        """Stop dispatching."""
        self._is_closed = True
        for handle in (self._turn, self._retry):
            if handle is not None:
                handle.cancel()
        self._turn = self._retry = None

    @property
    def is_stopped(self) -> bool:
        """Whether nothing may be sent: the topic is closed, or a seek is in progress."""
        subscription = self.subscription
        return self._is_closed or subscription.is_fenced or not subscription.topic.is_open

    def next_turn(self) -> None:
        """Go on in the next turn of the event loop, so that other work runs first."""
        if self._turn is None and not self._is_closed:
            self._turn = self._turns.later(self._take_turn)

    def has_time(self) -> bool:
        """Whether to send in this turn of the loop; if not, dispatch goes on in a later one."""
        if self._turns.has_time():
            return True
        self.next_turn()
        return False

    def _take_turn(self) -> None:
        self._turn = None
        self.dispatch()

    def entries_for(self, permits: int) -> int:
        """How many entries to read for `permits` messages, by recent batch sizes."""
        permits = self.subscription.rates.allowed(permits)
        return max(1, min(MAX_ENTRIES_PER_READ, round(permits / self._messages_per_entry)))

    def entries_within_rates(self, most: int) -> int:
        """How many of `most` entries the rate limits allow, by recent batch sizes."""
        return self.subscription.rates.entries(most, self._messages_per_entry)

    def is_throttled(self) -> bool:
        """Whether a rate limit is exceeded; then dispatch goes on by itself when it is not."""
        wait_s = self.subscription.rates.wait_s()
        if wait_s and self._turn is None and not self._is_closed:
            self._turn = asyncio.get_running_loop().call_later(wait_s, self._take_turn)
        return wait_s > 0

    def cost_bytes(self, size_bytes: int, entries: int) -> int:
        """The share of a round's bytes that entries take: ROUND_ENTRIES small ones are a round."""
        return max(size_bytes, entries * (self.config.dispatch_round_bytes // ROUND_ENTRIES))

    @property
    def read_cost_bytes(self) -> int:
        """The least share of a round's bytes that a read counts."""
        return self.config.dispatch_round_bytes // ROUND_READS

    def may_look_ahead(self) -> bool:
        """Whether to read entries that cannot be sent now, and remember them."""
        return True

    def fetch(self, max_entries: int) -> Sequence[Entry]:
        """Return the next entries to send, and move the read position past them.

        After a round without an entry to send it returns [], and the next turn goes on there.
        """
        try:
            return self._fetch(max_entries)
        except WouldBlockError as error:  # a compacted form's positions have to be read, too
            self.read_failed(error)
            return []

    def _fetch(self, max_entries: int) -> Sequence[Entry]:
        looked_at_bytes = 0
        if self.read_position <= self.cursor.mark_delete:
            # Entries that were skipped must not count among those that are read for the permits.
            self.read_position = self.cursor.next_unacked(self.cursor.mark_delete)
        while self.may_look_ahead():
            # After skipped entries the steps are large, whatever the permits.
            count = MAX_ENTRIES_PER_READ if looked_at_bytes else max_entries
            if not (entries := self.read(self.read_position, count)):
                return []
            wanted, position = self._wanted(entries, max_entries)
            self.read_position = position.following
            if wanted:
                messages = sum([entry.message_count for entry in wanted]) / len(wanted)
                self._messages_per_entry += (max(messages, 1.0) - self._messages_per_entry) / 4
                return wanted
            looked_at_bytes += self.cost_bytes(sum(len(e.stored) for e in entries), len(entries))
            # Acknowledged entries are jumped over instead of being read.
            self.read_position = max(self.read_position, self.cursor.next_unacked(position))
            if looked_at_bytes >= self.config.dispatch_round_bytes:
                self.next_turn()
                return []
        return []

    def _wanted(self, entries: Sequence[Entry], most: int) -> tuple[Sequence[Entry], Position]:
        """Up to `most` of the entries that are to be sent, and the last position looked at."""
        if not self.is_selective and self.cursor.acks_nothing_from(entries[0].position):
            some = entries[:most]
            if all(entry.kind is EntryKind.DATA for entry in some):
                return some, some[-1].position
        wanted: list[Entry] = []
        last = entries[0]
        for last in entries:
            if self.is_wanted(last):
                wanted.append(last)
                if len(wanted) == most:
                    break
        return wanted, last.position

    @property
    def is_selective(self) -> bool:
        """Whether `is_wanted` has to be asked for each entry, acknowledged or not."""
        subscription = self.subscription
        return subscription.tag_filter is not None or subscription.pending_acks is not None

    def is_wanted(self, entry: Entry) -> bool:
        """Whether an entry is sent to consumers."""
        if entry.kind is EntryKind.CONTROL:
            self.cursor.ack(entry.position)
            return False
        if self.cursor.is_acked(entry.position) or self.is_pending(entry):
            return False
        tag_filter = self.subscription.tag_filter
        if tag_filter is None or tag_filter.accepts(entry):
            return True
        self.cursor.ack(entry.position)
        return False

    def is_pending(self, entry: Entry) -> bool:
        """Whether open transactions have acknowledged all that is left of an entry."""
        pending, position = self.subscription.pending_acks, entry.position
        if pending is None or not pending.bits_in(position):
            return False
        remaining = self.cursor.remaining_in_batch(position)
        return not pending.remaining(position, remaining, entry.message_count)

    def read(self, position: Position, max_entries: int) -> Sequence[Entry]:
        """Entries from `position`; [] at the end and before a damaged entry that stops us."""
        while True:
            try:
                return self.read_log(position, max_entries)
            except CorruptEntryError as damage:
                if not self.steps_over(damage):
                    return []
                position = damage.next_position
                self.read_position = max(self.read_position, position)
            except OSError as error:
                self.read_failed(error)
                return []

    def read_log(self, position: Position, max_entries: int) -> Sequence[Entry]:
        """Read as `read_entries` does."""
        topic, max_bytes = self.subscription.topic, self.config.dispatch_round_bytes
        return read_entries(
            topic, self.log, position, max_entries=max_entries, max_bytes=max_bytes, may_wait=True
        )

    def read_failed(self, error: OSError) -> None:
        """Try again after RETRY_S, or when the entry was converted or came from the network."""
        if isinstance(error, WouldBlockError):
            if self._retry is None:
                self._retry = Due.after(arrival(error), self._try_again)
            return
        text = "%s: its messages could not be read; the next try is in %g s: %s"
        log.error(text, self.subscription, RETRY_S, error)
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._try_again)

    @property
    def waits_for_disk(self) -> bool:
        """Whether a read failed, or is waited for, and will be tried again."""
        return self._retry is not None

    def _try_again(self) -> None:
        self._retry = None
        self.dispatch()

    def steps_over(self, damage: CorruptEntryError) -> bool:
        """Log a damaged entry once. Return whether dispatch goes on after it."""
        skips = self.config.auto_skip_non_recoverable_data
        if self.damaged is None or self.damaged.position != damage.position:
            self.damaged = damage
            self.subscription.topic.counters.damaged_entries += 1
            action = "it is skipped"
            if not skips:
                action = "it is not delivered; to skip it, set autoSkipNonRecoverableData=true"
            log.error("%s: damaged entry: %s; %s", self.subscription, damage, action)
        if not skips:
            return False
        self.cursor.ack(damage.position)
        return True

    def charged(self, consumer: Consumer, position: Position) -> int:
        """The permits that an entry has taken from a consumer; 0 also if it is not in memory."""
        if self.cursor.is_acked(position):
            return 0
        try:
            found = self.read_log(position, 1)
        except (LedgerError, OSError):
            return 0
        if not found or found[0].position != position:
            return 0
        count = max(1, found[0].message_count)
        return messages_in(found[0].body, count) if count > 1 else 1

    #: How often entries were delivered again, where that is counted.
    redelivery_counts: Mapping[Position, int] = MappingProxyType({})

    def messages_of(self, entry: Entry) -> int:
        """The number of unacknowledged messages in an entry, by the number in the batch.

        The number in SEND may be larger: it counts for the index, as in Pulsar, not for permits.
        """
        messages = max(1, entry.message_count)
        if messages > 1:
            messages = messages_in(entry.body, messages)
            if self.has_parts and (ack_set := self._ack_set(entry)):
                messages = min(messages, count_open(ack_set))
        return messages

    @property
    def has_parts(self) -> bool:
        """Whether any batch is acknowledged in part, for good or by a transaction."""
        return self.cursor.has_parts or self.subscription.pending_acks is not None

    def _ack_set(self, entry: Entry) -> list[int]:
        """The ack set of a partly acknowledged batch; [] if no message of it is acknowledged."""
        position, pending = entry.position, self.subscription.pending_acks
        remaining = self.cursor.remaining_in_batch(position)
        if pending is None or not pending.bits_in(position):
            return remaining or []
        return pending.remaining(position, remaining, entry.message_count)

    def send(self, consumer: Consumer, entries: Sequence[Entry], messages: int) -> int:
        """Send entries with this sum of `messages_of`; return their cost in bytes."""
        if self.has_parts or self.redelivery_counts:
            counts = self.redelivery_counts
            frames: list[Buffer] = []
            for entry in entries:
                at = entry.position
                frames += consumer.frame(entry, counts.get(at, 0), self._ack_set(entry))
        else:
            frames = consumer.frames(entries)
        size_bytes = sum(len(entry.stored) for entry in entries)
        consumer.count_sent(messages, size_bytes, len(entries), self.config.clock.now_ms())
        self.subscription.count_sent(messages, size_bytes)
        consumer.connection.write_gathered(frames)
        return self.cost_bytes(size_bytes, len(entries))


class SingleActiveDispatcher(Dispatcher):
    """Sends to one consumer at a time, in order. It does not track unacknowledged entries."""

    def __init__(self, subscription: Subscription, sub_type: CommandSubscribe.SubType) -> None:
        super().__init__(subscription)
        self.exclusive = sub_type == CommandSubscribe.Exclusive
        self._switch: asyncio.TimerHandle | Due | None = None
        #: The key hashes that the Exclusive consumer wants; None: all.
        self._wanted_ranges: StickyRanges | None = None
        #: During a seek no consumer is active.
        self._is_paused = False
        #: Its first consumer is the active one of Failover on a topic without partitions.
        self._ring: RankedConsumers | None = None
        if not self.exclusive and subscription.topic.partition_index < 0:
            self._ring = failover_ring(subscription.topic.name)

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
        """The ranges of key hashes that a consumer names; None without them."""
        meta = consumer.key_shared_meta
        if meta.keySharedMode != KeySharedMode.STICKY or not meta.hashRanges:
            return None
        ranges = StickyRanges()
        ranges.add(consumer)
        return ranges

    @property
    def is_selective(self) -> bool:
        """Whether only the entries of some keys or tags are wanted."""
        return self._wanted_ranges is not None or super().is_selective

    def is_wanted(self, entry: Entry) -> bool:
        """Whether an entry is unacknowledged, and has one of the wanted keys.

        A mirror gets control entries, too: else it would take their indexes for lost messages.
        """
        active = self.active
        if entry.kind is EntryKind.CONTROL and active is not None and active.wants_control:
            is_new = not self.cursor.is_acked(entry.position)
            self.cursor.ack(entry.position)
            return is_new
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
        """Remove the active consumer and the seeking one; none is active until `resume`."""
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
        """Choose the active consumer, after a seek has ended."""
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
        return self.log.read_stable(position, max_entries=max_entries, max_bytes=max_bytes)

    def offered(self, consumer: Consumer) -> None:
        """Dispatch if the consumer is the active one."""
        if consumer is self.active:
            self.dispatch()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """Start again at the first unacknowledged entry, which keeps the order."""
        if consumer is self.active and self._switch is None:
            try:
                self.rewind()
            except WouldBlockError as error:
                self._switch = Due.after(arrival(error), self._start)
            self.dispatch()

    def deliver_again(self, positions: Collection[Position]) -> None:
        """Start again at the first unacknowledged entry, if one of these was sent."""
        if self.active is not None and min(positions, default=LATEST) < self.read_position:
            self.redeliver(self.active, None)

    def close(self) -> None:
        """Stop dispatching."""
        super().close()
        self._cancel_switch()

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
        except WouldBlockError as error:
            self._switch = Due.after(arrival(error), self._start)
            return
        if not self.exclusive:
            for consumer in self.consumers:
                self._tell_active(consumer)
        self.dispatch()

    def _first_in_rank(self) -> Consumer | None:
        if not self.consumers:
            return None
        if self._ring is not None:
            return self._ring[0]
        best_level = self.consumers[0].priority_level
        of_best = bisect_right(self.consumers, best_level, key=lambda c: c.priority_level)
        return self.consumers[self.subscription.topic.partition_index % of_best]

    def _tell_active(self, consumer: Consumer) -> None:
        if consumer.connection.protocol_version >= ACTIVE_CONSUMER_CHANGE_SINCE:
            change = CommandActiveConsumerChange(
                consumer_id=consumer.consumer_id, is_active=consumer is self.active
            )
            consumer.connection.write(commands.frame(change))
