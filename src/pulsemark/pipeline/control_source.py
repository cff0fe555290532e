"""The internal source of the job `control`: the control entries of topics, one row for each.

Each task reads the heads of its entries, without bodies. Its options are those of the usual source.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ..ledger import CorruptEntryError, EntryKind
from ..metadata import Control, PrefixError, control_of
from .decode.entries import EntryTable
from .decode.runs import read_tables
from .options import MAX_TIME_MS, ReadOptions
from .source import partitions_of
from .tasks import LedgerPartition, opened_slices, spare_the_collector

CONTROL_FORMAT = "pulsemark-control"
CONTROL_SCHEMA = (
    "topic string, ledger_id bigint, entry_id bigint, index bigint, append_time timestamp,"
    " epoch bigint, type string, name string, tags map<string,binary>"
)

_log = logging.getLogger(__name__)


class ControlSource(DataSource):
    """``spark.read.format("pulsemark-control")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return CONTROL_FORMAT

    def schema(self) -> str:
        """One row for each control entry."""
        return CONTROL_SCHEMA

    def reader(self, schema: StructType) -> ControlReader:
        """The reader."""
        return ControlReader(ReadOptions.parse(self.options), schema)


class ControlReader(DataSourceReader):
    """Plans like the usual source, but returns the entries that the usual source leaves out."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = replace(options, fail_on_data_loss=False)
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        return partitions_of(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The control entries of one task's slices, in order."""
        assert isinstance(partition, LedgerPartition), "the partitions are our own"
        spare_the_collector()
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for part, log in opened_slices(self._options, partition):
            if log is None:
                continue
            tables = read_tables(log, part.start, part.end, bodies=False, on_damage=_left_out)
            for table in tables:
                found = table.select(table.kinds == EntryKind.CONTROL)
                if len(found):
                    yield control_batch(part.topic, found, schema)


def _left_out(damage: CorruptEntryError) -> None:
    _log.warning("a damaged record is left out of the control entries: %s", damage)


def control_batch(topic: str, table: EntryTable, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of some control entries. What a damaged prefix says is null."""
    said = [_said(table, row) for row in range(len(table))]
    columns: dict[str, list[Any]] = {
        "topic": [topic] * len(table),
        "ledger_id": table.ledger_ids.tolist(),
        "entry_id": table.entry_ids.tolist(),
        "index": table.indexes.tolist(),
        "append_time": [
            1000 * time_ms if time_ms < MAX_TIME_MS else None
            for time_ms in table.append_times_ms.tolist()
        ],
        "epoch": [control and control.leader_epoch for control in said],
        "type": [control and control.type_name for control in said],
        "name": [control and control.name for control in said],
        "tags": [control and sorted(control.tags.items()) for control in said],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _said(table: EntryTable, row: int) -> Control | None:
    start = int(table.starts[row])
    try:
        return control_of(table.data[start : start + int(table.prefix_sizes[row])])
    except PrefixError:
        return None
