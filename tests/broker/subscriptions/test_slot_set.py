"""A set of slots finds the next slot."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsemark.broker.subscriptions.slot_set import SLOTS, SlotSet

slots = st.one_of(st.integers(0, SLOTS - 1), st.sampled_from([0, 255, 256, 257, SLOTS - 1]))


@given(st.lists(st.tuples(st.booleans(), slots), max_size=60), st.lists(slots, min_size=1))
def test_it_behaves_like_a_sorted_list(steps, asked):
    """The next member from a slot on, and the first one after the last."""
    found, model = SlotSet(), set()
    for is_added, slot in steps:
        if is_added:
            found.add(slot)
            model.add(slot)
        else:
            found.discard(slot)
            model.discard(slot)
    for slot in (*asked, *model):
        after = [member for member in model if member >= slot]
        assert found.next_from(slot) == min(after or model, default=None)


def test_a_step_costs_the_same_with_few_members_as_with_many(steps_of):
    """Neither finding nor changing goes through the members."""
    few, many = SlotSet(), SlotSet()
    few.add(40_000)
    for slot in range(0, SLOTS, 3):
        many.add(slot)

    def work(members):
        members.add(7)
        members.next_from(8)
        members.discard(7)

    assert steps_of(lambda: work(many)) <= steps_of(lambda: work(few))
