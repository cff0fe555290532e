"""Lanes: jobs before steps, one at a time, rest, and an end in order; claims; the pace."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from functools import partial
from typing import cast
from unittest.mock import patch

import pytest

from pulsemark.broker.cleaning.worker_thread import Claims, Lane, Pace


@pytest.fixture
def lane():
    """A lane that is closed when the test ends."""
    found = Lane("test")
    yield found
    found.close()
    found.join()


def sets(event):
    """A round that says when its turn comes."""
    event.set()
    yield


def test_no_thread_without_work(lane):
    """A lane without work costs no thread."""
    before = threading.active_count()
    lane.close()
    lane.join()
    assert threading.active_count() == before


def test_jobs_in_order_with_what_they_return_or_raise(lane):
    """Jobs are done one after another; each future has its own outcome."""
    done: list[int] = []

    def job(number):
        done.append(number)
        return number

    futures = [lane.submit(partial(job, number)) for number in range(20)]
    wrong = lane.submit(lambda: 1 // 0)
    assert [f.result(20) for f in futures] == done == list(range(20))
    with pytest.raises(ZeroDivisionError):
        wrong.result(20)
    assert lane.submit(lambda: "still there").result(20) == "still there"


def test_jobs_go_between_the_steps_of_a_round(lane):
    """A round of many steps does not keep a job waiting until its end."""
    order: list[object] = []
    asked = threading.Event()

    def steps():
        for number in range(5):
            order.append(number)
            if number == 1:
                jobs.append(lane.submit(lambda: order.append("job")))
            if number == 4:
                asked.set()
            yield

    jobs: list[Future[None]] = []
    lane.begin_round("round", steps())
    assert asked.wait(20)
    wait(jobs, 20)
    assert order == [0, 1, "job", 2, 3, 4]


def test_a_round_is_not_begun_twice(lane):
    """A timer that comes while its round is under way adds nothing; another round comes after."""
    begun, go_on = threading.Event(), threading.Event()
    order = []

    def steps(name):
        order.append(name)
        begun.set()
        assert go_on.wait(20)
        yield

    lane.begin_round("a", steps("a"))
    assert begun.wait(20)
    lane.begin_round("a", steps("a again"))
    lane.begin_round("b", steps("b"))
    lane.begin_round("c", steps("c"), first=True)
    go_on.set()
    ended = threading.Event()
    lane.begin_round("end", sets(ended))
    assert ended.wait(20)
    assert order == ["a", "c", "b"]


def test_a_failing_step_ends_its_round_only(lane):
    """Other rounds, and jobs, go on."""
    reached = threading.Event()

    def fails():
        yield
        raise ValueError("broken")

    def goes_on():
        yield
        reached.set()

    lane.begin_round("fails", fails())
    lane.begin_round("goes on", goes_on())
    assert reached.wait(20)


@pytest.mark.parametrize(("rests", "total_s"), [(1.0, 2.5), (3.0, 7.5)])
def test_a_lane_rests_as_long_as_its_steps_took(rests, total_s):
    """Or so many times as long, by the lane's clock: counted on a clock of the test's."""
    now, rested = [0.0], []

    def steps():
        for _ in range(10):
            now[0] += 0.25
            yield

    ended = threading.Event()

    def rest(self, rest_s):
        rested.append(rest_s)
        self._owed_s = 0.0

    with patch.object(Lane, "_rest", rest):
        lane = Lane("test", rests=lambda: rests, clock=lambda: now[0])
        lane.begin_round("round", steps())
        lane.begin_round("end", sets(ended))
        assert ended.wait(20)
        lane.close()
        lane.join()
    assert sum(rested) == pytest.approx(total_s)


def test_closing_cancels_what_has_not_begun():
    """What runs is finished, what waits is cancelled, and what comes later is cancelled at once."""
    lane = Lane("test")
    begun, go_on = threading.Event(), threading.Event()

    def runs():
        begun.set()
        return go_on.wait(20)

    running = lane.submit(runs)
    waiting = lane.submit(lambda: None)
    assert begun.wait(20)
    lane.close()
    assert waiting.cancelled()
    assert lane.submit(lambda: None).cancelled()
    go_on.set()
    lane.join()
    assert running.done()
    assert not running.cancelled()


def test_one_at_a_time():
    """A claim on a held topic is refused, or waits; another topic is free."""
    claims = Claims()
    got = threading.Event()

    def waits():
        with claims.claimed("a"):
            got.set()

    with claims.claimed("a"):
        with claims.claimed("a", waits=False) as is_free:
            assert not is_free
        with claims.claimed("b", waits=False) as is_free:
            assert is_free
        thread = threading.Thread(target=waits)
        thread.start()
        assert not got.wait(0.05)
    assert got.wait(20)
    thread.join()
    with claims.claimed("a", waits=False) as is_free:
        assert is_free


@pytest.mark.parametrize("waits", [True, False])
def test_given_back_after_a_failure(waits):
    """What fails while it holds a topic does not keep it."""
    claims = Claims()
    with pytest.raises(OSError, match="disk"), claims.claimed("a", waits=waits):
        raise OSError("disk")
    with claims.claimed("a", waits=False) as is_free:
        assert is_free


class Stop:
    """An event that is never set, and counts how long it is waited for."""

    def __init__(self, clock):
        self.clock = clock
        self.rested_s = 0.0
        self.waits: list[float] = []

    def wait(self, timeout_s):
        """Rest: the clock goes on."""
        self.rested_s += timeout_s
        self.waits.append(timeout_s)
        self.clock[0] += timeout_s


@pytest.mark.parametrize(("rate", "expected_s"), [(10**9, 1.0), (1_000_000, 10.0)])
def test_half_of_the_time_and_the_rate(rate, expected_s):
    """Ten slices of 0.1 s and 1 MB: 2 s at half speed, or as long as the rate asks for."""
    clock = [0.0]
    stop = Stop(clock)
    with patch("pulsemark.broker.cleaning.worker_thread.time.monotonic", lambda: clock[0]):
        paced = Pace(rate, cast("threading.Event", stop))
        for _ in range(10):
            clock[0] += 0.1
            paced.spent(1_000_000)
            paced.rest()
    assert clock[0] == pytest.approx(1.0 + stop.rested_s)
    assert max(stop.rested_s, clock[0] if expected_s > 1 else 0) == pytest.approx(expected_s)


def test_short_work_is_gathered():
    """Slices of microseconds rest together: a sleep for each would cost more than they do."""
    clock = [0.0]
    stop = Stop(clock)
    with patch("pulsemark.broker.cleaning.worker_thread.time.monotonic", lambda: clock[0]):
        paced = Pace(10**9, cast("threading.Event", stop))
        for _ in range(100):
            clock[0] += 0.0001
            paced.spent(100)
            paced.rest()
    assert 1 <= len(stop.waits) <= 5
    assert stop.rested_s == pytest.approx(0.01, rel=0.3)
