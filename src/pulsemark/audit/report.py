"""The rows of a trail with missing messages, the rows of other tiers, and their comparison."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from typing import Any, TypeAlias

from ..records import record
from .counts import MAX_ROWS, Key, Tally
from .rows import (
    BROKER_TIER,
    AuditInputError,
    AuditRow,
    check_name,
    check_other_tier,
    row_from_json,
)
from .trail import SnapshotError, Trail, pack_json, unpack_json


@record(frozen=True, kw_only=True)
class Labels:
    """The labels in a tier's rows."""

    tier: str = BROKER_TIER
    host: str | None = None
    datacenter: str | None = None
    application: str | None = None


@record(frozen=True, kw_only=True)
class Report:
    """Rows, and the facts needed to read them correctly."""

    topic: str
    bucket_ms: int
    tags: tuple[str, ...]
    #: The index at which counting began, and the one after the last that is counted.
    counted_from_index: int
    next_index: int
    #: The first index that the log still has: rows with indexes below it count what was removed.
    log_first_index: int
    #: Indexes that are in the log and not counted yet; 0: the rows are complete.
    left: int
    #: Indexes that were removed before they were counted. No row has them.
    uncounted: int
    #: Rows dropped to stay below the limit of rows, and the start of the first bucket kept.
    dropped_rows: int
    dropped_messages: int
    kept_from_ms: int
    #: How often counting started again because the log's tail was cut off.
    recounts: int
    #: Messages that should be in these buckets of the log and are not, whatever their tags were.
    missing: int = 0
    rows: list[AuditRow] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """All facts except the rows, in the form of the JSON."""
        names = [spec.name for spec in fields(self) if spec.name not in ("rows", "tags")]
        return {"tags": list(self.tags), **{name: getattr(self, name) for name in names}}


def report(
    topic: str,
    trail: Trail,
    by: Sequence[str],
    *,
    log_first_index: int,
    left: int = 0,
    starting_time_ms: int | None = None,
    ending_time_ms: int | None = None,
    labels: Labels | None = None,
) -> Report:
    """The rows by these tags, which must be among the trail's. Raises AuditInputError.

    A bucket is in the report if it overlaps [starting time, ending time).
    """
    counts = trail.counts
    from_ms = -math.inf if starting_time_ms is None else starting_time_ms
    to_ms = math.inf if ending_time_ms is None else ending_time_ms
    rows: list[AuditRow] = []
    # A log of which nothing can be read has no bucket.
    missing = 0 if counts.buckets else trail.missing
    for start_ms, gap, found in _buckets(trail, by, labels or Labels()):
        if from_ms < start_ms + counts.bucket_ms and start_ms < to_ms:
            rows += found
            missing += gap
    return Report(
        topic=topic,
        bucket_ms=counts.bucket_ms,
        tags=tuple(by),
        counted_from_index=trail.first_index or 0,
        next_index=trail.next_index,
        log_first_index=log_first_index,
        left=left,
        uncounted=trail.uncounted,
        dropped_rows=counts.dropped_rows,
        dropped_messages=counts.dropped_messages,
        kept_from_ms=counts.kept_from_ms,
        recounts=trail.recounts,
        missing=missing,
        rows=rows,
    )


def _buckets(
    trail: Trail, by: Sequence[str], labels: Labels
) -> Iterator[tuple[int, int, list[AuditRow]]]:
    """Each bucket's start, how many messages are missing at it, and its rows.

    Raises AuditInputError.
    """
    counted = trail.grouping.tags
    for name in by:
        if name not in counted:
            reason = f"is not a tag that is counted by ({', '.join(counted) or 'none'})"
            raise AuditInputError("by", name, reason)
    places, width_ms = [counted.index(name) for name in by], trail.counts.bucket_ms
    buckets = sorted(trail.counts.buckets.items())
    sums = [_sum(bucket.values()) for _, bucket in buckets]
    for (start_ms, bucket), gaps in zip(buckets, _gaps(trail, sums), strict=True):
        merged: dict[Key, Tally] = {}
        for key, tally in bucket.items():
            # Without tags there is only one row, and the rest belongs to it.
            part = None if key is None and by else tuple(key[p] for p in places) if key else ()
            merged.setdefault(part, Tally()).add(tally)
        rows = [
            row_of(labels, start_ms, width_ms, by, key, merged[key], (None,) * 3 if by else gaps)
            for key in sorted(merged, key=order)
        ]
        yield start_ms, sum(gaps), rows


def _sum(tallies: Iterable[Tally]) -> Tally:
    found = Tally()
    for tally in tallies:
        found.add(tally)
    return found


def _gaps(trail: Trail, buckets: Sequence[Tally]) -> Iterator[tuple[int, int, int]]:
    """Messages missing in, before and after each bucket, in order, as in the Spark audit."""

    def lost(first: int, end: int) -> int:
        removed = sum(max(0, min(end, b) - max(first, a)) for a, b in trail.gaps)
        return end - first - removed

    # The indexes of dropped buckets are not missing.
    reached = None if trail.counts.dropped_rows else trail.first_index or 0
    for number, tally in enumerate(buckets, 1):
        inside = before = after = 0
        if tally.max_index >= 0:
            end = tally.max_index + 1
            inside = lost(tally.min_index, end) - tally.count - tally.control_count
            if reached is not None:
                # Below 0 if the bucket has entries out of order, which lie in the one before.
                before = lost(reached, tally.min_index)
            reached = max(end, reached or 0)
        if number == len(buckets) and reached is not None:
            after = lost(reached, trail.next_index)
        yield inside, before, after


def order(key: Key) -> tuple[bool, list[tuple[bool, str]]]:
    """Nulls last, and the rest row after all others."""
    return key is None, [(value is None, value or "") for value in key or ()]


def tags_by_name(names: Sequence[str], key: Key) -> dict[str, str | None]:
    """The values of some tags; all None in the rest row."""
    return dict(zip(names, key or (None,) * len(names), strict=True))


def row_of(
    labels: Labels,
    start_ms: int,
    bucket_ms: int,
    tags: Sequence[str],
    key: Key,
    tally: Tally,
    gaps: tuple[int | None, int | None, int | None] = (None, None, None),
) -> AuditRow:
    """The row of these values of the tags; ``gaps``: missing in, before and after its bucket."""
    missing, before, after = gaps
    counts: dict[str, Any] = tally.counts()
    if tally.max_index < 0:
        counts |= {"min_index": None, "max_index": None}
    return AuditRow(
        **asdict(labels),
        bucket_start_ms=start_ms,
        bucket_end_ms=start_ms + bucket_ms,
        tags=tags_by_name(tags, key),
        is_rest=key is None,
        **counts,
        missing=missing,
        missing_before=before,
        missing_after=after,
    )


# The rows that other tiers have posted for a topic.
#
# A source (one consumer, from its start to its end) posts its rows with their counts so far. A row
# replaces the one that the same source posted for the same bucket and tags. So a post that is
# repeated, because its answer was lost, counts nothing twice.
#
# There is a limit of rows. Above it the oldest buckets are dropped, and counted as dropped.


_Key: TypeAlias = tuple[str, int, int, bool, tuple[tuple[str, str | None], ...]]


@record(frozen=True)
class Post:
    """The content of one posted request."""

    source: str
    rows: tuple[AuditRow, ...]

    @classmethod
    def from_json(cls, value: Any) -> Post:
        """A request's body: {"source": ..., "rows": [...]}. Raises AuditInputError."""
        if not isinstance(value, dict):
            raise AuditInputError("body", value, "is not an object with source and rows")
        source = check_name("source", value.get("source"))
        listed = value.get("rows")
        if not isinstance(listed, list):
            raise AuditInputError("rows", listed, "is not a list")
        rows = tuple(row_from_json(row) for row in listed)
        for row in rows:
            check_other_tier(row.tier)
        return cls(source, rows)


@record
class Received:
    """The posted rows of one topic."""

    max_rows: int = MAX_ROWS
    sources: dict[str, dict[_Key, AuditRow]] = field(default_factory=dict)
    dropped_rows: int = 0
    dropped_messages: int = 0

    def with_post(self, post: Post) -> Received:
        """These rows with those of a post; this object stays as it is."""
        posted = {_key(row): row for row in post.rows}
        sources = {**self.sources, post.source: {**self.sources.get(post.source, {}), **posted}}
        return replace(self, sources=sources)._bounded()

    def rows(self) -> list[AuditRow]:
        """All rows, by bucket and tier."""
        found = [row for rows in self.sources.values() for row in rows.values()]
        return sorted(found, key=lambda row: (row.bucket_start_ms, row.tier))

    def _bounded(self) -> Received:
        """Remove whole buckets, the oldest first, until the rows are within the limit.

        Only a single bucket with more rows than the limit loses some of them.
        """
        listed = [(s, key, row) for s, rows in self.sources.items() for key, row in rows.items()]
        excess = len(listed) - self.max_rows
        if excess <= 0:
            return self
        listed.sort(key=_bucket_start)
        cut_ms = _bucket_start(listed[excess - 1])
        if cut_ms < _bucket_start(listed[-1]):
            excess = bisect_right(listed, cut_ms, key=_bucket_start)
        sources: dict[str, dict[_Key, AuditRow]] = {}
        for source, key, row in listed[excess:]:
            sources.setdefault(source, {})[key] = row
        return replace(
            self,
            sources=sources,
            dropped_rows=self.dropped_rows + excess,
            dropped_messages=self.dropped_messages + sum(row.count for *_, row in listed[:excess]),
        )

    def pack(self, topic_id: int) -> bytes:
        """The stored form of the rows."""
        rows = {s: [row.to_json() for row in rows.values()] for s, rows in self.sources.items()}
        dropped = [self.dropped_rows, self.dropped_messages]
        return pack_json({"topic_id": topic_id, "dropped": dropped, "sources": rows})

    @classmethod
    def unpack(cls, data: bytes, topic_id: int, max_rows: int) -> Received:
        """The rows of `pack`. Raises SnapshotError."""
        value = unpack_json(data)
        try:
            if value["topic_id"] != topic_id:
                raise SnapshotError("they are of an earlier topic with this name")
            dropped_rows, dropped_messages = value["dropped"]
            sources = {
                source: {_key(row): row for row in (AuditRow(**each) for each in rows)}
                for source, rows in value["sources"].items()
            }
        except (LookupError, TypeError, ValueError) as error:
            raise SnapshotError(f"a field is missing or wrong: {error!r}") from error
        return cls(max_rows, sources, dropped_rows, dropped_messages)._bounded()


def _bucket_start(listed: tuple[str, _Key, AuditRow]) -> int:
    return listed[2].bucket_start_ms


def _key(row: AuditRow) -> _Key:
    tags = tuple(sorted(row.tags.items()))
    return row.tier, row.bucket_start_ms, row.bucket_end_ms, row.is_rest, tags


def of_tier(rows: Iterable[AuditRow], tier: str) -> Sequence[AuditRow]:
    """The rows of one tier."""
    return [row for row in rows if row.tier == tier]


@record(frozen=True, kw_only=True)
class Comparison:
    """The counts of one bucket and combination of tag values, at the broker and at one tier."""

    tier: str
    bucket_start_ms: int
    tags: Mapping[str, str | None]
    is_rest: bool
    broker_count: int
    tier_count: int
    lost: int
    doubled: int
    late: int
    #: Messages missing at the broker itself; 0 in a comparison by tags.
    missing: int
    is_judged: bool

    @property
    def is_problem(self) -> bool:
        """Whether messages were lost, doubled or late in a bucket that is judged."""
        return self.is_judged and bool(self.lost or self.doubled or self.late or self.missing)


_Sums: TypeAlias = dict[int, dict[Key, Counter[str]]]
"""By bucket and tag values, of one tier: the sums of messages, by name."""


def compare(broker: Report, rows: Iterable[AuditRow], *, ended_before_ms: int) -> list[Comparison]:
    """The broker's rows, by some tags, beside those of each other tier, which may have more.

    The broker's rows are the measure. In each bucket, and for each combination of tag values,

        received = the tier's count, without what its consumers received again (`doubled`)
        lost     = the broker's count - received, if that is above 0
        doubled  = the tier's `doubled`, and what it received in excess of the broker's count
        late     = the tier's `late`

    A bucket is judged if it has ended, the tier has counted in it or in an earlier one, and the
    broker has kept it. Others are shown, but are no problem: their messages are still under way,
    were sent before the tier began, or are not counted any more.

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
    """Sum by bucket and values. Counts in another tier's rest row go to the rest row here, too."""
    sums: _Sums = {}
    for row in rows:
        key: Key = None if row.is_rest and tags else tuple(row.tags.get(name) for name in tags)
        others = beside.get(row.bucket_start_ms, {})
        if None in others and key not in others:
            key = None
        sum_of = sums.setdefault(row.bucket_start_ms, {}).setdefault(key, Counter())
        missing = (row.missing or 0) + (row.missing_before or 0) + (row.missing_after or 0)
        sum_of.update(count=row.count, doubled=row.doubled, late=row.late, missing=missing)
    return sums


def _of_tier(
    broker: Report, ours: _Sums, tier: str, rows: Sequence[AuditRow], ended_before_ms: int
) -> Iterable[Comparison]:
    theirs = _sums(rows, broker.tags, ours)
    first_ms = max(min(theirs), broker.kept_from_ms)
    for start_ms in sorted({*ours, *theirs}):
        has_ended = start_ms + broker.bucket_ms <= ended_before_ms
        is_judged = has_ended and start_ms >= first_ms and not broker.left
        here, there = ours.get(start_ms, {}), theirs.get(start_ms, {})
        for key in sorted({*here, *there}, key=order):
            sent, taken = here.get(key, Counter()), there.get(key, Counter())
            received = taken["count"] - taken["doubled"]
            yield Comparison(
                tier=tier,
                bucket_start_ms=start_ms,
                tags=tags_by_name(broker.tags, key),
                is_rest=key is None,
                broker_count=sent["count"],
                tier_count=taken["count"],
                lost=max(0, sent["count"] - received),
                doubled=taken["doubled"] + max(0, received - sent["count"]),
                late=taken["late"],
                missing=sent["missing"],
                is_judged=is_judged,
            )
