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
from collections.abc import Awaitable, Callable, Generator, Iterator

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
from ...proto.pulsar_api_pb2 import CommandSubscribe, ServerError
from ...wire import MessageId, TopicName
from ..cleaning.figures import TopicCleaning
from ..configuration.config import BrokerConfig
from ..errors import RefusedError
from ..statistics.counters import RateMeter, TopicCounters
from ..subscriptions.closing import closing
from ..subscriptions.consumer import Consumer
from ..subscriptions.positions import batch_size_of, position_of
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
        #: The last position that was looked at for the last message's id, and that id.
        self._last_id: tuple[Position, MessageId] | None = None
        ledger.on_confirmed.append(self._entries_confirmed)

    def close(self) -> None:
        """Let nobody in any more and stop all dispatch; the ledger is the store's to close.

        What is connected is to be disconnected with `disconnecting`, which takes its time.
        """
        self.is_open = False
        self.cleaning.compaction.stop.set()
        self.producers.close()
        self.ledger.on_confirmed.remove(self._entries_confirmed)

    def check_is_open(self) -> None:
        """Raise `RefusedError` (ServiceNotReady) if the topic was closed."""
        if not self.is_open:
            raise RefusedError(ServerError.ServiceNotReady, f"{self.name} is being closed")

    def disconnecting(self) -> Iterator[None]:
        """Close every producer and consumer from the broker's side; readers' subscriptions end.

        In pieces; who comes back meanwhile stays where the pieces have been already.
        """
        yield from self.producers.disconnecting()
        for subscription in tuple(self.subscriptions.values()):
            yield from subscription.disconnecting()
            subscription.end_if_unused()
        if not self.is_open:
            self.subscriptions.clear()

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
        subscription.check_exists()
        commit = self.ledger.delete_cursor(subscription.name)
        del self.subscriptions[subscription.name]
        # All of its consumers lose it in this step; their clients are told in pieces.
        consumers = subscription.detach_all()
        subscription.work.add(closing(consumers, but=asked_by))
        return commit

    # -- reading --------------------------------------------------------------------------------

    def finding_last_id(
        self, compacted: CompactedLog | None = None
    ) -> Generator[None, None, MessageId]:
        """The id of the last message consumers can get, in pieces; (-1, -1) when there is none.

        `batch_index` is set for a batch. Control entries at the end are not messages: they are
        gone over backwards, one in a piece, and not again the next time. Those who read the
        ``compacted`` form wait for nothing that was left out of it.
        """
        if compacted is not None:
            return (yield from self._finding_last_id_in(compacted))
        first, last = self.ledger.first_position, self.ledger.last_position
        known = self._last_id
        if known is not None and (last is None or last < known[0]):
            # The topic's tail was cut.
            known = None
        found = None
        at = last
        while found is None and at is not None and first is not None and at >= first:
            if known is not None and at <= known[0]:
                found = known[1]
            elif (
                entry := self._entry_at(self.ledger, at)
            ) is not None and entry.kind is EntryKind.DATA:
                size = batch_size_of(entry.body)
                found = MessageId(*at, self.partition_index, -1 if size is None else size - 1)
            else:
                at = self.ledger.previous_position(at)
            yield
        # What was found before may have been trimmed since.
        if found is None or first is None or found[:2] < first:
            found = MessageId(*EARLIEST, self.partition_index)
        self._last_id = None if last is None else (last, found)
        return found

    def _finding_last_id_in(self, log: CompactedLog) -> Generator[None, None, MessageId]:
        first, at, horizon = log.first_position, log.last_position, log.horizon
        while at is not None and first is not None and at >= first:
            entry = self._entry_at(log, at)
            if entry is not None and entry.kind is EntryKind.DATA:
                size = batch_size_of(entry.body)
                last = -1 if size is None else size - 1
                if horizon is not None and at <= horizon:
                    last = last_kept_index(entry, last)
                return MessageId(*at, self.partition_index, last)
            at = log.previous_position(at)
            yield
        return MessageId(*EARLIEST, self.partition_index)

    def _entry_at(self, log: ManagedLedger | CompactedLog, position: Position) -> Entry | None:
        try:
            entries = log.read(position, max_entries=1)
        except CorruptEntryError:
            # Nobody can get it any more, so it is not the last message.
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
