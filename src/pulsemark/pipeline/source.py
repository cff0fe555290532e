"""The Spark data source ``pulsar-ledger`` (also ``pulsemark``): batch reads of a data folder.

Spark makes the source on the driver's machine, plans there, pickles the reader with one partition
at a time to its workers, and has each worker read. Hence: partitions are frozen and name what they
cover; the reader holds options only; files are opened in ``read``. A plan is made once per
``load()``: a DataFrame is a snapshot of its folder, and growth is seen by the next ``load()``.

Filters are not pushed down: Spark 4.3 caches what a pushed filter left of the partitions, and the
next query of the same DataFrame silently gets that. Ranges are options instead.

Streams are refused as soon as Spark lets a source know that a stream is wanted: when the query
starts. ``readStream.load()`` asks for the schema only, as ``read.load()`` does.
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
    """One task's share, and the ledgers that were known to be lost when it was planned."""

    slices: tuple[Slice, ...]
    lost_ledgers: frozenset[int] = frozenset()


class LedgerSource(DataSource):
    """``spark.read.format("pulsar-ledger")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "pulsar-ledger"

    def schema(self) -> str:
        """The columns asked for, all of the usual ones by default."""
        return ddl_of(ReadOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> LedgerReader:
        """A reader of these columns; they may be a user's own choice of ours."""
        if not schema.fields:
            raise OptionError("schema", "", "names no column")
        wrong = differing_field(schema)
        if wrong is not None:
            raise OptionError(
                "schema", wrong, "is not a column of this source, or has another type"
            )
        return LedgerReader(ReadOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Refuses. Raises OptionError."""
        raise OptionError(
            "format", self.name(), "has no streaming reader: use read, not readStream"
        )


class PulsemarkSource(LedgerSource):
    """The same by its short name."""

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
            _log.warning("left out: %s", error)

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
    """The tasks of a read; one that reads nothing where there is nothing to read.

    Spark takes an empty list for "not divided" and would hand out a partition of its own making.
    """
    planned = plan(options)
    tasks = planned.tasks or ((),)
    return [LedgerPartition(task, planned.lost_ledgers) for task in tasks]


def opened_slices(
    options: ReadOptions, partition: LedgerPartition
) -> Iterator[tuple[Slice, TopicLog | None]]:
    """A task's slices with their topics, opened by one look into the folder; None: it is gone."""
    with FolderReader(options.path) as folder:
        topics = dict.fromkeys(part.topic for part in partition.slices)
        logs = folder.logs(topics, lost=partition.lost_ledgers)
        for part in partition.slices:
            yield part, logs.get(part.topic)


_spared = False


def spare_the_collector() -> None:
    """Take what is loaded by now out of the garbage collector's sight, once per worker.

    Spark's daemon collects after every task: 40 ms with everything that is imported, 9 without.
    """
    global _spared
    if not _spared:
        gc.collect()
        gc.freeze()
        _spared = True
