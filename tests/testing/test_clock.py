import threading
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from pulsemark.metadata import Clock
from pulsemark.testing import SettableClock


def test_is_a_clock():
    """It can stand wherever a Clock is wanted."""
    assert isinstance(SettableClock(), Clock)


def test_stands_still():
    """The clock shows the same time until it is moved."""
    clock = SettableClock(5)
    assert [clock.now_ms() for _ in range(3)] == [5, 5, 5]
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
    assert clock.advance(by_ms=by_ms) == expected
    assert clock.now_ms() == expected


def test_no_step_is_lost_between_threads():
    """Steps from several threads at once all count."""
    clock = SettableClock(0)

    def step():
        for _ in range(5000):
            clock.advance(by_ms=1)

    threads = [threading.Thread(target=step) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now_ms() == 20_000


def test_begins_at_the_present_time():
    """Without a time, so that what a client reckons by the machine's clock fits."""
    before_ms = time.time_ns() // 1_000_000
    assert before_ms <= SettableClock().now_ms() <= time.time_ns() // 1_000_000


def test_times_of_the_standard_library():
    """A datetime and a timedelta, of any time zone; the parts of a step are added up."""
    clock = SettableClock(datetime(2026, 3, 1, tzinfo=UTC))
    assert clock.now() == datetime(2026, 3, 1, tzinfo=UTC)
    clock.set(datetime(2026, 3, 1, 2, tzinfo=timezone(timedelta(hours=2))))
    assert clock.now() == datetime(2026, 3, 1, tzinfo=UTC)
    clock.advance(timedelta(days=1), hours=2, minutes=3, seconds=4.005)
    assert clock.now() == datetime(2026, 3, 2, 2, 3, 4, 5000, tzinfo=UTC)
    clock.advance(days=-1)
    assert clock.now().day == 1


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (1.5, TypeError),
        ("now", TypeError),
        (True, TypeError),
        (datetime(2026, 3, 1), ValueError),  # noqa: DTZ001 - that is what is wrong
        (2**63, ValueError),
        (-(2**63), ValueError),
    ],
)
def test_other_times_are_refused(wrong, error):
    """At once, with the value in the error; a broker can keep no time beyond 2^63 ms."""
    clock = SettableClock(5)
    with pytest.raises(error, match=r"time zone|milliseconds|ms since 1970"):
        SettableClock(wrong)
    with pytest.raises(error):
        clock.set(wrong)
    for step in ({"by_ms": 2**63}, {"hours": 1e300}, {"hours": float("nan")}):
        with pytest.raises(ValueError, match="no timedelta"):
            clock.advance(**step)
    assert clock.now_ms() == 5


@pytest.mark.parametrize("wrong", [5, 1.5, "1h", None, True])
def test_steps_without_a_unit_are_refused(wrong):
    """A step is a timedelta, or has its unit as the argument's name."""
    clock = SettableClock(5)
    with pytest.raises(TypeError, match="has no unit: write seconds="):
        clock.advance(wrong)
    if wrong != 5:
        with pytest.raises(TypeError, match="must be whole milliseconds"):
            clock.advance(by_ms=wrong)
    assert clock.now_ms() == 5


def test_a_running_clock_goes_on():
    """It follows the machine's clock at a distance that the test sets."""
    clock = SettableClock(running=True)
    clock.advance(hours=1)
    ahead_ms = clock.now_ms() - time.time_ns() // 1_000_000
    assert abs(ahead_ms - 3_600_000) < 1_000
    clock.set(0)
    began_ms = clock.now_ms()
    time.sleep(0.01)
    assert clock.now_ms() > began_ms


def test_watchers_are_called_before_and_after():
    """Both see the clock at that moment."""
    clock, seen = SettableClock(5), []

    class Watcher:
        def before_move(self):
            seen.append(clock.now_ms())

        after_move = before_move

    clock.watchers.append(Watcher())
    clock.advance(by_ms=2)
    clock.set(1)
    assert seen == [5, 7, 7, 1]
