"""Entries of a slice that cannot be read or decoded: errors, warnings, or rows.

Usually such an entry is an error, or with ``failOnDataLoss=false`` a warning, and its rows are left
out. If the column ``__error`` is read, it is a row instead: with its topic, its position, and the
reason, and without other values. It is in the range that its last message is in. Messages that are
missing without a record that could be shown stay losses.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ..ledger import CorruptEntryError, Position
from .columns import ERROR_COLUMN
from .continuity import UNKNOWN, Continuity, Indexes
from .decode.entries import EntryTable
from .errors import DecodeError
from .options import ReadOptions
from .plan import Slice

_log = logging.getLogger(__name__)


class BadEntries:
    """What becomes of the bad entries of one slice."""

    def __init__(
        self, part: Slice, options: ReadOptions, schema: pa.Schema, continuity: Continuity
    ) -> None:
        self._part = part
        self._fail = options.fail_on_data_loss
        self._schema = schema
        self._continuity = continuity
        self._rows: list[tuple[Position, str]] = []

    @property
    def are_rows(self) -> bool:
        """Whether bad entries are rows."""
        return ERROR_COLUMN in self._schema.names

    def undecodable(self, table: EntryTable, row: int, reason: str) -> None:
        """An entry is undamaged, but its producer's bytes cannot be decoded."""
        error = DecodeError(self._part.topic, table.position(row), reason)
        if self.are_rows:
            last = int(table.indexes[row])
            self._add(error.position, (last, last + 1), reason)
        elif self._fail:
            raise error
        else:
            _log.warning("an entry was left out of the result: %s", error)

    def damaged(self, damage: CorruptEntryError, indexes: Indexes | None) -> None:
        """A record is damaged; ``indexes`` are those of its messages, if they are known."""
        self._continuity.damaged(damage, (indexes or UNKNOWN) if self.are_rows else None)
        if self.are_rows:
            self._add(damage.position, indexes, f"it is damaged: {damage.reason}")

    def _add(self, position: Position, indexes: Indexes | None, reason: str) -> None:
        if indexes is None or self._part.first_index < indexes[1] <= self._part.end_index:
            self._rows.append((position, reason))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of bad entries since the last call; nothing if there are none."""
        if not self._rows:
            return
        positions = np.array([position for position, _ in self._rows], np.int64).reshape(-1, 2)
        known: dict[str, Any] = {
            "__topic": pa.repeat(self._part.topic, len(positions)),
            "__ledgerId": pa.array(positions[:, 0]),
            "__entryId": pa.array(positions[:, 1]),
            ERROR_COLUMN: pa.array([reason for _, reason in self._rows], pa.string()),
        }
        self._rows = []
        columns = [
            known.get(field.name, pa.nulls(len(positions), field.type)) for field in self._schema
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=self._schema)
