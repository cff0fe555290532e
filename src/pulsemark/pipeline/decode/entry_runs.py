"""Read runs of entries that are in no file, one entry after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...ledger import CorruptEntryError, Run, TopicLog
from .entries import EntryTable, table_of_entries

OnDamage = Callable[[CorruptEntryError], None]


def tables_by_entries(
    log: TopicLog, run: Run, row: int, last: int, max_bytes: int, on_damage: OnDamage
) -> Iterator[EntryTable]:
    """As `read_tables`, for a run that is in no file: its own reader makes all checks."""
    while row < last:
        start = run.position(row)
        try:
            entries = log.read(start, max_entries=last - row, max_bytes=max_bytes)
        except CorruptEntryError as damage:
            on_damage(damage)
            row += 1
            continue
        # Where entries were removed meanwhile, the log goes on after them.
        here = [
            entry
            for entry in entries
            if entry.position.ledger_id == run.ledger_id
            and entry.position.entry_id < run.first_entry_id + last
        ]
        if not here:
            return
        yield table_of_entries(here)
        row = here[-1].position.entry_id + 1 - run.first_entry_id
