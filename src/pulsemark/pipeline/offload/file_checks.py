"""Check one file of an offload: its bytes, its rows, and the ledgers' messages in its range."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...ledger import CorruptEntryError, EntryKind, TopicLog
from ..decode.runs import read_tables
from ..plan import entry_of
from .manifest import OffloadedFile, file_checksum

_INDEX = "__index"


def problem_of(
    target: Path, file: OffloadedFile, expected_first: int, log: TopicLog | None
) -> str | None:
    """What is wrong with a file; None if it is good.

    Args:
        target: the folder of the offload.
        file: the file as the manifest lists it.
        expected_first: where the topic's file before it ends.
        log: the topic's log; None if it is gone.
    """
    if file.first_index > expected_first:
        return f"messages [{expected_first}, {file.first_index}) are in no file"
    try:
        if file_checksum(target / file.path) != (file.size_bytes, file.crc32c):
            return "its bytes are not those that were written"
        indexes = _indexes(target / file.path)
    except FileNotFoundError:
        return "is missing"
    except (OSError, pa.ArrowInvalid) as error:
        return f"cannot be read: {error}"
    if indexes is None:
        return None if file.rows == _rows(target / file.path) else "has another number of rows"
    if len(indexes) != file.rows:
        return f"has {len(indexes)} rows; the manifest says {file.rows}"
    if len(indexes) and not (
        indexes[0] >= file.first_index
        and indexes[-1] < file.end_index
        and bool((np.diff(indexes) > 0).all())
    ):
        return "has indexes that are not in order, or outside of its range"
    missing = _missing(file, log)
    return f"{missing} messages of the ledger are not in it" if missing else None


def _indexes(path: Path) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    if _INDEX not in pq.read_schema(path).names:
        return None
    column = pq.read_table(path, columns=[_INDEX]).column(0)
    values: np.ndarray[tuple[int], np.dtype[np.int64]] = column.to_numpy()
    return values


def _rows(path: Path) -> int:
    return int(pq.read_metadata(path).num_rows)


def _missing(file: OffloadedFile, log: TopicLog | None) -> int:
    """How many messages of the file's range the ledgers have, and the file does not."""
    if log is None or file.first_index < log.first_index:
        return 0
    start, _ = entry_of(log, file.first_index)
    end, _ = entry_of(log, file.end_index)
    messages = 0
    for table in read_tables(log, start, end, bodies=False, on_damage=_no_message):
        messages += int(table.counts[table.kinds != EntryKind.CONTROL].sum())
    return messages - file.rows


def _no_message(damage: CorruptEntryError) -> None:
    """A damaged entry has no messages that could be compared; an audit counts it."""
