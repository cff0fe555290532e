"""The entries that wait for a consumer, in their queues."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsemark.broker.subscriptions.waiting_entries import ANY, WaitingEntries
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
