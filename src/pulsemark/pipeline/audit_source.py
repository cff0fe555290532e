"""The inner source of the audit job: counts by topic and bucket, made where the entries lie.

Each task reads the record heads of its entries (no body is opened) and hands out one row for each
topic and bucket it met; Spark merges those. The job (:mod:`.audit`) is its one user. Its options
are the source's, and ``bucketMs``, the width of a bucket.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ..ledger import CorruptEntryError, EntryKind, FolderReader
from .decode.entries import EntryTable
from .decode.protoscan import ABSENT, Ints
from .decode.runs import read_tables
from .options import ReadOptions
from .source import LedgerPartition, partitions_of, spare_the_collector

AUDIT_FORMAT = "pulsemark-audit"
BUCKET_OPTION = "bucketMs"

_SCHEMA = (
    "topic string, bucket_start_ms bigint, count bigint, control_count bigint, bytes bigint,"
    " min_index bigint, max_index bigint"
)
_NO_INDEX_MIN, _NO_INDEX_MAX = np.iinfo(np.int64).max, np.iinfo(np.int64).min

_log = logging.getLogger(__name__)


class AuditSource(DataSource):
    """``spark.read.format("pulsemark-audit")``: partial counts, to be merged."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return AUDIT_FORMAT

    def schema(self) -> str:
        """One row for each topic and bucket that a task met."""
        return _SCHEMA

    def reader(self, schema: StructType) -> AuditReader:
        """The reader."""
        options = dict(self.options)
        bucket_ms = int(options.pop(BUCKET_OPTION.lower()))
        return AuditReader(ReadOptions.parse(options), bucket_ms, schema)


class AuditReader(DataSourceReader):
    """Plans as the usual source does, and counts instead of handing out messages."""

    def __init__(self, options: ReadOptions, bucket_ms: int, schema: StructType) -> None:
        self._options = options
        self._bucket_ms = bucket_ms
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        return partitions_of(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The counts of one task's slices."""
        assert isinstance(partition, LedgerPartition), "the partitions are our own"
        spare_the_collector()
        schema = to_arrow_schema(self._schema, timezone="UTC")
        with FolderReader(self._options.path) as folder:
            for part in partition.slices:
                tables = read_tables(
                    folder.log(part.topic),
                    part.start,
                    part.end,
                    bodies=False,
                    on_damage=_missing_by_damage,
                )
                for table in tables:
                    yield _batch(part.topic, counts(table, self._bucket_ms), schema)


def _missing_by_damage(damage: CorruptEntryError) -> None:
    # The gap in the indexes is what tells of it.
    _log.warning("counted as missing: %s", damage)


def counts(table: EntryTable, bucket_ms: int) -> list[Ints]:
    """The columns behind ``topic``, by bucket, of some entries (at least one).

    An entry's time is its stamp's, or the ledger's own append time where it has no stamp: the
    broker's clock both, so that no producer's clock decides where messages are counted. Should
    times fall, a bucket comes twice.
    """
    stamps = table.broker_times_ms()
    buckets = np.where(stamps == ABSENT, table.append_times_ms, stamps) // bucket_ms
    changes = np.flatnonzero(np.diff(buckets, prepend=buckets[0] - 1))
    is_control, counted = table.kinds == EntryKind.CONTROL, table.counts > 0
    messages = table.counts * ~is_control
    return [
        buckets[changes] * bucket_ms,
        np.add.reduceat(messages, changes),
        np.add.reduceat(table.counts - messages, changes),
        np.add.reduceat(table.sizes, changes),
        np.minimum.reduceat(np.where(counted, table.first_indexes, _NO_INDEX_MIN), changes),
        np.maximum.reduceat(np.where(counted, table.indexes, _NO_INDEX_MAX), changes),
    ]


def _batch(topic: str, columns: list[Ints], schema: pa.Schema) -> pa.RecordBatch:
    *sums, low, high = columns
    nothing = low == _NO_INDEX_MIN
    arrays = [pa.repeat(topic, len(low)), *(pa.array(column) for column in sums)]
    arrays += [pa.array(low, mask=nothing), pa.array(high, mask=nothing)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
