"""Reads a log from a position to its end: entry by entry, or many entries at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .entry import Entry
from .errors import CorruptEntryError
from .position import EARLIEST, Position
from .topic_log import ReadableLog

__all__ = ["entries_of", "read_on"]

READ_ENTRIES = 200


def entries_of(
    log: ReadableLog,
    start: Position = EARLIEST,
    *,
    end: Position | None = None,
    skip_damaged: bool = False,
) -> Iterator[Entry]:
    """The durable entries of a log, in order, until its present end. Blocks while it reads.

    Entries that retention removes meanwhile are left out. Entries that are appended meanwhile are
    included, as long as the loop has not come to the end.

    Args:
        log: a topic, as `open_topic` or `FolderReader.log` return it, or its compacted form.
        start: the first entry wanted, or the first one after it.
        end: the first entry that is no longer wanted; None: go on to the end of the log.
        skip_damaged: leave out damaged entries instead of raising.

    Raises:
        CorruptEntryError: an entry is damaged. Its `next_position` is where to go on.
        StoreClosedError: the store was closed.
        StoreFailedError: the store stopped after a failure that it cannot repair.
        ForkedStoreError: the store was opened by the parent of this process.
        OSError: the disk cannot be read.
    """
    at = start
    while True:
        try:
            entries = log.read(at, max_entries=READ_ENTRIES)
        except CorruptEntryError as damage:
            if not skip_damaged:
                raise
            at = damage.next_position
            continue
        if not entries:
            return
        for entry in entries:
            if end is not None and entry.position >= end:
                return
            yield entry
        last = entries[-1].position
        at = Position(last.ledger_id, last.entry_id + 1)


def read_on(
    log: ReadableLog,
    start: Position,
    on_damage: Callable[[CorruptEntryError], object] | None = None,
) -> Iterator[list[Entry]]:
    """All entries from ``start`` on, up to 1,000 at a time.

    ``on_damage`` is called with the error of each damaged entry, which is left out. Without it the
    first one ends the reading with its CorruptEntryError.
    """
    position = start
    while True:
        try:
            entries = log.read(position, max_entries=1000)
        except CorruptEntryError as error:
            if on_damage is None:
                raise
            on_damage(error)
            position = error.next_position
            continue
        if not entries:
            return
        yield entries
        position = entries[-1].position.following
