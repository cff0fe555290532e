"""Record sets of Kafka's clients, as the messages that Pulsar's consumers get of them.

The stored form of a set begins with four zero bytes, which no message of Pulsar's does, and the
prefix says its format. So a table without sets costs a look at the first bytes of its bodies.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...kafka.records import (
    RecordSetError,
    UnconvertibleEntryError,
    magic_of,
    read,
    to_pulsar,
)
from ...metadata import PrefixError, peek
from .entries import EntryTable
from .octets import Ints, items_at

UNNAMED_PRODUCER = "kafka"
_ZEROS = 4


def with_messages_of_sets(
    table: EntryTable, max_bytes: int, on_bad_entry: Callable[[EntryTable, int, str], None]
) -> EntryTable:
    """The table with a Pulsar batch in the place of each set.

    Args:
        table: entries with their bodies.
        max_bytes: the most that a set may have as messages.
        on_bad_entry: called with (table, row, reason) for a set that cannot be converted; the entry
            is left out then.
    """
    converted: dict[int, bytes] = {}
    left_out = []
    for row in _sets(table).tolist():
        try:
            messages = _converted(table, row, max_bytes)
        except (RecordSetError, UnconvertibleEntryError, PrefixError) as error:
            on_bad_entry(table, row, f"its record set cannot be read: {error}")
            left_out.append(row)
        else:
            if messages is not None:
                converted[row] = messages
    if not converted and not left_out:
        return table
    rows = np.setdiff1d(np.arange(len(table)), left_out)
    return _rebuilt(table, rows, converted)


def _sets(table: EntryTable) -> Ints:
    """The rows whose bodies begin as a set does."""
    starts = table.body_starts
    large = table.ends - starts >= _ZEROS
    rows = np.arange(len(table)) if bool(large.all()) else np.flatnonzero(large)
    return rows[np.flatnonzero(items_at(table.octets, "<u4", starts[rows]) == 0)]


def _converted(table: EntryTable, row: int, max_bytes: int) -> bytes | None:
    """The set as headers-and-payload; None: the prefix does not say that it is one."""
    view = memoryview(table.data)
    body_at = int(table.body_starts[row])
    prefix = peek(view[int(table.starts[row]) : body_at])
    if prefix is None or magic_of(prefix.source_format) is None:
        return None
    return to_pulsar(
        read(view[body_at : int(table.ends[row])]),
        int(table.counts[row]),
        publish_time_ms=int(table.append_times_ms[row]),
        producer_name=prefix.producer_name or UNNAMED_PRODUCER,
        sequence_id=int(table.first_indexes[row]),
        max_bytes=max_bytes,
    )


def _rebuilt(table: EntryTable, rows: Ints, converted: dict[int, bytes]) -> EntryTable:
    """The rows in a buffer of their own, with other bodies."""
    view = memoryview(table.data)
    starts, body_starts, ends = table.starts, table.body_starts, table.ends
    pieces: list[bytes | memoryview] = []
    sizes = []
    for row in rows.tolist():
        body = converted.get(row)
        if body is None:
            entry = [view[int(starts[row]) : int(ends[row])]]
        else:
            entry = [view[int(starts[row]) : int(body_starts[row])], memoryview(body)]
        pieces += entry
        sizes.append(sum(map(len, entry)))
    made = table.select(rows)
    made.data = b"".join(pieces)
    made.ends = np.cumsum(np.array(sizes, np.int64))
    made.starts = made.ends - np.array(sizes, np.int64)
    return made
