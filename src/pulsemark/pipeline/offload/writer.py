"""The workers' part of an offload: read a piece from the ledgers and write its file.

The rows go from the ledger's bytes to Arrow to Parquet in one process, and never through Spark's
JVM. A file's footer names its piece. So a run that goes on after a kill finds the files that are
complete, and does not write them again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..durable_files import sync_folder
from ..options import ReadOptions
from ..tasks import LedgerPartition, messages_of
from .manifest import OffloadedFile, file_checksum
from .pieces import Piece

FOOTER_KEY = b"pulsemark.piece"
_ROW_GROUP_ROWS = 1 << 20


def write_piece(
    piece: Piece, target: Path, options: ReadOptions, schema: pa.Schema, lost: frozenset[int]
) -> OffloadedFile:
    """Write one file, or find it complete. Raises DataLossError, DecodeError, OSError."""
    path = target / piece.path
    identity = _identity(piece, schema.names)
    rows = _rows_if_complete(path, identity)
    if rows is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = _write(piece, path, identity, options, schema, lost)
    size_bytes, checksum = file_checksum(path)
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
    )


def _identity(piece: Piece, columns: list[str]) -> bytes:
    part = piece.part
    names = [part.topic, piece.log_id, part.first_index, part.end_index, columns]
    return json.dumps(names).encode()


def _rows_if_complete(path: Path, identity: bytes) -> int | None:
    """The rows of a file that an earlier run has completed; None if there is none."""
    try:
        metadata = pq.read_metadata(path)
    except (FileNotFoundError, pa.ArrowInvalid):
        return None
    if (metadata.metadata or {}).get(FOOTER_KEY) != identity:
        return None
    return int(metadata.num_rows)


def _write(
    piece: Piece,
    path: Path,
    identity: bytes,
    options: ReadOptions,
    schema: pa.Schema,
    lost: frozenset[int],
) -> int:
    """Write under another name, sync, and rename: a file with its real name is complete."""
    rows = 0
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    named = schema.with_metadata({FOOTER_KEY: identity})
    partition = LedgerPartition((piece.part,), lost)
    try:
        with temporary.open("wb") as file:
            with pq.ParquetWriter(file, named, compression="snappy") as writer:
                for batch in messages_of(partition, options, schema):
                    rows += batch.num_rows
                    writer.write_table(pa.Table.from_batches([batch]).cast(named), _ROW_GROUP_ROWS)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    sync_folder(path.parent.parent)
    return rows
