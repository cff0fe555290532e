"""A segment goes from state to state by the table, and by nothing else."""

from __future__ import annotations

from itertools import product

import pytest

from pulsemark.ledger.local.segment.segment import (
    FOLLOWING,
    GONE,
    Life,
    SegmentState,
    SegmentStateError,
)

NEW, PENDING, DURABLE, ENDED, SEALED, FAILED, VOID, REMOVED = SegmentState

PAIRS = list(product(SegmentState, SegmentState))
TABLE = {
    NEW: {PENDING},
    PENDING: {DURABLE, ENDED, FAILED, VOID},
    DURABLE: {ENDED, FAILED, VOID, REMOVED},
    ENDED: {SEALED, FAILED, VOID, REMOVED},
    SEALED: {ENDED, FAILED, REMOVED},
    FAILED: {VOID, REMOVED},
    VOID: {REMOVED},
    REMOVED: set(),
}


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_transition(old: SegmentState, new: SegmentState) -> None:
    """Each transition in the table works; every other one is an error that names it."""
    life = Life("0000000000000007-00000000.log", old)
    if new in TABLE[old]:
        assert life.become(new)
        assert life.state is new
    else:
        with pytest.raises(SegmentStateError) as caught:
            life.become(new)
        assert (caught.value.old, caught.value.new) == (old, new)
        assert "0000000000000007-00000000.log" in str(caught.value)
        assert life.state is old


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_change_from_some_states_only(old: SegmentState, new: SegmentState) -> None:
    """If the state is not in ``only_if``, nothing happens, whether the change is legal or not."""
    life = Life("x", old)
    assert not life.become(new, only_if=set(SegmentState) - {old})
    assert life.state is old


def test_table_of_states() -> None:
    """Every state can be reached, a failed sync is final, and so are the states without a file."""
    assert FOLLOWING == TABLE
    reached, to_visit = {NEW}, [NEW]
    while to_visit:
        following = FOLLOWING[to_visit.pop()] - reached
        reached |= following
        to_visit += following
    assert reached == set(SegmentState)
    assert FOLLOWING[FAILED] <= GONE
    for gone in GONE:
        assert FOLLOWING[gone] <= GONE
