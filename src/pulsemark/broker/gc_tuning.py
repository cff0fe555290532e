"""Keeps Python's cyclic garbage collector from blocking the event loop.

A full collection visits every object that the collector knows, in one step, and every thread waits
for it. A broker's topics and consumers are millions of such objects, and none of them is garbage:
with 5,000 topics a full collection took a quarter of a second. So the collector gets fewer objects:

- Young objects are collected as always.
- Full collections do not start by themselves. Once a second, if enough objects have become old,
  these are collected. The survivors are frozen: the collector does not visit them again. If too
  many objects become old within the second, they are frozen without a collection.
- A frozen object is still freed when its last reference goes. Only cycles of frozen objects stay
  in memory. The broker leaves no such cycles (a test checks this).
- When no client is connected, everything is unfrozen and collected once, since no client waits.

The collector belongs to the whole process. So the program decides, not the broker: `pulsemark
standalone` uses this class; a broker inside another program (`BrokerThread`) does not.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any, Self

INTERVAL_S = 1.0
#: Allocations minus frees between two collections of generation 0.
YOUNG_OBJECTS = 5_000
#: Collections of generation 0 before one of generation 1.
YOUNG_COLLECTIONS = 4
#: With fewer old objects than this a collection is not worth its cost.
OLD_OBJECTS = 5_000
#: The most old objects for one collection, which takes 0.1 to 0.8 us for each.
MAX_OLD_OBJECTS = 20_000
#: A threshold that no process reaches: full collections do not start by themselves.
NEVER = 1 << 30


class Collector:
    """Prevents full collections while the event loop serves clients; an asynchronous context.

    `is_idle` returns whether no client would notice a full collection now.
    """

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        self._is_idle = is_idle
        self._thresholds = gc.get_threshold()
        self._timer: asyncio.TimerHandle | None = None
        #: Whether anything was frozen since the last full collection.
        self._has_frozen = False

    async def __aenter__(self) -> Self:
        """Start. Objects that exist now are frozen: they usually live as long as the process.

        What is garbage among them is collected once no client is there, not before the first one.
        """
        gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, NEVER)
        self._freeze()
        gc.callbacks.append(self._collected)
        self._set_timer()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Restore the collector's settings."""
        if self._timer is not None:
            self._timer.cancel()
        gc.callbacks.remove(self._collected)
        gc.unfreeze()
        gc.set_threshold(*self._thresholds)

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._tick)

    def _tick(self) -> None:
        self._set_timer()
        if self._has_frozen and self._is_idle():
            self._has_frozen = False
            gc.unfreeze()
            gc.collect()
            gc.freeze()
        elif old_objects() >= OLD_OBJECTS:
            gc.collect()
            self._freeze()

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        """Called by the collector, in any thread. That thread waits until this returns."""
        if phase == "stop" and info["generation"] == 1 and old_objects() > MAX_OLD_OBJECTS:
            self._freeze()

    def _freeze(self) -> None:
        self._has_frozen = True
        gc.freeze()


def old_objects() -> int:
    """Objects that survived two collections and are not frozen.

    The list has objects that other threads are still making. Python cannot finish a tuple that
    somebody else refers to (SystemError), so the list must be gone before another thread runs.
    Threads change between two steps of Python code; between listing and counting there is no such
    step.
    """
    return next(map(len, map(gc.get_objects, (2,))))
