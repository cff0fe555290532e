"""Many deadlines with one timer."""

from __future__ import annotations

import asyncio

from pulsemark.kafka import deadlines as module
from pulsemark.kafka.deadlines import Deadlines


def failing() -> None:
    """What a deadline must not do."""
    raise ZeroDivisionError


async def test_deadlines_come_in_their_order_and_cancelled_ones_do_not():
    """An error in one does not keep the others from being called."""
    deadlines, called = Deadlines(), []
    done = asyncio.Event()
    deadlines.after(0.03, done.set)
    deadlines.after(0.02, lambda: called.append("second"))
    deadlines.after(0.01, lambda: called.append("first"))
    deadlines.after(0.015, failing)
    deadlines.after(0.012, lambda: called.append("never")).cancel()
    moved = deadlines.after(0.005, lambda: called.append("moved"))
    moved.at_s = deadlines.now_s() + 0.025
    async with asyncio.timeout(30):
        await done.wait()
    # On a slow machine all are due at once; one that was moved may then come first.
    assert [name for name in called if name != "moved"] == ["first", "second"]
    assert sorted(called) == ["first", "moved", "second"]
    deadlines.close()


async def test_cancelled_deadlines_do_not_pile_up():
    """A client whose fetches wait long and are answered early leaves nothing."""
    deadlines = Deadlines()
    for _ in range(10 * module.SWEEP_AT_LEAST):
        deadlines.after(3_600, lambda: None).cancel()
    assert deadlines.entered <= 2 * module.SWEEP_AT_LEAST
    deadlines.close()
