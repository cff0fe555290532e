"""Work for Spark's workers: a function that is called there with each task, and gives rows.

Function, tasks and rows' types go to the workers in one option, whose value Spark hides in its
plans and pages: it may have tokens. Every job that is more than a query of the usual source works
like this.
"""

from __future__ import annotations

import base64
import gc
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
R = TypeVar("R")
_PICKLER: Any = cloudpickle
_OPTION = "secretWork"
_RESULT = pa.schema([("result", pa.binary())])


class WorkSource(DataSource):
    """``spark.read.format("pulsemark-work")``."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        packed = {name.lower(): text for name, text in options.items()}[_OPTION.lower()]
        self._work, self._tasks, self._schema = pickle.loads(base64.b64decode(packed))  # noqa: S301

    @classmethod
    def name(cls) -> str:
        return "pulsemark-work"

    def schema(self) -> StructType:
        return from_arrow_schema(self._schema)

    def reader(self, schema: StructType) -> WorkReader:
        return WorkReader(self._work, self._tasks)


class WorkReader(DataSourceReader):
    """A Spark reader with one partition for each task."""

    def __init__(self, work: Callable[[Any], Iterator[Any]], tasks: Sequence[Any]) -> None:
        self._work, self._tasks = work, tasks

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._work, ())  # a worker needs its own task alone

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        spare_the_collector()
        return self._work(partition.value)


def rows_of(
    spark: SparkSession,
    work: Callable[[T], Iterator[pa.RecordBatch | tuple[Any, ...]]],
    tasks: Sequence[T],
    schema: pa.Schema,
) -> DataFrame:
    """The rows that the work makes of the tasks (at least one), one Spark task for each."""
    spark.dataSource.register(WorkSource)
    packed = base64.b64encode(_PICKLER.dumps((work, tasks, schema))).decode()
    return spark.read.format(WorkSource.name()).option(_OPTION, packed).load()


def results_of(
    spark: SparkSession, work: Callable[[T], Iterator[R]], tasks: Sequence[T]
) -> list[R]:
    """Call a function with the tasks, in the workers, and return its results."""
    if not tasks:
        return []
    rows = rows_of(spark, partial(_packed, work), tasks, _RESULT).collect()
    return [pickle.loads(row[0]) for row in rows]  # noqa: S301  # from our own workers


def _packed(work: Callable[[T], Iterator[object]], task: T) -> Iterator[tuple[bytes]]:
    return ((pickle.dumps(result),) for result in work(task))


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
