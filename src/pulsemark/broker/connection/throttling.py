"""Pauses a connection while topics get its messages faster than their policies allow."""

from __future__ import annotations

from collections.abc import Callable

from .reading_pauses import Pause, ReadingPauses

__all__ = ["Throttling"]


class Throttling:
    """The topics whose publish rate one connection exceeds."""

    __slots__ = ("_count", "_pauses", "_unpause")

    def __init__(self, pauses: ReadingPauses, unpause: Callable[[Pause], None]) -> None:
        self._pauses = pauses
        self._unpause = unpause
        self._count = 0

    def throttle(self) -> None:
        """A topic gets messages too fast: read nothing until `unthrottle`."""
        self._count += 1
        self._pauses.begin(Pause.RATE)

    def unthrottle(self) -> None:
        """The topic takes messages again."""
        self._count -= 1
        if not self._count:
            self._unpause(Pause.RATE)

    def close(self) -> None:
        """The connection has ended: leave no reference cycle with it (see `collector`)."""
        self._unpause = _nothing


def _nothing(reason: Pause) -> None:
    """Replaces the function that goes on reading, after the connection has ended."""
