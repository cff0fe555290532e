"""The Spark data source ``pulsar-ledger`` (also ``pulsemark``): reads of a data folder.

A batch read is planned once per ``load()``: a DataFrame is a snapshot of its folder, and the next
``load()`` sees new entries. A stream is in :mod:`.stream`.

Filters are the option `where` (:mod:`.filters`): Spark does not push any down.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from ..ledger import FolderReader
from ..maintenance.expected import expected_of
from .columns import arrow_schema_of, differing_field
from .errors import OptionError
from .followed import followed
from .options import ReadOptions, StreamOptions, options_of_either
from .plan import existing
from .sink import SinkOptions, SinkWriter, StreamSinkWriter
from .stream import LedgerStreamReader
from .tasks import TaskReader

if TYPE_CHECKING:
    import pyarrow as pa

    from .values.form import ValueForm


class LedgerSource(DataSource):
    """``spark.read.format("pulsar-ledger")``."""

    @classmethod
    def name(cls) -> str:
        return "pulsar-ledger"

    def schema(self) -> StructType:
        """The selected columns; by default, all columns of a default read."""
        options = options_of_either(self.options)
        schema = from_arrow_schema(arrow_schema_of(options.columns))
        values = form_of_values(options)
        if values is None:
            return schema
        decoded = StructField("value", values.spark_type())
        return StructType([decoded if each.name == "value" else each for each in schema.fields])

    def reader(self, schema: StructType) -> LedgerReader:
        """A reader of these columns; the user may select some of the source's columns."""
        options = ReadOptions.parse(self.options)
        values = form_of_values(options)
        _check_schema(schema, options, values)
        return LedgerReader(options, schema, values)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = StreamOptions.parse(self.options)
        values = form_of_values(options.read)
        _check_schema(schema, options.read, values)
        return LedgerStreamReader(options, schema, values)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
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


def _check_schema(schema: StructType, options: ReadOptions, values: ValueForm | None) -> None:
    if not schema.fields:
        raise OptionError("schema", "", "has no column")
    value_type = values.spark_type() if values is not None else None
    wrong = differing_field(schema, value_type)
    if wrong is not None:
        raise OptionError("schema", wrong, "is not a column of this source, or has another type")


class PulsemarkSource(LedgerSource):
    """The same source under its short name."""

    @classmethod
    def name(cls) -> str:
        return "pulsemark"


class LedgerReader(DataSourceReader):
    """Plans on the driver, reads in the workers."""

    def __init__(
        self, options: ReadOptions, schema: StructType, values: ValueForm | None = None
    ) -> None:
        self._reader = TaskReader.of(options, schema, values)

    def partitions(self) -> list[InputPartition]:
        with closing(followed(self._reader.options)) as topics:
            return [*topics.read()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)


def form_of_values(options: ReadOptions) -> ValueForm | None:
    """How values are decoded; None if they are not.

    Raises OptionError: a topic has no such schema (see `value_form`).
    """
    if options.value_schema is None:
        return None
    from .values.form import value_form

    with FolderReader(options.path) as reader:
        topics = existing(reader, options, expected_of(reader, options.path))
    return value_form(options.path, topics, options.value_schema, options.registry_schemas)
