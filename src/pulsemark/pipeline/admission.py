"""Admission control of a stream: how far a micro-batch goes in each topic.

A limit is shared fairly: topics with little to read are read to their ends, and the others divide
the rest equally. So a topic with a large backlog does not keep others waiting. One topic, another
one each time, gets at least one entry first. So every topic goes on, however small the limit is and
however large an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..ledger import Run, TopicLog
from ..ledger.rows import Row
from .plan import row_of


@dataclass(frozen=True, slots=True)
class Backlog:
    """Messages ``[first_index, end_index)`` of one topic that a micro-batch may have."""

    log: TopicLog | None
    """None if there is no limit by bytes."""
    first_index: int
    end_index: int


Cut = Callable[[Backlog, int], tuple[Backlog, int]]
"""The part of a backlog that a budget is enough for, and what it costs."""


def admit(
    backlogs: Mapping[str, Backlog], max_offsets: int | None, max_bytes: int | None, turn: int
) -> dict[str, Backlog]:
    """The part of each topic's backlog for the next micro-batch.

    Args:
        backlogs: by topic; none is empty.
        max_offsets: the most messages of all topics together; None: no limit.
        max_bytes: the most stored bytes of all topics together. The first entry of the topic whose
            turn it is is admitted also if it is larger.
        turn: a number that grows with each call.
    """
    admitted = dict(backlogs)
    if max_offsets is not None:
        admitted = _shared(admitted, max_offsets, _cut_messages, turn)
    if max_bytes is not None:
        admitted = _shared(admitted, max_bytes, _cut_bytes, turn)
    return admitted


def _shared(
    backlogs: Mapping[str, Backlog], budget: int, cut: Cut, turn: int
) -> dict[str, Backlog]:
    if not backlogs:
        return {}
    topics = sorted(backlogs)
    first = topics[turn % len(topics)]
    reserved = _first_entry(backlogs[first], cut)
    costs = {topic: cut(backlogs[topic], _UNLIMITED)[1] for topic in topics}
    topics.sort(key=costs.__getitem__)
    admitted: dict[str, Backlog] = {}
    for number, topic in enumerate(topics):
        waiting = len(topics) - number
        if topic == first:
            share, reserved = max(reserved, budget // waiting), 0
        else:
            share = max(0, budget - reserved) // waiting
        part, cost = cut(backlogs[topic], share)
        budget -= cost
        if part.end_index > part.first_index:
            admitted[topic] = part
    return admitted


_UNLIMITED = 1 << 62


def _first_entry(backlog: Backlog, cut: Cut) -> int:
    """What the first message costs, with the entry that holds it if entries cannot be divided."""
    if cut is _cut_messages:
        return 1
    assert backlog.log is not None, "a limit by bytes needs the log"
    place = row_of(backlog.log, backlog.first_index)
    if place is None:
        return 0
    segment, number = place
    row = segment.row(number)
    return row.end_offset - row.offset


def _cut_messages(backlog: Backlog, budget: int) -> tuple[Backlog, int]:
    count = min(budget, backlog.end_index - backlog.first_index)
    return replace(backlog, end_index=backlog.first_index + count), count


def _cut_bytes(backlog: Backlog, budget: int) -> tuple[Backlog, int]:
    """Whole entries, as stored; only the first and the last one may be cut by their messages."""
    log, index, spent = backlog.log, backlog.first_index, 0
    assert log is not None, "a limit by bytes needs the log"
    while index < backlog.end_index:
        place = row_of(log, index)
        if place is None:
            break
        segment, number = place
        row = segment.row(number)
        last = segment.row(segment.entry_count - 1)
        if last.end_offset - row.offset <= budget - spent:
            spent += last.end_offset - row.offset
            index = segment.next_index
            continue
        fitting = _last_row_before(segment, row.offset + budget - spent)
        if fitting is not None and fitting.end_offset > row.offset:
            spent += fitting.end_offset - row.offset
            index = segment.first_index + fitting.next_message
        break
    return replace(
        backlog, end_index=max(backlog.first_index, min(index, backlog.end_index))
    ), spent


def _last_row_before(segment: Run, end_offset: int) -> Row | None:
    """The last row whose entry ends at or before an offset."""
    low, high = 0, segment.entry_count
    while low < high:
        middle = (low + high) // 2
        if segment.row(middle).end_offset <= end_offset:
            low = middle + 1
        else:
            high = middle
    return segment.row(low - 1) if low else None
