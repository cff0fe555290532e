"""The Spark data source ``pulsar-ledger`` (also ``pulsemark``): batch reads of a data folder.

Spark makes the source on the driver's machine, plans there, pickles the reader with one partition
at a time to its workers, and has each worker read. Hence: partitions are frozen and name what they
cover; the reader holds options only; files are opened in ``read``. A plan is made once per
``load()``: a DataFrame is a snapshot of its folder, and growth is seen by the next ``load()``.

Filters are not pushed down: Spark 4.3 caches what a pushed filter left of the partitions, and the
next query of the same DataFrame silently gets that. Ranges are options instead.

A streaming reader will share the plan (:mod:`.plan`) and ``read``: its offsets are indexes.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ..ledger import FolderReader
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
    """One task's share."""

    slices: tuple[Slice, ...]


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
        wrong = differing_field(schema)
        if wrong is not None:
            raise OptionError(
                "schema", wrong, "is not a column of this source, or has another type"
            )
        return LedgerReader(ReadOptions.parse(self.options), schema)


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
        with FolderReader(self._options.path) as folder:
            for part in partition.slices:
                yield from self._read_slice(folder, part, schema)

    def _read_slice(
        self, folder: FolderReader, part: Slice, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        form = BatchForm(
            part.topic,
            schema,
            part.first_index,
            part.end_index,
            self._options.max_uncompressed_bytes,
        )
        continuity = Continuity(part, fail=self._options.fail_on_data_loss)

        def on_bad_entry(table: EntryTable, row: int, reason: str) -> None:
            error = DecodeError(part.topic, table.position(row), reason)
            if self._options.fail_on_data_loss:
                raise error
            _log.warning("left out: %s", error)

        tables = read_tables(
            folder.log(part.topic),
            part.start,
            part.end,
            bodies=depth_of(schema.names) > Depth.LEDGER,
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
    return [LedgerPartition(task) for task in plan(options)] or [LedgerPartition(())]


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
