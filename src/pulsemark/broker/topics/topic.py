"""A topic: its managed ledger, producers and subscriptions.

The ledger calls the topic when entries have become durable. Subscriptions see them only then.

A topic is open until `close`, and is never opened again. Code that got the topic object before and
waited meanwhile is refused (ServiceNotReady) when it adds a producer, a subscription or a consumer.
The client then tries again and gets the topic that is open at that time.

Everything here runs on the event loop. Blocking work is done by `registry`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from ...ledger import (
    EARLIEST,
    CorruptEntryError,
    Entry,
    EntryKind,
    InvalidCursorError,
    LedgerError,
    ManagedLedger,
    Position,
)
from ...ledger.would_block import in_pieces
from ...metadata import Clock
from ...proto.pulsar_api_pb2 import CommandSubscribe, ServerError
from ...wire import MessageId, TopicName
from ..configuration.config import BrokerConfig
from ..counters import RateMeter, TopicCleaning
from ..errors import LimitReachedError, RefusedError
from ..policies.rate_limits import TokenBucket
from ..subscriptions.delayed import DelayedTotal
from ..subscriptions.kafka_entries import read_entries
from ..subscriptions.seek import batch_size_of, position_of
from ..subscriptions.subscription import HomeTopic, Subscription
from .deduplication import Deduplication
from .participants import Joined
from .policy_store import Admission
from .producers import TopicProducers

if TYPE_CHECKING:
    from ...compaction.cleaner import CleanerRules
    from ...compaction.compacted_log import CompactedLog

log = logging.getLogger(__name__)

#: Consumers whose subscribing is counted for a topic; those that subscribed last are kept.
SUBSCRIBERS_MAX = 10_000
#: Batches with a larger uncompressed size are not parsed on the event loop.
MAX_OPENED_BYTES = 8 * 1024 * 1024


class TopicInUseError(Exception):
    """A topic cannot be deleted: producers or consumers are connected to it."""

    def __init__(self, topic: str, producers: int, consumers: int) -> None:
        super().__init__(f"{topic} has {producers} producers and {consumers} consumers")
        self.users = producers + consumers


class Topic(HomeTopic):
    """An open persistent topic."""

    #: Whether the last check of its backlog quotas found that producers are to be refused.
    has_full_backlog = False

    def __init__(
        self,
        topic_name: TopicName,
        ledger: ManagedLedger,
        config: BrokerConfig,
        *,
        topic_epoch: int | None,
        store_epoch: Callable[[int], Awaitable[None]],
        delayed_total: DelayedTotal | None = None,
    ) -> None:
        """`delayed_total` counts the delayed entries of all topics; None: only of this one."""
        super().__init__(topic_name, config)
        self._begin()
        self.ledger = ledger
        self.joined = Joined()
        #: The stored acknowledgements of open transactions.
        self.pending_acks_stored: bytes | None = None
        #: How often storing them was requested, and the last request that was done.
        self.keeps_asked = self.keeps_done = 0
        self.producers = TopicProducers(topic_epoch, store_epoch, self.name)
        self.delayed_total = delayed_total or DelayedTotal(config.max_delayed_entries)
        self.subscriptions = {
            name: Subscription(self, name, cursor, durable=True)
            for name, cursor in ledger.cursors.items()
        }
        #: New subscriptions that are not durable yet, and invisible.
        self._creating: dict[str, Subscription] = {}
        #: The last message's id as it was found last, with the log's end and its tail's cuts then.
        self._last_id: tuple[Position, MessageId, int] | None = None
        ledger.on_confirmed.append(self._entries_confirmed)

    def _begin(self) -> None:
        """Set the attributes that persistent and non-persistent topics share."""
        self.rate_meter = RateMeter()
        self.cleaning = TopicCleaning()
        self.deduplication: Deduplication | None = None
        self.admission: Admission | None = None
        self.subscribe_limits = SubscribeLimits()
        #: Tombstones of Kafka's magic 2 (KIP-87): 1, a null value or the flag; 2, the flag.
        self.tombstone_stage = 1
        #: How its log is cleaned: Kafka's cleanup policy "compact"; None: it has another one.
        self.cleaner_rules: CleanerRules | None = None

    def close(self) -> None:
        """Refuse new producers and consumers and stop all dispatch.

        The store closes the ledger, and the caller disconnects the clients (`disconnect`).
        """
        self.is_open = False
        self.cleaning.compaction.ask_to_stop()
        self.producers.close()
        if self.admission is not None and self.admission.publish_limit is not None:
            self.admission.publish_limit.end()
        self.ledger.on_confirmed.remove(self._entries_confirmed)

    def check_is_unused(self) -> None:
        """Raise `TopicInUseError` if producers or consumers are connected."""
        producers = len(self.producers.by_name) + len(self.producers.waiting)
        consumers = self._consumer_count()
        if producers or consumers:
            raise TopicInUseError(self.name, producers, consumers)

    def disconnect(self) -> Iterator[None]:
        """Disconnect every producer and consumer at once.

        Return the pieces that notify their clients and end readers' subscriptions.
        """
        subscriptions = tuple(self.subscriptions.values())
        notifying = [self.producers.disconnecting()]
        notifying += [subscription.disconnecting() for subscription in subscriptions]
        for pieces in notifying:
            next(pieces, None)

        def notify() -> Iterator[None]:
            yield from chain.from_iterable(notifying)
            for subscription in subscriptions:
                subscription.end_if_unused()
            if not self.is_open:
                self.subscriptions.clear()

        return notify()

    def update_rates(self, elapsed_s: float) -> None:
        """End a period of `elapsed_s`, and compute its rates."""
        subscriptions = self.subscriptions.values()
        totals = (
            self.counters.messages_in,
            self.counters.bytes_in,
            sum(subscription.messages_out for subscription in subscriptions),
            sum(subscription.bytes_out for subscription in subscriptions),
            self.counters.entry_size_bytes.count,
            sum(one.entries_out for each in subscriptions for one in each.consumers),
        )
        self.rate_meter.update(totals, elapsed_s)
        consumers = chain.from_iterable(each.consumers for each in subscriptions)
        producers = self.producers.by_name.values()
        flows = chain[tuple[object, int, int]](
            ((one, one.messages_in, one.bytes_in) for one in producers),
            ((one, one.messages_out, one.bytes_out) for one in subscriptions),
            ((one, one.messages_out, one.bytes_out) for one in consumers),
        )
        self.flows.update(flows, elapsed_s)

    def _entries_confirmed(self) -> None:
        for subscription in tuple(self.subscriptions.values()):
            try:
                subscription.dispatch()
            except Exception:
                # An error here must not stop the commit's other callbacks: producers' receipts.
                log.exception("%s: dispatch failed; the next event tries again", subscription)

    def entries_removed(self) -> None:
        """Tell subscriptions that the log's head was removed, perhaps unacknowledged."""
        if self.cleaned is not None:
            return  # what is left of them is in the compacted form
        first = self.ledger.first_position or self.ledger.end_position
        for subscription in tuple(self.subscriptions.values()):
            subscription.entries_removed(first)

    @property
    def first_index(self) -> int:
        """The index at which the topic begins."""
        if self.cleaned is None:
            return self.ledger.first_index
        from ...compaction.current_view import state_of

        state = state_of(self.ledger).cleaner
        return self.ledger.first_index if state is None else state.first_index

    def read_compacted(self, form: CompactedLog) -> None:
        """Let everyone read the compacted form instead of the log."""
        if self.cleaned is None:
            self.cleaned = form
            for subscription in (*self.subscriptions.values(), *self._creating.values()):
                subscription.read_as(None)

    # -- subscriptions --------------------------------------------------------------------------

    def subscription_for(
        self,
        command: CommandSubscribe,
        start: Position | None,
        compacted: CompactedLog | None = None,
    ) -> Subscription:
        """The subscription for a SUBSCRIBE; created at `start` if it does not exist.

        Without `start` the command decides where it begins, in the topic's `compacted` form if
        there is one. Raises `RefusedError`.
        """
        self.check_is_open()
        name = command.subscription
        found = self.subscriptions.get(name)
        if found is not None:
            # A reader's subscription ends with its connection.
            found.remove_leaving()
            found = self.subscriptions.get(name)
        if found is not None:
            if found.durable != command.durable:
                kind = "Durable" if found.durable else "NonDurable"
                text = f"{kind} subscription with the same name already exists."
                raise RefusedError(ServerError.NotAllowedError, text)
            return found
        properties = {pair.key: pair.value for pair in command.subscription_properties}
        if start is None:
            start = self.start_of(command, compacted)
        made = self.create_subscription(name, start, durable=command.durable, properties=properties)
        if compacted is not None:
            made.read_as(compacted)
            # A position before the log's first entry is valid only in the compacted form.
            made.cursor.reset(start)
        return made

    def create_subscription(
        self,
        name: str,
        start: Position,
        *,
        durable: bool = True,
        properties: dict[str, str] | None = None,
    ) -> Subscription:
        """Create a subscription whose first entry is at `start`. Raises `RefusedError`.

        It exists once `Subscription.stored` returns, and not if that fails.
        """
        self.check_is_open()
        if name in self._creating:
            return self._creating[name]
        limit = self.rules.max_subscriptions or self.config.max_subscriptions_per_topic
        if len(self.subscriptions) + len(self._creating) >= limit:
            text = f"Exceed the maximum number of subscriptions of the topic: {self.name}"
            raise LimitReachedError(ServerError.NotAllowedError, text)
        try:
            cursor = self.ledger.open_cursor(
                name, initial=start, durable=durable, subscription_properties=properties
            )
        except InvalidCursorError as error:
            raise RefusedError(ServerError.NotAllowedError, str(error)) from error
        subscription = Subscription(self, name, cursor, durable=durable)
        if self.cleaned is not None:
            subscription.read_as(None)
            cursor.reset(start)
        subscription.rules_changed()
        if durable:
            subscription.creation = asyncio.Event()
            self._creating[name] = subscription
            cursor.persist().add_done_callback(partial(self.subscription_created, subscription))
        else:
            self.subscriptions[name] = subscription
        return subscription

    def subscription_created(self, subscription: Subscription, error: BaseException | None) -> None:
        """A new subscription is durable, or failed."""
        del self._creating[subscription.name]
        if error is not None:
            with suppress(LedgerError):  # the store is closed
                self.ledger.delete_cursor(subscription.name)
        elif self.is_open:
            self.subscriptions[subscription.name] = subscription
        assert subscription.creation is not None
        subscription.failure = error
        subscription.creation.set()
        subscription.creation = None

    def start_of(
        self, command: CommandSubscribe, compacted: CompactedLog | None = None
    ) -> Position:
        """The position of a new subscription's first entry."""
        if not command.durable and command.HasField("start_message_id"):
            start = position_of(command.start_message_id)
            # As in Pulsar the initial position counts for a start that is farther than the end.
            if start <= self.ledger.end_position:
                return self.clamp(start, compacted)
        if command.initialPosition == CommandSubscribe.Earliest:
            return self.clamp(EARLIEST, compacted)
        return self.ledger.end_position

    # -- reading --------------------------------------------------------------------------------

    def finding_last_id(
        self, compacted: CompactedLog | None = None
    ) -> Generator[object, None, MessageId]:
        """Find the id of the last message for consumers, in pieces; (-1, -1): they get no message.

        A piece that is a future must be waited for: a large entry is converted in a thread. Control
        entries at the end are no messages: they are skipped backwards, one in each piece, and only
        once. With ``compacted``, it is the last message of that form.
        """
        if compacted is not None:
            return (yield from self._finding_last_id_in(compacted))
        first, last = self.ledger.first_position, self.ledger.last_position
        if last is not None and (end := self.ledger.stable_end) <= last:
            last = self.ledger.previous_position(end)
        known, cuts = self._last_id, self.ledger.tail_cuts
        if known is not None and (last is None or last < known[0] or cuts != known[2]):
            known = None  # the topic's tail was truncated
        found = None
        at = last
        while found is None and at is not None and first is not None and at >= first:
            if known is not None and at <= known[0]:
                found = known[1]
            elif (
                entry := (yield from self._entry_at(self.ledger, at))
            ) is not None and entry.kind is EntryKind.DATA:
                size = batch_size_of(entry.body)
                found = MessageId(*at, self.partition_index, -1 if size is None else size - 1)
            else:
                at = self.ledger.previous_position(at)
            yield None
        # The message found before may have been trimmed meanwhile.
        if found is None or first is None or found[:2] < first:
            found = MessageId(*EARLIEST, self.partition_index)
        self._last_id = None if last is None else (last, found, cuts)
        return found

    def _finding_last_id_in(self, log: CompactedLog) -> Generator[object, None, MessageId]:
        places = lambda: (log.first_position, log.last_position, log.horizon)  # noqa: E731
        first, at, horizon = yield from in_pieces(places)
        while at is not None and first is not None and at >= first:
            entry = yield from self._entry_at(log, at)
            if entry is not None and entry.kind is EntryKind.DATA:
                size = batch_size_of(entry.body)
                last = -1 if size is None else size - 1
                if horizon is not None and at <= horizon:
                    last = last_kept_index(entry, last)
                return MessageId(*at, self.partition_index, last)
            at = yield from in_pieces(log.previous_position, at)
            yield None
        return MessageId(*EARLIEST, self.partition_index)

    def _entry_at(
        self, log: ManagedLedger | CompactedLog, position: Position
    ) -> Generator[object, None, Entry | None]:
        try:
            entries = yield from in_pieces(
                read_entries, self, log, position, max_entries=1, max_bytes=1, may_wait=True
            )
        except CorruptEntryError:
            # No consumer can get it any more, so it is not the last message.
            return None
        return entries[0] if entries and entries[0].position == position else None


def last_kept_index(entry: Entry, last: int) -> int:
    """The batch index of the last message that compaction left in an entry of a view."""
    if last <= 0:
        return last
    from ...compaction.batch_rewrite import BatchFormatError, open_batch
    from ...metadata import MessageFormatError, read_message_metadata
    from ...metadata.compression import CompressionUnavailableError

    try:
        metadata = read_message_metadata(entry.body)
        members = open_batch(metadata, entry.body, MAX_OPENED_BYTES).members
    except (BatchFormatError, CompressionUnavailableError, MessageFormatError):
        return last
    return next((i for i in reversed(range(len(members))) if not members[i].hole), last)


class SubscribeLimits:
    """Limits how often a consumer, known by host, name and id, may subscribe (subscribeRate)."""

    __slots__ = ("_buckets", "_rate")

    def __init__(self) -> None:
        self._rate: tuple[tuple[str, object], ...] = ()
        # Made when it is needed: most topics never do.
        self._buckets: OrderedDict[object, TokenBucket] | None = None

    def allows(self, rate: tuple[tuple[str, int], ...], consumer: object, clock: Clock) -> bool:
        """Whether a consumer may subscribe now. If so, count it."""
        if rate != self._rate:
            self._rate, self._buckets = rate, None
        limits = dict(rate)
        most = limits["subscribeThrottlingRatePerConsumer"]
        if most <= 0:
            return True
        if self._buckets is None:
            self._buckets = OrderedDict()
        bucket = self._buckets.pop(consumer, None)
        if bucket is None:
            period_ms = max(limits["ratePeriodInSecond"], 1) * 1000
            bucket = TokenBucket(most, period_ms, clock)
        self._buckets[consumer] = bucket
        if len(self._buckets) > SUBSCRIBERS_MAX:
            self._buckets.popitem(last=False)
        if bucket.available() < 1:
            return False
        bucket.take(1)
        return True
