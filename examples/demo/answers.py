"""The broker's answers in the demo, as rows of the tables and data of the picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .truth import Key


@dataclass(frozen=True, slots=True)
class Stored:
    """The topic as read back: one element per message, in the order of the index."""

    keys: list[Key]
    client_times_ms: list[int]
    broker_times_ms: list[int]


@dataclass(frozen=True, slots=True)
class MomentRow:
    """One moment: the index of the first message after it, true and by each kind of search."""

    moment_ms: int
    true_index: int
    grpc_index: int
    grpc_ms: float
    client_seek_index: int
    by_client_time_index: int


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One round: its true number of messages, and the number found by each kind of time."""

    number: int
    true_count: int
    by_broker_time: int
    by_client_time: int
    missed: int
    foreign: int


@dataclass(frozen=True, slots=True)
class AuditCounts:
    """What an audit counted of one producer in one bucket of time."""

    count: int
    size_bytes: int
    min_index: int | None
    max_index: int | None
    out_of_order: int


Audited: TypeAlias = dict[tuple[int, str | None], AuditCounts]
"""An audit's rows, by the start of the bucket and the producer's name."""


def by_producer(rows: Audited) -> dict[str, int]:
    """Messages by producer, over all buckets."""
    sums: dict[str, int] = {}
    for (_, producer), counts in rows.items():
        sums[producer or "(unknown)"] = sums.get(producer or "(unknown)", 0) + counts.count
    return dict(sorted(sums.items()))


def first_at_or_after(times_ms: Sequence[int], moment_ms: int) -> int:
    """The result of a search over these times: the first one >= the moment, else the end."""
    return next((i for i, time_ms in enumerate(times_ms) if time_ms >= moment_ms), len(times_ms))


def by_client_time(stored: Stored, number: int, from_ms: int, to_ms: int) -> tuple[int, int, int]:
    """A round by client times: messages found, missed, and found from other rounds."""
    found = missed = foreign = 0
    for key, time_ms in zip(stored.keys, stored.client_times_ms, strict=True):
        inside = from_ms <= time_ms < to_ms
        found += inside
        missed += key[0] == number and not inside
        foreign += key[0] != number and inside
    return found, missed, foreign
