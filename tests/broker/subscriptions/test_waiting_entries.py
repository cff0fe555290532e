"""The entries that wait for a consumer, in their queues and by slot."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pulsemark.broker.subscriptions.waiting_entries import ANY, WaitingEntries, WaitingSlots
from pulsemark.ledger import Position

positions = st.builds(Position, st.integers(1, 3), st.integers(0, 12))
queues = st.sampled_from((ANY, 0, 1))
operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), queues, positions),
        st.tuples(st.just("update"), queues, st.lists(positions, max_size=9)),
        st.tuples(st.just("discard"), queues, positions),
        st.tuples(st.just("run"), queues, st.integers(1, 5)),
        st.tuples(st.just("merge"), queues, queues),
        st.tuples(st.just("clear"), queues, st.none()),
    ),
    max_size=60,
)


@given(operations)
def test_each_position_is_in_one_sorted_queue(steps):
    """Whatever is put in, moved and taken out, the smallest comes first and nothing comes twice."""
    waiting, model = WaitingEntries(), {}
    for name, queue, value in steps:
        if name == "add":
            waiting.add(value, queue)
            model[value] = queue
        elif name == "update":
            waiting.update(value, queue)
            model.update(dict.fromkeys(value, queue))
        elif name == "discard":
            waiting.discard(value)
            model.pop(value, None)
        elif name == "merge":
            waiting.merge({queue}, value)
            model = {one: value if q == queue else q for one, q in model.items()}
        elif name == "clear":
            waiting.clear()
            model.clear()
        else:
            run = waiting.pop_run(queue, value)
            assert run == expected_run({one for one, q in model.items() if q == queue}, value)
            for one in run:
                del model[one]
        assert sorted(model) == sorted(waiting)
        assert len(model) == len(waiting)
        assert all(one in waiting for one in model)
        for each in (ANY, 0, 1):
            assert waiting.first(each) == min(
                (o for o, q in model.items() if q == each), default=None
            )


def expected_run(members, max_count):
    """Neighbours from the smallest on."""
    run: list[Position] = []
    at = min(members, default=None)
    while at is not None and at in members and len(run) < max_count:
        run.append(at)
        at = Position(at.ledger_id, at.entry_id + 1)
    return run


def test_taking_from_the_middle_does_not_leave_the_heaps_behind():
    """Memory depends on the waiting positions, not on how many were added before."""
    waiting = WaitingEntries()
    for n in range(10_000):
        waiting.add(Position(1, n), n % 2)
        if n >= 10:
            waiting.discard(Position(1, n - 10))
    assert len(waiting) == 10
    assert sum(map(len, waiting._heaps.values())) < 200


#: Consumers, of which only their identity matters here.
OWNERS: tuple[Any, Any] = ("a", "b")
places = st.integers(0, 40)
slot_steps = st.lists(
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


@given(slot_steps)
def test_waiting_slots_behave_like_sorted_lists(slot_steps):
    """A consumer gets the smallest positions of its slots that may go, none is forgotten."""
    owners = {slot: OWNERS[slot % 2] for slot in range(7)}
    waiting = WaitingSlots(lambda slot: owners[slot])
    model: set[Position] = set()
    held: set[int] = set()
    for what, value in slot_steps:
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
    """Ten of 20,000 waiting entries take about as many slot_steps as ten of 1000."""
    counts = []
    for total in (1000, 20_000):
        waiting = WaitingSlots(lambda slot: OWNERS[0])
        for n in range(total):
            waiting.add(Position(1, n), n % 97)
        counts.append(steps_of(lambda w=waiting: w.take(OWNERS[0], 10, lambda slot: True)))
    assert counts[1] < 2 * counts[0]
