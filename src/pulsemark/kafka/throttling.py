"""Pauses a connection while topics get its records faster than their policies allow (KIP-219)."""

from __future__ import annotations

__all__ = ["Throttling"]


class Throttling:
    """The part of a connection that topics' publish rates pause (`ports.Throttled`)."""

    #: How many topics get its records faster than their publish rates allow.
    _throttles = 0

    def go_on(self) -> None:
        """Something that held up requests may be over."""
        raise NotImplementedError

    @property
    def is_throttled(self) -> bool:
        """Whether no requests are taken because of a topic's publish rate."""
        return self._throttles > 0

    def throttle(self) -> None:
        """A topic gets records too fast: take no requests until `unthrottle`."""
        self._throttles += 1

    def unthrottle(self) -> None:
        """The topic takes records again."""
        self._throttles -= 1
        self.go_on()
