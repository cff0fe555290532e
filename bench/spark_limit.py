"""The limit of any data source in Python: what Spark takes for ready Arrow batches from workers.

A worker makes one batch of the wanted columns, by the real source, and returns it again and again.
So what is measured is the way from the worker into the JVM and through the query: no source in
Python is faster with the same columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pulsemark.pipeline.source import LedgerSource

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "ready-batches"
ROWS_OPTION, TASKS_OPTION = "rows", "tasks"
_made: dict[tuple[str, ...], Any] = {}


class ReadyBatches(DataSource):
    """The same options as the real source, and how many rows in how many tasks."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> StructType | str:
        """The real source's."""
        return LedgerSource(self._real_options()).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader."""
        real = LedgerSource(self._real_options()).reader(schema)
        rows, tasks = int(self.options[ROWS_OPTION]), int(self.options[TASKS_OPTION])
        key = (*schema.names, str(self.options["path"]), str(self.options["topic"]))
        return ReadyReader(real, real.partitions()[0], key, rows, tasks)

    def _real_options(self) -> Any:
        ours = (ROWS_OPTION, TASKS_OPTION)
        return {name: value for name, value in self.options.items() if name not in ours}


class Share(InputPartition):
    """The rows of one task."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


class ReadyReader(DataSourceReader):
    """Returns one batch until the task's rows are there."""

    def __init__(
        self,
        real: DataSourceReader,
        partition: InputPartition,
        key: tuple[str, ...],
        rows: int,
        tasks: int,
    ) -> None:
        self._real, self._partition, self._key = real, partition, key
        self._rows, self._tasks = rows, tasks

    def partitions(self) -> Sequence[InputPartition]:
        """Tasks of the same size."""
        cuts = [self._rows * number // self._tasks for number in range(self._tasks + 1)]
        return [Share(end - start) for start, end in itertools.pairwise(cuts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batch, as often as it takes."""
        assert isinstance(partition, Share)
        if self._key not in _made:
            _made.clear()
            _made[self._key] = next(iter(self._real.read(self._partition)))
        batch, left = _made[self._key], partition.rows
        while left > 0:
            yield batch if left >= batch.num_rows else batch.slice(0, left)
            left -= batch.num_rows


def register_limit(spark: Any) -> None:
    """Make the format known to a session; its workers need no path to this module."""
    import spark_limit

    cloudpickle.register_pickle_by_value(spark_limit)  # type: ignore[no-untyped-call]
    spark.dataSource.register(ReadyBatches)
