"""Python's cyclic garbage collector, kept from holding the event loop.

A full collection looks through every object that the collector knows, in one go, and every thread
waits for it. A broker's topics, subscriptions and consumers are millions of such objects, and none
of them is garbage: with 5,000 topics that was a quarter of a second. The collector cannot work in
steps, so it is given less to look through:

- The young are collected as always; that costs what was allocated lately.
- No full collection begins by itself. Once a second, where enough objects have grown old since,
  those are collected, and what survives is frozen: the collector does not look at it again. Where
  too many grow old within the second, they are frozen without being looked at.
- What was frozen is freed like everything else when the last reference to it goes. Only cycles
  among frozen objects stay. What a broker lets go of has none (a test sees to that): closing a
  session, consumer, subscription or topic takes its references apart.
- When no client is connected, everything is thawed and collected once: no one waits for it.

It is the whole process' collector. So the program decides, not the broker: `pulsemark standalone`
uses this, a broker in somebody else's process (`BrokerThread`) leaves the collector alone.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any, Self

__all__ = ["Collector"]

INTERVAL_S = 1.0
#: Allocations, less what was freed, between two collections of the youngest.
YOUNG_OBJECTS = 5_000
#: Collections of the youngest before one of those that survived a first time.
YOUNG_COLLECTIONS = 4
#: Old objects from which on it is worth collecting them.
OLD_OBJECTS = 5_000
#: Old objects that are collected in one go, at 0.1 to 0.8 us each.
MAX_OLD_OBJECTS = 20_000
#: No process gets there: full collections do not begin by themselves.
NEVER = 1 << 30


class Collector:
    """Keeps full collections off the running loop; an asynchronous context.

    `is_idle` says whether no one would notice a full collection now.
    """

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        self._is_idle = is_idle
        self._thresholds = gc.get_threshold()
        self._timer: asyncio.TimerHandle | None = None
        #: Whether anything was frozen since the last full collection.
        self._has_frozen = False

    async def __aenter__(self) -> Self:
        """Begin: what is there now is there to stay."""
        gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, NEVER)
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self._collected)
        self._set_timer()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave the collector as it was found."""
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
        """Called by the collector, in any thread, which waits for it."""
        if phase == "stop" and info["generation"] == 1 and old_objects() > MAX_OLD_OBJECTS:
            self._freeze()

    def _freeze(self) -> None:
        self._has_frozen = True
        gc.freeze()


def old_objects() -> int:
    """Objects that survived two collections and are not frozen."""
    return len(gc.get_objects(generation=2))
