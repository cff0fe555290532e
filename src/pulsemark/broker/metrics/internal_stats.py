"""A topic's ledgers and cursors, as the admin interface shows them.

Names and order are Pulsar's (`PersistentTopicInternalStats`). Like the other statistics they are
taken in pieces (see `stats`).
"""

from __future__ import annotations

from typing import Any

from ...compaction.view import CompactedView
from ...ledger import ManagedLedger, Position
from ...ledger.would_block import in_pieces
from ..subscriptions.seek import shown_mark_delete
from ..subscriptions.subscription import Subscription
from ..topics.topic import Topic
from .stats import Pieces, iso_time, ranges_text, segment_size_bytes


def internal_stats(topic: Topic, view: CompactedView | None = None, *, own: bool = False) -> Pieces:
    """Make the answer to GET .../internalStats: ledgers, cursors and the compacted view.

    `own`: with the figures that only this broker has.
    """
    ledger = topic.ledger
    rows = yield from _ledgers(topic)
    cursors: dict[str, Any] = {}
    for subscription in tuple(topic.subscriptions.values()):
        if subscription.exists:
            cursors[subscription.name] = yield from in_pieces(_cursor, subscription, own=own)
        yield None
    compacted = yield from in_pieces(_compacted_ledger, view)
    shown = list(rows.values())
    current = shown[-1] if shown else {"entries": 0, "size": 0}
    # Pulsar shows the open ledger empty: it counts there when it is closed.
    listed = [*shown[:-1], *({**row, "entries": 0, "size": 0} for row in shown[-1:])]
    return {
        "entriesAddedCounter": topic.counters.entry_size_bytes.count,
        "numberOfEntries": sum(row["entries"] for row in shown),
        "totalSize": sum(row["size"] for row in shown),
        "currentLedgerEntries": current["entries"],
        "currentLedgerSize": current["size"],
        "lastLedgerCreatedTimestamp": iso_time(topic.opened_ms),
        "waitingCursorsCount": sum(row["waitingReadOp"] for row in cursors.values()),
        "pendingAddEntriesCount": 0,
        "lastConfirmedEntry": _last(topic),
        "state": "LedgerOpened" if topic.terminated_at is None else "Terminated",
        "ledgers": listed,
        "cursors": cursors,
        "schemaLedgers": [],
        "compactedLedger": compacted,
        **(_own_figures(ledger, view) if own else {}),
    }


def _own_figures(ledger: ManagedLedger, view: CompactedView | None) -> dict[str, Any]:
    return {
        "firstIndex": ledger.first_index,
        "nextIndex": ledger.next_index,
        "compactionHorizon": _text(None if view is None else view.horizon),
    }


def _ledgers(topic: Topic) -> Pieces:
    rows: dict[Any, dict[str, Any]] = {}
    for segment in topic.ledger.segments():
        row = rows.setdefault(segment.ledger_id, _empty(segment.ledger_id))
        row["entries"] += segment.entry_count - segment.cut_rows
        row["size"] += yield from in_pieces(segment_size_bytes, segment)
        yield None
    current = topic.ledger.end_position.ledger_id
    rows.setdefault(current, _empty(current))
    return rows


def _empty(ledger_id: int) -> dict[str, Any]:
    figures = {"ledgerId": ledger_id, "entries": 0, "size": 0}
    return {**figures, "offloaded": False, "underReplicated": False}


def _last(topic: Topic) -> str:
    """The last entry's position; without entries, the position before the first one to come."""
    last, end = topic.ledger.last_position, topic.ledger.end_position
    return _text(Position(end.ledger_id, end.entry_id - 1) if last is None else last)


def _compacted_ledger(view: CompactedView | None) -> dict[str, Any]:
    if view is None:
        return {**_empty(-1), "entries": -1, "size": -1}
    figures = {"entries": view.summary.entry_count, "size": view.size_bytes}
    return {**_empty(view.ledger_id), **figures}


def _cursor(subscription: Subscription, *, own: bool) -> dict[str, Any]:
    cursor, dispatcher = subscription.cursor, subscription.dispatcher
    read = cursor.first_unacked if dispatcher is None else dispatcher.read_position
    after = subscription.log.next_position(cursor.mark_delete)
    is_asked = (dispatcher is None or not dispatcher.all_blocked) and any(
        consumer.permits > 0 and not subscription.is_blocked(consumer)
        for consumer in subscription.consumers
    )
    waits = is_asked and read >= subscription.topic.ledger.end_position
    return {
        "markDeletePosition": _text(shown_mark_delete(subscription.topic, cursor.mark_delete)),
        "readPosition": _text(read),
        "waitingReadOp": waits,
        "pendingReadOps": 0,
        "messagesConsumedCounter": max(
            subscription.topic.counters.entry_size_bytes.count - cursor.backlog_entries, 0
        ),
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": ranges_text(subscription),
        "lastLedgerSwitchTimestamp": iso_time(subscription.topic.opened_ms),
        # The cursor's record is in the broker's one ledger of cursors.
        "state": "NoLedger",
        "active": bool(subscription.consumers),
        "numberOfEntriesSinceFirstNotAckedMessage": subscription.log.count_entries(after, read) + 1,
        "totalNonContiguousDeletedMessagesRange": cursor.acked_ranges,
        "subscriptionHavePendingRead": waits,
        "subscriptionHavePendingReplayRead": False,
        "properties": {},
        **(_own_of_cursor(subscription) if own else {}),
    }


def _own_of_cursor(subscription: Subscription) -> dict[str, Any]:
    return {
        "messagesBacklog": subscription.cursor.backlog_messages,
        "damagedEntry": _text(subscription.damaged_position),
    }


def managed_ledger_info(topic: Topic) -> Pieces:
    """Make the answer to GET .../internal-info: the stored facts of ledgers and cursors."""
    rows = yield from _ledgers(topic)
    created = iso_time(topic.opened_ms)
    cursors: dict[str, Any] = {}
    for subscription in tuple(topic.subscriptions.values()):
        if subscription.exists and subscription.durable:
            place = shown_mark_delete(topic, subscription.cursor.mark_delete)
            cursors[subscription.name] = {
                "version": 0,
                "creationDate": created,
                "modificationDate": created,
                "cursorsLedgerId": -1,
                "markDelete": {"ledgerId": place.ledger_id, "entryId": place.entry_id},
            }
        yield None
    return {
        "version": 1,
        "creationDate": created,
        "modificationDate": created,
        "ledgers": _ledger_infos(list(rows.values()), topic.opened_ms),
        "cursors": cursors,
        "properties": {"index": str(stored_index(topic.ledger))},
    }


def stored_index(ledger: ManagedLedger) -> int:
    """The index of the last message in a closed ledger; -1 without one."""
    return ledger.index_before(Position(ledger.end_position.ledger_id, 0)) - 1


def _ledger_infos(rows: list[dict[str, Any]], time_ms: int) -> list[dict[str, Any]]:
    """Make the stored form of ledgers, in which only closed ones have sizes."""
    infos = []
    for number, row in enumerate(rows, 1):
        sizes = {} if number == len(rows) else {"entries": row["entries"], "size": row["size"]}
        times = {"timestamp": time_ms, "isOffloaded": False}
        infos.append({"ledgerId": row["ledgerId"], **sizes, **times})
    return infos


def _text(position: Position | None) -> str:
    return "-1:-1" if position is None else str(position)
