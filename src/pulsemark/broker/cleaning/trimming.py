"""Retention and expiry of one topic: entries are removed from its head, or count as acknowledged.

Removing blocks: it runs on the cleaning thread. With limits (retention time, retention size) an
entry is removed as soon as one of the limits allows it. Entries are removed one by one, also inside
the ledger that is being written.

Without retention (both limits are 0, the default) entries that all durable subscriptions have
acknowledged need not be kept. As in Pulsar, they are removed when their segment has ended; until
then a subscription can be moved back. A topic without a durable subscription keeps everything in
this case, since none of its entries is acknowledged; Pulsar removes them. To remove them, set a
limit or truncate the topic.

A topic with Kafka's cleanup policy "compact" (`free`) loses what its compacted view has of it: what
its durable subscriptions have not acknowledged stays, whatever the retention.

Expiry (TTL): messages that were not acknowledged in time count as acknowledged.

The cleaning thread finds the expired messages in the topic's index. The cursors belong to the event
loop, so they are moved there: a few operations for each subscription, in pieces.

A message's age is taken from its broker time, or from its publish time if it has no broker time,
but it is never older than its append. So a producer's clock does not decide when messages expire.

Messages do not expire for subscriptions that read the compacted form: these must get the latest
message of each key, however old it is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...compaction.current_view import claim_kept
from ...ledger import ManagedLedger, Position
from ...ledger.retention import expire_position, retention_due, size_bytes
from ...ledger.would_block import when_read
from ...records import record
from ..counters import TopicCleaning
from ..policies.pulsar_policies import RetentionPolicy
from ..storage import durable
from ..subscriptions.subscription import Subscription
from ..topics.topic import Topic

if TYPE_CHECKING:
    from ...compaction.cleaner import CleanerRules


@record(frozen=True)
class Removable:
    """The head of a topic that retention may remove, or has removed."""

    entries: int = 0
    messages: int = 0
    size_bytes: int = 0


def removable(ledger: ManagedLedger, policy: RetentionPolicy, now_ms: int) -> Removable:
    """The entries that `trim` would remove now. Raises LedgerError, OSError."""
    first = ledger.first_position
    if policy.is_unlimited or first is None:
        return Removable()
    with claim_kept(ledger) as claim:
        cut = _cut(ledger, policy, now_ms, claim)
    if cut is None or cut <= first:
        return Removable()
    return Removable(
        ledger.count_entries(first, cut),
        ledger.message_count(first, cut) - ledger.control_count(first, cut),
        size_bytes(ledger) - size_bytes(ledger, cut),
    )


def trim(
    ledger: ManagedLedger, policy: RetentionPolicy, figures: TopicCleaning, now_ms: int
) -> None:
    """Remove the entries that the policy allows to remove. Raises LedgerError, OSError."""
    if policy.is_unlimited or ledger.first_position is None:
        return
    with claim_kept(ledger) as claim:
        truncate(ledger, _cut(ledger, policy, now_ms, claim), figures, now_ms)


def _cut(
    ledger: ManagedLedger, policy: RetentionPolicy, now_ms: int, claim: Position | None
) -> Position | None:
    """The first entry to keep by the policy; None: all. `claim`: what compaction still needs."""
    if policy.is_at_once:
        return _ended_segments_end(ledger, claim)
    return retention_due(
        ledger,
        now_ms=now_ms,
        retention_time_ms=policy.time_ms,
        retention_size_bytes=policy.size_bytes,
        claim=claim,
    )


def free(ledger: ManagedLedger, rules: CleanerRules, figures: TopicCleaning, now_ms: int) -> None:
    """Remove the entries of a cleaned topic that are in its view. Raises LedgerError, OSError."""
    from ...compaction.cleaner import freeable

    with claim_kept(ledger) as claim:
        truncate(ledger, freeable(ledger, rules, now_ms, claim), figures, now_ms)


def truncate(
    ledger: ManagedLedger, end: Position | None, figures: TopicCleaning, now_ms: int
) -> None:
    """Remove all entries before `end`; None: remove nothing. Raises LedgerError, OSError."""
    first = ledger.first_position
    if end is None or first is None or end <= first:
        return
    size_before, messages_before = size_bytes(ledger), _messages_removed(ledger)
    figures.entries_removed += ledger.truncate_head(end)
    figures.messages_removed += _messages_removed(ledger) - messages_before
    figures.bytes_removed += max(size_before - size_bytes(ledger), 0)
    figures.last_removed_ms = now_ms


def _messages_removed(ledger: ManagedLedger) -> int:
    """The number of messages removed so far, without control entries."""
    return ledger.first_index - ledger.controls.removed_count


def _ended_segments_end(ledger: ManagedLedger, claim: Position | None) -> Position | None:
    """The start of the first segment that has unacknowledged entries or has not ended."""
    segments = ledger.segments()
    if len(segments) < 2:
        return None
    marks = [c.mark_delete for c in tuple(ledger.cursors.values()) if c.durable]
    if not marks:
        return None
    keep = ledger.next_position(min(marks if claim is None else [*marks, claim]))
    begun = [Position(s.ledger_id, s.first_entry_id) for s in segments]
    return max((begin for begin in begun if begin <= keep), default=None)


SUBSCRIPTIONS_AT_ONCE = 100
#: As in Pulsar: with a smaller backlog the oldest message's age is checked first.
SMALL_BACKLOG = 1_000


def due_position(topic: Topic, now_ms: int, ttl_ms: int) -> Position | None:
    """The last expired entry; None if no subscription has an unacknowledged expired entry.

    Blocks. With a ``ttl_ms`` below 0 everything expires, with 0 nothing. Raises LedgerError,
    OSError.
    """
    if not ttl_ms:
        return None
    ledger = topic.ledger
    if all(s.compacted is not None for s in tuple(topic.subscriptions.values())):
        return None
    if ttl_ms < 0:
        return ledger.last_position
    last = expire_position(ledger, now_ms=now_ms, ttl_ms=ttl_ms)
    first = ledger.first_position
    return last if last is not None and first is not None and last >= first else None


async def expire_topic(topic: Topic, last: Position) -> None:
    """Let everything up to ``last`` expire for all subscriptions. On the event loop."""
    for number, subscription in enumerate(tuple(topic.subscriptions.values())):
        if topic.subscriptions.get(subscription.name) is subscription:
            await expire(subscription, last)
            subscription.cursor.persist()
        if number % SUBSCRIPTIONS_AT_ONCE == SUBSCRIPTIONS_AT_ONCE - 1:
            await asyncio.sleep(0)


async def expire(subscription: Subscription, last: Position) -> int:
    """Let unacknowledged messages up to ``last`` expire, and return how many."""
    if not _may_expire(subscription):
        return 0
    before = await when_read(_acknowledged, subscription)
    if not _may_expire(subscription):
        return 0
    subscription.give_up(last)
    expired = max(await when_read(_acknowledged, subscription) - before, 0)
    if expired:
        subscription.messages_expired += expired
        now_ms = subscription.topic.config.clock.now_ms()
        subscription.last_expired_ms = subscription.last_advanced_ms = now_ms
    return expired


def _may_expire(subscription: Subscription) -> bool:
    return subscription.compacted is None and not subscription.is_fenced


def _acknowledged(subscription: Subscription) -> int:
    """The number of messages acknowledged so far, even while others are published."""
    return subscription.log.next_index - subscription.cursor.backlog_messages


async def ask_to_expire(
    subscription: Subscription, last: Position | None, first_time_known: bool
) -> bool:
    """Let messages up to ``last`` expire, durably; False in cases where Pulsar does nothing.

    These are a subscription without backlog, and a small backlog of which nothing has expired, if
    consumers are connected. ``first_time_known``: the oldest message's age was checked, and
    ``last`` is None because that message has not expired.
    """
    backlog = await when_read(lambda: subscription.cursor.backlog_messages)
    reached = last is not None and last > subscription.cursor.mark_delete
    is_left_alone = first_time_known and subscription.consumers and backlog < SMALL_BACKLOG
    if not backlog or (is_left_alone and not reached):
        return False
    if last is not None:
        await expire(subscription, last)
        await durable(subscription.cursor.persist())
    return True
