"""How often each consumer may subscribe to a topic (the policy subscribeRate)."""

from __future__ import annotations

from collections import OrderedDict

from ...metadata import Clock
from ..policies.rate_limits import TokenBucket

__all__ = ["SubscribeLimits"]

#: Consumers remembered for a topic; those that subscribed last are kept.
MAX_CONSUMERS = 10_000


class SubscribeLimits:
    """The consumers of one topic, by host, name and id."""

    __slots__ = ("_buckets", "_rate")

    def __init__(self) -> None:
        self._rate: tuple[tuple[str, object], ...] = ()
        # Made when it is needed: most topics never do.
        self._buckets: OrderedDict[object, TokenBucket] | None = None

    def allows(self, rate: tuple[tuple[str, int], ...], consumer: object, clock: Clock) -> bool:
        """Whether a consumer may subscribe now; if so, it is counted."""
        if rate != self._rate:
            self._rate, self._buckets = rate, None
        limits = dict(rate)
        most = limits["subscribeThrottlingRatePerConsumer"]
        if most <= 0:
            return True
        if self._buckets is None:
            self._buckets = OrderedDict()
        bucket = self._buckets.pop(consumer, None)
        if bucket is None:
            period_ms = max(limits["ratePeriodInSecond"], 1) * 1000
            bucket = TokenBucket(most, period_ms, clock)
        self._buckets[consumer] = bucket
        if len(self._buckets) > MAX_CONSUMERS:
            self._buckets.popitem(last=False)
        if bucket.available() < 1:
            return False
        bucket.take(1)
        return True
