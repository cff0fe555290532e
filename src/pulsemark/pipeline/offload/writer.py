"""The workers' part of an offload: read a piece from the ledgers and write its file.

The rows go from the ledger's bytes to Arrow to Parquet in one process, and never through Spark's
JVM. A file's footer names its piece. So a run that goes on after a kill finds the files that are
complete, and does not write them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from ..columns import arrow_schema_of
from ..errors import JobFailedError
from ..options import ReadOptions
from ..tasks import LedgerPartition, messages_of
from . import unfinished
from .manifest import OffloadedFile
from .pieces import Piece
from .places import Place, file_checksum
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
        if not unfinished.is_current(self._place, self._run):
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
