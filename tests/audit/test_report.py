"""Reports: what can be asked for, and the facts beside the rows."""

from __future__ import annotations

from typing import Any

import pytest

from pulsemark.audit.report import Labels, report
from pulsemark.audit.rows import AuditInputError
from pulsemark.audit.trail import Trail

START_MS = 1_700_000_000_000


def trail_of(topic: Any, **limits: int) -> Trail:
    """Six entries, half a second apart, of two producers in turn."""
    for number in range(6):
        topic.add(number * 500, producer="ab"[number % 2])
    trail = Trail.new(("producer_name",), 1_000, **limits)
    trail.advance(topic.ledger)
    return trail


def test_a_time_range_leaves_buckets_out(topic: Any) -> None:
    """A bucket is in if it overlaps the range."""
    trail = trail_of(topic)
    made = report(
        "t",
        trail,
        (),
        log_first_index=0,
        starting_time_ms=START_MS + 1_500,
        ending_time_ms=START_MS + 2_000,
        labels=Labels(tier="broker", host="h", datacenter="d", application="app"),
    )
    (row,) = made.rows
    assert (row.bucket_start_ms - START_MS, row.count, row.host) == (1_000, 2, "h")
    assert (row.datacenter, row.application) == ("d", "app")


def test_other_tags_than_the_counted_ones_are_refused(topic: Any) -> None:
    """The error names the tag and those that are counted by."""
    with pytest.raises(AuditInputError, match=r"'service'.*producer_name"):
        report("t", trail_of(topic), ("service",), log_first_index=0)


def test_dropped_buckets_are_not_missing(topic: Any) -> None:
    """The facts say what was dropped; the first bucket that is kept misses nothing before it."""
    made = report("t", trail_of(topic, max_rows=2), (), log_first_index=0)
    assert (made.dropped_rows, made.dropped_messages) == (4, 4)
    assert made.kept_from_ms == START_MS + 2_000
    (row,) = made.rows
    assert (row.count, row.missing, row.missing_before, row.missing_after) == (2, 0, 0, 0)
    assert made.facts()["dropped_messages"] == 4


def test_the_rest_row_belongs_to_the_whole(topic: Any) -> None:
    """It is a row of its own by tags, and part of the bucket's row without tags."""
    trail = trail_of(topic, max_values=1)
    assert [row.count for row in report("t", trail, (), log_first_index=0).rows] == [2, 2, 2]
    by = report("t", trail, ("producer_name",), log_first_index=0).rows
    assert [(row.is_rest, row.count) for row in by] == [(False, 1), (True, 1)] * 3
