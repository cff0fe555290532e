"""The indexes of a folder's messages by bucket, found by Spark's tasks from record headers.

A row is of messages that follow one another without a gap in one bucket. Control entries take
indexes, and no other tier has them, so they are in no row. With the option `sourceIndexes`, the
entries of a mirror count under the index and the time that they had in the mirror's source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ...ledger import CorruptEntryError
from ...metadata import PrefixError, peek
from ..audit_source import BUCKET_OPTION, AuditPartition, AuditReader
from ..decode.entries import EntryTable
from ..decode.octets import Ints
from ..decode.runs import read_tables
from ..options import MAX_TIME_MS, ReadOptions
from ..tasks import opened_slices, spare_the_collector

RUNS_FORMAT = "pulsemark-runs"
SOURCE_OPTION = "sourceIndexes"
_SCHEMA = "topic string, bucket_start_ms bigint, first_index bigint, end_index bigint, loss string"


class RunsSource(DataSource):
    """``spark.read.format("pulsemark-runs")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return RUNS_FORMAT

    def schema(self) -> str:
        """One row for each run of a task; a topic of the plan has one without indexes too.

        A row without a bucket is of indexes that no entry has; ``loss`` says why some are lost.
        """
        return _SCHEMA

    def reader(self, schema: StructType) -> RunsReader:
        """The reader."""
        options = dict(self.options)
        bucket_ms = int(options.pop(BUCKET_OPTION.lower()))
        by_source = options.pop(SOURCE_OPTION.lower(), "false") == "true"
        return RunsReader(ReadOptions.parse(options), bucket_ms, by_source, schema)


class RunsReader(AuditReader):
    """Plans as the audit does."""

    def __init__(
        self, options: ReadOptions, bucket_ms: int, by_source: bool, schema: StructType
    ) -> None:
        super().__init__(options, bucket_ms, (), schema)
        self._by_source = by_source

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The runs of one task's slices."""
        assert isinstance(partition, AuditPartition), "the partitions are our own"
        spare_the_collector()
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for topic, reason in partition.losses:
            yield _batch(topic, {"loss": [reason]}, schema)
        for part, log in opened_slices(self._options, partition):
            yield _batch(part.topic, {"loss": [None]}, schema)
            following = part.first_index
            tables = (
                ()
                if log is None
                else read_tables(
                    log, part.start, part.end, bodies=False, on_damage=_missing_by_damage
                )
            )
            for table in tables:
                yield _batch(part.topic, gaps_before(table, following), schema)
                following = int(table.indexes[-1]) + 1
                columns = index_runs(table, self._bucket_ms, by_source=self._by_source)
                yield _batch(part.topic, columns, schema)
            if following < part.end_index:
                rest = {"first_index": [following], "end_index": [part.end_index]}
                yield _batch(part.topic, rest, schema)


def _missing_by_damage(damage: CorruptEntryError) -> None:
    """A damaged entry is in no run, so its indexes are a gap."""


def gaps_before(table: EntryTable, following: int) -> dict[str, Any]:
    """The indexes that no entry has, from ``following`` on: columns after ``topic``."""
    ends = np.append(following, table.indexes[:-1] + 1)
    gaps = np.flatnonzero(table.first_indexes > ends)
    return {"first_index": ends[gaps], "end_index": table.first_indexes[gaps]}


def index_runs(table: EntryTable, bucket_ms: int, *, by_source: bool = False) -> dict[str, Any]:
    """The columns after ``topic`` for some entries."""
    table = table.with_messages()
    if not len(table):
        return {"bucket_start_ms": [], "first_index": [], "end_index": []}
    stamps = table.broker_times_ms()
    is_stamped = (stamps >= 0) & (stamps < MAX_TIME_MS)
    times, lasts = np.where(is_stamped, stamps, table.append_times_ms), table.indexes
    if by_source:
        times, lasts = _as_in_source(table, times, lasts)
    buckets = times // bucket_ms
    firsts, ends = lasts - table.counts + 1, lasts + 1
    is_new = np.ones(len(table), bool)
    is_new[1:] = (buckets[1:] != buckets[:-1]) | (firsts[1:] != ends[:-1])
    begins = np.flatnonzero(is_new)
    return {
        "bucket_start_ms": buckets[begins] * bucket_ms,
        "first_index": firsts[begins],
        "end_index": ends[np.append(begins[1:], len(table)) - 1],
    }


def _as_in_source(table: EntryTable, times: Ints, lasts: Ints) -> tuple[Ints, Ints]:
    """Times and indexes from the tags that a mirror sets, where an entry has them."""
    times, lasts = times.copy(), lasts.copy()
    view = memoryview(table.data)
    spans = zip(table.starts.tolist(), table.body_starts.tolist(), strict=True)
    for row, (start, end) in enumerate(spans):
        try:
            stamp = peek(view[start:end])
        except PrefixError:
            continue
        if stamp is not None and stamp.HasField("source_index"):
            lasts[row] = stamp.source_index
            if stamp.HasField("source_time_ms"):
                times[row] = stamp.source_time_ms
    return times, lasts


def _batch(topic: str, columns: dict[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    count = len(next(iter(columns.values())))
    given = {"topic": [topic] * count, **columns}
    arrays = [pa.array(given.get(field.name, [None] * count), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
