"""Searches of one topic on several threads, as the seek service makes them."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, Event, current_thread

import pytest

from pulsemark.finder import Finder, IndexOutOfRangeError, SearchMethod
from pulsemark.ledger import (
    EARLIEST,
    FolderReader,
    LocalStore,
    MemoryFolder,
    MemoryStore,
    StoreOptions,
)
from pulsemark.ledger.run import PrefixSample
from pulsemark.metadata import BrokerTimeStamper, IndexStamper, StamperChain
from pulsemark.testing.clock import SettableClock


@pytest.fixture
def hasty_threads():
    """Threads take turns as often as they can, so that races happen."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def search(finder, method, times_ms, together):
    """The indexes found, after all threads are ready."""
    together.wait(10)
    return [finder.by_time(time_ms, method=method).index for time_ms in times_ms]


@pytest.mark.parametrize("method", list(SearchMethod))
def test_first_searches_may_come_together(topics, hasty_threads, method):
    """Searches that all come first, and build what searches share, find what a later one finds."""
    topics.fill([b"x"] * 20_000)
    wanted = [range(n, 20_000, 1777) for n in range(4)]
    times_ms = [[topics.FIRST_MS + 10 * index for index in indexes] for indexes in wanted]
    with FolderReader(topics.folder) as reader, ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            ask = partial(search, Finder(reader.log(topics.ORDERS)), method, together=Barrier(4))
            assert list(pool.map(ask, times_ms)) == [list(indexes) for indexes in wanted]


def test_a_first_search_is_not_handed_the_sample_that_another_begins(topics, monkeypatch):
    """Of two that make the sample at once, the one that is ready first goes on with its own."""
    both_make_it = Barrier(2)
    first_is_full, second_is_kept, first_is_back = Event(), Event(), Event()

    class Sample(PrefixSample):
        def __init__(self, run):
            super().__init__(run)
            both_make_it.wait(20)
            if current_thread().name.endswith("_1"):
                assert first_is_full.wait(20)

        def extend(self):
            if current_thread().name.endswith("_1"):
                second_is_kept.set()
                assert first_is_back.wait(20)
            super().extend()
            first_is_full.set()
            assert second_is_kept.wait(20)

    def sampled_rows(run):
        try:
            return len(run.prefix_sample().offsets)
        finally:
            first_is_back.set()

    monkeypatch.setattr("pulsemark.ledger.run.PrefixSample", Sample)
    (run,) = topics.fill([b"x"] * 100).segments()
    with ThreadPoolExecutor(2, thread_name_prefix="search") as pool:
        assert list(pool.map(sampled_rows, [run, run])) == [8, 8]


@pytest.mark.parametrize("method", list(SearchMethod))
def test_searches_may_run_while_entries_are_appended(topics, hasty_threads, method):
    """A search beside an appender sees the durable entries, each at its own place."""
    log = topics.fill([b"x"] * 10)
    with ThreadPoolExecutor(1) as pool:
        appending = pool.submit(topics.fill, [b"x"] * 3000)
        while not appending.done():
            last = log.next_index - 1
            found = Finder(log).by_time(topics.FIRST_MS + 10 * last, method=method)
            assert (found.index, found.time_ms) == (last, topics.FIRST_MS + 10 * last)
        appending.result()
    assert Finder(log).by_time(topics.FIRST_MS + 10 * 3009, method=method).index == 3009


COUNT = 500
FIRST_MS = 1_700_000_000_000


def open_store(engine, folder):
    """A store whose runs are so small that searches cross their ends."""
    options = StoreOptions(segment_size_bytes=2000, ledger_entries=50)
    clock = SettableClock(FIRST_MS)
    if engine == "local":
        return LocalStore.open(folder, clock=clock, options=options), clock
    return MemoryStore.open(MemoryFolder(), clock=clock, options=options), clock


def append_all(topic, clock):
    """Entry number n has the time FIRST_MS + n, and the index n."""
    for _ in range(COUNT):
        last = topic.append(b"x")
        clock.advance(by_ms=1)
        if last.position.entry_id % 3 == 0:
            last.commit.wait(10)
    last.commit.wait(10)


def searches(log, method):
    """Answers near the end of a log, where entries are appended meanwhile."""
    finder = Finder(log)
    near = max(1, log.next_index)
    times_ms = [FIRST_MS + near + n for n in (-1, 0, 1, 2)]
    found = [(time_ms, finder.by_time(time_ms, method=method)) for time_ms in times_ms]
    ranges = [finder.range(times_ms[0], times_ms[-1], method=method)]
    places = []
    for index in range(near - 1, near + 3):
        try:
            places.append((index, finder.by_index(index, method=method)))
        except IndexOutOfRangeError as error:
            assert not error.first_index <= index < error.next_index
    return found, places, ranges


def check_found(found, time_ms, numbers):
    """The entry of that time, or an end before which no entry is as late as that."""
    if found.end:
        assert found.index == found.first_index <= time_ms - FIRST_MS
        assert sum(position < found.position for position in numbers) == found.index
    else:
        assert (found.index, found.time_ms) == (time_ms - FIRST_MS, time_ms)
        assert numbers[found.position] == found.index


@pytest.mark.parametrize("engine", ["local", "memory"])
@pytest.mark.parametrize("method", list(SearchMethod))
def test_each_search_sees_the_log_at_one_moment(tmp_path, hasty_threads, method, engine):
    """Beside appends, each answer is that of a brute force over the log as it was at a moment."""
    store, clock = open_store(engine, tmp_path)
    topic = store.open_topic("persistent://public/default/orders")
    topic.stampers = StamperChain([BrokerTimeStamper(), IndexStamper()])
    answers = []
    with ThreadPoolExecutor(1) as pool:
        appending = pool.submit(append_all, topic, clock)
        while not appending.done():
            answers.append(searches(topic, method))
        appending.result()
    positions = [entry.position for entry in topic.read(EARLIEST, max_entries=COUNT)]
    numbers = {position: number for number, position in enumerate(positions)}
    for found, places, ranges in answers:
        for time_ms, each in found:
            check_found(each, time_ms, numbers)
        for index, place in places:
            assert (place.index, place.first_index) == (index, index)
            assert (numbers[place.position], place.time_ms) == (index, FIRST_MS + index)
        for each in ranges:
            assert each.count == each.end_index - each.first_index <= 3
            assert sum(each.first <= position < each.end for position in positions) == each.count
    store.close()
