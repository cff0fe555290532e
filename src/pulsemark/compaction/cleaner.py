"""Compaction as Kafka's log cleaner does it: what the view replaces is removed from the log.

For topics with Kafka's ``cleanup.policy=compact``. The view is part of their log: everyone reads it
(`compacted_log`), and the log's entries up to its horizon are freed. The rules are Kafka's
(docs/compaction.md). A log is cleaned when the bytes after the horizon are more than
`CleanerRules.dirty_ratio` of all, or when the oldest of them is older than `max_lag_ms`. Entries
younger than `min_lag_ms` wait.

The order makes it safe to end anywhere: the view is durable and in the catalog; then the catalog
says that the topic is cleaned, and where it begins; only then the log's head is cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..ledger.errors import CorruptEntryError
from ..ledger.position import EARLIEST, LATEST, Position
from ..ledger.retention import cut_by_time, size_bytes
from ..ledger.writer import ManagedLedger
from .compaction import DEFAULT_LIMITS, CompactionReport, compact
from .current_view import (
    CleanerState,
    compacted_log,
    current_view,
    drop_view,
    set_cleaner_state,
    state_of,
)
from .keys import Limits
from .view import CompactedView, Key

DAY_MS = 24 * 60 * 60 * 1000
MAX_RUNS = 64
"""Cleanings of which the time is kept. Without one of them its tombstones stay for longer."""


@dataclass(frozen=True, slots=True)
class CleanerRules:
    """The settings of one topic; the defaults are Kafka's."""

    dirty_ratio: float = 0.5
    """``min.cleanable.dirty.ratio``."""
    min_lag_ms: int = 0
    """``min.compaction.lag.ms``, counted from an entry's append."""
    max_lag_ms: int = 2**63 - 1
    """``max.compaction.lag.ms``."""
    tombstone_ms: int = DAY_MS
    """``delete.retention.ms``."""
    free_after_ms: int = 60_000
    """``file.delete.delay.ms``: a younger entry is not freed, so a producer may still repeat it."""
    retention_ms: int | None = None
    """``retention.ms`` if the policy has ``delete``, too; None: no limit."""
    retention_size_bytes: int | None = None


def is_due(ledger: ManagedLedger, rules: CleanerRules, now_ms: int) -> bool:
    """Whether a topic is to be cleaned now. Blocks. Raises LedgerError, OSError."""
    view = current_view(ledger)
    if view is not None and _has_to_go(ledger, view, rules, now_ms):
        return True
    start = EARLIEST if view is None else view.after_horizon
    until = _until(ledger, rules, now_ms)
    if until is None or until < start:
        return False
    dirty_bytes = size_bytes(ledger, start) - size_bytes(ledger, until.following)
    if dirty_bytes <= 0:
        return False
    clean_bytes = 0 if view is None else view.size_bytes
    if dirty_bytes > rules.dirty_ratio * (clean_bytes + dirty_bytes):
        return True
    try:
        oldest = ledger.read(start, max_entries=1)
    except CorruptEntryError:
        return False
    return bool(oldest) and now_ms - oldest[0].append_time_ms >= rules.max_lag_ms


def clean(
    ledger: ManagedLedger,
    rules: CleanerRules,
    now_ms: int,
    *,
    limits: Limits = DEFAULT_LIMITS,
    check: Callable[[], None] = lambda: None,
    spent: Callable[[int], None] = lambda size_bytes: None,
) -> CompactionReport:
    """Compact a topic by its rules, without freeing the log. Blocks; may take long.

    ``limits`` says what deletes a key. Everything else is as in `compact`.
    """
    state, view = state_of(ledger).cleaner, current_view(ledger)
    if state is None:
        form = compacted_log(ledger)
        state = CleanerState(min(ledger.first_index, form.first_index))
    oldest_ms = 0 if rules.retention_ms is None else max(now_ms - rules.retention_ms, 0)
    first_index = max(state.first_index, _first_by_size(ledger, view, rules))
    limits = replace(
        limits,
        tombstones_after=_tombstones_after(state, now_ms - rules.tombstone_ms, rules),
        first_index=first_index,
        oldest_ms=oldest_ms,
    )
    again = view is not None and _has_to_go(ledger, view, rules, now_ms)
    until = _until(ledger, rules, now_ms) or EARLIEST
    report = compact(ledger, until=until, limits=limits, again=again, check=check, spent=spent)
    held = state.held
    if report.changed and report.horizon is not None:
        old_horizon = EARLIEST if view is None else view.horizon
        damaged = (position for position in report.damaged if position > old_horizon)
        held = min(damaged, default=held) if held is None else held
        done_ms = now_ms + int(report.duration_s * 1000)
        runs = (*state.runs, (report.horizon, done_ms))
        state = CleanerState(
            max(state.first_index, report.first_index),
            _worth_keeping(runs, now_ms - rules.tombstone_ms),
            held,
        )
    set_cleaner_state(ledger, state)
    return report


def limits_of(ledger: ManagedLedger, limits: Limits) -> Limits:
    """The limits of a compaction that does not know a topic's rules. The first call blocks.

    For a cleaned topic all tombstones stay, and deleted messages are left out.
    """
    state = state_of(ledger).cleaner
    if state is None:
        return limits
    return replace(limits, first_index=state.first_index, tombstones_after=EARLIEST)


def freeable(
    ledger: ManagedLedger, rules: CleanerRules, now_ms: int, claim: Position | None
) -> Position | None:
    """The first entry of a cleaned topic's log that has to stay; None: nothing is to be freed.

    ``claim`` says up to where the log is in the view (`claim_kept`, which keeps it so).
    """
    state, first = state_of(ledger).cleaner, ledger.first_position
    if state is None or claim is None or claim == EARLIEST or first is None:
        return None
    cut = claim.following
    if rules.free_after_ms:
        cut = min(cut, cut_by_time(ledger, now_ms, rules.free_after_ms))
    marks = [cursor.mark_delete for cursor in tuple(ledger.cursors.values()) if cursor.durable]
    if marks:
        cut = min(cut, ledger.next_position(min(marks)))
    if state.held is not None:
        cut = min(cut, state.held)
    return cut if cut > first else None


def drop_if_over(
    ledger: ManagedLedger, retention_ms: int | None, size_limit_bytes: int | None, now_ms: int
) -> None:
    """Drop a former view once all of it is too old. Blocks. Raises LedgerError, OSError."""
    view = current_view(ledger)
    if view is None or state_of(ledger).cleaner is None:
        return
    row = view.find_before(view.after_horizon)
    is_old = row is None or (
        retention_ms is not None and now_ms - row.append_time_ms > retention_ms
    )
    if is_old or (
        size_limit_bytes is not None and size_bytes(ledger, view.after_horizon) > size_limit_bytes
    ):
        drop_view(ledger)


def delete_before(ledger: ManagedLedger, index: int) -> None:
    """Move the begin of a cleaned topic to an index, durably. Blocks. Raises CatalogError."""
    state = state_of(ledger).cleaner
    if state is not None and index > state.first_index:
        set_cleaner_state(ledger, replace(state, first_index=index))


def _until(ledger: ManagedLedger, rules: CleanerRules, now_ms: int) -> Position | None:
    """The last entry to include; None: no entry is old enough."""
    first, last = ledger.first_position, ledger.last_position
    if first is None or last is None:
        return None
    if rules.min_lag_ms:
        last = min(last, cut_by_time(ledger, now_ms, rules.min_lag_ms))
    return ledger.previous_position(last) if last > first else None


def _has_to_go(
    ledger: ManagedLedger, view: CompactedView, rules: CleanerRules, now_ms: int
) -> bool:
    """Whether the view must be made again: too much of it was deleted or is too old."""
    row = view.find(Key.POSITION, EARLIEST)
    if row is None:
        return False
    state = state_of(ledger).cleaner
    if state is not None and row.next_index <= state.first_index:
        return True
    limit_ms, limit_bytes = rules.retention_ms, rules.retention_size_bytes
    if limit_ms is not None and now_ms - row.append_time_ms > limit_ms + limit_ms // 10:
        return True
    if limit_bytes is None:
        return False
    total_bytes = view.size_bytes + size_bytes(ledger, view.after_horizon)
    return total_bytes > limit_bytes + limit_bytes // 10


def _first_by_size(ledger: ManagedLedger, view: CompactedView | None, rules: CleanerRules) -> int:
    """The index before which the view is larger than the topic may be."""
    if view is None or rules.retention_size_bytes is None:
        return 0
    rest_bytes = rules.retention_size_bytes - size_bytes(ledger, view.after_horizon)
    if rest_bytes >= view.size_bytes:
        return 0
    return view.first_index_within(rest_bytes) if rest_bytes > 0 else view.summary.next_index


def _tombstones_after(state: CleanerState, expired_ms: int, rules: CleanerRules) -> Position:
    """The last entry whose tombstones have been in a view for long enough."""
    if not rules.tombstone_ms:
        return LATEST
    return max((at for at, time_ms in state.runs if time_ms <= expired_ms), default=EARLIEST)


def _worth_keeping(
    runs: tuple[tuple[Position, int], ...], expired_ms: int
) -> tuple[tuple[Position, int], ...]:
    """Keep the last expired run and the others, or every second one if they are many."""
    expired = [run for run in runs if run[1] <= expired_ms]
    kept = (*expired[-1:], *(run for run in runs if run[1] > expired_ms))
    return (*kept[:-1:2], kept[-1]) if len(kept) > MAX_RUNS else kept
