"""How much a compaction rests."""

from __future__ import annotations

import threading
from typing import cast
from unittest.mock import patch

import pytest

from pulsemark.broker.cleaning.pace import Pace


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
    with patch("pulsemark.broker.cleaning.pace.time.monotonic", lambda: clock[0]):
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
    with patch("pulsemark.broker.cleaning.pace.time.monotonic", lambda: clock[0]):
        paced = Pace(10**9, cast("threading.Event", stop))
        for _ in range(100):
            clock[0] += 0.0001
            paced.spent(100)
            paced.rest()
    assert 1 <= len(stop.waits) <= 5
    assert stop.rested_s == pytest.approx(0.01, rel=0.3)
