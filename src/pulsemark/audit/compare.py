"""The tiers side by side: what each counted, and where messages were lost, doubled or late.

The broker's rows are the measure. In each bucket, and for each combination of tag values,

    received = the tier's count, without what its consumers received again (`doubled`)
    lost     = the broker's count - received, if that is above 0
    doubled  = the tier's `doubled`, and what it received in excess of the broker's count
    late     = the tier's `late`

A bucket is judged if it has ended, the tier has counted in it or in an earlier one, and the broker
has kept it. Others are shown, but are no problem: their messages are still under way, were sent
before the tier began, or are not counted any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from ..records import record
from .report import Report, order
from .rows import AuditInputError, AuditRow

Values: TypeAlias = tuple[str | None, ...] | None
"""Tag values in their order; None: the rest row."""


@record(frozen=True, kw_only=True)
class Comparison:
    """One bucket and combination of tag values, at the broker and at one tier."""

    tier: str
    bucket_start_ms: int
    tags: Mapping[str, str | None]
    is_rest: bool
    broker_count: int
    tier_count: int
    lost: int
    doubled: int
    late: int
    #: Indexes that the broker itself misses; 0 in a comparison by tags.
    missing: int
    is_judged: bool

    @property
    def is_problem(self) -> bool:
        """Whether messages were lost, doubled or late in a bucket that is judged."""
        return self.is_judged and bool(self.lost or self.doubled or self.late or self.missing)


@record
class _Sum:
    """What one tier counted."""

    count: int = 0
    doubled: int = 0
    late: int = 0
    missing: int = 0

    def add(self, row: AuditRow) -> None:
        self.count += row.count
        self.doubled += row.doubled
        self.late += row.late
        self.missing += (row.missing or 0) + (row.missing_before or 0) + (row.missing_after or 0)


_Sums: TypeAlias = dict[int, dict[Values, _Sum]]


def compare(broker: Report, rows: Iterable[AuditRow], *, ended_before_ms: int) -> list[Comparison]:
    """The broker's rows, by some tags, beside those of each other tier, which may have more.

    Buckets that end after `ended_before_ms` are not judged. Raises AuditInputError for rows with
    buckets of another width than the broker's.
    """
    tiers: dict[str, list[AuditRow]] = {}
    for row in rows:
        width_ms = row.bucket_end_ms - row.bucket_start_ms
        if width_ms != broker.bucket_ms:
            reason = f"has buckets of {width_ms} ms, the broker of {broker.bucket_ms} ms"
            raise AuditInputError("tier", row.tier, reason)
        tiers.setdefault(row.tier, []).append(row)
    ours = _sums(broker.rows, broker.tags, {})
    return [
        compared
        for tier in sorted(tiers)
        for compared in _of_tier(broker, ours, tier, tiers[tier], ended_before_ms)
    ]


def _sums(rows: Iterable[AuditRow], tags: Sequence[str], beside: _Sums) -> _Sums:
    """Sums by bucket and values. What another's rest row has counted is in the rest row here."""
    sums: _Sums = {}
    for row in rows:
        values: Values = None if row.is_rest and tags else tuple(row.tags.get(n) for n in tags)
        others = beside.get(row.bucket_start_ms, {})
        if None in others and values not in others:
            values = None
        bucket = sums.setdefault(row.bucket_start_ms, {})
        bucket.setdefault(values, _Sum()).add(row)
    return sums


def _of_tier(
    broker: Report, ours: _Sums, tier: str, rows: Sequence[AuditRow], ended_before_ms: int
) -> Iterable[Comparison]:
    theirs = _sums(rows, broker.tags, ours)
    first_ms = min(theirs)
    for start_ms in sorted({*ours, *theirs}):
        is_judged = (
            start_ms + broker.bucket_ms <= ended_before_ms
            and start_ms >= max(first_ms, broker.kept_from_ms)
            and not broker.left
        )
        here, there = ours.get(start_ms, {}), theirs.get(start_ms, {})
        for values in sorted({*here, *there}, key=order):
            one, other = here.get(values, _Sum()), there.get(values, _Sum())
            received = other.count - other.doubled
            yield Comparison(
                tier=tier,
                bucket_start_ms=start_ms,
                tags=dict(zip(broker.tags, values or (None,) * len(broker.tags), strict=True)),
                is_rest=values is None,
                broker_count=one.count,
                tier_count=other.count,
                lost=max(0, one.count - received),
                doubled=other.doubled + max(0, received - one.count),
                late=other.late,
                missing=one.missing,
                is_judged=is_judged,
            )
