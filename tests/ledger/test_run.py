"""Searches by time where a wrong time, trimmed by now, is the maximum of all rows after it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.finder import Finder, SearchMethod
from pulsemark.ledger import EARLIEST, FolderReader, LocalStore, Position, StoreOptions
from pulsemark.ledger.run import MAXIMA_STRIDE_ROWS
from pulsemark.testing.raw_messages import unbatched_message

ORDERS = "persistent://public/default/orders"
START_MS = 1_700_000_000_000
IN_2100_MS = 4_102_444_800_000
COUNT = 3000


def fill(topic, times_ms):
    """One entry without stamp for each publish time."""
    for time_ms in times_ms:
        last = topic.append(unbatched_message(b"x", publish_time_ms=time_ms))
    last.commit.wait(10)


@pytest.mark.parametrize("method", list(SearchMethod))
def test_entries_are_read_for_a_trimmed_wrong_time_only_once(open_store, method):
    """The first search reads the entries before its time; those after it read some sixty."""
    store = open_store()
    topic = store.open_topic(ORDERS)
    fill(topic, [IN_2100_MS, *(START_MS + n for n in range(COUNT))])
    ledger_id = topic.first_position.ledger_id
    topic.truncate_head(Position(ledger_id, 1))
    reads = []
    for n in (COUNT - 1, COUNT - 1, COUNT // 2, 0, COUNT - 10):
        found = Finder(topic).by_time(START_MS + n, method=method)
        assert found.position == Position(ledger_id, 1 + n)
        assert found.time_ms == START_MS + n
        reads.append(found.reads)
    assert reads[0] > COUNT
    assert max(reads[1:]) < 3 * MAXIMA_STRIDE_ROWS
    fill(topic, [START_MS + COUNT])
    found = Finder(topic).by_time(START_MS + COUNT, method=method)
    assert found.position == Position(ledger_id, 1 + COUNT)
    assert found.reads < 4 * MAXIMA_STRIDE_ROWS
    assert Finder(topic).by_time(START_MS + COUNT + 1, method=method).end


times = st.lists(st.integers(0, 40) | st.just(9999), min_size=1, max_size=300)


@settings(max_examples=15)
@given(times, st.lists(st.integers(0, 300), min_size=1, max_size=4), st.integers(0, 45))
def test_search_finds_the_first_entry_that_is_left(tmp_path_factory, times, cuts, wanted):
    """Whatever the times and however often the head is cut: as by reading all entries."""
    folder = tmp_path_factory.mktemp("own") / "data"
    options = StoreOptions(segment_size_bytes=6000)
    with LocalStore.open(folder, options=options) as store, FolderReader(folder) as reader:
        topic = store.open_topic(ORDERS)
        fill(topic, [START_MS + each for each in times])
        assert topic.first_position is not None
        ledger_id = topic.first_position.ledger_id
        for cut in sorted(cuts):
            topic.truncate_head(Position(ledger_id, min(cut, len(times) - 1)))
            for log in (topic, reader.log(ORDERS)):
                first = log.next_position(EARLIEST).entry_id
                expected = next(
                    (n for n in range(first, len(times)) if times[n] >= wanted), len(times)
                )
                for method in SearchMethod:
                    found = Finder(log).by_time(START_MS + wanted, method=method)
                    assert found.end == (expected == len(times))
                    if not found.end:
                        assert found.position.entry_id == expected
