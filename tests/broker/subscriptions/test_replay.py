"""The queue of positions that wait for another delivery."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsemark.broker.subscriptions.replay import ReplayQueue
from pulsemark.ledger import Position

positions = st.builds(Position, st.integers(1, 3), st.integers(0, 12))
operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), positions),
        st.tuples(st.just("discard"), positions),
        st.tuples(st.just("pop"), st.none()),
        st.tuples(st.just("run"), st.integers(1, 5)),
        st.tuples(st.just("clear"), st.none()),
    ),
    max_size=60,
)


@given(operations)
def test_it_behaves_like_a_sorted_set(steps):
    """Whatever is put in and taken out, the smallest comes first and nothing comes twice."""
    queue, model = ReplayQueue(), set()
    for name, value in steps:
        if name == "add":
            queue.add(value)
            model.add(value)
        elif name == "discard":
            queue.discard(value)
            model.discard(value)
        elif name == "clear":
            queue.clear()
            model.clear()
        elif name == "pop":
            expected = min(model, default=None)
            model.discard(expected)
            assert expected == queue.pop()
        else:
            run = queue.pop_run(value)
            assert run == expected_run(model, value)
            model -= set(run)
        assert sorted(model) == list(queue)
        assert len(model) == len(queue)


def expected_run(members, max_count):
    """Neighbours from the smallest on."""
    run: list[Position] = []
    at = min(members, default=None)
    while at is not None and at in members and len(run) < max_count:
        run.append(at)
        at = Position(at.ledger_id, at.entry_id + 1)
    return run


@given(st.lists(positions, max_size=30))
def test_membership_and_update(members):
    """`in` is true for the added positions."""
    queue = ReplayQueue()
    queue.update(members)
    assert all(member in queue for member in members)
    assert Position(9, 9) not in queue


def test_taking_from_the_middle_does_not_leave_the_heap_behind():
    """Memory depends on the waiting positions, not on how many were added before."""
    queue = ReplayQueue()
    for n in range(10_000):
        queue.add(Position(1, n))
        if n >= 10:
            queue.discard(Position(1, n - 10))
    assert len(queue) == 10
    assert len(queue._heap) < 200
