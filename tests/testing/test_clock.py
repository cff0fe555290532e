import threading

import pytest

from pulsemark.metadata import Clock
from pulsemark.testing.clock import DEFAULT_START_MS, SettableClock


def test_is_a_clock():
    """It can stand wherever a Clock is wanted."""
    assert isinstance(SettableClock(), Clock)


def test_stands_still():
    """The clock shows the same time until it is moved."""
    clock = SettableClock(5)
    assert [clock.now_ms() for _ in range(3)] == [5, 5, 5]
    assert SettableClock().now_ms() == DEFAULT_START_MS
    assert repr(clock) == "SettableClock(5)"


def test_set():
    """It can be set to any moment, also back."""
    clock = SettableClock(5)
    for moment in (10, 3, 0):
        clock.set(moment)
        assert clock.now_ms() == moment


@pytest.mark.parametrize(("by_ms", "expected"), [(1, 101), (0, 100), (-40, 60)])
def test_advance(by_ms, expected):
    """The clock moves by steps, also backwards, and returns the new time."""
    clock = SettableClock(100)
    assert clock.advance(by_ms) == expected
    assert clock.now_ms() == expected


def test_no_step_is_lost_between_threads():
    """Steps from several threads at once all count."""
    clock = SettableClock(0)

    def step():
        for _ in range(5000):
            clock.advance(1)

    threads = [threading.Thread(target=step) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now_ms() == 20_000
