"""Check what a manifest lists: a file's bytes and rows, and the ledgers' messages in its range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...ledger import CorruptEntryError, EntryKind, TopicLog
from ..decode.runs import read_tables
from ..plan import entry_of
from .manifest import OffloadedFile
from .places import Place, file_checksum

if TYPE_CHECKING:
    from .table import Indexes

_INDEX = "__index"


def problem_of_file(place: Place, file: OffloadedFile) -> str | None:
    """What is wrong with a file's bytes or rows; None if they are as the manifest says."""
    try:
        if file_checksum(place, file.path) != (file.size_bytes, file.crc32c):
            return "its bytes are not those that were written"
        with place.open(file.path) as source:
            parquet = pq.ParquetFile(source)
            rows = int(parquet.metadata.num_rows)
            has_index = _INDEX in parquet.schema_arrow.names
            indexes = parquet.read([_INDEX]).column(0).to_numpy() if has_index else None
    except FileNotFoundError:
        return "is missing"
    except (OSError, pa.ArrowInvalid) as error:
        return f"cannot be read: {error}"
    if rows != file.rows:
        return f"has {rows} rows; the manifest says {file.rows}"
    return None if indexes is None else _problem_of_indexes(indexes, file)


def _problem_of_indexes(indexes: Indexes, file: OffloadedFile) -> str | None:
    if len(indexes) == 0:
        return None
    inside = indexes[0] >= file.first_index and indexes[-1] < file.end_index
    rising = bool((np.diff(indexes) > 0).all())
    return None if inside and rising else "has indexes that are not in order, or not in its range"


def problems_of_rows(
    indexes: Indexes, logs: Sequence[Sequence[OffloadedFile]]
) -> list[tuple[OffloadedFile, str]]:
    """What is wrong with a topic's rows in a table whose files others have rewritten.

    Args:
        indexes: of all rows of the topic.
        logs: the files that were written, by log. A topic that was created again has several logs,
            whose indexes begin at 0 again.
    """
    indexes = np.sort(indexes)
    problems = []
    for files in logs:
        for file in files:
            first, end = np.searchsorted(indexes, [file.first_index, file.end_index])
            found = int(end - first)
            if found < file.rows or (found != file.rows and len(logs) == 1):
                problems.append((file, f"the table has {found} of its {file.rows} rows"))
    copies = np.unique(indexes, return_counts=True)[1].max(initial=0)
    written = sum(file.rows for files in logs for file in files)
    if copies > len(logs) or len(indexes) != written:
        what = f"the table has {len(indexes)} rows of the topic, and {written} were written"
        problems.append((logs[0][0], what))
    return problems


def missing_in(file: OffloadedFile, log: TopicLog | None) -> int:
    """How many messages of the file's range the ledgers have or have lost, and the file does not.

    If a part of the range is lost in the ledgers, the file must have something of it.
    """
    if log is None or file.first_index < log.first_index:
        return 0
    start, _ = entry_of(log, file.first_index)
    end, _ = entry_of(log, file.end_index)
    messages = indexes = 0
    for table in read_tables(log, start, end, bodies=False, on_damage=_no_message):
        messages += int(table.counts[table.kinds != EntryKind.CONTROL].sum())
        indexes += int(table.counts.sum())
    lost = file.end_index - file.first_index - indexes
    return lost if lost > 0 and messages == file.rows else messages - file.rows


def _no_message(damage: CorruptEntryError) -> None:
    """A damaged entry has no messages that could be compared; an audit counts it."""
