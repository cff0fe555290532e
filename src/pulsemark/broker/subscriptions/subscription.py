"""A subscription: a cursor, and the consumers that share it.

The cursor is the durable part and outlives the consumers. The dispatcher is built again when the
first consumer connects; the consumer chooses its type. A durable subscription lives until it is
unsubscribed. A non-durable one (a reader's) lives as long as its consumer, and is kept for a while
after a seek: the client reconnects, and after a seek by time it does not know the new position.
While a seek is made durable it is fenced: nothing is sent, and acknowledgements do not count.

When a topic is terminated, consumers that have read it all are told so (REACHED_END_OF_TOPIC).

A client may want a subscription to be replicated to other clusters. The mark is stored and shown,
and has no effect, as in Pulsar with replication off.

The property `pulsemark.filter` filters by the tags of the entries' stamps (`TagFilter`)::

    region=eu,us;tier=gold      region is eu or us, and tier is gold

Conditions are separated by semicolons, and all of them must hold. Each has a tag's name and the
values that it may have, separated by commas; spaces around them do not count. A tag is named and
shown as by `metadata.tags_of`: application tags, system tags such as `producer_name`, and those of
plugins. An entry without the tag does not match. A whole entry is sent or skipped, and a skipped
one is acknowledged; the producer's bytes are never read.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import (
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

from ...ledger import LATEST, Cursor, Entry, ManagedLedger, Position
from ...ledger.would_block import in_pieces, when_read
from ...metadata import PrefixError, printable, tags_of
from ...proto.pulsar_api_pb2 import (
    CommandReachedEndOfTopic,
    CommandSubscribe,
    KeySharedMeta,
    MessageIdData,
    ServerError,
)
from ...records import record
from ...wire import commands
from ..cooperative import PIECE_IDS, LongWork
from ..counters import Flows, TopicCounters
from ..errors import RefusedError
from ..policies.rate_limits import DispatchLimit, dispatch_limit
from ..policies.topic_rules import NO_RULES, TopicRules
from ..storage import durable
from .consumer import CLOSED_AT_ONCE, Consumer, closing
from .dispatcher import Dispatcher, SingleActiveDispatcher
from .kafka_entries import Conversions
from .key_shared_dispatcher import KeySharedDispatcher
from .pending_acks import WORD_BITS, Acked, Part, PendingAcks, check_cumulative, check_single
from .seek import count_open, position_of
from .shared_dispatcher import SharedDispatcher
from .sticky_keys import different_type

if TYPE_CHECKING:
    from ...compaction.compacted_log import CompactedLog
    from ...ledger import Commit
    from ...wire import MessageId, TopicName
    from ..configuration.config import BrokerConfig
    from .delayed import DelayedTotal

log = logging.getLogger(__name__)

SubType = CommandSubscribe.SubType
Persisted = Callable[[BaseException | None], None]

#: Types that acknowledge message by message only.
SHARING = (CommandSubscribe.Shared, CommandSubscribe.Key_Shared)
#: The cursor property with which Pulsar marks a replicated subscription.
REPLICATED_PROPERTY = "pulsar.replicated.subscription"
#: The property that says which entries a subscription gets.
FILTER_PROPERTY = "pulsemark.filter"
#: How often a paused subscription checks whether it may go on.
PAUSED_WAIT_S = 0.02


class HomeTopic(ABC):
    """A topic, as its subscriptions need it; it is a `topics.topic.Topic`."""

    is_persistent = True
    ledger: ManagedLedger
    delayed_total: DelayedTotal
    #: Its subscriptions by name.
    subscriptions: dict[str, Subscription]

    def __init__(self, topic_name: TopicName, config: BrokerConfig) -> None:
        self.topic_name = topic_name
        self.name = str(topic_name)
        self.partition_index = topic_name.partition_index
        self.config = config
        self.counters = TopicCounters()
        self.flows = Flows()
        self.conversions = Conversions()
        #: The compacted form, where that is the topic's log (`read_compacted`).
        self.cleaned: CompactedLog | None = None
        self.is_open = True
        #: When the broker opened it; when it was created is not stored.
        self.opened_ms = config.clock.now_ms()
        #: The last entry of a terminated topic; None: the topic goes on.
        self.terminated_at: Position | None = None
        #: The policies that apply (see `policy_store`).
        self.rules: TopicRules = NO_RULES
        self.dispatch_limit: DispatchLimit | None = None
        # These depend on the entry format, the stamp policy and the schemas: not known yet.
        #: Versions of its schemas by the ids of Kafka's serializers; None: no registry is served.
        self.schema_numbers: Mapping[int, int] | None = None
        #: The property that makes a message of Pulsar's a tombstone (see `policy_store`).
        self.tombstone_property: str | None = None
        #: Prefix fields that clients get in addition to time and index (see `policy_store`).
        self.delivered_fields: frozenset[int] = frozenset()

    def check_is_open(self) -> None:
        """Raise `RefusedError` (ServiceNotReady) if the topic was closed."""
        if not self.is_open:
            text = f"{self.name} is being closed; try again"
            raise RefusedError(ServerError.ServiceNotReady, text)

    def _consumer_count(self) -> int:
        return sum(len(each.consumers) for each in tuple(self.subscriptions.values()))

    def check_consumers(self, subscription: Subscription | None = None) -> None:
        """Raise `RefusedError` (ConsumerBusy) if the topic's limit of consumers is reached."""
        most = self.rules.max_consumers
        if most and self._consumer_count() >= most:
            raise RefusedError(ServerError.ConsumerBusy, "Topic reached max consumers limit")
        most = self.rules.max_consumers_per_subscription
        if most and subscription is not None and len(subscription.consumers) >= most:
            raise RefusedError(ServerError.ConsumerBusy, "Subscription reached max consumers limit")

    @property
    def read_log(self) -> ManagedLedger | CompactedLog:
        """The log that readers get: the compacted form of a cleaned topic, else its own."""
        return self.ledger if self.cleaned is None else self.cleaned

    def clamp(self, position: Position, compacted: CompactedLog | None = None) -> Position:
        """Limit `position` to the range of the log, or of its `compacted` form."""
        log = self.ledger if compacted is None else compacted
        first, end = log.first_position, log.end_position
        if position >= end or position == LATEST:
            return end
        return max(position, first) if first is not None else end

    def remove_subscription(
        self, subscription: Subscription, *, asked_by: Consumer | None = None
    ) -> Commit:
        """Disconnect and delete a subscription; the deletion is durable with the commit.

        The clients of its consumers are notified, except that of `asked_by`. Raises `RefusedError`
        if it does not exist any more, and `LedgerError`; then nothing has changed.
        """
        subscription.check_exists()
        commit = self.ledger.delete_cursor(subscription.name)
        del self.subscriptions[subscription.name]
        self.counters.removed_messages_out += subscription.messages_out
        self.counters.removed_bytes_out += subscription.bytes_out
        # All consumers are disconnected in this step; their clients are notified in pieces.
        consumers = subscription.detach_all()
        subscription.work.add(closing(consumers, but=asked_by))
        return commit

    @abstractmethod
    def finding_last_id(
        self, compacted: CompactedLog | None = None
    ) -> Generator[object, None, MessageId]:
        """The id of the last message consumers can get, in pieces."""


class Subscription:
    """One named subscription of a topic."""

    def __init__(self, topic: HomeTopic, name: str, cursor: Cursor, *, durable: bool) -> None:
        self._begin(topic, name, durable=durable)
        self.cursor = cursor
        #: Set when a new durable subscription is stored, or could not be (`failure`).
        self.creation: asyncio.Event | None = None
        self.failure: BaseException | None = None
        #: The log that is read: the topic's own, or its compacted form for such a consumer.
        self.log: ManagedLedger | CompactedLog = topic.ledger
        self.last_advanced_ms = 0
        self.tag_filter: TagFilter | None = None
        #: The acknowledgements in open transactions; None: no transaction has any.
        self.pending_acks: PendingAcks | None = None
        self.properties_changed()
        self._waiting_persisted: list[Persisted] = []

    def _begin(self, topic: HomeTopic, name: str, *, durable: bool) -> None:
        """Set the attributes that all kinds of subscriptions share."""
        self.topic = topic
        self.name = name
        self.durable = durable
        self.sub_type: SubType | None = None
        self.dispatcher: Dispatcher | None = None
        self.is_fenced = False
        self._resets = 0  # how often its place was moved
        #: Runs while a reader may return after a seek; then the subscription ends (see seek).
        self.kept: asyncio.TimerHandle | None = None
        self.messages_out = self.bytes_out = 0
        #: The number of expired messages, and the time of the last expiry.
        self.messages_expired = 0
        self.last_expired_ms = self.last_flow_ms = 0
        self.last_used_ms = topic.config.clock.now_ms()
        self.rates = DispatchRates()
        #: Consumers whose connection has ended, and which are removed in a later turn.
        self._leaving: list[Consumer] = []
        self.work = LongWork()

    def __str__(self) -> str:
        return f"{self.topic.name} subscription {self.name!r}"

    @property
    def compacted(self) -> CompactedLog | None:
        """The topic's compacted form if consumers read it; None: they read the log."""
        return None if isinstance(self.log, ManagedLedger) else self.log

    def read_as(self, compacted: CompactedLog | None) -> ManagedLedger | CompactedLog:
        """Read the compacted form from now on; None: the topic's log."""
        log = self.topic.read_log if compacted is None else compacted
        if isinstance(log, ManagedLedger) != (self.compacted is None):
            self.log = log
            self.cursor.follow(log)
            if self.dispatcher is not None:
                self.dispatcher.log = log
        return self.log

    @property
    def properties(self) -> dict[str, str]:
        """The properties that clients gave the subscription."""
        return self.cursor.subscription_properties

    def properties_changed(self) -> None:
        """Apply the filter in the properties; an invalid one filters nothing."""
        try:
            self.tag_filter = TagFilter.of(self.properties)
        except InvalidFilterError as error:
            self.tag_filter = None
            log.warning("%s gets all entries: %s", self, error.message)

    @property
    def backlog_entries(self) -> int:
        """The number of unacknowledged entries. Pulsar's `msgBacklog` counts entries, too."""
        return self.cursor.backlog_entries

    async def stored(self) -> None:
        """Return when the new subscription is durable. Raises `RefusedError` if that failed."""
        if self.creation is not None:
            await self.creation.wait()
        if self.failure is not None:
            raise RefusedError(ServerError.PersistenceError, str(self.failure))

    # -- consumers ------------------------------------------------------------------------------

    @property
    def consumers(self) -> Sequence[Consumer]:
        """The connected consumers, after those whose connection has ended were removed."""
        self.remove_leaving()
        return self.dispatcher.consumers if self.dispatcher is not None else ()

    @property
    def active_consumer(self) -> Consumer | None:
        """The consumer that gets the messages, of Exclusive and Failover; None for other types."""
        self.remove_leaving()
        return self.dispatcher.active if self.dispatcher is not None else None

    @property
    def exists(self) -> bool:
        """Whether the subscription was not removed, and its topic is open."""
        return self.topic.is_open and self.topic.subscriptions.get(self.name) is self

    def check_exists(self) -> None:
        """Raise `RefusedError` (ServiceNotReady) if the subscription or its topic was removed."""
        self.topic.check_is_open()
        if not self.exists:
            raise RefusedError(
                ServerError.ServiceNotReady, f"subscription {self.name} was removed; try again"
            )

    async def add_consumer(self, consumer: Consumer, sub_type: SubType) -> None:
        """Connect a consumer, or raise `RefusedError` (ConsumerBusy, ConsumerAssignError)."""
        await when_read(lambda: self.cursor.first_unacked)
        await self.make_room(consumer, sub_type)
        # No `await` between the last check and connecting the consumer: nothing can change.
        dispatcher = self.dispatcher
        if dispatcher is None or not dispatcher.consumers:
            dispatcher = self._new_dispatcher(sub_type, consumer.key_shared_meta)
        dispatcher.add(consumer)
        consumer.subscription = self
        if self.kept is not None:
            self.kept.cancel()
            self.kept = None

    async def make_room(self, consumer: Consumer, sub_type: SubType) -> None:
        """Return when a consumer may connect, or raise `RefusedError` (ConsumerBusy).

        An exclusive consumer whose client has died without closing is removed.
        """
        self._check_can_connect(consumer, sub_type)
        while (holder := self.sole_consumer) is not None:
            if holder.connection is consumer.connection or await holder.connection.is_alive():
                raise RefusedError(
                    ServerError.ConsumerBusy, "Exclusive consumer is already connected"
                )
            # Each round removes one holder, so the loop ends.
            holder.leave()
            self._check_can_connect(consumer, sub_type)

    def _check_can_connect(self, consumer: Consumer, sub_type: SubType) -> None:
        if consumer.has_left:
            raise RefusedError(
                ServerError.ServiceNotReady, "the consumer was closed while it was being opened"
            )
        self.remove_leaving()
        self.check_exists()
        if self.is_fenced:
            raise RefusedError(ServerError.ServiceNotReady, "the subscription is being reset")
        if self.consumers and self.sub_type != sub_type:
            raise different_type(
                f"Active subscription type of '{self.type_name}' is different than the connecting "
                f"consumer's type '{SubType.Name(sub_type)}'."
            )
        if self.sole_consumer is None:
            self.topic.check_consumers(self)

    @property
    def sole_consumer(self) -> Consumer | None:
        """The consumer of an exclusive subscription."""
        return self.dispatcher.sole_consumer if self.dispatcher is not None else None

    def _new_dispatcher(self, sub_type: SubType, meta: KeySharedMeta) -> Dispatcher:
        if self.dispatcher is not None:
            self.dispatcher.close()
        self.sub_type = sub_type
        if sub_type in SHARING:
            self.read_as(None)
        if sub_type == CommandSubscribe.Shared:
            self.dispatcher = SharedDispatcher(self)
        elif sub_type == CommandSubscribe.Key_Shared:
            self.dispatcher = KeySharedDispatcher(self, meta)
        else:
            self.dispatcher = SingleActiveDispatcher(self, sub_type)
        return self.dispatcher

    def remove_consumers(self, consumers: Sequence[Consumer]) -> None:
        """Disconnect consumers; the entries they held go to the others."""
        self.last_used_ms = self.topic.config.clock.now_ms()
        for consumer in consumers:
            consumer.subscription = None
        if self.dispatcher is not None:
            self.dispatcher.remove(consumers)

    def mark_leaving(self, consumer: Consumer) -> None:
        """A consumer's connection has ended: `remove_leaving` removes it later."""
        self._leaving.append(consumer)

    def remove_leaving(self) -> int:
        """Remove all consumers marked by `mark_leaving`, in one step; return how many."""
        leaving, self._leaving = self._leaving, []
        if leaving:
            self.consumers_left(leaving)
        return len(leaving)

    def consumers_left(self, consumers: Sequence[Consumer]) -> None:
        """Consumers were removed. A reader's subscription is removed with the last of them."""
        self.remove_consumers(consumers)
        self.end_if_unused()

    def end_if_unused(self) -> None:
        """Remove a non-durable subscription if it has no consumer and none is expected back."""
        if self.exists and not self.durable and not self.consumers and self.kept is None:
            self.topic.remove_subscription(self)

    def detach_all(self) -> list[Consumer]:
        """Disconnect every consumer at once, without giving their entries to others.

        The caller tells their clients, with `closing`.
        """
        consumers = list(self.consumers)
        if self.dispatcher is not None:
            self.dispatcher.close()
            self.dispatcher = None
        for consumer in consumers:
            consumer.subscription = None
        return consumers

    def disconnecting(self) -> Iterator[None]:
        """Disconnect every consumer, in the first piece; notify the clients, which may return."""
        consumers = self.detach_all()
        yield
        yield from closing(consumers)

    def fence(self, asked_by: Consumer | None = None) -> list[Consumer]:
        """Begin a seek: disconnect consumers; of Failover the active one and the one that asked."""
        self.is_fenced = True
        self._resets += 1
        if not isinstance(self.dispatcher, SingleActiveDispatcher) or self.dispatcher.exclusive:
            return self.detach_all()
        return self.dispatcher.pause(asked_by)

    def unfence(self) -> None:
        """End a seek: consumers may connect again."""
        self.is_fenced = False
        if isinstance(self.dispatcher, SingleActiveDispatcher):
            self.dispatcher.resume()

    def rules_changed(self) -> None:
        """The topic's policies have changed: dispatch goes by the new ones."""
        self.rates.change(self.topic, self.name)
        if self.dispatcher is not None:
            self.dispatcher.rules_changed()

    def is_blocked(self, consumer: Consumer) -> bool:
        """Whether a consumer has so many unacknowledged messages that it gets no more."""
        return self.dispatcher is not None and consumer in self.dispatcher.blocked

    @property
    def damaged_position(self) -> Position | None:
        """The damaged entry that dispatch met last, if any."""
        damaged = self.dispatcher.damaged if self.dispatcher else None
        return damaged.position if damaged else None

    @property
    def type_name(self) -> str:
        """Pulsar's name of the subscription's type; "None" before the first consumer."""
        return "None" if self.sub_type is None else SubType.Name(self.sub_type)

    def dispatch(self) -> None:
        """Send what can be sent now."""
        if self.dispatcher is not None:
            self.dispatcher.dispatch()

    def flow(self, consumer: Consumer, permits: int) -> None:
        """A consumer granted `permits` more messages."""
        consumer.permits += permits
        consumer.last_flow_ms = self.last_flow_ms = self.topic.config.clock.now_ms()
        self.offered(consumer)

    def offered(self, consumer: Consumer) -> None:
        """A consumer can take more than before."""
        if self.dispatcher is not None:
            self.dispatcher.offered(consumer)

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """Deliver these entries again; None: everything the consumer has not acknowledged."""
        # A consumer that left meanwhile holds nothing any more.
        if self.dispatcher is not None and not self.is_fenced and consumer.subscription is self:
            if positions is None:  # To Pulsar this is a FLOW with no permits, too.
                self.last_flow_ms = self.topic.config.clock.now_ms()
            self.dispatcher.redeliver(consumer, positions)

    def count_sent(self, messages: int, size_bytes: int) -> None:
        """Count sent messages in the statistics."""
        self.messages_out += messages
        self.bytes_out += size_bytes
        self.rates.sent(messages, size_bytes)

    # -- acknowledgement ------------------------------------------------------------------------

    def acking(self, ack: Callable[[], None]) -> Iterator[object]:
        """Run `ack` in pieces, unless the cursor is moved meanwhile."""
        resets = self._resets
        return in_pieces(lambda: ack() if self._resets == resets else None)

    def ack_pieces(self, consumer: Consumer, ids: Sequence[MessageIdData]) -> Iterator[object]:
        """Acknowledge many messages one by one, in pieces, until the cursor is moved."""
        some = (ids[at : at + PIECE_IDS] for at in range(0, len(ids), PIECE_IDS))
        parts = [self.acking(partial(self.ack_piece, consumer, each)) for each in some]
        return chain.from_iterable(chain(part, (None,)) for part in parts)

    def ack_piece(self, consumer: Consumer, ids: Iterable[MessageIdData]) -> None:
        """Acknowledge messages one by one."""
        if self.is_fenced or self.dispatcher is None:
            return
        consumer.last_acked_ms = self.topic.config.clock.now_ms()
        before = self.cursor.mark_delete
        run_ledger = first = end = -1
        for message_id in ids:
            ledger_id, entry_id = message_id.ledgerId, message_id.entryId
            if message_id.ack_set:
                self._ack_part(position_of(message_id), message_id.ack_set)
            elif entry_id == end and ledger_id == run_ledger:
                end += 1
            elif first <= entry_id < end and ledger_id == run_ledger:
                continue  # named again
            else:
                self._ack_run(run_ledger, first, end)
                run_ledger, first = position_of(message_id)
                end = first + 1
        self._ack_run(run_ledger, first, end)
        if self.cursor.mark_delete != before:
            self.last_advanced_ms = consumer.last_acked_ms

    def _ack_run(self, ledger_id: int, first: int, end: int) -> None:
        """Acknowledge the entries of a ledger from ``first`` to before ``end``."""
        if first < end and self.dispatcher is not None:
            self.cursor.ack_run(ledger_id, first, end - 1)
            # For an entry that is not in the log this does nothing: no consumer holds it.
            self.dispatcher.acked_run(ledger_id, first, end)

    def _ack_part(self, position: Position, ack_set: Sequence[int]) -> None:
        """Acknowledge some messages of a batch."""
        if self.dispatcher is None:
            return
        if self.topic.config.acknowledgment_at_batch_index_level_enabled:
            remaining = count_open(self.cursor.ack_batch(position, ack_set))
            self.dispatcher.acked(position, remaining)
        # The count is forgotten also if only whole batches can be acknowledged (Pulsar).
        self.dispatcher.forget_count(position)

    def return_permits(self, consumer: Consumer, ids: Sequence[MessageIdData]) -> None:
        """Give back permits for entries that a client could not open.

        The client counts each as one message and never grants the permits of the others. So the
        broker returns them, if the entry is in memory.
        """
        if self.dispatcher is None or self.is_fenced or consumer.subscription is not self:
            return
        for message_id in ids[:PIECE_IDS]:
            consumer.permits += max(
                self.dispatcher.charged(consumer, position_of(message_id)) - 1, 0
            )
        self.offered(consumer)

    def ack_cumulatively(self, consumer: Consumer, message_id: MessageIdData) -> None:
        """Acknowledge all messages up to and including this one; ignored by Shared types.

        The id of a message that does not exist yet acknowledges nothing, as in Pulsar.
        """
        if self.is_fenced or self.dispatcher is None:
            return
        consumer.last_acked_ms = self.topic.config.clock.now_ms()
        if self.sub_type in SHARING:
            return
        self.last_advanced_ms = consumer.last_acked_ms
        position = position_of(message_id)
        if not message_id.ack_set:
            self.cursor.ack_cumulative(position)
        elif position < self.topic.ledger.end_position:
            self.cursor.ack_cumulative(Position(position.ledger_id, position.entry_id - 1))
            if self.topic.config.acknowledgment_at_batch_index_level_enabled:
                self.cursor.ack_batch(position, message_id.ack_set)

    async def ack_pending(
        self, transaction: str, ids: Sequence[MessageIdData], *, goes_on: bool
    ) -> Acked:
        """Acknowledge messages in a transaction, as `check_single`.

        Raises `RefusedError` (TransactionConflict).
        """
        acked = await when_read(partial(check_single, goes_on=goes_on), self, transaction, ids)
        # Without an `await` since the check: two transactions cannot acknowledge the same.
        if self.pending_acks is None:
            self.pending_acks = PendingAcks()
        self.pending_acks.add(transaction, acked)
        for position, part in acked.items():
            remaining = self.cursor.remaining_in_batch(position)
            messages = WORD_BITS * part.words or 1
            left = self.pending_acks.remaining(position, remaining, messages)
            if self.dispatcher is not None:
                self.dispatcher.acked(position, count_open(left))
        return acked

    def ack_pending_up_to(self, transaction: str, position: Position) -> Position | None:
        """Acknowledge all up to a position in a transaction. Return its former position.

        Raises `RefusedError` (TransactionConflict).
        """
        check_cumulative(self, transaction, position)
        pending = self.pending_acks = self.pending_acks or PendingAcks()
        before = None if pending.cumulative is None else pending.cumulative[1]
        pending.cumulative = transaction, position
        return before

    def pending_up_to(self, transaction: str, position: Position | None) -> None:
        """Set a transaction's cumulative acknowledgement; None removes it."""
        pending = self.pending_acks = self.pending_acks or PendingAcks()
        pending.cumulative = None if position is None else (transaction, position)
        self._drop_pending()

    def give_back_pending(self, transaction: str, acked: Acked) -> None:
        """Deliver messages again that a transaction could not acknowledge."""
        if self.pending_acks is not None:
            self.pending_acks.remove(transaction, acked)
            self._drop_pending()
            self._deliver_again(acked)

    async def transaction_ended(self, transaction: str, *, committed: bool) -> None:
        """Acknowledge durably what a transaction has acknowledged, or give it back."""
        if self.pending_acks is None:
            return
        acked, up_to = self.pending_acks.made_by(transaction)
        if committed:
            for number, (position, part) in enumerate(acked.items(), start=1):
                await when_read(self._ack_for_good, position, part)
                if number % PIECE_IDS == 0:
                    await asyncio.sleep(0)
            if up_to is not None:
                await when_read(self.cursor.ack_cumulative, up_to)
            await durable(self.cursor.persist())
        if self.pending_acks is None:
            return
        self.pending_acks.forget(transaction)
        self._drop_pending()
        if not committed:
            self._deliver_again(acked if up_to is None else (self.cursor.mark_delete.following,))

    def _ack_for_good(self, position: Position, part: Part) -> None:
        if self.dispatcher is not None:
            self.dispatcher.forget_count(position)
        if part.words:
            self.cursor.ack_batch(position, part.ack_set)
        else:
            self.cursor.ack(position)

    def _drop_pending(self) -> None:
        if not self.pending_acks:
            self.pending_acks = None

    def _deliver_again(self, positions: Iterable[Position]) -> None:
        left = [position for position in positions if not self.cursor.is_acked(position)]
        if left and self.dispatcher is not None and not self.is_fenced:
            self.dispatcher.deliver_again(left)

    def give_up(self, last: Position) -> None:
        """Count everything up to ``last`` as acknowledged, even what consumers hold."""
        self.cursor.ack_cumulative(last)
        if self.dispatcher is not None:
            self.dispatcher.given_up(last)
            self.dispatcher.next_turn()

    def entries_removed(self, first: Position) -> None:
        """Everything before ``first`` was removed from the log, acknowledged or not."""
        if self.dispatcher is not None:
            self.dispatcher.removed_before(first)
            self.dispatcher.next_turn()

    def when_persisted(self, callback: Persisted) -> None:
        """Call back once every acknowledgement made so far is durable (or has failed).

        Callbacks of one turn of the event loop share one write.
        """
        self._waiting_persisted.append(callback)
        if len(self._waiting_persisted) == 1:
            asyncio.get_running_loop().call_soon(self._persist_now)

    async def skip(self, count: int) -> None:
        """Acknowledge the next `count` unacknowledged entries, durably."""
        last = await when_read(self.cursor.nth_unacked, count) if count > 0 else None
        if last is not None:
            await when_read(self.give_up, last)
        await durable(self.cursor.persist())

    def _persist_now(self) -> None:
        waiting, self._waiting_persisted = self._waiting_persisted, []

        def done(error: BaseException | None) -> None:
            for callback in waiting:
                callback(error)

        self.cursor.persist().add_done_callback(done)


def redeliver_pieces(
    subscription: Subscription, consumer: Consumer, positions: Iterable[Position]
) -> Iterator[None]:
    """Deliver many entries again, in pieces.

    A position that is named twice is counted only once.
    """
    remaining = iter(positions)
    named: set[Position] = set()
    while piece := list(islice(remaining, PIECE_IDS)):
        subscription.redeliver(consumer, [one for one in piece if one not in named])
        named.update(piece)
        yield


def tell_if_ended(subscription: Subscription) -> None:
    """Notify the consumers of a subscription without backlog, if its topic is terminated.

    As in Pulsar this happens also with each later FLOW and acknowledgement that leaves nothing.
    """
    if subscription.topic.terminated_at is not None and not subscription.work:
        subscription.work.add(telling(subscription))


def telling(subscription: Subscription) -> Iterator[object]:
    """Notify the consumers in pieces, if there is no backlog."""
    if subscription.topic.terminated_at is None or subscription.is_fenced:
        return
    if (yield from in_pieces(lambda: subscription.backlog_entries)):
        return
    for number, consumer in enumerate(tuple(subscription.consumers), start=1):
        if consumer.subscription is subscription:
            end = CommandReachedEndOfTopic(consumer_id=consumer.consumer_id)
            consumer.connection.write(commands.frame(end))
        if number % CLOSED_AT_ONCE == 0:
            yield None


def is_replicated(subscription: Subscription) -> bool:
    """Whether a subscription is marked as replicated."""
    return bool(subscription.cursor.properties.get(REPLICATED_PROPERTY))


async def mark_replicated(subscription: Subscription, *, marked: bool) -> None:
    """Mark a durable subscription as replicated, or not; durable on return.

    Raises `RefusedError`, and keeps the old mark, if it cannot be stored.
    """
    before = is_replicated(subscription)
    if marked == before or not subscription.durable:
        return
    try:
        await durable(_store(subscription, marked=marked))
    except BaseException:
        _store(subscription, marked=before)
        raise


def _store(subscription: Subscription, *, marked: bool) -> Commit:
    subscription.cursor.properties[REPLICATED_PROPERTY] = int(marked)
    return subscription.cursor.set_subscription_properties(subscription.properties)


class DispatchRates:
    """The rate limits of one subscription's dispatch."""

    __slots__ = ("_limits", "_own", "_rate", "is_paused")

    def __init__(self) -> None:
        #: Nothing is sent while it is set. Tests set it; no client can.
        self.is_paused = False
        self._rate: object = None
        self._own: DispatchLimit | None = None
        self._limits: tuple[DispatchLimit, ...] = ()

    def change(self, topic: HomeTopic, name: str) -> None:
        """Take the topic's changed policies, for the subscription of this name.

        A limit that stays the same keeps its tokens.
        """
        rules = topic.rules
        rate = dict(rules.subscription_rates).get(name, rules.subscription_dispatch_rate)
        if rate != self._rate:
            self._rate = rate
            self._own = dispatch_limit(dict(rate), topic.config.clock)
        both = (self._own, topic.dispatch_limit)
        self._limits = tuple(limit for limit in both if limit is not None)

    def sent(self, messages: int, size_bytes: int) -> None:
        """Count what was sent."""
        for limit in self._limits:
            limit.take(messages, size_bytes)

    def allowed(self, permits: int) -> int:
        """How many of these permits may be used now."""
        for limit in self._limits:
            permits = min(permits, limit.allowed())
        return permits

    def entries(self, most: int, messages_per_entry: float) -> int:
        """An estimate of how many of these entries may be sent now, at least 1: ask `wait_s`."""
        if not self._limits:
            return most
        messages = min(limit.allowed() for limit in self._limits)
        return max(1, min(most, round(messages / messages_per_entry)))

    def wait_s(self) -> float:
        """How long to wait before anything may be sent; 0: send now."""
        if self.is_paused:
            return PAUSED_WAIT_S
        if not self._limits:
            return 0.0
        return max((limit.wait_s() for limit in self._limits if limit.is_exceeded()), default=0.0)


class InvalidFilterError(RefusedError):
    """A subscription's filter that cannot be used."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(ServerError.NotAllowedError, f"{FILTER_PROPERTY}={text!r}: {reason}")


@record
class TagFilter:
    """The conditions of one subscription, with counts of the messages looked at."""

    wanted: dict[str, frozenset[str]]
    accepted_messages: int = 0
    rejected_messages: int = 0

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> TagFilter | None:
        """The filter in a subscription's properties; None: it gets all entries.

        Raises:
            InvalidFilterError: a condition has no name or no value, or two have the same name.
        """
        text = properties.get(FILTER_PROPERTY)
        if text is None:
            return None
        if not isinstance(text, str):
            raise InvalidFilterError(repr(text), "it is not UTF-8")
        wanted: dict[str, frozenset[str]] = {}
        for condition in text.split(";"):
            name, equals, values = condition.partition("=")
            name, known = name.strip(), [value.strip() for value in values.split(",")]
            if not (name and equals and all(known)):
                raise InvalidFilterError(text, f"{condition!r} is not of the form NAME=VALUE,...")
            if name in wanted:
                raise InvalidFilterError(text, f"it names the tag {name!r} twice")
            wanted[name] = frozenset(known)
        return cls(wanted)

    def accepts(self, entry: Entry) -> bool:
        """Whether the subscription gets an entry. Counts its messages.

        An entry with an unreadable stamp is sent, since it may be wanted.
        """
        try:
            tags = tags_of(entry.prefix)
        except PrefixError:
            is_wanted = True
        else:
            is_wanted = all(
                name in tags and str(printable(tags[name])) in values
                for name, values in self.wanted.items()
            )
        if is_wanted:
            self.accepted_messages += entry.message_count
        else:
            self.rejected_messages += entry.message_count
        return is_wanted


def message_counts(tag_filter: TagFilter | None) -> tuple[int, int, int, int]:
    """The numbers of messages looked at, let through, removed and put off (always 0)."""
    if tag_filter is None:
        return 0, 0, 0, 0
    accepted, rejected = tag_filter.accepted_messages, tag_filter.rejected_messages
    return accepted + rejected, accepted, rejected, 0
