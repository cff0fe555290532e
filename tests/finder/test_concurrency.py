"""Searches of one topic on several threads, as the seek service makes them."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import pytest

from pulsemark.finder import Finder, SearchMethod
from pulsemark.ledger import FolderReader


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
    """What searches share in memory is built once, whoever comes first."""
    topics.fill([b"x"] * 20_000)
    wanted = [range(n, 20_000, 1777) for n in range(4)]
    times_ms = [[topics.FIRST_MS + 10 * index for index in indexes] for indexes in wanted]
    with FolderReader(topics.folder) as reader, ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            ask = partial(search, Finder(reader.log(topics.ORDERS)), method, together=Barrier(4))
            assert list(pool.map(ask, times_ms)) == [list(indexes) for indexes in wanted]


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
