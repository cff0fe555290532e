"""Searches of one topic on several threads, as the seek service makes them."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, Event, current_thread

import pytest

from pulsemark.finder import Finder, SearchMethod
from pulsemark.ledger import FolderReader
from pulsemark.ledger.prefix_sample import PrefixSample


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
