"""The dispatcher of Shared subscriptions, which also keeps the chunks of a message together.

It tracks for each consumer the entries that it holds: delivered and unacknowledged. They go into
the replay queue, which is sent before new entries, if the consumer closes (their redelivery counts
stay), or if it asks for them (negative acknowledgement, acknowledgement timeout: the counts grow by
one). When the last consumer leaves, all counts are forgotten, and the next one starts at the
cursor. A consumer with too many unacknowledged messages gets no more until it has acknowledged half
of them. The whole subscription has such a limit, too, which is higher.

A large message is stored as several entries, called chunks, with a common uuid. A client needs all
of them to put the message together. So, as in Pulsar, the consumer that got one chunk gets all
others, until it was sent the last one and holds none any more: all are acknowledged or given back.
A chunk whose consumer cannot take it now waits for that consumer. Meanwhile the other consumers get
later entries, up to a limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

from ...ledger import CorruptEntryError, Entry, Position
from ...metadata import Buffer, MessageFormatError, read_message_metadata
from ..cooperative import PIECE_IDS, at_once
from .consumer import Consumer, ReadyRing
from .delayed import DelayedEntries, deliver_at_ms, may_have_field
from .dispatcher import Dispatcher
from .waiting_entries import ANY, Queue, WaitingEntries

if TYPE_CHECKING:
    from .subscription import Subscription


#: Entries that one consumer gets before the next consumer gets some.
ROUND_ROBIN_ENTRIES = 20


class Runs:
    """The entries to be sent next to each consumer of a subscription: a run for each."""

    def __init__(self, dispatcher: SharedDispatcher) -> None:
        self._dispatcher = dispatcher
        self._entries: defaultdict[Consumer, list[Entry]] = defaultdict(list)
        self._messages: defaultdict[Consumer, int] = defaultdict(int)

    def permits_of(self, consumer: Consumer) -> int:
        """The consumer's permits, without those for the entries of its run."""
        return consumer.permits - self._messages.get(consumer, 0)

    def count_for(self, consumer: Consumer) -> int:
        """How many entries the consumer's run has."""
        return len(self._entries.get(consumer, ()))

    def add(self, consumer: Consumer, entry: Entry) -> None:
        """Add an entry to the consumer's run; the consumer holds it now."""
        self._entries[consumer].append(entry)
        self._messages[consumer] += self._dispatcher.hold(consumer, entry)

    def send(self) -> int:
        """Send all runs, and return their cost in bytes."""
        return sum(
            self._dispatcher.send(consumer, entries, self._messages[consumer])
            for consumer, entries in self._entries.items()
        )


class SharedDispatcher(Dispatcher):
    """Sends entries round robin to the ready consumers, by priority level."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self.waiting: WaitingEntries = WaitingEntries()
        self.redelivery_counts: dict[Position, int] = {}
        self.unacked_messages = 0
        self.delayed: DelayedEntries = DelayedEntries(
            self.config.clock, self._delayed_due, subscription.topic.delayed_total, self.next_turn
        )
        self.ready = ReadyRing(self.is_ready)
        self._chunked = ChunkedMessages()
        #: The consumer that holds each delivered and unacknowledged entry.
        self._holders_of: dict[Position, Consumer] = {}
        #: Consumers that left and whose entries are not all given back yet.
        self._leaving: set[Consumer] = set()
        self.blocked: set[Consumer] = set()

    def add(self, consumer: Consumer) -> None:
        """Add a consumer; the first one starts at the cursor."""
        if not self.consumers:
            self.rewind()
        self.consumers.add(consumer)
        self.may_take(consumer)

    def remove(self, consumers: Sequence[Consumer]) -> None:
        """Remove consumers; their entries are delivered again with unchanged counts."""
        if not (gone := self.consumers.remove(consumers)):
            return
        self.blocked.difference_update(gone)
        for consumer in gone:
            self.ready.remove(consumer)
            # Without permits it is sent nothing more.
            consumer.permits = 0
        if not self.consumers:
            for consumer in gone:
                consumer.release_all()
            # Until the next consumer comes, statistics show how far was read, as in Pulsar.
            read = self.read_position
            self.rewind()
            self.read_position = read
            return
        self._leaving.update(gone)
        held = sum(len(consumer.pending) for consumer in gone)
        self._run(held, self._give_back(gone), self.dispatch)

    def _run(self, entries: int, pieces: Iterator[None], then: Callable[[], None]) -> None:
        """Run the pieces of work on so many entries: at once if they are few and none waits."""
        if entries > PIECE_IDS or self.subscription.work:
            self.subscription.work.add(pieces, then)
        else:
            at_once(pieces)
            then()

    def _give_back(self, leaving: Sequence[Consumer]) -> Iterator[None]:
        """Move the entries of leaving consumers to the replay queue, in pieces."""
        given = 0
        for consumer in leaving:
            while consumer.pending:
                before = consumer.unacked_messages
                positions = list(islice(consumer.pending, PIECE_IDS - given))
                for position in positions:
                    consumer.release(position)
                self._unacked_changed(consumer, consumer.unacked_messages - before)
                self.released(positions)
                self.wait_again(positions)
                given += len(positions)
                if given == PIECE_IDS:
                    given = 0
                    yield
        gone = self._leaving.intersection(leaving)
        self._leaving -= gone
        self._chunked.left(gone)
        self.waiting.merge(gone, ANY)

    def rewind(self) -> None:
        """Start again from the cursor. Forget all held entries and redelivery counts."""
        super().rewind()
        self.waiting.clear()
        self.delayed.clear()
        self.redelivery_counts.clear()
        self._chunked.clear()
        self._holders_of.clear()
        for consumer in self._leaving:
            consumer.release_all()
        self._leaving.clear()
        for consumer in self.consumers:
            consumer.release_all()
            self.may_take(consumer)
        self.unacked_messages = 0
        self.blocked.clear()
        self.all_blocked = False

    def may_take(self, consumer: Consumer) -> None:
        """Add a consumer that may be ready: it has permits or room, or is unblocked."""
        self.ready.add(consumer)

    def offered(self, consumer: Consumer) -> None:
        """A consumer can take more than before."""
        self.may_take(consumer)
        self.dispatch()

    def dispatch(self) -> None:
        """Send entries while a consumer is ready."""
        if self.is_stopped:
            return
        sent_bytes = self._send_waiting_chunks()
        while not self.all_blocked:
            consumer = self.ready.first()
            if consumer is None or self.is_throttled() or not self.has_time():
                return
            if sent_bytes >= self.config.dispatch_round_bytes:
                self.next_turn()
                return
            count = min(ROUND_ROBIN_ENTRIES, self.entries_for(consumer.permits))
            if not (entries := self._take(consumer, count)):
                return
            sent_bytes += max(self.read_cost_bytes, self._send(consumer, entries))
            self.ready.move_to_end(consumer)

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """Queue entries that the consumer holds for another delivery."""
        before = consumer.unacked_messages
        if positions is None:
            released = consumer.release_all()
        else:
            released = [position for position in positions if consumer.release(position)]
        self._unacked_changed(consumer, consumer.unacked_messages - before)
        self.released(released)
        for position in released:
            self.redelivery_counts[position] = self.redelivery_counts.get(position, 0) + 1
        self.wait_again(released)
        self.dispatch()

    def deliver_again(self, positions: Collection[Position]) -> None:
        """Queue entries for another delivery, even if a consumer holds a part of one."""
        for position in positions:
            if (holder := self._holders_of.get(position)) is not None:
                self.redeliver(holder, (position,))
            elif position < self.read_position and position not in self.waiting:
                self.redelivery_counts[position] = self.redelivery_counts.get(position, 0) + 1
                self.wait_again((position,))
        self.dispatch()

    def acked(self, position: Position, remaining: int) -> None:
        """Release the entry at its holder, which may be another consumer after a redelivery."""
        holder = self._holders_of.get(position)
        if holder is not None:
            before = holder.unacked_messages
            if remaining:
                holder.release_some(position, remaining)
            else:
                holder.release(position)
                self.released((position,))
            self._unacked_changed(holder, holder.unacked_messages - before)
        if not remaining:
            self.forgotten(position)

    def acked_run(self, ledger_id: int, first: int, end: int) -> None:
        """Release the entries at their holders, and count what each holder has released once."""
        self._acked_all([Position(ledger_id, entry_id) for entry_id in range(first, end)])

    def _acked_all(self, positions: Sequence[Position]) -> None:
        released: list[Position] = []
        by_holder: dict[Consumer, int] = {}
        for position in positions:
            holder = self._holders_of.get(position)
            if holder is not None:
                by_holder[holder] = by_holder.get(holder, 0) + holder.pending.pop(position, 0)
                released.append(position)
        for holder, messages in by_holder.items():
            holder.unacked_messages -= messages
            self._unacked_changed(holder, -messages)
        self.released(released)
        counts = self.redelivery_counts
        for position in positions:
            if counts:
                counts.pop(position, None)
            self.forgotten(position)

    def charged(self, consumer: Consumer, position: Position) -> int:
        """See `Dispatcher`: what the consumer holds of the entry."""
        return consumer.pending.get(position, 0)

    def forget_count(self, position: Position) -> None:
        """Forget how often an entry was delivered again: something of it was acknowledged."""
        self.redelivery_counts.pop(position, None)

    def given_up(self, last: Position) -> None:
        """Forget waiting and held entries up to ``last``; they block nobody any more."""
        self.delayed.discard_up_to(last)
        positions = [p for p in chain(self._holders_of, self.waiting) if p <= last]
        self._run(len(positions), self._leaving_entries(positions), self.next_turn)

    def removed_before(self, first: Position) -> None:
        """Forget waiting entries before ``first``. Consumers may acknowledge held ones."""
        self.delayed.discard_up_to(Position(first.ledger_id, first.entry_id - 1))
        positions = [position for position in self.waiting if position < first]
        self._run(len(positions), self._leaving_entries(positions), self.next_turn)

    def _leaving_entries(self, positions: Sequence[Position]) -> Iterator[None]:
        for at in range(0, len(positions), PIECE_IDS):
            # Meanwhile an entry may have gone to another consumer, or been acknowledged.
            self._acked_all(positions[at : at + PIECE_IDS])
            yield

    def released(self, positions: Iterable[Position]) -> None:
        """Consumers no longer hold these entries: they wait, or they are acknowledged."""
        for position in positions:
            self._holders_of.pop(position, None)
        self._chunked.released(positions)

    def wait_again(self, positions: Iterable[Position]) -> None:
        """Entries wait for another delivery."""
        self.waiting.update(positions, ANY)

    def forgotten(self, position: Position) -> None:
        """An entry is acknowledged, so it need not wait any more."""
        self.waiting.discard(position)
        self.delayed.discard(position)

    def close(self) -> None:
        """Stop dispatching, and leave no reference cycle (see `gc_tuning`)."""
        super().close()
        self.ready.close()
        self.delayed.close()

    def _delayed_due(self, positions: list[Position]) -> None:
        self.waiting.update(positions, ANY)
        self.dispatch()

    @property
    def is_selective(self) -> bool:
        """Whether entries may have to wait for their time, or only some tags are wanted."""
        return self.subscription.topic.rules.delays_delivery or super().is_selective

    # -- sending --------------------------------------------------------------------------------

    def is_wanted(self, entry: Entry) -> bool:
        """Whether to send a new entry now."""
        if not super().is_wanted(entry):
            return False
        if not self.subscription.topic.rules.delays_delivery:
            return True
        return not self.delayed.holds_back(entry.position, deliver_at_ms(entry.body))

    def may_look_ahead(self) -> bool:
        """Whether few enough entries wait for their time or for a certain consumer."""
        return self.is_below_limit and self.delayed.may_take_more(
            self.config.max_delayed_entries_per_subscription
        )

    @property
    def is_below_limit(self) -> bool:
        """Whether few enough entries wait for a certain consumer."""
        # Entries that wait for any consumer are sent before new ones are read.
        return len(self.waiting) < MAX_WAITING_CHUNKS

    def _take(self, consumer: Consumer, max_entries: int) -> Sequence[Entry]:
        """The next entries: first those that wait for this or for any consumer, then new ones."""
        for queue in (consumer, ANY):
            while self._waits_in(queue) and not self.waits_for_disk:
                if entries := self.take_again(self.waiting.pop_run(queue, max_entries)):
                    return entries
        return self.fetch(max_entries)

    def _waits_in(self, queue: Queue) -> bool:
        return self.waiting.first(queue) is not None

    def take_again(self, run: Sequence[Position]) -> list[Entry]:
        """Read adjacent positions again, without acknowledged, trimmed and damaged entries.

        A damaged entry stays unacknowledged, and the others do not wait for it.
        """
        wanted = {position for position in run if not self.cursor.is_acked(position)}
        found: list[Entry] = []
        if not wanted:
            return found
        at, last = min(wanted), max(wanted)
        while at <= last:
            try:
                entries = self.read_log(at, last.entry_id - at.entry_id + 1)
            except CorruptEntryError as damage:
                self.steps_over(damage)
                at = damage.next_position
                continue
            except OSError as error:
                self.wait_again([position for position in wanted if position >= at])
                self.read_failed(error)
                break
            if not entries:
                break
            found += [e for e in entries if e.position in wanted and not self.is_pending(e)]
            at = entries[-1].position.following
        return found

    def _send(self, consumer: Consumer, entries: Sequence[Entry]) -> int:
        """Send to a consumer, chunks to the consumer of their message; return the cost in bytes."""
        runs = Runs(self)
        waiting = 0
        for number, entry in enumerate(entries):
            chunk = chunk_of(entry.body)
            taker = consumer
            if chunk is not None:
                taker = self._chunked.consumer_of(chunk) or consumer
            if taker is not consumer and self._waits_in(taker):
                self.waiting.add(entry.position, taker)
                waiting += 1
            elif runs.permits_of(taker) > 0 and self.is_ready(taker) and not self.all_blocked:
                runs.add(taker, entry)
                if chunk is not None:
                    self._chunked.sent(chunk, entry.position, taker)
            elif taker is consumer:
                self._put_back(entries[number:])
                break
            else:
                self.waiting.add(entry.position, taker)
                waiting += 1
        return runs.send() + self.cost_bytes(0, waiting)

    def _put_back(self, entries: Sequence[Entry]) -> None:
        """Queue entries that were read and cannot be sent now."""
        for entry in entries:
            chunk = chunk_of(entry.body)
            owner = self._chunked.consumer_of(chunk) if chunk is not None else ANY
            self.waiting.add(entry.position, owner)

    def _send_waiting_chunks(self) -> int:
        """Send waiting chunks whose consumers can take them now."""
        cost_bytes = 0
        for consumer in self.waiting.queues():
            if not isinstance(consumer, Consumer):
                continue
            while self._waits_in(consumer) and self.is_ready(consumer):
                if self.all_blocked or self.waits_for_disk or self.is_throttled():
                    return cost_bytes
                if cost_bytes >= self.config.dispatch_round_bytes:
                    return cost_bytes
                run = self.waiting.pop_run(consumer, self.entries_for(consumer.permits))
                cost_bytes += self._send(consumer, self.take_again(run))
        return cost_bytes

    def hold(self, consumer: Consumer, entry: Entry) -> int:
        """The consumer holds an entry from now on. Return how many messages it has."""
        position = entry.position
        messages = 1 if entry.message_count <= 1 else self.messages_of(entry)
        consumer.hold(position, messages)
        self._holders_of[position] = consumer
        self._unacked_changed(consumer, messages)
        return messages

    def is_ready(self, consumer: Consumer) -> bool:
        """Whether a consumer can be sent something now."""
        return (
            consumer.permits > 0 and consumer.connection.writable and consumer not in self.blocked
        )

    # -- unacknowledged messages ----------------------------------------------------------------

    def rules_changed(self) -> None:
        """Unblock consumers within the new limits; without delays send what waits."""
        rules = self.subscription.topic.rules
        for consumer in tuple(self.blocked):
            if consumer.unacked_messages < rules.max_unacked_per_consumer:
                self.blocked.discard(consumer)
                self.may_take(consumer)
        self.all_blocked &= self.unacked_messages >= rules.max_unacked_per_subscription
        if len(self.delayed) and not rules.delays_delivery:
            self.waiting.update(self.delayed.take_all(), ANY)
        super().rules_changed()

    def _unacked_changed(self, consumer: Consumer, change: int) -> None:
        if not change:
            return
        self.unacked_messages += change
        rules = self.subscription.topic.rules
        limit, limit_all = rules.max_unacked_per_consumer, rules.max_unacked_per_subscription
        if change > 0:
            if consumer.unacked_messages >= limit:
                self.blocked.add(consumer)
            if self.unacked_messages >= limit_all:
                self.all_blocked = True
            return
        resumes = False
        if consumer in self.blocked and consumer.unacked_messages <= limit // 2:
            self.blocked.discard(consumer)
            self.may_take(consumer)
            resumes = True
        if self.all_blocked and self.unacked_messages <= limit_all // 2:
            self.all_blocked = False
            resumes = True
        if resumes:
            self.next_turn()


#: The tag of MessageMetadata.num_chunks_from_msg (field 27, varint). A header without these bytes
#: does not have the field, and need not be parsed.
NUM_CHUNKS_TAG = b"\xd8\x01"
#: The most chunks of a subscription that wait for consumers; then no new entries are sent.
MAX_WAITING_CHUNKS = 500
#: Incomplete messages that are remembered though all their chunks so far are acknowledged: their
#: producer may never send the rest.
MAX_IDLE_MESSAGES = 1_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk: its message, and whether it is the message's last chunk."""

    #: The uuid's hash. Two messages with the same hash get the same consumer, which is harmless.
    message: int
    is_last: bool


def chunk_of(headers_and_payload: Buffer) -> Chunk | None:
    """The chunk that an entry is; None if it is not a chunk."""
    if not may_have_field(headers_and_payload, NUM_CHUNKS_TAG):
        return None
    try:
        metadata = read_message_metadata(headers_and_payload)
    except MessageFormatError:
        return None
    chunks = metadata.num_chunks_from_msg
    if not metadata.HasField("uuid") or not metadata.HasField("chunk_id") or chunks < 2:
        return None
    return Chunk(hash(metadata.uuid), metadata.chunk_id >= chunks - 1)


@dataclass(slots=True)
class _Message:
    consumer: Consumer
    held: int = 0
    is_complete: bool = False


class ChunkedMessages:
    """The consumer of each chunked message."""

    def __init__(self) -> None:
        self._messages: dict[int, _Message] = {}
        #: The message of each chunk that a consumer holds.
        self._held: dict[Position, int] = {}
        self._idle: dict[int, None] = {}

    def consumer_of(self, chunk: Chunk) -> Consumer | None:
        """The consumer that must get the chunk; None: any consumer may get it."""
        message = self._messages.get(chunk.message)
        return message.consumer if message is not None else None

    def sent(self, chunk: Chunk, position: Position, consumer: Consumer) -> None:
        """A chunk was sent to a consumer, which holds it now."""
        message = self._messages.get(chunk.message)
        if message is None:
            message = self._messages[chunk.message] = _Message(consumer)
        self._idle.pop(chunk.message, None)
        message.held += 1
        message.is_complete |= chunk.is_last
        self._held[position] = chunk.message

    def released(self, positions: Iterable[Position]) -> None:
        """Consumers no longer hold these entries."""
        if not self._held:
            return
        for position in positions:
            key = self._held.pop(position, None)
            if key is None:
                continue
            message = self._messages[key]
            message.held -= 1
            if message.held:
                continue
            if message.is_complete:
                del self._messages[key]
                continue
            self._idle[key] = None
            if len(self._idle) > MAX_IDLE_MESSAGES:
                oldest = next(iter(self._idle))
                del self._idle[oldest], self._messages[oldest]

    def left(self, consumers: AbstractSet[Consumer]) -> None:
        """Forget messages of consumers that left, which hold no entries."""
        for key in [key for key in self._idle if self._messages[key].consumer in consumers]:
            del self._idle[key], self._messages[key]

    def clear(self) -> None:
        """Forget everything."""
        self._messages.clear()
        self._held.clear()
        self._idle.clear()
