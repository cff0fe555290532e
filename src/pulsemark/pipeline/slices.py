"""Ranges of a topic's messages, and how they are divided into tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ..ledger import Position
from ..ledger.transactions import Stretch

T = TypeVar("T")

_SMALL_ROWS = 100_000
"""A job's task has whole slices of so many messages together, or a single larger one."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Messages ``[first_index, end_index)`` of a topic, and the entries that hold them.

    The first and the last entry may hold messages outside the range.
    """

    topic: str
    start: Position
    end: Position
    first_index: int
    end_index: int
    has_holes: bool = False
    """The topic's log is cleaned as Kafka's: what is missing between its entries is no loss."""
    hidden: tuple[Stretch, ...] = ()
    """The entries of aborted transactions in it: they count as control entries."""

    @property
    def message_count(self) -> int:
        """How many messages there are, control entries included."""
        return self.end_index - self.first_index


EntryOf = Callable[[str, int], tuple[Position, int]]
"""Where a topic's entry with a message is, and the index of the entry's first message."""


def divide(slices: Sequence[Slice], entry_at: EntryOf, task_count: int) -> list[tuple[Slice, ...]]:
    """Divide slices, in their order, into about ``task_count`` tasks of about as many messages.

    An entry is never split, so there are at most as many tasks as entries.
    """
    total = sum(part.message_count for part in slices)
    tasks: list[list[Slice]] = [[] for _ in range(task_count)]
    done = 0
    for part in slices:
        cuts = range(
            -(-done * task_count // total), -(-(done + part.message_count) * task_count // total)
        )
        indexes = [part.first_index + cut * total // task_count - done for cut in cuts]
        for piece in _cut(entry_at, part, indexes):
            middle = done + piece.first_index - part.first_index + piece.message_count // 2
            tasks[middle * task_count // total].append(piece)
        done += part.message_count
    return [tuple(task) for task in tasks if task]


def _cut(entry_at: EntryOf, part: Slice, indexes: Sequence[int]) -> Iterator[Slice]:
    """Cut a slice before the entries that hold these messages (in rising order)."""
    rest = part
    for index in indexes:
        position, first_index = entry_at(part.topic, index)
        if rest.first_index < first_index < rest.end_index:
            yield replace(rest, end=position, end_index=first_index)
            rest = replace(rest, start=position, first_index=first_index)
    yield rest


def packed(work: Iterable[T], part_of: Callable[[T], Slice]) -> list[list[T]]:
    """Work on whole slices as tasks: the largest first, so that the last ones are short.

    Small slices share a task, which costs some 25 ms of its own.
    """
    tasks: list[list[T]] = []
    rows = 0
    for each in sorted(work, key=lambda each: -part_of(each).message_count):
        count = part_of(each).message_count
        if not tasks or rows + count > _SMALL_ROWS:
            tasks.append([])
            rows = 0
        tasks[-1].append(each)
        rows += count
    return tasks


def divided(sizes: Mapping[T, int], count: int) -> list[list[T]]:
    """The work in at most ``count`` tasks of about the same size; each piece costs 1 more."""
    tasks: list[tuple[int, list[T]]] = [(0, []) for _ in range(max(1, count))]
    for each in sorted(sizes, key=lambda each: -sizes[each]):
        number = min(range(len(tasks)), key=lambda number: tasks[number][0])
        size, work = tasks[number]
        tasks[number] = (size + sizes[each] + 1, [*work, each])
    return [work for _, work in tasks if work]
