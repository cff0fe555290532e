"""Key_Shared's slots: the set of slots, and one range of slots for each consumer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.broker.errors import RefusedError
from pulsemark.broker.subscriptions.sticky_keys import SLOTS, AutoSplitRanges
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe
from pulsemark.testing import RawClient, running_broker


class ByDefinition:
    """Pulsar's rule, with a sorted map of range ends."""

    def __init__(self) -> None:
        self.owners: dict[int, Any] = {}

    def add(self, consumer):
        """Add a consumer."""
        if not self.owners:
            self.owners[SLOTS] = consumer
            return
        below, largest, size = 0, SLOTS, 0
        for end in sorted(self.owners):
            if end - below > size:
                largest, size = end, end - below
            below = end
        self.owners[largest - (size >> 1)] = consumer

    def remove(self, consumer):
        """Remove a consumer."""
        end = next(each for each, owner in self.owners.items() if owner == consumer)
        del self.owners[end]
        if end == SLOTS and self.owners:
            self.owners[SLOTS] = self.owners.pop(max(self.owners))

    def select(self, slot):
        """The consumer of a slot."""
        return self.owners[min(end for end in self.owners if end >= slot)]


@given(st.lists(st.integers(0, 30), max_size=60))
def test_ranges_are_those_of_pulsars_rule(steps):
    """For any order of consumers that come and leave."""
    ours: Any = AutoSplitRanges()
    theirs, members = ByDefinition(), list[int]()
    for number, step in enumerate(steps):
        if members and step % 3 == 0:
            gone = members.pop(step % len(members))
            ours.remove([gone])
            theirs.remove(gone)
        else:
            members.append(number)
            ours.add(number)
            theirs.add(number)
        slots = range(1, SLOTS, 997) if members else ()
        assert [ours.select(slot) for slot in slots] == [theirs.select(slot) for slot in slots]
    if not members:
        assert ours.select(1) is None


def test_consumers_are_refused_when_every_range_is_one_slot():
    """One consumer for each slot; when they have left, the first one has all slots again."""
    ranges: Any = AutoSplitRanges()
    for number in range(SLOTS):
        ranges.add(number)
    assert len({ranges.select(slot) for slot in range(1, SLOTS + 1)}) == SLOTS
    with pytest.raises(RefusedError, match="assigned consumers 65536"):
        ranges.add(SLOTS)
    ranges.remove(range(1, SLOTS))
    assert {ranges.select(slot) for slot in range(1, SLOTS + 1, 99)} == {0}


def test_slot_0_is_not_used():
    """As in Pulsar, where 0 means that the hash is not known."""
    ranges = AutoSplitRanges()
    assert [ranges.slot_of(hashed) for hashed in (0, 1, SLOTS - 1, SLOTS)] == [1, 1, SLOTS - 1, 1]


def test_the_setting_chooses_how_slots_are_assigned(topic):
    """With it off, keys of the lower half go to the consumer that came second."""
    setting = {"subscription_key_shared_use_consistent_hashing": False}
    with running_broker(**setting) as broker, RawClient.from_url(broker.service_url) as raw:
        first, second = (
            raw.subscribe(topic, "s", sub_type=CommandSubscribe.Key_Shared) for _ in range(2)
        )
        producer = raw.create_producer(topic)
        for consumer in (first, second):
            consumer.flow(10)
        # The slots of these keys are 30,051 and 34,195; the second consumer's end at 32,768.
        for key in ("key-shared-0", "key-shared-2"):
            producer.send(key.encode(), key=key)
        assert b"key-shared-2" in first.receive_many(1)[0].headers_and_payload
        assert b"key-shared-0" in second.receive_many(1)[0].headers_and_payload
