"""A topic is cleaned or compacted, never both at once: whoever works on it claims it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Claims"]


class Claims:
    """The topics that are being worked on, by name."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._held: set[str] = set()

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Hold a topic; wait until it is free. Blocks."""
        with self._condition:
            self._condition.wait_for(lambda: name not in self._held)
            self._held.add(name)
        try:
            yield
        finally:
            self._give_back(name)

    @contextmanager
    def if_free(self, name: str) -> Iterator[bool]:
        """Hold a topic if it is free; whether it is held."""
        with self._condition:
            taken = name not in self._held
            if taken:
                self._held.add(name)
        try:
            yield taken
        finally:
            if taken:
                self._give_back(name)

    def wait_until_free(self, name: str) -> None:
        """Return when nobody holds a topic. Blocks."""
        with self._condition:
            self._condition.wait_for(lambda: name not in self._held)

    def _give_back(self, name: str) -> None:
        with self._condition:
            self._held.discard(name)
            self._condition.notify_all()
