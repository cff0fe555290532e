"""A topic: its managed ledger, who writes to it, who reads from it.

The ledger tells the topic when entries have become durable; only then do subscriptions see them.

A topic is open until `close`, and never again: whoever got hold of it before, and waited for
something since, is refused (ServiceNotReady) when it comes to attach a producer, a subscription or
a consumer. Its client asks again and gets the topic that is open then.
Everything here runs on the event loop; what blocks (opening a ledger, the catalog) is done by the
registry in `topics`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from ...compaction.compacted_log import CompactedLog
from ...ledger import (
    EARLIEST,
    LATEST,
    Commit,
    CorruptEntryError,
    Entry,
    EntryKind,
    ManagedLedger,
    Position,
)
from ...metadata import MessageFormatError, read_message_metadata
from ...proto.pulsar_api_pb2 import CommandSubscribe, ServerError
from ...wire import MessageId, TopicName
from ..cleaning.figures import TopicCleaning
from ..configuration.config import BrokerConfig
from ..errors import RefusedError
from ..statistics.counters import RateMeter, TopicCounters
from ..subscriptions.consumer import Consumer
from ..subscriptions.positions import position_of
from ..subscriptions.subscription import Subscription
from .producers import TopicProducers

__all__ = ["Topic"]


log = logging.getLogger(__name__)

#: Batches that are larger, decompressed, are not looked into on the event loop.
MAX_OPENED_BYTES = 8 * 1024 * 1024


class Topic:
    """An open persistent topic."""

    def __init__(
        self,
        topic_name: TopicName,
        ledger: ManagedLedger,
        config: BrokerConfig,
        *,
        topic_epoch: int | None,
        store_epoch: Callable[[int], Awaitable[None]],
    ) -> None:
        self.topic_name = topic_name
        self.name = str(topic_name)
        self.partition_index = topic_name.partition_index
        self.ledger = ledger
        self.config = config
        self.counters = TopicCounters()
        self.rate_meter = RateMeter()
        self.cleaning = TopicCleaning()
        self.producers = TopicProducers(topic_epoch, store_epoch)
        self.subscriptions: dict[str, Subscription] = {
            name: Subscription(self, name, cursor, durable=True, is_stored=True)
            for name, cursor in ledger.cursors.items()
        }
        self.is_open = True
        #: Fields of entries' prefixes that clients get besides time and index (see stamp_policies).
        self.delivered_fields: frozenset[int] = frozenset()
        self._last_id: tuple[object, MessageId] | None = None
        ledger.on_confirmed.append(self._entries_confirmed)

    def close(self) -> None:
        """Let nobody in any more and stop all dispatch; the ledger is the store's to close."""
        self.is_open = False
        self.cleaning.compaction.stop.set()
        self.producers.close()
        self.ledger.on_confirmed.remove(self._entries_confirmed)
        for subscription in self.subscriptions.values():
            subscription.detach_all()

    def check_is_open(self) -> None:
        """Raise `RefusedError` (ServiceNotReady) if the topic was closed."""
        if not self.is_open:
            raise RefusedError(ServerError.ServiceNotReady, f"{self.name} is being closed")

    def disconnect_all(self) -> None:
        """Close every producer and consumer from the broker's side; readers' subscriptions end."""
        self.producers.disconnect_all()
        for subscription in tuple(self.subscriptions.values()):
            subscription.disconnect_all()
            subscription.end_if_unused()

    def update_rates(self, elapsed_s: float) -> None:
        """Work out the rates of the period that ends now."""
        subscriptions = self.subscriptions.values()
        totals = (
            self.counters.messages_in,
            self.counters.bytes_in,
            sum(subscription.messages_out for subscription in subscriptions),
            sum(subscription.bytes_out for subscription in subscriptions),
        )
        self.rate_meter.update(totals, elapsed_s)

    def _entries_confirmed(self) -> None:
        for subscription in tuple(self.subscriptions.values()):
            try:
                subscription.dispatch()
            except Exception:
                # The commit has other listeners: producers' receipts must not suffer.
                log.exception("%s: dispatch failed", subscription)

    # -- subscriptions --------------------------------------------------------------------------

    def subscription_for(
        self,
        command: CommandSubscribe,
        start: Position | None,
        compacted: CompactedLog | None = None,
    ) -> Subscription:
        """The subscription a SUBSCRIBE asks for, made at `start` if it is not there.

        Without `start` the command says where it begins: in the topic's `compacted` form where
        that is to be read. Raises `RefusedError`.
        """
        self.check_is_open()
        name = command.subscription
        found = self.subscriptions.get(name)
        if found is not None:
            if found.durable != command.durable:
                kind = "Durable" if found.durable else "Non-durable"
                raise RefusedError(
                    ServerError.NotAllowedError,
                    f"{kind} subscription with the same name already exists.",
                )
            return found
        properties = {pair.key: pair.value for pair in command.subscription_properties}
        if start is None:
            start = self.start_of(command, compacted)
        made = self.create_subscription(name, start, durable=command.durable, properties=properties)
        if compacted is not None:
            made.read_as(compacted)
            # What stands before the log's first entry is a place only now.
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
        """Make a subscription whose first entry is the one at `start`; see `Subscription.stored`.

        Raises `RefusedError`.
        """
        self.check_is_open()
        if len(self.subscriptions) >= self.config.max_subscriptions_per_topic:
            raise RefusedError(
                ServerError.NotAllowedError,
                f"Exceed the maximum number of subscriptions of the topic: {self.name}",
            )
        cursor = self.ledger.open_cursor(
            name, initial=start, durable=durable, subscription_properties=properties
        )
        subscription = Subscription(self, name, cursor, durable=durable, is_stored=not durable)
        self.subscriptions[name] = subscription
        return subscription

    def start_of(
        self, command: CommandSubscribe, compacted: CompactedLog | None = None
    ) -> Position:
        """Where a new subscription begins: the position of its first entry."""
        if not command.durable and command.HasField("start_message_id"):
            return self.clamp(position_of(command.start_message_id), compacted)
        if command.initialPosition == CommandSubscribe.Earliest:
            return self.clamp(EARLIEST, compacted)
        return self.ledger.end_position

    def clamp(self, position: Position, compacted: CompactedLog | None = None) -> Position:
        """`position`, or the first or end position where it lies outside of the topic.

        Of its ``compacted`` form where one is given.
        """
        log = self.ledger if compacted is None else compacted
        first = log.first_position
        end = log.end_position
        if position >= end or position == LATEST:
            return end
        return max(position, first) if first is not None else end

    def remove_subscription(
        self, subscription: Subscription, *, asked_by: Consumer | None = None
    ) -> Commit:
        """Disconnect a subscription and forget it with its place; done when the commit is.

        Its consumers' clients are told, but for `asked_by`. Raises `RefusedError` if it is not
        there any more, and `LedgerError`; then nothing has changed.
        """
        subscription.check_is_there()
        commit = self.ledger.delete_cursor(subscription.name)
        del self.subscriptions[subscription.name]
        subscription.disconnect_all(but=asked_by)
        return commit

    # -- reading --------------------------------------------------------------------------------

    def last_message_id(self, compacted: CompactedLog | None = None) -> MessageId:
        """The id of the last message consumers can get; (-1, -1) when there is none.

        `batch_index` is set for a batch. Control entries at the end are not messages. Those who
        read the ``compacted`` form wait for nothing that was left out of it.
        """
        log = self.ledger if compacted is None else compacted
        key = (log.last_position, None if compacted is None else compacted.epoch)
        if self._last_id is None or self._last_id[0] != key:
            self._last_id = (key, self._find_last_id(log, key[0]))
        return self._last_id[1]

    def _find_last_id(self, log: ManagedLedger | CompactedLog, last: Position | None) -> MessageId:
        first = log.first_position
        horizon = log.horizon if isinstance(log, CompactedLog) else None
        while last is not None and first is not None and last >= first:
            entry = self._entry_at(log, last)
            if entry is not None and entry.kind is EntryKind.DATA:
                in_view = horizon is not None and last <= horizon
                index = last_kept_index(entry) if in_view else last_batch_index(entry)
                return MessageId(*last, self.partition_index, index)
            last = log.previous_position(last)
        return MessageId(*EARLIEST, self.partition_index)

    def _entry_at(self, log: ManagedLedger | CompactedLog, position: Position) -> Entry | None:
        try:
            entries = log.read(position, max_entries=1)
        except CorruptEntryError:
            # Nobody can get it any more, so it is not the last message.
            return None
        return entries[0] if entries and entries[0].position == position else None


def last_batch_index(entry: Entry) -> int:
    """The batch index of an entry's last message; -1 for a message that is no batch."""
    try:
        metadata = read_message_metadata(entry.body)
    except MessageFormatError:
        # A body without Pulsar's header was accepted as it is; it has no batch to speak of.
        return -1
    return metadata.num_messages_in_batch - 1 if metadata.HasField("num_messages_in_batch") else -1


def last_kept_index(entry: Entry) -> int:
    """The batch index of the last message that compaction left in an entry of a view."""
    last = last_batch_index(entry)
    if last <= 0:
        return last
    from ...compaction.batch_rewrite import BatchFormatError, open_batch
    from ...metadata.compression import CompressionUnavailableError

    try:
        metadata = read_message_metadata(entry.body)
        members = open_batch(metadata, entry.body, MAX_OPENED_BYTES).members
    except (BatchFormatError, CompressionUnavailableError, MessageFormatError):
        return last
    return next((i for i in reversed(range(len(members))) if not members[i].hole), last)
