"""Limits a rate: so many tokens come in a period, and as many can be saved.

Taking is never refused: it may leave a debt, and nothing more should be taken until that is paid.
So a large message or batch passes, and the average is kept. Time is the broker's clock; if it is
set back, no token comes until it moves on.
"""

from __future__ import annotations

from ..metadata import Clock

__all__ = ["TokenBucket"]


class TokenBucket:
    """Tokens for one quantity: messages or bytes."""

    __slots__ = ("_clock", "_read_at_ms", "_tokens", "per_period", "period_ms")

    def __init__(self, per_period: int, period_ms: int, clock: Clock) -> None:
        self.per_period = per_period
        self.period_ms = period_ms
        self._clock = clock
        self._tokens = float(per_period)
        self._read_at_ms = clock.now_ms()

    def available(self) -> float:
        """The tokens that are there now; below 0: a debt."""
        now_ms = self._clock.now_ms()
        elapsed_ms = now_ms - self._read_at_ms
        if elapsed_ms:
            self._read_at_ms = now_ms
            if elapsed_ms > 0:
                come = elapsed_ms * self.per_period / self.period_ms
                self._tokens = min(self._tokens + come, float(self.per_period))
        return self._tokens

    def take(self, count: int) -> None:
        """Take tokens, also more than there are."""
        self._tokens -= count

    def wait_ms(self) -> float:
        """How long until there is one token."""
        missing = 1 - self.available()
        return max(missing, 0.0) * self.period_ms / self.per_period
