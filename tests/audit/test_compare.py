"""Tiers side by side: what is lost, doubled, late, and what is not judged."""

from __future__ import annotations

from typing import Any

import pytest

from pulsemark.audit.report import Comparison, Report, compare
from pulsemark.audit.rows import AuditInputError, AuditRow

MINUTE_MS = 60_000


def row(tier: str, minute: int, count: int, name: str | None = "a", **more: Any) -> AuditRow:
    """A row of one minute and producer."""
    start_ms = minute * MINUTE_MS
    return AuditRow(
        tier=tier,
        bucket_start_ms=start_ms,
        bucket_end_ms=start_ms + MINUTE_MS,
        tags={"producer_name": name},
        count=count,
        **more,
    )


def of_broker(*rows: AuditRow, **facts: Any) -> Report:
    """The broker's report by producer."""
    given: dict[str, Any] = {
        "topic": "t",
        "bucket_ms": MINUTE_MS,
        "tags": ("producer_name",),
        **dict.fromkeys(
            (
                *("counted_from_index", "next_index", "log_first_index", "left", "uncounted"),
                *("dropped_rows", "dropped_messages", "kept_from_ms", "recounts"),
            ),
            0,
        ),
    }
    return Report(rows=list(rows), **(given | facts))


def shown(found: list[Comparison]) -> list[tuple[Any, ...]]:
    """Minute, producer, lost, doubled, late, whether it is a problem."""
    return [
        (
            each.bucket_start_ms // MINUTE_MS,
            each.tags["producer_name"],
            each.lost,
            each.doubled,
            each.late,
            each.is_problem,
        )
        for each in found
    ]


def test_lost_doubled_and_late() -> None:
    """Consumers of a tier are added up; what was received again does not make up for a loss."""
    broker = of_broker(*(row("broker", minute, 10) for minute in range(5)))
    tier = [
        *(row("c", 0, 4), row("c", 0, 6)),
        row("c", 1, 10, doubled=2),
        row("c", 2, 12),
        row("c", 3, 10, late=3),
    ]
    assert shown(compare(broker, tier, ended_before_ms=10 * MINUTE_MS)) == [
        (0, "a", 0, 0, 0, False),
        (1, "a", 2, 2, 0, True),
        (2, "a", 0, 2, 0, True),
        (3, "a", 0, 0, 3, True),
        (4, "a", 10, 0, 0, True),
    ]


def test_what_is_not_judged() -> None:
    """Buckets that have not ended, that the tier did not see, or that the broker dropped."""
    broker = of_broker(*(row("broker", minute, 10) for minute in range(4)), kept_from_ms=MINUTE_MS)
    found = compare(broker, [row("c", 2, 1)], ended_before_ms=3 * MINUTE_MS)
    assert [each.is_judged for each in found] == [False, False, True, False]
    unfinished = of_broker(row("broker", 0, 10), left=3)
    assert not compare(unfinished, [row("c", 0, 1)], ended_before_ms=MINUTE_MS)[0].is_problem


def test_values_that_one_side_has_alone() -> None:
    """A producer that only one of the two has counted; the rest row stands for the others."""
    broker = of_broker(row("broker", 0, 5, "a"), row("broker", 0, 7, None, is_rest=True))
    tier = [row("c", 0, 5, "a"), row("c", 0, 3, "x"), row("c", 0, 4, "y")]
    found = compare(broker, tier, ended_before_ms=MINUTE_MS)
    assert [(each.is_rest, each.lost, each.doubled) for each in found] == [
        (False, 0, 0),
        (True, 0, 0),
    ]
    alone = compare(
        of_broker(row("broker", 0, 5)), [row("c", 0, 2, "z")], ended_before_ms=MINUTE_MS
    )
    assert shown(alone) == [(0, "a", 5, 0, 0, True), (0, "z", 0, 2, 0, True)]


def test_what_the_broker_itself_misses_is_a_problem() -> None:
    """Without tags its rows say so."""
    broker = of_broker(row("broker", 0, 5, missing=2), tags=())
    (found,) = compare(broker, [row("c", 0, 5)], ended_before_ms=MINUTE_MS)
    assert (found.missing, found.lost, found.is_problem) == (2, 0, True)


def test_other_widths_cannot_be_compared() -> None:
    """The error names both."""
    wide = AuditRow(tier="c", bucket_start_ms=0, bucket_end_ms=1_000, tags={}, count=1)
    with pytest.raises(AuditInputError, match=r"1000 ms.*60000 ms"):
        compare(of_broker(), [wide], ended_before_ms=0)
