"""What a search may be asked, and what it answers where entries are damaged or lost."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pulsemark import Finder, LocalStore
from pulsemark.finder import IndexOutOfRangeError, SearchMethod
from pulsemark.ledger import FolderReader
from pulsemark.ledger.local.segment.segment import as_segment
from pulsemark.metadata import BrokerTimeStamper, IndexStamper, StamperChain


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


def test_a_method_is_one_of_the_two(tmp_path):
    """Another value is named, and is not taken for one of the methods."""
    with LocalStore.open(tmp_path) as store:
        finder = Finder(store.open_topic("orders"))
        for search in (finder.by_time, finder.by_index):
            with pytest.raises(TypeError, match="method must be a SearchMethod, not 'foo'"):
                search(0, method="foo")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [5, None, b"orders"])
def test_topic_name_is_a_str(tmp_path, name):
    """The error names the value that is no name."""
    with LocalStore.open(tmp_path) as store, pytest.raises(TypeError, match="a topic's name is"):
        store.open_topic(name)


@pytest.mark.parametrize("method", list(SearchMethod))
def test_an_index_whose_file_is_lost_is_refused_by_its_number(tmp_path, method):
    """Where a ledger in the middle is gone, no other message is given for one of its indexes."""
    with LocalStore.open(tmp_path) as store:
        ledger = store.open_topic("orders")
        ledger.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
        for _ in range(3):
            for _ in range(4):
                last = ledger.append(b"x")
            last.commit.wait(10)
            ledger.roll()
        name, segments = ledger.name, [as_segment(each) for each in ledger.segments()]
    segments[1].path.unlink()
    lost = {segments[1].ledger_id}
    with FolderReader(tmp_path) as reader:
        finder = Finder(reader.logs([name], lost=lost)[name])
        assert [finder.by_index(n, method=method).index for n in (3, 8)] == [3, 8]
        with pytest.raises(IndexOutOfRangeError, match=r"index 4 is in a lost part of \[0, 12\)"):
            finder.by_index(4, method=method)


@pytest.mark.parametrize("method", list(SearchMethod))
def test_the_index_of_a_damaged_entry_leads_to_that_entry(tmp_path, method):
    """Not to the entry after it, whose header is whole."""
    with LocalStore.open(tmp_path) as store:
        ledger = store.open_topic("orders")
        ledger.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
        for _ in range(5):
            last = ledger.append(b"x", message_count=3)
        last.commit.wait(10)
        name, segment = ledger.name, as_segment(ledger.segments()[0])
        offset = segment.row(2).offset
    with segment.path.open("r+b") as file:
        file.seek(offset + 8)
        file.write(b"\xff" * 4)
    with FolderReader(tmp_path) as reader:
        place = Finder(reader.log(name)).by_index(7, method=method)
        assert (place.position.entry_id, place.batch_index, place.first_index) == (2, 1, 6)
