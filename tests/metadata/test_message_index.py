import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.metadata import message_index


@given(st.integers(0, 2**63), st.integers(1, 100_000))
def test_neighbours(first, count):
    """An entry's messages have the indexes from its first to the one it is stamped with."""
    last = first + count - 1
    assert message_index(last, count, 0) == first
    assert message_index(last, count, count - 1) == last


def test_an_entry_of_its_own():
    """A message without a batch index has its entry's index."""
    assert message_index(7, 1) == message_index(7, 1, -1) == message_index(7, 1, 0) == 7


@pytest.mark.parametrize(
    "wrong", [(7, 0, 0), (7, -1, 0), (1, 3, 0), (7, 3, 3), (7, 3, -1), (7, 1, 1), (7, 1, -2)]
)
def test_what_cannot_be(wrong):
    """Numbers that belong to no message are refused, not calculated with."""
    with pytest.raises(ValueError, match=r"no entry|has no message"):
        message_index(*wrong)
