from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pulsemark.ledger import Position
from pulsemark.ledger.cursors.position_ranges import PositionRanges

ledgers = st.integers(0, 2)
entries = st.integers(0, 25)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), ledgers, entries, st.integers(0, 6)),
        st.tuples(st.just("remove"), ledgers, st.integers(-1, 26), st.just(0)),
        st.tuples(st.just("clear"), ledgers, entries, st.just(0)),
    ),
    max_size=40,
)


def expected_ranges(positions):
    """The ranges that a set of positions makes, longest possible."""
    ranges: list[Any] = []
    for ledger_id, entry_id in sorted(positions):
        if ranges and ranges[-1][0] == ledger_id and ranges[-1][2] == entry_id - 1:
            ranges[-1] = (ledger_id, ranges[-1][1], entry_id)
        else:
            ranges.append((ledger_id, entry_id, entry_id))
    return ranges


@given(changes)
def test_ranges_equal_a_set(changes):
    """Whatever is added and removed, the ranges are those of the plain set, and none touch."""
    ranges, model = PositionRanges(), set()
    for number, (what, ledger_id, entry_id, more) in enumerate(changes):
        if what == "add":
            ranges.add(ledger_id, entry_id, entry_id + more)
            model |= {Position(ledger_id, e) for e in range(entry_id, entry_id + more + 1)}
        elif what == "remove":
            ranges.remove_up_to(Position(ledger_id, entry_id))
            model = {p for p in model if p > Position(ledger_id, entry_id)}
        elif number % 5 == 0:
            ranges.clear()
            model = set()
        assert list(ranges) == expected_ranges(model)
    assert len(ranges) == len(expected_ranges(model))
    for ledger_id in range(3):
        for entry_id in range(-1, 35):
            position = Position(ledger_id, entry_id)
            assert (position in ranges) == (position in model)
            last = ranges.end_of(position)
            assert (last is None) == (position not in model)
            if last is not None:
                assert Position(ledger_id, last) in model
                assert Position(ledger_id, last + 1) not in model


@given(changes, st.sets(entries), st.booleans())
def test_weights_that_are_not_at_hand(changes, known, recount):
    """The weight is that of all positions, whichever of them can be weighed only when it is asked
    for; until then nothing else is weighed.
    """
    weighed: list[int] = []

    def weigh(_: int, first: int, last: int) -> int:
        weighed.extend(range(first, last + 1))
        return sum(range(first, last + 1))

    ranges = PositionRanges(weigh, lambda _, first, last: {first, last} <= known)
    model = set()
    for what, ledger_id, entry_id, more in changes:
        position = Position(ledger_id, entry_id)
        if what == "add" and more == 6 and position not in model:
            ranges.add_one(position, entry_id if entry_id in known else None)
            model.add(position)
        elif what == "add":
            ranges.add(ledger_id, entry_id, entry_id + more)
            model |= {Position(ledger_id, e) for e in range(entry_id, entry_id + more + 1)}
        elif what == "remove":
            ranges.remove_up_to(position, recount=recount)
            model = {p for p in model if p > position}
        if not more % 3:
            assert ranges.weight == sum(p.entry_id for p in model)
    weighed.clear()
    assert ranges.weight == sum(p.entry_id for p in model)
    weighed.clear()
    assert ranges.weight == sum(p.entry_id for p in model)
    assert not weighed
