"""The Spark data source ``pulsar-ledger`` (also ``pulsemark``): reads of a data folder.

A batch read is planned once per ``load()``: a DataFrame is a snapshot of its folder, and the next
``load()`` sees new entries. A stream is in :mod:`.stream`.

Filters are not pushed down. Spark 4.3 caches the partitions that remain after a pushed filter, and
the next query of the same DataFrame would silently read only these. Ranges are options instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from .columns import ddl_of, differing_field
from .errors import OptionError
from .options import ReadOptions, StreamOptions, selected_columns
from .plan import plan
from .sink.options import SinkOptions
from .sink.writers import SinkWriter, StreamSinkWriter
from .stream import LedgerStreamReader
from .tasks import LedgerPartition, messages_of

if TYPE_CHECKING:
    import pyarrow as pa


class LedgerSource(DataSource):
    """``spark.read.format("pulsar-ledger")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "pulsar-ledger"

    def schema(self) -> str:
        """The selected columns; by default, all columns of a default read."""
        return ddl_of(selected_columns(self.options))

    def reader(self, schema: StructType) -> LedgerReader:
        """A reader of these columns; the user may select some of the source's columns."""
        _check_schema(schema)
        return LedgerReader(ReadOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream of these columns."""
        _check_schema(schema)
        return LedgerStreamReader(StreamOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of these columns, through a broker."""
        if overwrite:
            raise OptionError("mode", "overwrite", "a topic can only be appended to")
        return SinkWriter(SinkOptions.parse(self.options), schema)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamArrowWriter:
        """The same for a stream; its output mode is `append`."""
        if overwrite:
            raise OptionError("outputMode", "complete", "a topic can only be appended to")
        options = SinkOptions.parse(self.options)
        if options.write_id is not None:
            raise OptionError("writeId", options.write_id, "a stream has an id of its own")
        return StreamSinkWriter(options, schema)


def _check_schema(schema: StructType) -> None:
    if not schema.fields:
        raise OptionError("schema", "", "has no column")
    wrong = differing_field(schema)
    if wrong is not None:
        raise OptionError("schema", wrong, "is not a column of this source, or has another type")


class PulsemarkSource(LedgerSource):
    """The same source under its short name."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "pulsemark"


class LedgerReader(DataSourceReader):
    """Plans on the driver, reads in the workers."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        return partitions_of(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one task's slices, in order."""
        assert isinstance(partition, LedgerPartition), "the partitions are our own"
        schema = to_arrow_schema(self._schema, timezone="UTC")
        return messages_of(partition, self._options, schema)


def partitions_of(options: ReadOptions) -> list[InputPartition]:
    """The tasks of a read; if there are none, one empty task.

    Spark takes an empty list for "not divided" and would pass a partition of its own to the reader.
    """
    planned = plan(options)
    tasks = planned.tasks or ((),)
    return [LedgerPartition(task, planned.lost_ledgers) for task in tasks]
