"""The Spark data source ``pulsar-ledger`` (also ``pulsemark``): batch reads of a data folder.

Spark creates the source and the plan on the driver's machine. It pickles the reader together with
one partition and sends both to a worker, which reads. So partitions are frozen and name what they
cover, the reader holds only options, and files are opened in ``read``. A plan is made once per
``load()``: a DataFrame is a snapshot of its folder, and the next ``load()`` sees new entries.

Filters are not pushed down. Spark 4.3 caches the partitions that remain after a pushed filter, and
the next query of the same DataFrame would silently read only these. Ranges are options instead.

A stream is refused when its query starts, because a source cannot know earlier that a stream is
wanted: ``readStream.load()`` only asks for the schema, like ``read.load()``.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ..ledger import FolderReader, TopicLog
from .columns import Depth, ddl_of, depth_of, differing_field
from .continuity import Continuity
from .decode.batches import BatchForm, record_batches
from .decode.entries import EntryTable
from .decode.runs import read_tables
from .errors import DecodeError, OptionError
from .options import ReadOptions
from .plan import Slice, plan

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LedgerPartition(InputPartition):
    """One task's share, and the ledgers that were known to be lost at planning."""

    slices: tuple[Slice, ...]
    lost_ledgers: frozenset[int] = frozenset()


class LedgerSource(DataSource):
    """``spark.read.format("pulsar-ledger")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "pulsar-ledger"

    def schema(self) -> str:
        """The selected columns; by default, all columns of a default read."""
        return ddl_of(ReadOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> LedgerReader:
        """A reader of these columns; the user may select some of the source's columns."""
        if not schema.fields:
            raise OptionError("schema", "", "has no column")
        wrong = differing_field(schema)
        if wrong is not None:
            raise OptionError(
                "schema", wrong, "is not a column of this source, or has another type"
            )
        return LedgerReader(ReadOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Refuse a stream: raises OptionError."""
        raise OptionError(
            "format", self.name(), "has no streaming reader: use read, not readStream"
        )


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
        spare_the_collector()
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for part, log in opened_slices(self._options, partition):
            yield from self._read_slice(log, part, schema)

    def _read_slice(
        self, log: TopicLog | None, part: Slice, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        form = BatchForm(
            part.topic,
            schema,
            part.first_index,
            part.end_index,
            self._options.limits,
            open_all=not self._options.fail_on_data_loss,
        )
        continuity = Continuity(part, fail=self._options.fail_on_data_loss)

        def on_bad_entry(table: EntryTable, row: int, reason: str) -> None:
            error = DecodeError(part.topic, table.position(row), reason)
            if self._options.fail_on_data_loss:
                raise error
            _log.warning("an entry was left out of the result: %s", error)

        if log is None:
            continuity.finish()
            return
        tables = read_tables(
            log,
            part.start,
            part.end,
            bodies=form.open_all or depth_of(schema.names) > Depth.LEDGER,
            on_damage=continuity.damaged,
        )
        for table in tables:
            continuity.check(table)
            yield from record_batches(table, form, on_bad_entry)
        continuity.finish()


def partitions_of(options: ReadOptions) -> list[InputPartition]:
    """The tasks of a read; if there are none, one empty task.

    Spark takes an empty list for "not divided" and would pass a partition of its own to the reader.
    """
    planned = plan(options)
    tasks = planned.tasks or ((),)
    return [LedgerPartition(task, planned.lost_ledgers) for task in tasks]


def opened_slices(
    options: ReadOptions, partition: LedgerPartition
) -> Iterator[tuple[Slice, TopicLog | None]]:
    """A task's slices with their topics, from one scan of the folder; None for a missing topic."""
    with FolderReader(options.path) as folder:
        topics = dict.fromkeys(part.topic for part in partition.slices)
        logs = folder.logs(topics, lost=partition.lost_ledgers)
        for part in partition.slices:
            yield part, logs.get(part.topic)


_spared = False


def spare_the_collector() -> None:
    """Exclude all loaded objects from garbage collection, once per worker.

    Spark's daemon runs the collector after every task: 40 ms with all imported modules, 9 ms
    without them.
    """
    global _spared
    if not _spared:
        gc.collect()
        gc.freeze()
        _spared = True
