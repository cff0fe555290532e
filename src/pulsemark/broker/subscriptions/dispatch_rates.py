"""The rate limits of one subscription's dispatch: its own, and its topic's; and its pause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..policies.rate_limits import DispatchLimit, dispatch_limit

if TYPE_CHECKING:
    from .home_topic import HomeTopic

__all__ = ["DispatchRates"]

#: How often a paused subscription asks whether it may go on.
PAUSED_WAIT_S = 0.02


class DispatchRates:
    """What a subscription may be sent now."""

    __slots__ = ("_limits", "_own", "_rate", "is_paused")

    def __init__(self) -> None:
        #: Nothing is sent while it is set. Tests set it; no client can.
        self.is_paused = False
        self._rate: object = None
        self._own: DispatchLimit | None = None
        self._limits: tuple[DispatchLimit, ...] = ()

    def change(self, topic: HomeTopic, name: str) -> None:
        """The topic's policies have changed. A limit that stays the same keeps its tokens.

        `name` is the subscription's: it may have a rate of its own.
        """
        rules = topic.rules
        rate = dict(rules.subscription_rates).get(name, rules.subscription_dispatch_rate)
        if rate != self._rate:
            self._rate = rate
            self._own = dispatch_limit(dict(rate), topic.config.clock)
        both = (self._own, topic.dispatch_limit)
        self._limits = tuple(limit for limit in both if limit is not None)

    def sent(self, messages: int, size_bytes: int) -> None:
        """Count what was sent."""
        for limit in self._limits:
            limit.take(messages, size_bytes)

    def allowed(self, permits: int) -> int:
        """How many of these permits may be used now."""
        for limit in self._limits:
            permits = min(permits, limit.allowed())
        return permits

    def entries(self, most: int, messages_per_entry: float) -> int:
        """How many of these entries may be sent now; at least 1, since `wait_s` was asked before.

        A limit counts messages. Of how many the entries consist is estimated.
        """
        if not self._limits:
            return most
        messages = min(limit.allowed() for limit in self._limits)
        return max(1, min(most, round(messages / messages_per_entry)))

    def wait_s(self) -> float:
        """How long to wait before anything may be sent; 0: something may be sent now."""
        if self.is_paused:
            return PAUSED_WAIT_S
        if not self._limits:
            return 0.0
        return max((limit.wait_s() for limit in self._limits if limit.is_exceeded()), default=0.0)
