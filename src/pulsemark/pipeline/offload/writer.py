"""The pieces of an offload, and the workers' part: read a piece and write its file.

A piece is what one file holds, of one topic and one hour. It ends where the hour of the broker's
time ends, or at a multiple of the rows a file may have. So the same entries give the same pieces in
every run; only the last piece of a topic depends on where its log ended.

The rows go from the ledger's bytes to Arrow to Parquet in one process, and never through Spark's
JVM. A file's footer names its piece. So a run that goes on after a kill finds the files that are
complete, and does not write them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ...finder import Finder
from ...ledger.local.folder_reader import FolderLog
from ...ledger.local.io.folder import SegmentId
from ..columns import arrow_schema_of
from ..errors import JobFailedError
from ..marks import Mark, mark_of
from ..options import ReadOptions
from ..plan import Slice, entry_of, row_of, segments_of, slice_between
from ..tasks import LedgerPartition, messages_of
from .manifest import HOUR_MS, LAST_HOUR_MS, OffloadedFile, file_name, is_current_run
from .places import Place, file_checksum, iceberg_place, place_of
from .table import UNSORTED

FOOTER_KEY = b"pulsemark.piece"
_GROUP_BYTES = 64 << 20
"""Rows are gathered up to this size and written as one row group."""
_REPEATED = ("topic", "hour", "__topic", "__producerName", "__messageProperties")
"""Columns with few values: only for them a dictionary is worth its work."""


def file_schema(columns: tuple[str, ...], constants: bool) -> pa.Schema:
    """The schema of the files; with ``constants`` they have their partition's values too."""
    schema = arrow_schema_of(columns)
    if constants:
        schema = schema.append(pa.field("topic", pa.string()))
        schema = schema.append(pa.field("hour", pa.timestamp("us", "UTC")))
    return schema


def table_schema(columns: tuple[str, ...]) -> pa.Schema:
    """The schema of a table of such files."""
    return file_schema(columns, constants=True)


class PieceWriter:
    """Writes the files of one task."""

    def __init__(
        self,
        place: Place,
        run: str,
        options: ReadOptions,
        lost: frozenset[int],
        constants: bool,
    ) -> None:
        self._place = place
        self._run = run
        self._options = options
        self._lost = lost
        self._rows_schema = arrow_schema_of(options.columns)
        self._schema = file_schema(options.columns, constants)

    def write(self, piece: Piece) -> OffloadedFile:
        """Write one file, or find it complete.

        Raises:
            DataLossError, DecodeError: the ledger's messages cannot be read.
            JobFailedError: another run has begun.
            OSError: the file cannot be written.
        """
        identity = self._identity(piece)
        rows = self._rows_if_complete(piece, identity)
        if rows is None:
            rows = self._place.write(piece.path, lambda file: self._fill(piece, identity, file))
        size_bytes, checksum = file_checksum(self._place, piece.path)
        return OffloadedFile(
            piece.path,
            piece.part.topic,
            piece.log_id,
            piece.hour_ms,
            piece.part.first_index,
            piece.part.end_index,
            rows,
            size_bytes,
            checksum,
            None if piece.mark is None else tuple(piece.mark.to_json()),
        )

    def _identity(self, piece: Piece) -> bytes:
        """What the file's footer must say, so that a later run may use the file as it is.

        A run that leaves lost messages out writes other files than one that does not.
        """
        part, mark = piece.part, None if piece.mark is None else piece.mark.to_json()
        names = [part.topic, piece.log_id, part.first_index, part.end_index, mark]
        names += [self._schema.names, self._options.fail_on_data_loss]
        return json.dumps(names).encode()

    def _rows_if_complete(self, piece: Piece, identity: bytes) -> int | None:
        """The rows of a file that an earlier run has completed; None if there is none."""
        try:
            with self._place.open(piece.path) as file:
                metadata = pq.read_metadata(file)
        except (FileNotFoundError, pa.ArrowInvalid):
            return None
        if (metadata.metadata or {}).get(FOOTER_KEY) != identity:
            return None
        return int(metadata.num_rows)

    def _fill(self, piece: Piece, identity: bytes, file: IO[bytes]) -> int:
        rows = 0
        schema = self._schema.with_metadata({FOOTER_KEY: identity})
        repeated = [name for name in schema.names if name in _REPEATED]
        described = [name for name in schema.names if name not in UNSORTED]
        parquet = pq.ParquetWriter(
            file, schema, use_dictionary=repeated, write_statistics=described
        )
        with parquet as writer:
            for table in self._row_groups(piece, schema):
                rows += table.num_rows
                writer.write_table(table, max(1, table.num_rows))
        if not is_current_run(self._place, self._run):
            raise JobFailedError(f"another offload has begun to write to {self._place.uri}")
        return rows

    def _row_groups(self, piece: Piece, schema: pa.Schema) -> Iterator[pa.Table]:
        """The rows of a piece, in tables of about the same size."""
        segments = {piece.part.topic: piece.segments}
        partition = LedgerPartition((piece.part,), self._lost, segments)
        batches: list[pa.RecordBatch] = []
        size_bytes = 0
        for batch in messages_of(partition, self._options, self._rows_schema):
            batches.append(batch)
            size_bytes += batch.nbytes
            if size_bytes >= _GROUP_BYTES:
                yield self._table(piece, batches, schema)
                batches, size_bytes = [], 0
        if batches:
            yield self._table(piece, batches, schema)

    def _table(self, piece: Piece, batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
        table = pa.Table.from_batches(batches)
        columns = table.columns
        if len(schema) > len(columns):
            hour = pa.scalar(piece.hour_ms * 1000, pa.timestamp("us", "UTC"))
            columns += [
                pa.chunked_array([pa.repeat(pa.scalar(piece.part.topic), table.num_rows)]),
                pa.chunked_array([pa.repeat(hour, table.num_rows)]),
            ]
        return pa.table(columns, schema=schema)


OFFLOAD_FORMAT = "pulsemark-offload"
PLAN_OPTION = "offloadPlan"
ACCESS_OPTION = "offloadSecret"
"""How the workers reach the target; Spark hides options of such names in its plans."""


@dataclass(frozen=True)
class PiecesPartition(InputPartition):
    """One task: some files."""

    pieces: tuple[Piece, ...]


class OffloadSource(DataSource):
    """``spark.read.format("pulsemark-offload")``: writes the files of a plan."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return OFFLOAD_FORMAT

    def schema(self) -> str:
        """An `OffloadedFile` as JSON."""
        return "file string"

    def reader(self, schema: StructType) -> OffloadReader:
        """The reader."""
        options = dict(self.options)
        plan = json.loads(options.pop(PLAN_OPTION.lower()))
        access = json.loads(options.pop(ACCESS_OPTION.lower(), "{}"))
        return OffloadReader(ReadOptions.parse(options), plan, access)


class OffloadReader(DataSourceReader):
    """The tasks of the plan."""

    def __init__(self, options: ReadOptions, plan: dict[str, Any], access: dict[str, str]) -> None:
        self._options = options
        self._access = access
        self._target = plan["target"]
        self._constants = plan["constants"]
        self._run = plan["run"]
        self._lost = frozenset(plan["lost"])
        self._tasks = plan["tasks"]

    def partitions(self) -> list[InputPartition]:
        """The pieces, as they were planned."""
        return [
            PiecesPartition(tuple(Piece.from_json(values) for values in task))
            for task in self._tasks
        ]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Write the files of one task."""
        assert isinstance(partition, PiecesPartition), "the partitions are our own"
        place = (
            iceberg_place(self._target, self._access) if self._access else place_of(self._target)
        )
        writer = PieceWriter(place, self._run, self._options, self._lost, self._constants)
        for piece in partition.pieces:
            yield (json.dumps(asdict(writer.write(piece))),)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one file will hold."""

    path: str
    log_id: int
    hour_ms: int
    part: Slice
    segments: tuple[SegmentId, ...]
    """Those to open, so that a worker reads no headers of other topics."""
    mark: Mark | None
    """Of the entry with the last message."""

    def to_json(self) -> list[object]:
        """A list for JSON."""
        mark = None if self.mark is None else self.mark.to_json()
        return [self.path, self.log_id, self.hour_ms, self.segments, mark, *self.part.to_json()]

    @classmethod
    def from_json(cls, values: list[Any]) -> Piece:
        """The piece of such a list."""
        path, log_id, hour_ms, segments, mark, *part = values
        ids = tuple((each[0], each[1]) for each in segments)
        return cls(path, log_id, hour_ms, Slice.from_json(part), ids, Mark.from_json(mark))


def pieces_of(log: FolderLog, first: int, end: int, rows_per_file: int) -> Iterator[Piece]:
    """The pieces of the messages ``[first, end)`` of a topic."""
    finder = Finder(log)
    while first < end:
        hour_ms = min(_time_ms(log, first) // HOUR_MS * HOUR_MS, LAST_HOUR_MS)
        hour_end = end if hour_ms == LAST_HOUR_MS else _hour_end(finder, hour_ms, first, end)
        limit = (first // rows_per_file + 1) * rows_per_file
        piece_end = _entry_end(log, limit) if limit < hour_end else hour_end
        piece_end = max(piece_end, _entry_end(log, first + 1))
        part = slice_between(log, first, piece_end)
        path = file_name(log.name, log.topic_id, hour_ms, first, piece_end)
        (segments,) = segments_of([part], {log.name: log}).values()
        yield Piece(path, log.topic_id, hour_ms, part, segments, mark_of(log, piece_end))
        first = piece_end


def _hour_end(finder: Finder, hour_ms: int, first: int, end: int) -> int:
    found = finder.by_time(hour_ms + HOUR_MS)
    return end if found.end else min(end, max(found.first_index, first))


def _time_ms(log: FolderLog, index: int) -> int:
    """The time by which searches find a message's entry: the highest up to that entry."""
    place = row_of(log, index)
    assert place is not None, "the index is before the log's end"
    segment, row = place
    return segment.row(row).time_ms


def _entry_end(log: FolderLog, index: int) -> int:
    """The first index at or after this one with which an entry begins."""
    position, first_index = entry_of(log, index)
    if first_index >= index:
        return index
    _, following = entry_of(log, log.index_before(log.next_position(position)))
    return following
