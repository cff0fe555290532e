"""The loop monitor names the handler that blocked the loop."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
import uvloop

from tests.support import loop_monitor
from tests.support.loop_monitor import LoopMonitor

HELD_S = 0.2


class Looks:
    """What the monitor's thread has seen, look by look."""

    def __init__(self):
        self.mine = self.others = 0

    def note(self, name):
        """It has seen this."""
        if "hold_the_loop" in name or "wait_on_the_loop" in name:
            self.mine += 1
        else:
            self.others += 1


@pytest.fixture
def looks(monkeypatch):
    """Notes what monitors see."""
    looks, name_of = Looks(), loop_monitor.name_of

    def noted(frame):
        name = name_of(frame)
        looks.note(name)
        return name

    monkeypatch.setattr(loop_monitor, "name_of", noted)
    return looks


@pytest.fixture
def never_hung(monkeypatch):
    """However slow the machine is, a loop that is held is reported once, at the end."""
    monkeypatch.setattr(loop_monitor, "HUNG_S", 3600)


def hold_the_loop(looks):
    """Work without giving way, until that was seen."""
    until = time.thread_time() + HELD_S
    while time.thread_time() < until:
        pass
    while looks.mine <= looks.others:
        time.sleep(0.001)  # the looks go on, and see this function


async def first_stall_of(function, *arguments):
    """The stall that is reported when the loop calls ``function``; others have other names."""
    reported = asyncio.get_running_loop().create_future()

    def report(stall):
        if function.__name__ in stall.handler:
            reported.set_result(stall)  # a second one would be an error

    monitor = LoopMonitor(threshold_ms=50, report=report)
    monitor.start()
    asyncio.get_running_loop().call_soon(function, *arguments)
    stall = await asyncio.wait_for(reported, 60)
    monitor.stop()
    return stall


@pytest.mark.usefixtures("never_hung")
@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_handler_that_held_the_loop_is_named(loop_factory, looks):
    """A callback that works for 200 ms is one stall with its name, and the loop's work in it."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        held = runner.run(first_stall_of(hold_the_loop, looks))
    assert held.is_held
    assert held.cpu_ms >= HELD_S * 1000
    assert held.wall_ms + loop_monitor.BEAT_S * 1000 >= held.cpu_ms


@pytest.mark.usefixtures("never_hung")
def test_a_loop_that_waits_is_not_held(looks):
    """A wait on the loop's thread is late, but does no work: the report says so."""

    def wait_on_the_loop():
        time.sleep(HELD_S)
        while looks.mine <= looks.others:
            time.sleep(0.001)

    waited = asyncio.run(first_stall_of(wait_on_the_loop))
    assert waited.wall_ms >= 50
    assert not waited.is_held


def test_a_blocked_loop_is_reported_before_it_ends(monkeypatch):
    """Past the limit a stall is reported by another thread, once, while it goes on."""
    monkeypatch.setattr(loop_monitor, "HUNG_S", 0.1)
    reports = []

    def report(stall):
        reports.append((threading.current_thread(), stall))

    async def scenario():
        monitor = LoopMonitor(threshold_ms=50, report=report)
        monitor.start()
        while not reports:
            time.sleep(0.001)  # noqa: ASYNC251 - this is the fault that is looked for
        monitor.stop()

    asyncio.run(scenario())
    ((thread, stall),) = reports
    assert thread is not threading.current_thread()
    assert "scenario" in stall.handler
