"""The waiting entries of a Key_Shared subscription."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pulsemark.broker.subscriptions.waiting_slots import WaitingSlots
from pulsemark.ledger import Position

#: Consumers, of which only their identity matters here.
OWNERS: tuple[Any, Any] = ("a", "b")
places = st.integers(0, 40)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), places),
        st.tuples(st.just("discard"), places),
        st.tuples(st.just("take"), st.sampled_from(OWNERS)),
        st.tuples(st.just("hold"), st.integers(0, 6)),
        st.tuples(st.just("move"), st.integers(0, 6)),
    ),
    max_size=80,
)


def slot_of(position):
    """A position's slot."""
    return position.entry_id % 7


@given(steps)
def test_it_behaves_like_sorted_lists_by_slot(steps):
    """A consumer gets the smallest positions of its slots that may go, none is forgotten."""
    owners = {slot: OWNERS[slot % 2] for slot in range(7)}
    waiting = WaitingSlots(lambda slot: owners[slot])
    model: set[Position] = set()
    held: set[int] = set()
    for what, value in steps:
        if what == "add":
            waiting.add(Position(1, value), slot_of(Position(1, value)))
            model.add(Position(1, value))
        elif what == "discard":
            waiting.discard(Position(1, value))
            model.discard(Position(1, value))
        elif what == "hold":
            held ^= {value}
            if value not in held:
                waiting.offer(value)
        elif what == "move":
            owners[value] = OWNERS[1 - OWNERS.index(owners[value])]
            waiting.reassign()
            while waiting.offer_more(2):
                pass
        else:
            mine = sorted(
                p for p in model if owners[slot_of(p)] == value and slot_of(p) not in held
            )
            if mine:
                assert value in waiting.to_serve
            taken = waiting.take(value, 3, lambda slot: slot not in held)  # noqa: B023
            assert taken == mine[:3]
            model -= set(taken)
        assert len(waiting) == len(model)
        for slot in range(7):
            of_slot = [p for p in model if slot_of(p) == slot]
            assert waiting.first(slot) == min(of_slot, default=None)


def test_taking_some_costs_no_look_at_all_that_waits(steps_of):
    """Ten of 20,000 waiting entries take about as many steps as ten of 1000."""
    counts = []
    for total in (1000, 20_000):
        waiting = WaitingSlots(lambda slot: OWNERS[0])
        for n in range(total):
            waiting.add(Position(1, n), n % 97)
        counts.append(steps_of(lambda w=waiting: w.take(OWNERS[0], 10, lambda slot: True)))
    assert counts[1] < 2 * counts[0]
