"""The rate limit: so many bytes or messages in a second, with at most one second's worth at once.

An entry is never divided. So a large one may go when anything is left, and the following ones wait
longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

UNITS = {"K": 1024, "M": 1024**2, "G": 1024**3}
MESSAGES = "msg"
RATE_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`amount` bytes, or messages, in a second."""

    amount: float
    is_messages: bool = False

    @classmethod
    def parse(cls, text: str) -> RateLimit:
        """`10M` and the like are bytes, `500msg` is messages. Raises ValueError."""
        number, is_messages = text.removesuffix(MESSAGES), text.endswith(MESSAGES)
        factor = 1 if is_messages else UNITS.get(number[-1:].upper(), 1)
        digits = number if factor == 1 else number[:-1]
        if not (digits.isascii() and digits.isdigit()) or not int(digits):
            raise ValueError(f"{text!r} is neither BYTES[K|M|G] nor MESSAGESmsg")
        if int(digits) * factor > RATE_MAX:
            raise ValueError(f"{text[:40]!r} is above {RATE_MAX} in a second")
        return cls(int(digits) * factor, is_messages)


class Pace:
    """Says when the next entry may go. Without a limit always now."""

    def __init__(
        self, limit: RateLimit | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit = limit
        self._clock = clock
        self._left = float(limit.amount) if limit is not None else 0.0
        self._at_s = clock()

    def wait_s(self) -> float:
        """Seconds until the next entry may go; 0: now."""
        if self._limit is None:
            return 0.0
        now_s = self._clock()
        grown = self._left + (now_s - self._at_s) * self._limit.amount
        self._left, self._at_s = min(grown, float(self._limit.amount)), now_s
        return 0.0 if self._left > 0 else max(-self._left / self._limit.amount, 0.001)

    def spend(self, size_bytes: int, messages: int) -> None:
        """An entry went."""
        if self._limit is not None:
            self._left -= messages if self._limit.is_messages else size_bytes
