"""What was used last, up to a number of things; the least recently used go first.

For values that can be had again. Files that are in use must stay open, and so have a cache of
their own (`local.io.fd_cache`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """The values used last. Safe between threads, without a lock: each step is one of a dict's."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value, if it is here; makes it the youngest."""
        value = self._values.get(key)
        if value is not None:
            with suppress(KeyError):  # another thread just dropped it; ours is still good
                self._values.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Keep a value as the youngest; the oldest one goes where there are too many."""
        self._values[key] = value
        with suppress(KeyError):  # another thread was faster
            self._values.move_to_end(key)
            while len(self._values) > self.capacity:
                self._values.popitem(last=False)

    def clear(self) -> None:
        """Drop all."""
        self._values.clear()

    def forget(self, goes: Callable[[K], bool]) -> None:
        """Drop the values of the keys that ``goes`` says."""
        for key in [key for key in list(self._values) if goes(key)]:
            self._values.pop(key, None)
