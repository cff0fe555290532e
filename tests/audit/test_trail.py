"""Walking a log: what is counted, and what happens if the log changes."""

from __future__ import annotations

from typing import Any

from pulsemark.audit.report import report
from pulsemark.audit.rows import AuditRow
from pulsemark.audit.trail import Trail, count_log
from pulsemark.ledger import Position
from pulsemark.proto.broker_entry_pb2 import CONTROL_TXN_COMMIT

START_MS = 1_700_000_000_000


def rows(trail: Trail, by: tuple[str, ...] = ()) -> list[AuditRow]:
    """The trail's rows."""
    return report("t", trail, by, log_first_index=0).rows


def counted(trail: Trail) -> list[tuple[Any, ...]]:
    """Bucket (from the start), messages, control entries, lowest and highest index, missing."""
    return [
        (
            row.bucket_start_ms - START_MS,
            row.count,
            row.control_count,
            row.min_index,
            row.max_index,
            (row.missing, row.missing_before, row.missing_after),
        )
        for row in rows(trail)
    ]


def position_of(topic: Any, number: int) -> Position:
    """The position of the topic's nth entry."""
    found: Position | None = topic.ledger.entry_after(Position(-1, -1), number)
    assert found is not None
    return found


def test_every_entry_is_counted_once_in_steps_of_any_size(topic: Any) -> None:
    """By stamp or append time; also entries without messages, control entries, large bodies."""
    topic.add(0, count=3)
    topic.add(999, count=0)
    topic.add(1_000, size_bytes=40_000)
    topic.ledger.append_control(CONTROL_TXN_COMMIT, "7").commit.wait(30)
    topic.add(2_500, count=2, stamped=False)
    whole = count_log(topic.ledger, (), 1_000)
    assert counted(whole) == [
        (0, 3, 1, 0, 4, (1, 0, 0)),
        (1_000, 1, 0, 3, 3, (0, -2, 0)),  # inside the span of the bucket before
        (2_000, 2, 0, 5, 6, (0, 0, 0)),
    ]
    sizes = sum(row.bytes for row in rows(whole))
    assert sizes == sum(len(entry.stored) for entry in topic.ledger.read(Position(-1, -1)))
    stepwise = Trail.new((), 1_000)
    steps = 1
    while not stepwise.advance(topic.ledger, 1):
        steps += 1
    assert steps == 5
    assert rows(stepwise) == rows(whole)
    assert stepwise.left(topic.ledger) == stepwise.missing == 0


def test_what_comes_after_a_later_bucket_is_out_of_order(topic: Any) -> None:
    """Its messages are counted in their bucket, and as out of order."""
    for time_ms, count in ((5_000, 1), (6_000, 1), (5_500, 3), (6_100, 1), (4_000, 2)):
        topic.add(time_ms, count=count)
    found = rows(count_log(topic.ledger, (), 1_000))
    assert [(r.count, r.out_of_order) for r in found] == [(2, 2), (4, 3), (2, 0)]


def test_rows_are_divided_by_tags(topic: Any) -> None:
    """System and application tags; an entry without one counts under null."""
    topic.add(0, producer="a", service=b"shop", count=2)
    topic.add(1, producer="a", service=b"shop")
    topic.add(2, producer="b")
    topic.add(3, stamped=False)
    trail = count_log(topic.ledger, ("producer_name", "service"), 1_000)
    assert [
        (tuple(r.tags.values()), r.count) for r in rows(trail, ("producer_name", "service"))
    ] == [
        (("a", "shop"), 3),
        (("b", None), 1),
        ((None, None), 1),
    ]
    assert [(r.tags, r.count) for r in rows(trail, ("service",))] == [
        ({"service": "shop"}, 3),
        ({"service": None}, 2),
    ]
    assert [r.missing for r in rows(trail, ("service",))] == [None, None]


def test_removed_entries_stay_counted(topic: Any) -> None:
    """Retention takes nothing from the rows, and nothing is missing after it."""
    for number in range(6):
        topic.add(number * 500)
    trail = count_log(topic.ledger, (), 1_000)
    before = rows(trail)
    topic.ledger.truncate_head(position_of(topic, 4))
    topic.add(9_000)
    trail.advance(topic.ledger)
    assert rows(trail)[:-1] == [*before[:-1], before[-1]]
    assert (trail.missing, trail.uncounted, trail.recounts) == (0, 0, 0)


def test_what_is_removed_before_it_is_counted_is_named(topic: Any) -> None:
    """It is uncounted, and not missing."""
    for number in range(8):
        topic.add(number * 500)
    trail = Trail.new((), 1_000)
    trail.advance(topic.ledger, 2)
    topic.ledger.truncate_head(position_of(topic, 5))
    trail.advance(topic.ledger)
    assert (trail.uncounted, trail.missing) == (3, 0)
    assert [r.count for r in rows(trail)] == [2, 1, 2]
    assert {(r.missing, r.missing_before, r.missing_after) for r in rows(trail)} == {(0, 0, 0)}


def test_a_cut_tail_is_counted_again(topic: Any) -> None:
    """Its indexes are given again: the rows are those of the log as it is."""
    for number in range(6):
        topic.add(number * 500)
    trail = count_log(topic.ledger, (), 1_000)
    topic.ledger.truncate_tail(3, epoch=1).commit.wait(30)
    for number in range(20):
        topic.add(9_000 + number)
    trail.advance(topic.ledger)
    assert trail.recounts == 1
    assert rows(trail) == rows(count_log(topic.ledger, (), 1_000))


def test_a_damaged_entry_is_missing_and_a_damaged_body_is_not(topic: Any, tmp_path: Any) -> None:
    """Heads decide: only an entry without a readable head is not counted."""
    for number in range(5):
        topic.add(number, size_bytes=200)
    path = next(
        p for p in (tmp_path / "data").glob("ledgers/*.log") if b"counted" in p.read_bytes()
    )
    run = topic.ledger.segments()[0]
    data = bytearray(path.read_bytes())
    data[run.row(1).end_offset - 1] ^= 1
    data[run.row(3).offset + 20] ^= 1
    path.write_bytes(data)
    trail = count_log(topic.ledger, (), 1_000)
    assert counted(trail) == [(0, 4, 0, 0, 4, (1, 0, 0))]
    assert trail.missing == 1
