"""Claims prevent that a topic is cleaned and compacted at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Claims"]


class Claims:
    """The topics that are being cleaned or compacted, by name."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._held: set[str] = set()

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Wait until a topic is free, and claim it. Blocks."""
        with self._condition:
            self._condition.wait_for(lambda: name not in self._held)
            self._held.add(name)
        try:
            yield
        finally:
            self._give_back(name)

    @contextmanager
    def if_free(self, name: str) -> Iterator[bool]:
        """Claim a topic if it is free; the context's value says whether it was."""
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
        """Return when a topic is not claimed. Blocks."""
        with self._condition:
            self._condition.wait_for(lambda: name not in self._held)

    def _give_back(self, name: str) -> None:
        with self._condition:
            self._held.discard(name)
            self._condition.notify_all()
