"""The loop monitor names the handler that blocked the loop."""

from __future__ import annotations

import asyncio
import time

import pytest
import uvloop

from pulsemark.testing.loop_monitor import LoopMonitor


def hold_the_loop(seconds):
    """Work without giving way."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_handler_that_held_the_loop_is_named(loop_factory):
    """A callback that works for 200 ms is one stall with its name, and the loop's work in it."""

    async def scenario():
        monitor = LoopMonitor(threshold_ms=50)
        monitor.start()
        await asyncio.sleep(0.05)
        asyncio.get_running_loop().call_soon(hold_the_loop, 0.2)
        await asyncio.sleep(0.3)
        monitor.stop()
        return monitor.stalls

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        stalls = runner.run(scenario())
    held = [stall for stall in stalls if "hold_the_loop" in stall.handler]
    assert len(held) == 1
    assert held[0].is_held
    assert held[0].cpu_ms >= 190


def test_a_loop_that_waits_is_not_held():
    """A sleep on the loop's thread makes it late, but is not reported as work."""

    async def scenario():
        monitor = LoopMonitor(threshold_ms=50)
        monitor.start()
        await asyncio.sleep(0.05)
        time.sleep(0.2)  # noqa: ASYNC251 - this is the fault that is looked for
        await asyncio.sleep(0.05)
        monitor.stop()
        return monitor.stalls

    stalls = [stall for stall in asyncio.run(scenario()) if "scenario" in stall.handler]
    assert len(stalls) == 1
    assert not stalls[0].is_held
