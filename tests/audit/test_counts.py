"""The limits of counts: what is above them is named, and never counted wrong in silence."""

from __future__ import annotations

from pulsemark.audit.counts import Counts


def add(counts: Counts, time_ms: int, *values: str | None, count: int = 1, index: int = -1) -> None:
    """Count one entry of ten bytes."""
    counts.add(time_ms, values, control=False, count=count, index=index, size_bytes=10)


def test_the_oldest_bucket_goes_first_and_is_reported() -> None:
    """What is kept is exact; what was dropped is a sum; later additions to it are, too."""
    counts = Counts(1_000, max_rows=3)
    for second in range(5):
        add(counts, second * 1_000, count=second + 1)
    assert sorted(counts.buckets) == [2_000, 3_000, 4_000]
    assert (counts.dropped_rows, counts.dropped_messages, counts.kept_from_ms) == (2, 3, 2_000)
    add(counts, 500, count=4)
    assert (counts.dropped_rows, counts.dropped_messages) == (2, 7)
    assert counts.sums == {(): [12, 30, 0]}
    assert counts.row_count == 3


def test_an_old_bucket_that_is_being_counted_is_kept() -> None:
    """The limit then drops the oldest of the others."""
    counts = Counts(1_000, max_rows=2)
    for second in (5, 6, 1):
        add(counts, second * 1_000)
    assert sorted(counts.buckets) == [1_000, 6_000]
    assert counts.dropped_messages == 1
    add(counts, 5_000)
    total = sum(t.count for rows in counts.buckets.values() for t in rows.values())
    assert total + counts.dropped_messages == 4


def test_more_values_than_allowed_are_counted_in_the_rest_row() -> None:
    """Those that have a row keep it; a value that is too long never gets one."""
    counts = Counts(1_000, max_values=2)
    for name in ("a", "b", "c", "d", "a"):
        add(counts, 0, name)
    add(counts, 1_000, "x" * 257)
    add(counts, 1_000, None)
    named = {key: tally.count for key, tally in counts.buckets[0].items()}
    assert named == {("a",): 2, ("b",): 1, None: 2}
    assert {k: t.count for k, t in counts.buckets[1_000].items()} == {None: 1, (None,): 1}
    assert counts.sums[None] == [3, 30, 0]


def test_indexes_and_doubtful_claims() -> None:
    """Lowest and highest index of what has messages; very large claims are counted apart."""
    counts = Counts(1_000)
    add(counts, 0, count=3, index=7)
    add(counts, 0, count=0, index=7)
    add(counts, 0, count=1 << 19, index=(1 << 19) + 7)
    tally = counts.buckets[0][()]
    assert (tally.min_index, tally.max_index) == (5, (1 << 19) + 7)
    assert (tally.count, tally.doubtful_count, tally.bytes) == ((1 << 19) + 3, 1 << 19, 30)
