"""The same work for many files."""

from __future__ import annotations

import threading

import pytest

from pulsemark.ledger.local.io.fd_cache import FEW, THREADS, for_each


def test_many_items_are_worked_on_at_the_same_time():
    """As many calls as there are threads run side by side; each item is worked on once."""
    together = threading.Barrier(THREADS, timeout=30)
    done = []

    def work(item):
        if item < THREADS:
            together.wait()  # returns only once all of them are here
        done.append(item)

    for_each(work, range(100), threaded=True)
    assert sorted(done) == list(range(100))


@pytest.mark.parametrize(("count", "threaded"), [(100, False), (FEW - 1, True), (0, True)])
def test_otherwise_the_calling_thread_works_in_order(count, threaded):
    """Without threads, and for few items."""
    done = []
    for_each(
        lambda item: done.append((item, threading.current_thread())),
        range(count),
        threaded=threaded,
    )
    assert done == [(item, threading.current_thread()) for item in range(count)]


def test_an_exception_is_raised_once_all_items_were_worked_on():
    """One thread's exception keeps no item from being worked on, and is not lost."""
    done = []

    def work(item):
        done.append(item)
        if item % 10 == 3:
            raise OSError(item)

    with pytest.raises(OSError, match=r"3$"):
        for_each(work, range(100), threaded=True)
    assert sorted(done) == list(range(100))


def test_without_a_new_thread_the_calling_one_does_it(monkeypatch):
    """At the interpreter's end no thread can be started: the calling thread does the work."""

    def fails(_):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", fails)
    done: list[int] = []
    for_each(done.append, range(100), threaded=True)
    assert done == list(range(100))
