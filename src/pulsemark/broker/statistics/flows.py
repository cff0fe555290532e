"""The rates of single producers, consumers and subscriptions, over the last period.

Only those that had traffic have a meter. It is made and renewed once in a period from the counters
that they have anyway, so counting costs nothing more, and what is idle costs no memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Flow", "Flows"]


@dataclass(frozen=True, slots=True)
class Flow:
    """Rates per second, and the totals from which the next ones are computed."""

    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    messages: int = 0
    size_bytes: int = 0

    def after(self, messages: int, size_bytes: int, elapsed_s: float) -> Flow:
        """The rates of the next period, at whose end the totals are these."""
        return Flow(
            max(messages - self.messages, 0) / elapsed_s,
            max(size_bytes - self.size_bytes, 0) / elapsed_s,
            messages,
            size_bytes,
        )


NOTHING = Flow()


class Publishing(Protocol):
    """A producer's counters."""

    messages_in: int
    bytes_in: int


class Receiving(Protocol):
    """A consumer's or subscription's counters."""

    messages_out: int
    bytes_out: int


class Flows:
    """The rates of what belongs to one topic."""

    __slots__ = ("_flows",)

    def __init__(self) -> None:
        self._flows: dict[Publishing | Receiving, Flow] = {}

    def of(self, one: Publishing | Receiving) -> Flow:
        """A producer's, consumer's or subscription's rates in the last period."""
        return self._flows.get(one, NOTHING)

    def update(
        self, producers: Iterable[Publishing], others: Iterable[Receiving], elapsed_s: float
    ) -> None:
        """End a period. What is not named any more is forgotten."""
        found: dict[Publishing | Receiving, Flow] = {}
        for producer in producers:
            if producer.messages_in:
                before = self.of(producer)
                found[producer] = before.after(producer.messages_in, producer.bytes_in, elapsed_s)
        for one in others:
            if one.messages_out:
                before = self.of(one)
                found[one] = before.after(one.messages_out, one.bytes_out, elapsed_s)
        self._flows = found
