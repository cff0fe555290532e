"""The column of tags: each entry's tags by name, in the row of each of its messages.

Tags are all fields of the stamp except time and index (`metadata.tags_of`). They are read from the
prefix alone, so the column needs no byte of the producer's. An entry that has only time and index,
as nearly all have, costs one comparison.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ...metadata import FieldValue, PrefixError, printable, tags_of
from .entries import EntryTable


def tag_maps(table: EntryTable, type_: Any) -> pa.Array:
    """A map of strings, of the Arrow type ``type_``, for each entry; empty if it has no tags."""
    by_entry = [list(_shown(table, row).items()) for row in range(len(table))]
    return pa.array(by_entry, type_)


def _shown(table: EntryTable, row: int) -> dict[str, str]:
    start = int(table.starts[row])
    try:
        tags = tags_of(memoryview(table.data)[start : start + int(table.prefix_sizes[row])])
    except PrefixError:
        # The record's checksum was right, so another program wrote these bytes.
        return {}
    return {name: _text(value) for name, value in tags.items()}


def _text(value: FieldValue) -> str:
    """A value as Spark casts it to text; bytes that are not UTF-8 are hexadecimal."""
    shown = printable(value)
    return str(shown).lower() if isinstance(shown, bool) else str(shown)
