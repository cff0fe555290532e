"""How the time of a broker's end is divided, by a clock that moves only while the broker waits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from pulsemark.broker.connection import closing
from pulsemark.broker.connection.closing import Ending

TIMEOUT_S = 8.0


class Client:
    """A connection with unsent data, of which the client takes so much in each second."""

    def __init__(self, clock, unsent_bytes, bytes_per_s):
        self._clock, self._unsent_bytes, self._bytes_per_s = clock, unsent_bytes, bytes_per_s

    def untaken_bytes(self):
        """What is left of it."""
        return max(0, self._unsent_bytes - int(self._bytes_per_s * self._clock.now_s))

    @property
    def is_drained(self):
        """Whether the client has taken everything."""
        return not self.untaken_bytes()


@pytest.fixture
def clock(monkeypatch):
    """The time, which moves on by sleeping."""
    made = SimpleNamespace(now_s=0.0)
    made.time = lambda: made.now_s

    async def sleep(delay_s):
        made.now_s += delay_s

    fake = SimpleNamespace(get_running_loop=lambda: made, sleep=sleep)
    monkeypatch.setattr(closing, "asyncio", fake)
    return made


def time_of(clock, work):
    """When a coroutine returns."""
    asyncio.run(work)
    return clock.now_s


def test_answering_leaves_a_half_of_the_time(clock):
    """A client that keeps its connection busy takes nothing from sending to the others."""
    ending = Ending(0.0, TIMEOUT_S)
    assert time_of(clock, ending.answered(lambda: True)) == pytest.approx(4.0, abs=0.1)
    late = Client(clock, 5_300, 1_000)
    assert time_of(clock, ending.sent([late])) == pytest.approx(5.3, abs=0.1)


def test_clients_that_read_nothing_hold_up_the_end_for_a_quarter_of_the_time(clock):
    """However many they are."""
    silent = [Client(clock, 1_000, 0) for _ in range(50)]
    ending = Ending(0.0, TIMEOUT_S)
    assert time_of(clock, ending.sent(silent)) == pytest.approx(2.0, abs=0.1)


def test_a_client_that_reads_slowly_is_waited_for_beside_one_that_does_not(clock):
    """Until it has everything, or three quarters of the time are over: then cursors are stored."""
    silent = Client(clock, 1_000, 0)
    ending = Ending(0.0, TIMEOUT_S)
    assert time_of(clock, ending.sent([silent, Client(clock, 4_500, 1_000)])) == pytest.approx(
        4.5, abs=0.1
    )
    endless = Client(clock, 10**9, 1_000)
    assert time_of(clock, ending.sent([silent, endless])) == pytest.approx(6.0, abs=0.1)


def test_nothing_to_wait_for_takes_no_time(clock):
    """As the end of most brokers."""
    ending = Ending(0.0, TIMEOUT_S)
    assert time_of(clock, ending.answered(lambda: False)) == 0.0
    assert time_of(clock, ending.sent([Client(clock, 0, 0)])) == 0.0
