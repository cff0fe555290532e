"""What a search is asked must be a whole number."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pulsemark import Finder, LocalStore


@pytest.mark.parametrize("value", [float("nan"), 0.5, "0", None, datetime.now(UTC)])
def test_other_than_whole_numbers_are_refused(tmp_path, value):
    """No search quietly finds the beginning or half a message: the error names the value."""
    with LocalStore.open(tmp_path) as store:
        ledger = store.open_topic("orders")
        for _ in range(3):
            ledger.append(b"x").commit.wait(10)
        finder = Finder(ledger)
        with pytest.raises(TypeError, match="time_ms must be a whole number"):
            finder.by_time(value)
        with pytest.raises(TypeError, match="index must be a whole number"):
            finder.by_index(value)
        assert finder.by_index(2).first_index == 2


@pytest.mark.parametrize("name", [5, None, b"orders"])
def test_topic_name_is_a_str(tmp_path, name):
    """The error names the value that is no name."""
    with LocalStore.open(tmp_path) as store, pytest.raises(TypeError, match="a topic's name is"):
        store.open_topic(name)
