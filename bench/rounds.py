"""Several rounds of a measurement: taken in turns, and shown as their median with the spread.

No bench shows the best of its rounds: that says how fast the machine can be, not how fast it is.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

Measured: TypeAlias = "float | Sequence[float]"
"""The figure of each round, or one figure that was measured once."""
ROUNDS = 3
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of all rounds in one unit: their median, the lowest and the highest.

    The median of an even number of rounds is the mean of the two in the middle.
    """

    median: float
    lowest: float
    highest: float
    rounds: int

    @classmethod
    def of(cls, measured: Measured) -> Sample:
        """The sample of some rounds, or of one figure. Without a round: ValueError."""
        values = [measured] if isinstance(measured, (int, float)) else list(measured)
        if not values:
            raise ValueError("no round was measured")
        return cls(float(statistics.median(values)), min(values), max(values), len(values))

    def text(self, unit: str = "") -> str:
        """The median with its unit; after several rounds the lowest and the highest, too."""
        middle = f"{_digits(self.median)}{unit}"
        if self.rounds == 1:
            return middle
        return f"{middle} ({_digits(self.lowest)} to {_digits(self.highest)})"


def _digits(value: float) -> str:
    """Three digits that count, or all that stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def in_turns(rounds: int, *measures: Callable[[], _T]) -> list[list[_T]]:
    """What each measure gave, round by round.

    A round calls all of them one after another, every second round in the opposite order: so other
    load on the machine affects all of them, and none has always the same one before it.
    """
    taken: list[list[_T]] = [[] for _ in measures]
    turns = list(zip(taken, measures, strict=True))
    for number in range(rounds):
        for given, measure in turns if number % 2 == 0 else reversed(turns):
            given.append(measure())
    return taken


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds of one call, by the wall clock."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def ns_of(call: Callable[[], object], operations: int) -> float:
    """Nanoseconds of one of the operations that a call does, by the wall clock."""
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / operations


def add_rounds(parser: argparse.ArgumentParser, default: int = ROUNDS) -> None:
    """The option --rounds."""
    shown = f"rounds, of which median, lowest and highest are shown ({default})"
    parser.add_argument("--rounds", type=_count, default=default, metavar="N", help=shown)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)
