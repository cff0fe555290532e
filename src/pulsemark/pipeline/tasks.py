"""One task of a read: what a worker does with its share, whether of a batch read or of a stream.

Spark pickles a partition and the reader that made it, and sends both to a worker. So partitions are
frozen and name what they cover, readers hold only options, and files are opened here.

A read checks that the indexes of the entries that it gets have no gaps, because a gap means a loss.
Entries can disappear between planning and reading: because of damage, retention, or a deleted file.
Each of these leaves a gap, even if no error was raised.

An entry that cannot be read or decoded is an error, or with ``failOnDataLoss=false`` a warning, and
its rows are left out. If the column ``__error`` is read, it is a row instead: with its topic, its
position, and the reason, and without other values. It is in the range that its last message is in.
Messages that are missing without a record that could be shown stay losses.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ..compaction.current_view import FolderForm, logs_of_folder
from ..ledger import (
    CorruptEntryError,
    FolderLog,
    FolderReader,
    Position,
    TopicLog,
    TopicNotFoundError,
)
from ..ledger.local.io.folder import SegmentId
from .columns import ERROR_COLUMN, Depth, depth_of
from .decode.batches import BatchForm, record_batches
from .decode.entries import EntryTable
from .decode.runs import OnDamage, read_tables
from .errors import DataLossError, DecodeError
from .options import DecodeMode, ReadOptions, opened_store
from .plan import indexes_of, report
from .slices import Slice
from .workers import spare_the_collector

if TYPE_CHECKING:
    from ..ledger.bookkeeper.reader import BookKeeperReader, StoredLog
    from .values.form import ValueForm


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LedgerPartition(InputPartition):
    """One task's share, and the ledgers that were known to be lost at planning."""

    slices: tuple[Slice, ...]
    lost_ledgers: frozenset[int] = frozenset()
    segments: Mapping[str, tuple[SegmentId, ...]] | None = None
    """By topic: the segments to open; None: the worker looks for them in the folder."""


@dataclass(frozen=True, slots=True)
class TaskReader:
    """Reads the rows of tasks, in a worker."""

    options: ReadOptions
    schema: pa.Schema
    """The columns, as Spark asks for them."""
    values: ValueForm | None = None
    """How values are decoded; None: they are not."""

    @classmethod
    def of(cls, options: ReadOptions, schema: StructType, values: ValueForm | None) -> TaskReader:
        """A reader of Spark's columns."""
        return cls(options, to_arrow_schema(schema, timezone="UTC"), values)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task's slices, in order.

        Raises:
            DataLossError: messages are missing (see ``fail_on_data_loss``).
            DecodeError: an entry cannot be decoded (see ``fail_on_data_loss``), or a value by its
                schema (see ``mode``).
        """
        assert isinstance(partition, LedgerPartition), "the partitions are our own"
        spare_the_collector()
        where = self.options.where
        if where is None:
            return self._rows(partition)
        wider = replace(self, schema=where.widened(self.schema))
        return where.filtered(wider._rows(partition), self.schema)

    def _rows(self, partition: LedgerPartition) -> Iterator[pa.RecordBatch]:
        options = self.options
        if options.service is not None:
            from .remote_log import remote_tables

            with options.service.client() as client:
                for part in partition.slices:
                    tables = partial(remote_tables, client, part, uncommitted=options.uncommitted)
                    yield from self._rows_of_slice(tables, _unknown, part)
            return
        for part, log in opened_slices(options, partition):
            if log is None:
                Continuity(part, fail=options.fail_on_data_loss).finish()
                continue
            indexes: Callable[[Position], Indexes | None] = _unknown
            if options.store is None and isinstance(log, TopicLog):
                indexes = partial(indexes_of, log)
            yield from self._rows_of_slice(partial(tables_of, log, part), indexes, part)

    def _rows_of_slice(
        self,
        read: Callable[..., Iterator[EntryTable]],
        indexes: Callable[[Position], Indexes | None],
        part: Slice,
    ) -> Iterator[pa.RecordBatch]:
        continuity = Continuity(part, fail=self.options.fail_on_data_loss)
        bad = BadEntries(part, self.options, self.schema, continuity)
        form = self._form(part, open_all=bad.are_rows)
        tables = read(
            bodies=form.open_all or depth_of(self.schema.names) > Depth.LEDGER,
            on_damage=lambda damage: bad.damaged(damage, indexes(damage.position)),
        )
        for table in tables:
            continuity.check(table)
            yield from record_batches(table, form, bad.undecodable)
            yield from bad.batches()
        continuity.finish()
        yield from bad.batches()

    def _form(self, part: Slice, *, open_all: bool) -> BatchForm:
        options, schema, decoder = self.options, self.schema, None
        if self.values is not None and "value" in schema.names:
            decoder = self.values.decoder(part.topic, schema.field("value").type)
        return BatchForm(
            part.topic,
            schema,
            part.first_index,
            part.end_index,
            options.limits,
            open_all=open_all or not options.fail_on_data_loss or part.has_holes,
            without_holes=part.has_holes,
            decoder=decoder,
            fail_fast=options.mode is DecodeMode.FAILFAST,
        )


def tables_of(
    log: TopicLog | FolderForm, part: Slice, *, bodies: bool, on_damage: OnDamage
) -> Iterator[EntryTable]:
    """The entries of a slice; those of aborted transactions are control entries."""
    for table in read_tables(log, part.start, part.end, bodies=bodies, on_damage=on_damage):
        yield table.with_hidden(part.hidden) if part.hidden and len(table) else table


def _unknown(_: Position) -> None:
    """Return None: only the entry, which is read elsewhere, tells its indexes."""


def opened_slices(
    options: ReadOptions, partition: LedgerPartition
) -> Iterator[tuple[Slice, TopicLog | FolderForm | None]]:
    """A task's slices with their topics, opened once; None for a missing topic."""
    if options.store is not None:
        with opened_store(options.store) as reader:
            opened = cache(partial(log_in_store, reader))
            for part in partition.slices:
                yield part, opened(part.topic)
        return
    with FolderReader(options.path) as folder:
        logs = _opened(folder, partition)
        for part in partition.slices:
            yield part, logs.get(part.topic)


def _opened(
    folder: FolderReader, partition: LedgerPartition
) -> Mapping[str, FolderLog | FolderForm]:
    cleaned = dict.fromkeys(part.topic for part in partition.slices if part.has_holes)
    lost = partition.lost_ledgers
    whole = folder.logs(cleaned, lost=lost) if cleaned else {}
    forms = logs_of_folder(folder, whole)
    if partition.segments is not None:
        return {**folder.logs_of(partition.segments, lost=lost), **forms}
    topics = dict.fromkeys(part.topic for part in partition.slices if not part.has_holes)
    return {**folder.logs(topics, lost=lost), **forms}


def log_in_store(reader: BookKeeperReader, topic: str) -> StoredLog | None:
    """A topic of a store; None if it does not exist."""
    try:
        return reader.log(topic)
    except TopicNotFoundError:
        return None


Indexes = tuple[int, int]
"""The first index of some messages, and the index after their last."""
UNKNOWN: Indexes = (0, 1 << 63)
"""The indexes of messages of which only the position is known."""


class Continuity:
    """Checks one slice from its first message to its last.

    A gap raises DataLossError if ``fail`` is set; otherwise it is logged.
    """

    def __init__(self, part: Slice, *, fail: bool) -> None:
        self._part = part
        self._fail = fail
        self._next_index = part.first_index
        self._damages: deque[tuple[CorruptEntryError, Indexes | None]] = deque()

    def damaged(self, damage: CorruptEntryError, shown: Indexes | None = None) -> None:
        """Remember the reason of the gap that will follow.

        ``shown`` are the indexes of the entry's messages, if the result has a row that tells of the
        damage: these messages are then no loss. ``UNKNOWN`` stands for the whole gap.
        """
        if self._part.has_holes:
            if shown is None:
                error = DataLossError(self._part.topic, None, None, str(damage))
                report(error, self._fail)
            return
        self._damages.append((damage, shown))

    def check(self, table: EntryTable) -> None:
        """Check the next entries; control entries count too."""
        if self._part.has_holes:
            return
        firsts, lasts = table.first_indexes, table.indexes
        if firsts[0] > self._next_index:
            self._lost(self._next_index, int(firsts[0]), table.position(0))
        for row in (np.flatnonzero(firsts[1:] - lasts[:-1] > 1) + 1).tolist():
            self._lost(int(lasts[row - 1]) + 1, int(firsts[row]), table.position(row))
        self._next_index = int(lasts[-1]) + 1

    def finish(self) -> None:
        """Check the end of the slice: no message may be missing after the last entry."""
        if self._next_index < self._part.end_index and not self._part.has_holes:
            self._lost(self._next_index, self._part.end_index, self._part.end)

    def _lost(self, first_index: int, end_index: int, before: Position) -> None:
        damage = None
        while self._damages and self._damages[0][0].position < before:
            last, shown = self._damages.popleft()
            damage = damage or last
            if shown is not None and shown[0] <= first_index < shown[1]:
                first_index = shown[1]
        if first_index >= end_index:
            return
        reason = str(damage) if damage else "their entries are not in the folder"
        report(DataLossError(self._part.topic, first_index, end_index, reason), self._fail)


class BadEntries:
    """The handling of the bad entries of one slice."""

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
        """The rows of bad entries since the last call."""
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
