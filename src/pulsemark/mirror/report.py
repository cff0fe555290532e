"""What a mirror counts and says: progress, gaps, and the sum at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..metadata import headers_parsed
from ..metadata.compression import payloads_opened
from .entries import Gap, SourceEntry

__all__ = ["Report", "Totals"]


@dataclass(slots=True)
class Totals:
    """What was mirrored of a topic, or of all."""

    entries: int = 0
    messages: int = 0
    bytes: int = 0
    gaps: int = 0
    source_index: int | None = None


@dataclass(slots=True)
class Report:
    """Counts by topic, and says lines through `say`.

    Attributes: topics (totals by topic), reconnections, headers_parsed and payloads_opened (by this
    process since the report was made).
    """

    say: Callable[[str], None]
    interval_s: float = 10.0
    clock: Callable[[], float] = time.monotonic
    topics: dict[str, Totals] = field(default_factory=dict)
    reconnections: int = 0
    _said_at_s: float = field(init=False)
    _said: int = 0
    _headers_before: int = field(default_factory=headers_parsed)
    _payloads_before: int = field(default_factory=payloads_opened)

    def __post_init__(self) -> None:
        self._said_at_s = self.clock()

    def of(self, topic: str) -> Totals:
        """A topic's totals."""
        return self.topics.setdefault(topic, Totals())

    def mirrored(self, topic: str, entry: SourceEntry) -> None:
        """An entry is durable in the target."""
        totals = self.of(topic)
        totals.entries += 1
        totals.messages += entry.message_count
        totals.bytes += 0 if entry.body is None else len(entry.body)
        totals.source_index = entry.stamp.index

    def gap(self, gap: Gap) -> None:
        """Something of the source is missing."""
        self.of(gap.topic).gaps += 1
        self.say(f"gap: {gap.topic}: {gap.what}")

    def lost(self, reason: str) -> None:
        """A connection was lost, and will be made again."""
        self.reconnections += 1
        self.say(f"connection lost, trying again: {reason}")

    @property
    def headers_parsed(self) -> int:
        """Headers of messages that were parsed."""
        return headers_parsed() - self._headers_before

    @property
    def payloads_opened(self) -> int:
        """Payloads that were compressed or decompressed: none, unless another part did it."""
        return payloads_opened() - self._payloads_before

    def sum(self) -> Totals:
        """The totals of all topics."""
        each = self.topics.values()
        return Totals(
            sum(totals.entries for totals in each),
            sum(totals.messages for totals in each),
            sum(totals.bytes for totals in each),
            sum(totals.gaps for totals in each),
        )

    def line(self) -> str:
        """The sum in words."""
        total = self.sum()
        return (
            f"{len(self.topics)} topics, {total.entries} entries, {total.messages} messages, "
            f"{total.bytes} bytes, {total.gaps} gaps; headers parsed: {self.headers_parsed}, "
            f"payloads opened: {self.payloads_opened}"
        )

    def progress(self) -> None:
        """Say the sum if the interval is over and something has changed."""
        now_s = self.clock()
        if now_s - self._said_at_s < self.interval_s:
            return
        self._said_at_s, before = now_s, self._said
        self._said = self.sum().entries
        if self._said != before:
            self.say(self.line())
