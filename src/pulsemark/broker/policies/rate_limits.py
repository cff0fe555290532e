"""The rate limits of a topic: of publishing, and of dispatch by topic and by subscription.

Publishing is not refused above its limit. Instead, connections whose producers exceed it are not
read until the debt is paid, as in Pulsar. Dispatch waits in the same way. The clock is the
broker's, which may be set, so waiting is checked at least every `CHECK_S`.

Each limit is a token bucket: a number of tokens comes in each period, and at most that number is
saved. Taking may leave a debt, and nothing more should be taken until it is paid. So a large
message or batch passes, and the average is kept. If the clock is set back, no token comes until it
has caught up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ...connection_memory import Throttled
from ...metadata import Clock

CHECK_S = 0.1
SHORTEST_S = 0.001


class RateLimit:
    """A limit of messages and bytes in a period."""

    __slots__ = ("_buckets", "messages", "size_bytes")

    def __init__(self, messages: int, size_bytes: int, period_ms: int, clock: Clock) -> None:
        """`messages`, `size_bytes`: 0 and below is no limit."""
        self.messages = TokenBucket(messages, period_ms, clock) if messages > 0 else None
        self.size_bytes = TokenBucket(size_bytes, period_ms, clock) if size_bytes > 0 else None
        self._buckets = [each for each in (self.messages, self.size_bytes) if each is not None]

    def take(self, messages: int, size_bytes: int) -> None:
        """Count what was published or sent."""
        if self.messages is not None:
            self.messages.take(messages)
        if self.size_bytes is not None:
            self.size_bytes.take(size_bytes)

    def is_exceeded(self) -> bool:
        """Whether nothing more should be taken now."""
        return any(bucket.available() < 1 for bucket in self._buckets)

    def wait_s(self) -> float:
        """How long to wait before asking again."""
        return min(max(self.debt_ms() / 1000, SHORTEST_S), CHECK_S)

    def debt_ms(self) -> float:
        """How long until something may be taken again, at the clock's present pace."""
        return max(bucket.wait_ms() for bucket in self._buckets)


class PublishLimit(RateLimit):
    """Pauses the connections that publish too fast to one topic."""

    __slots__ = ("_paused", "_timer")

    def __init__(self, messages: int, size_bytes: int, clock: Clock) -> None:
        super().__init__(messages, size_bytes, 1000, clock)
        self._paused: set[Throttled] = set()
        self._timer: asyncio.TimerHandle | None = None

    def published(self, connection: Throttled, messages: int, size_bytes: int) -> None:
        """Count a publish; pause its connection if the limit is exceeded."""
        self.take(max(messages, 1), size_bytes)
        if connection not in self._paused and self.is_exceeded():
            self._paused.add(connection)
            connection.throttle()
            self._wait()

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.wait_s(), self._check)

    def _check(self) -> None:
        self._timer = None
        if self.is_exceeded():
            self._wait()
        else:
            self._resume()

    def _resume(self) -> None:
        paused, self._paused = self._paused, set()
        for connection in paused:
            connection.unthrottle()

    def end(self) -> None:
        """The limit holds no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._resume()


class DispatchLimit(RateLimit):
    """A limit of dispatch, for which the dispatchers wait by themselves."""

    __slots__ = ()

    def allowed(self) -> int:
        """The number of messages that may be sent now; 0: wait."""
        if self.is_exceeded():
            return 0
        return 1 << 31 if self.messages is None else int(self.messages.available())


def publish_limit(rate: Mapping[str, Any], clock: Clock) -> PublishLimit | None:
    """Make the limit of a policy `publishRate`; None if it has none."""
    messages = rate["publishThrottlingRateInMsg"]
    size_bytes = rate["publishThrottlingRateInByte"]
    if messages <= 0 and size_bytes <= 0:
        return None
    return PublishLimit(messages, size_bytes, clock)


def dispatch_limit(rate: Mapping[str, Any], clock: Clock) -> DispatchLimit | None:
    """Make the limit of a policy `dispatchRate`; None if it has none."""
    messages = rate["dispatchThrottlingRateInMsg"]
    size_bytes = rate["dispatchThrottlingRateInByte"]
    if messages <= 0 and size_bytes <= 0:
        return None
    period_ms = max(rate["ratePeriodInSecond"], 1) * 1000
    return DispatchLimit(messages, size_bytes, period_ms, clock)


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
        """The number of tokens now; below 0: a debt."""
        now_ms = self._clock.now_ms()
        elapsed_ms = now_ms - self._read_at_ms
        if elapsed_ms:
            self._read_at_ms = now_ms
            if elapsed_ms > 0:
                come = elapsed_ms * self.per_period / self.period_ms
                self._tokens = min(self._tokens + come, float(self.per_period))
        return self._tokens

    def take(self, count: int) -> None:
        """Take tokens, even more than there are."""
        self._tokens -= count

    def wait_ms(self) -> float:
        """How long until there is one token."""
        missing = 1 - self.available()
        return max(missing, 0.0) * self.period_ms / self.per_period
