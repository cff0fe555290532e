"""A cache of a limited number of values: the least recently used one is dropped first.

For values that can be computed or read again. Files in use must stay open, so they have a cache of
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
    """The last used values. Safe between threads without a lock: each step is one of a dict's."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value, if it is here; marks it as the last used."""
        value = self._values.get(key)
        if value is not None:
            with suppress(KeyError):  # another thread just dropped it; ours is still good
                self._values.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Keep a value as the last used; drop the least recently used one if there are too many."""
        self._values[key] = value
        with suppress(KeyError):  # another thread was faster
            self._values.move_to_end(key)
            while len(self._values) > self.capacity:
                self._values.popitem(last=False)

    def clear(self) -> None:
        """Drop all."""
        self._values.clear()

    def forget(self, is_dropped: Callable[[K], bool]) -> None:
        """Drop the values of all keys for which ``is_dropped`` is true."""
        for key in [key for key in list(self._values) if is_dropped(key)]:
            self._values.pop(key, None)
