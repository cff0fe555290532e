"""What waits in a subscription: delayed and returned entries, ranges, and moved hashes of keys."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ..subscriptions.consumer import Consumer
from ..subscriptions.dispatcher import Dispatcher
from ..subscriptions.key_shared_dispatcher import KeySharedDispatcher
from ..subscriptions.subscription import Subscription
from .zero_figures import NOT_DRAINING

__all__ = [
    "draining_figures",
    "draining_hashes",
    "draining_sums",
    "range_figures",
    "ranges_text",
    "waiting_figures",
]

HASHES_AT_ONCE = 500
#: Ranges that are written out; the rest is left out, as the answer must not grow without limit.
MAX_RANGES = 10_000
#: The memory of Pulsar's index for few delayed messages.
DELAYED_INDEX_BYTES = 384

Draining = dict[Consumer, list[dict[str, int]]]


def waiting_figures(dispatcher: Dispatcher | None, backlog: int) -> dict[str, Any]:
    """The figures of a subscription about entries that were read and wait."""
    delayed = 0 if dispatcher is None else len(dispatcher.delayed)
    return {
        "msgBacklogNoDelayed": backlog - delayed,
        "blockedSubscriptionOnUnackedMsgs": dispatcher is not None and dispatcher.all_blocked,
        "msgDelayed": delayed,
        "msgInReplay": 0 if dispatcher is None else len(dispatcher.waiting),
    }


def draining_hashes(dispatcher: Dispatcher | None) -> Generator[None, None, Draining | None]:
    """Of Key_Shared: hashes that others have now, and of which a consumer still holds entries.

    None: nothing waits for a former consumer.
    """
    if not isinstance(dispatcher, KeySharedDispatcher) or not dispatcher.drains:
        return None
    found: Draining = {}
    for done, (holder, slot, count) in enumerate(dispatcher.draining(), start=1):
        row = {"hash": slot, "unackMsgs": count, "blockedAttempts": 0}
        found.setdefault(holder, []).append(row)
        if done % HASHES_AT_ONCE == 0:
            yield
    return found


def draining_figures(consumer: Consumer, draining: Draining | None) -> dict[str, Any]:
    """A consumer's figures of the hashes that have moved from it."""
    if draining is None:
        return {}
    rows = sorted(draining.get(consumer, ()), key=lambda row: row["hash"])
    return {
        "drainingHashesCount": len(rows),
        "drainingHashesClearedTotal": consumer.sendings.drained_slots,
        "drainingHashesUnackedMessages": sum(row["unackMsgs"] for row in rows),
        "drainingHashes": rows,
    }


def draining_sums(consumers: list[dict[str, Any]]) -> dict[str, int]:
    """The same of all consumers of a subscription."""
    return {name: sum(row[name] for row in consumers) for name in NOT_DRAINING}


def range_figures(subscription: Subscription) -> dict[str, int]:
    """Ranges of acknowledged entries after the mark-delete position, and indexes' sizes."""
    dispatcher = subscription.dispatcher
    is_delayed = dispatcher is not None and len(dispatcher.delayed) > 0
    ranges = subscription.cursor.acked_ranges
    return {
        "nonContiguousDeletedMessagesRanges": ranges,
        "nonContiguousDeletedMessagesRangesSerializedSize": _size_of_ranges(subscription),
        "delayedMessageIndexSizeInBytes": DELAYED_INDEX_BYTES if is_delayed else 0,
    }


def _size_of_ranges(subscription: Subscription) -> int:
    """The bytes of the ranges in Pulsar's form: two positions in each."""
    size_bytes = 0
    for ledger_id, first, last in subscription.cursor.acked_runs():
        for entry_id in (first - 1, last):
            size_bytes += 4 + _varint_bytes(ledger_id) + _varint_bytes(entry_id)
    return size_bytes


def _varint_bytes(value: int) -> int:
    return max((value & (1 << 64) - 1).bit_length() + 6, 7) // 7


def ranges_text(subscription: Subscription) -> str:
    """The ranges as Pulsar writes them: without the first place of each, with its last one."""
    found: list[str] = []
    for ledger_id, first, last in subscription.cursor.acked_runs():
        if len(found) == MAX_RANGES:
            break
        found.append(f"({ledger_id}:{first - 1}..{ledger_id}:{last}]")
    return f"[{','.join(found)}]"
