"""What the demo asked and got, and what follows from it: rows of tables, data of the picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .truth import Key


@dataclass(frozen=True, slots=True)
class Stored:
    """The topic as read back: one element per message, in the order of the index."""

    keys: list[Key]
    client_times_ms: list[int]
    broker_times_ms: list[int]


@dataclass(frozen=True, slots=True)
class MomentRow:
    """One moment: the index of the first message after it, by truth and by each way to ask."""

    moment_ms: int
    true_index: int
    grpc_index: int
    grpc_ms: float
    client_seek_index: int
    by_client_time_index: int


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One round: its messages by truth and as found between its two moments by each time."""

    number: int
    true_count: int
    by_broker_time: int
    by_client_time: int
    missed: int
    foreign: int


def first_at_or_after(times_ms: Sequence[int], moment_ms: int) -> int:
    """Where a search over these times ends up: the first one >= the moment, else the end."""
    return next((i for i, time_ms in enumerate(times_ms) if time_ms >= moment_ms), len(times_ms))


def by_client_time(stored: Stored, number: int, from_ms: int, to_ms: int) -> tuple[int, int, int]:
    """What client times give for a round: messages found, missed, and foreign to the round."""
    found = missed = foreign = 0
    for key, time_ms in zip(stored.keys, stored.client_times_ms, strict=True):
        inside = from_ms <= time_ms < to_ms
        found += inside
        missed += key[0] == number and not inside
        foreign += key[0] != number and inside
    return found, missed, foreign
