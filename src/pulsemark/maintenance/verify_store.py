"""Verify topics that are in BookKeeper: every confirmed entry is read and checked.

The client checks each entry's digest, ledger and number. What is checked here is that entries can
be read, and that their indexes follow one another.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ledger import EARLIEST, CorruptEntryError, Entry, EntryKind, TopicLog
from .finding import Finding
from .findings import DamagedEntries, IndexGap
from .verify_topic import Checked


def verify_logs(logs: Iterator[TopicLog], place: str, checked: Checked) -> Iterator[Finding]:
    """What is wrong with each log; ``place`` names the store, ``checked`` is counted up."""
    for log in logs:
        checked.topics += 1
        checked.segments += len(log.segments())
        yield from _verify(log, place, checked)


def _verify(log: TopicLog, place: str, checked: Checked) -> Iterator[Finding]:
    position = EARLIEST
    next_index: int | None = log.first_index
    while True:
        try:
            entries = log.read(position, max_entries=1000, max_bytes=8 << 20)
        except CorruptEntryError as error:
            yield DamagedEntries(
                topic=log.name,
                path=place,
                first=error.position,
                end=error.next_position,
                offset=0,
                reason=error.reason,
            )
            position = error.next_position
            next_index = None  # only the damaged entry says how many indexes it has
            continue
        if not entries:
            return
        for entry in entries:
            if next_index is not None and entry.first_index != next_index:
                yield IndexGap(
                    topic=log.name,
                    path=place,
                    position=entry.position,
                    expected_index=next_index,
                    found_index=entry.first_index,
                )
            next_index = entry.index + 1
            _count(entry, checked)
        position = entries[-1].position.following


def _count(entry: Entry, checked: Checked) -> None:
    checked.entries += 1
    checked.size_bytes += len(entry.stored)
    if entry.kind is EntryKind.CONTROL:
        checked.control_entries += 1
    else:
        checked.messages += entry.message_count
