"""Key_Shared's slots."""

from __future__ import annotations

from pulsemark.broker.subscriptions.sticky_keys import SLOTS, StickyRanges


def test_slot_0_is_not_used():
    """As in Pulsar, where 0 means that the hash is not known."""
    ranges = StickyRanges()
    assert [ranges.slot_of(hashed) for hashed in (0, 1, SLOTS - 1, SLOTS)] == [1, 1, SLOTS - 1, 1]
