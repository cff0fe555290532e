"""The pieces of an offload, and the workers' part: read a piece and write its file.

A piece is what one file holds, of one topic and one hour. It ends where the hour of the broker's
time ends, or at a multiple of the rows a file may have. So the same entries give the same pieces in
every run; only the last piece of a topic depends on where its log ended.

The rows go from the ledger's bytes to Arrow to Parquet in one process, and never through Spark's
JVM. A file's footer names its piece. So a run that goes on after a kill finds the files that are
complete, and does not write them again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...compaction.current_view import FolderForm
from ...finder.search import finder_of
from ...ledger.local.folder_reader import FolderLog
from ...ledger.local.io.folder import SegmentId
from ..columns import VALUE_BYTES, VALUE_ERROR
from ..errors import JobFailedError
from ..marks import Mark, mark_of
from ..options import ReadOptions
from ..plan import entry_of, row_of, segments_of, slice_between, written_log
from ..slices import Slice
from ..tasks import LedgerPartition, TaskReader
from ..values.form import ValueForm
from .manifest import (
    CHANGES_FOLDER,
    LAST_HOUR_MS,
    PERIODS_MS,
    Layout,
    OffloadedFile,
    file_name,
    is_current_run,
)
from .places import Place, file_checksum
from .schema import (
    DELETED,
    ERRORS,
    KEY,
    TOPIC,
    column_of,
    latest,
    rejected_schema,
    rows_schema,
    without_partitions,
)
from .table import packed_schema, unsorted

FOOTER_KEY = b"pulsemark.piece"
_COUNTS_KEY = b"pulsemark.counts"
"""The messages that were taken, and rejected; an upsert's file has fewer rows."""
_GROUP_BYTES = 64 << 20
"""Rows are gathered up to this size and written as one row group."""
_REPEATED = ("topic", "hour", "__topic", "__producerName", "__messageProperties")
"""Columns with few values: only for them a dictionary is worth its work."""


@dataclass(frozen=True, slots=True)
class FileForm:
    """The form of a run's files, made on the driver and sent to the workers."""

    layout: Layout
    schema: pa.Schema
    """The table's columns."""
    constants: bool
    """Whether files have their partition's values too."""
    values: ValueForm | None = None
    """How values are decoded; None: they stay bytes."""
    rejected: Place | None = None
    """The place of rows that the table cannot take; None: such a row is an error."""

    def file_schema(self) -> pa.Schema:
        """The columns of the table's files, or of the changes of one."""
        if self.layout.upserts:
            schema = without_partitions(self.schema, self.layout)
            return schema.append(pa.field(DELETED, pa.bool_()))
        return self.schema if self.constants else without_partitions(self.schema, self.layout)

    def rejected_schema(self) -> pa.Schema:
        """The columns of the files of rejected rows."""
        schema = rejected_schema(self.layout.columns)
        return schema if self.constants else without_partitions(schema, Layout(()))


@dataclass(frozen=True, slots=True)
class PieceWriter:
    """Writes the files of a run, in its workers."""

    place: Place
    run: str
    options: ReadOptions
    lost: frozenset[int]
    form: FileForm

    def write_all(
        self, pieces: Sequence[Piece]
    ) -> Iterator[tuple[OffloadedFile, OffloadedFile | None]]:
        """Write the files of one task. Raises as `write`."""
        return map(self.write, pieces)

    def write(self, piece: Piece) -> tuple[OffloadedFile, OffloadedFile | None]:
        """Write one file, and one of rejected rows if there are some, or find them complete.

        Raises:
            DataLossError, DecodeError: the ledger's messages cannot be read.
            JobFailedError: another run has begun.
            OSError: the file cannot be written.
        """
        identity = self._identity(piece)
        counts = self._counts_if_complete(self.place, piece.path, identity)
        if counts is None:
            counts = self.place.write(piece.path, lambda f: self._fill(piece, identity, f))
        rows, rejected = counts
        file = self._described(self.place, piece.path, piece, rows, rejected)
        if not rejected:
            return file, None
        place, part = self.form.rejected, piece.part
        assert place is not None, "rows are rejected where there is a place for them"
        indexes = part.first_index, part.end_index
        path = file_name(part.topic, piece.log_id, piece.hour_ms, *indexes)
        if self._counts_if_complete(place, path, identity) is None:
            place.write(path, lambda f: self._fill(piece, identity, f, bad=True))
        return file, self._described(place, path, piece, rejected, 0)

    @staticmethod
    def _described(
        place: Place, path: str, piece: Piece, rows: int, rejected: int
    ) -> OffloadedFile:
        size_bytes, checksum = file_checksum(place, path)
        return OffloadedFile(
            path,
            piece.part.topic,
            piece.log_id,
            piece.hour_ms,
            piece.part.first_index,
            piece.part.end_index,
            rows,
            size_bytes,
            checksum,
            piece.mark,
            rejected,
        )

    def _identity(self, piece: Piece) -> bytes:
        """The facts in the file's footer by which a later run may use it as it is.

        A run that leaves lost messages out, or has other columns, writes other files.
        """
        form, part = self.form, piece.part
        place = part.topic, piece.log_id, part.first_index, part.end_index, piece.mark
        form_facts = form.layout, packed_schema(form.schema), form.constants, form.values
        rejected = None if form.rejected is None else form.rejected.uri
        more = rejected, self.options.fail_on_data_loss
        return repr((*place, *form_facts, *more)).encode()

    @staticmethod
    def _counts_if_complete(place: Place, path: str, identity: bytes) -> tuple[int, int] | None:
        """The messages of a file that an earlier run has completed, and those it rejected."""
        try:
            with place.open(path) as file:
                found = pq.read_metadata(file)
        except (FileNotFoundError, pa.ArrowInvalid):
            return None
        said = found.metadata or {}
        if said.get(FOOTER_KEY) != hashlib.sha256(identity).hexdigest().encode():
            return None
        rows, rejected = said[_COUNTS_KEY].split()
        return int(rows), int(rejected)

    def _fill(
        self, piece: Piece, identity: bytes, file: IO[bytes], *, bad: bool = False
    ) -> tuple[int, int]:
        """Write the good rows, or the bad ones. Return how many there are of both."""
        counts = [0, 0]
        schema = self.form.rejected_schema() if bad else self.form.file_schema()
        repeated = [name for name in schema.names if name in _REPEATED]
        without = unsorted(schema)
        described = [name for name in schema.names if name not in without]
        with pq.ParquetWriter(
            file, schema, use_dictionary=repeated, write_statistics=described
        ) as writer:
            changes: pa.Table | None = None
            for table in self._row_groups(piece):
                good, rejected = self._sorted_out(piece, table)
                counts = [counts[0] + len(good), counts[1] + len(rejected)]
                rows = rejected if bad else good
                if len(rows) or not bad:
                    rows = self._table(piece, rows, schema)
                    if bad or not self.form.layout.upserts:
                        writer.write_table(rows, max(1, len(rows)))
                    else:
                        rows = rows if changes is None else pa.concat_tables([changes, rows])
                        changes = latest(rows)
            if changes is not None:
                writer.write_table(changes, max(1, len(changes)))
            digest = hashlib.sha256(identity).hexdigest().encode()
            writer.add_key_value_metadata({FOOTER_KEY: digest, _COUNTS_KEY: b"%d %d" % (*counts,)})
        if not is_current_run(self.place, self.run):
            raise JobFailedError(f"another offload has begun to write to {self.place.uri}")
        return counts[0], counts[1]

    def _row_groups(self, piece: Piece) -> Iterator[pa.Table]:
        """The rows of a piece, in tables of about the same size."""
        partition = LedgerPartition((piece.part,), self.lost, piece.segments)
        batches: list[pa.RecordBatch] = []
        size_bytes = 0
        form = self.form
        typed, errors = None if form.values is None else form.schema, form.rejected is not None
        schema = rows_schema(form.layout.columns, typed, errors=errors)
        for batch in TaskReader(self.options, schema, form.values).read(partition):
            batches.append(batch)
            size_bytes += batch.nbytes
            if size_bytes >= _GROUP_BYTES:
                yield pa.Table.from_batches(batches)
                batches, size_bytes = [], 0
        if batches:
            yield pa.Table.from_batches(batches)

    def _sorted_out(self, piece: Piece, table: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Split the rows into those that the table takes and the others.

        Raises JobFailedError if a row lacks a key that it needs, and there is no place for it.
        """
        reasons = pa.chunked_array([pa.nulls(len(table), pa.string())])
        if VALUE_ERROR in table.column_names:
            reasons = table[VALUE_ERROR]
        if self.form.layout.upserts:
            keyless = pc.and_(table[KEY].is_null(), reasons.is_null())
            reasons = pc.if_else(keyless, "it has no key", reasons)
        bad = reasons.is_valid()
        table = table.append_column(ERRORS, reasons)
        rejected = table.filter(bad)
        if len(rejected) and self.form.rejected is None:
            place = f"{piece.part.topic}: message {rejected['__index'][0]}"
            more = (
                "an upsert needs one. Set mode=PERMISSIVE (--mode PERMISSIVE) to reject such rows"
            )
            raise JobFailedError(f"{place} has no key, and {more}")
        return table.filter(pc.invert(bad)), rejected

    def _table(self, piece: Piece, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        """Some rows in the columns of a file."""
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        filed = {
            TOPIC: pa.scalar(piece.part.topic, pa.string()),
            **dict.fromkeys(PERIODS_MS, pa.scalar(piece.hour_ms * 1000, pa.timestamp("us", "UTC"))),
        }
        columns |= {
            name: pa.chunked_array([pa.repeat(value, len(rows))]) for name, value in filed.items()
        }
        if ERRORS.name in schema.names:
            columns |= {"value": rows[VALUE_BYTES if VALUE_BYTES in columns else "value"]}
            return pa.table([columns[name] for name in schema.names], schema=schema)
        if DELETED in schema.names:
            columns[DELETED] = self._deleted(rows["value"])
        if "value" not in schema.names and "value" in columns:
            value = columns.pop("value")
            columns |= {
                column_of(field.name): column
                for field, column in zip(value.type, value.flatten(), strict=True)
            }
        return pa.table([columns[name] for name in schema.names], schema=schema)

    def _deleted(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Whether each value deletes its key: it is null, or as bytes empty."""
        if self.form.values is not None:
            return values.is_null()
        return pc.equal(pc.binary_length(values), 0).fill_null(True)


@dataclass(frozen=True, slots=True)
class Piece:
    """The messages of one file."""

    path: str
    log_id: int
    hour_ms: int
    part: Slice
    segments: Mapping[str, tuple[SegmentId, ...]]
    """The segments to open, by topic, so that a worker reads no headers of other topics."""
    mark: Mark | None
    """The mark of the entry with the last message."""


def pieces_of(
    log: FolderLog | FolderForm, first: int, end: int, rows_per_file: int, layout: Layout
) -> Iterator[Piece]:
    """The pieces of the messages ``[first, end)`` of a topic."""
    period = layout.period
    finder, period_ms = finder_of(log), PERIODS_MS[period]
    last_ms = LAST_HOUR_MS // period_ms * period_ms
    while first < end:
        hour_ms = min(_time_ms(log, first) // period_ms * period_ms, last_ms)
        hour_end = end
        if hour_ms < last_ms:
            found = finder.by_time(hour_ms + period_ms)
            hour_end = end if found.end else min(end, max(found.first_index, first))
        limit = (first // rows_per_file + 1) * rows_per_file
        piece_end = min(_entry_end(log, limit), hour_end) if limit < hour_end else hour_end
        piece_end = max(piece_end, _entry_end(log, first + 1))
        part = slice_between(log, first, piece_end)
        path = file_name(log.name, log.topic_id, hour_ms, first, piece_end, period)
        if layout.upserts:
            path = f"{CHANGES_FOLDER}/{path.rpartition('/')[2]}"
        segments = segments_of([part], {log.name: written_log(log)})
        mark = mark_of(written_log(log), piece_end)
        yield Piece(path, log.topic_id, hour_ms, part, segments, mark)
        first = piece_end


def _time_ms(log: FolderLog | FolderForm, index: int) -> int:
    """The time by which searches find a message's entry: the highest up to that entry."""
    if isinstance(log, FolderForm):
        return finder_of(log).by_index(index).time_ms
    place = row_of(log, index)
    assert place is not None, "the index is before the log's end"
    segment, row = place
    return segment.row(row).time_ms


def _entry_end(log: FolderLog | FolderForm, index: int) -> int:
    """The first index at or after this one with which an entry begins."""
    _, first_index = entry_of(log, index)
    return index if first_index >= index else finder_of(log).by_index(index).index + 1
