"""Posted rows: repeated posts count nothing twice, and old rows make room."""

from __future__ import annotations

from typing import Any

import pytest

from pulsemark.audit.report import Post, Received, of_tier
from pulsemark.audit.rows import AuditInputError
from pulsemark.audit.trail import SnapshotError


def post(source: str, *counts: tuple[int, int], tier: str = "consumer") -> Post:
    """A post of rows: minute and count."""
    rows = [
        {
            "tier": tier,
            "bucket_start_ms": minute * 60_000,
            "bucket_end_ms": minute * 60_000 + 60_000,
            "count": count,
        }
        for minute, count in counts
    ]
    return Post.from_json({"source": source, "rows": rows})


def counts(received: Received) -> list[tuple[int, int]]:
    """Minute and count of each row."""
    return [(row.bucket_start_ms // 60_000, row.count) for row in received.rows()]


def test_a_post_replaces_what_its_source_said_before() -> None:
    """The same bucket once more, as it is now; other sources are added to it."""
    empty = Received()
    first = empty.with_post(post("a", (1, 5), (2, 1)))
    again = first.with_post(post("a", (2, 7))).with_post(post("a", (2, 7)))
    assert counts(again) == [(1, 5), (2, 7)]
    assert counts(again.with_post(post("b", (1, 2)))) == [(1, 5), (1, 2), (2, 7)]
    assert counts(empty) == []
    assert of_tier(again.rows(), "other") == []


def test_old_rows_make_room_and_are_counted() -> None:
    """The limit holds after each post, and after reading the rows back with a lower one."""
    received = Received(3).with_post(post("a", (1, 5), (2, 1), (3, 1), (4, 1)))
    assert counts(received) == [(2, 1), (3, 1), (4, 1)]
    assert (received.dropped_rows, received.dropped_messages) == (1, 5)
    smaller = Received.unpack(received.pack(9), 9, 1)
    assert counts(smaller) == [(4, 1)]
    assert (smaller.dropped_rows, smaller.dropped_messages) == (3, 7)


def test_a_bucket_is_dropped_as_a_whole() -> None:
    """What would be left of it would seem lost in a comparison."""
    received = Received(3)
    for source in "ab":
        received = received.with_post(post(source, (1, 5), (2, 1)))
    assert counts(received) == [(2, 1), (2, 1)]
    assert (received.dropped_rows, received.dropped_messages) == (2, 10)
    for source in "cd":
        received = received.with_post(post(source, (2, 1)))
    assert counts(received) == [(2, 1)] * 3
    assert (received.dropped_rows, received.dropped_messages) == (3, 11)


def test_rows_go_through_their_bytes() -> None:
    """Not into another topic of the same name."""
    received = Received().with_post(post("a", (1, 5)))
    assert Received.unpack(received.pack(9), 9, 100).rows() == received.rows()
    with pytest.raises(SnapshotError):
        Received.unpack(received.pack(9), 10, 100)


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, "body"),
        ([], "body"),
        ({"rows": []}, "source"),
        ({"source": "a"}, "rows"),
        ({"source": "a", "rows": {}}, "rows"),
        ({"source": "a", "rows": [1]}, "row"),
    ],
)
def test_bad_bodies_are_refused(value: Any, field: str) -> None:
    """The error names the part that is bad."""
    with pytest.raises(AuditInputError) as raised:
        Post.from_json(value)
    assert raised.value.field == field


@pytest.mark.parametrize("tier", ["broker", "all"])
def test_only_the_broker_posts_its_rows(tier: str) -> None:
    """The tier `broker` is the broker's own, and `all` is not a tier."""
    with pytest.raises(AuditInputError, match=tier):
        post("a", (1, 1), tier=tier)
