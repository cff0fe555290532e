"""Waits for a condition that nothing announces, for a limited time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["wait_until"]

POLL_S = 0.005


async def wait_until(condition: Callable[[], bool], deadline_s: float) -> None:
    """Return when the condition holds, or when the loop's time reaches `deadline_s`."""
    loop = asyncio.get_running_loop()
    while (began_s := loop.time()) < deadline_s:
        if condition():
            return
        # Checking thousands of connections takes time itself, so wait in proportion.
        await asyncio.sleep(max(POLL_S, 4 * (loop.time() - began_s)))
