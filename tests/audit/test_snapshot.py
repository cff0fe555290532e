"""A trail goes through its bytes unchanged; bytes that cannot be used say why."""

from __future__ import annotations

from typing import Any

import pytest

from pulsemark.audit.trail import SnapshotError, Trail, pack_trail, unpack_json, unpack_trail

TAGS = ("producer_name",)


def test_a_trail_goes_on_after_its_bytes(topic: Any) -> None:
    """Stored at any entry, it ends with the same counts."""
    for number in range(8):
        topic.add(number * 400, producer="ab"[number % 2])
    whole = Trail.new(TAGS, 1_000)
    whole.advance(topic.ledger)
    for stop in range(9):
        first = Trail.new(TAGS, 1_000)
        first.advance(topic.ledger, stop)
        second = unpack_trail(pack_trail(first, 4), 4, Trail.new(TAGS, 1_000))
        assert second.counts == first.counts
        second.advance(topic.ledger)
        assert second.counts == whole.counts
        assert (second.counted, second.next_index) == (8, 8)


@pytest.mark.parametrize(
    ("topic_id", "tags", "bucket_ms"), [(5, TAGS, 1_000), (4, (), 1_000), (4, TAGS, 2_000)]
)
def test_a_snapshot_of_something_else_is_not_used(topic_id: int, tags: Any, bucket_ms: int) -> None:
    """Another topic of the same name, other tags, another width."""
    data = pack_trail(Trail.new(TAGS, 1_000), 4)
    with pytest.raises(SnapshotError):
        unpack_trail(data, topic_id, Trail.new(tags, bucket_ms))


def test_damaged_bytes_are_not_used() -> None:
    """Any byte changed, and any length."""
    data = pack_trail(Trail.new(TAGS, 1_000), 4)
    for place in range(len(data)):
        damaged = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        for bad in (damaged, data[:place]):
            with pytest.raises(SnapshotError):
                unpack_json(bad)
