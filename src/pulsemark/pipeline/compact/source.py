"""The Spark source of the job: a task reads one topic, and returns figures or writes a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ...compaction.compaction import estimate
from ...compaction.current_view import newest_view
from ...ledger import FolderReader
from ...ledger.errors import CompactionFailedError
from ..columns import arrow_schema_of
from ..errors import JobFailedError
from ..offload.places import place_of
from ..options import ReadOptions
from ..plan import Slice
from ..tasks import spare_the_collector
from .figures import figures_of
from .selection import Rule, kept_of, latest_rows

COMPACT_FORMAT = "pulsemark-compact"
PLAN_OPTION = "compactPlan"


@dataclass(frozen=True)
class TopicPartition(InputPartition):
    """One task: one topic, and the file to write; None: only figures are wanted."""

    part: Slice
    path: str | None


class CompactSource(DataSource):
    """``spark.read.format("pulsemark-compact")``: the tasks of a plan."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return COMPACT_FORMAT

    def schema(self) -> str:
        """A task's result as JSON."""
        return "result string"

    def reader(self, schema: StructType) -> CompactReader:
        """The reader."""
        options = dict(self.options)
        plan = json.loads(options.pop(PLAN_OPTION.lower()))
        return CompactReader(ReadOptions.parse(options), plan)


class CompactReader(DataSourceReader):
    """One task for each topic of the plan."""

    def __init__(self, options: ReadOptions, plan: dict[str, Any]) -> None:
        self._options = options
        self._rule = Rule(plan["stage"], plan["property"])
        self._target = plan["target"]
        self._lost = frozenset(plan["lost"])
        self._tasks = plan["tasks"]

    def partitions(self) -> list[InputPartition]:
        """The topics, as they were planned."""
        from .job import slice_from

        return [TopicPartition(slice_from(task["slice"]), task["path"]) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Figures of a topic, or of the file that was written for it."""
        assert isinstance(partition, TopicPartition), "the partitions are our own"
        spare_the_collector()
        topic = partition.part.topic
        with FolderReader(self._options.path) as folder:
            log = folder.logs([topic], lost=self._lost)[topic]
            view = newest_view(folder, topic, log.topic_id)
            if partition.path is None:
                rule = self._rule
                try:
                    report = estimate(
                        log,
                        view,
                        tombstone_stage=rule.tombstone_stage,
                        tombstone_property=rule.tombstone_property,
                    )
                except CompactionFailedError as error:
                    raise JobFailedError(str(error)) from error
                yield (json.dumps(asdict(figures_of(report))),)
                return
            kept = kept_of(log, view, partition.part.end, self._rule)
        place = place_of(self._target)
        rows = place.write(partition.path, lambda file: self._fill(partition.part, kept, file))
        with place.open(partition.path) as written:
            size_bytes = written.size()
        yield (json.dumps([topic, partition.path, rows, size_bytes]),)

    def _fill(self, part: Slice, kept: list[Any], file: IO[bytes]) -> int:
        rows = 0
        with pq.ParquetWriter(file, arrow_schema_of(self._options.columns)) as writer:
            for batch in latest_rows(part, kept, self._options, self._lost):
                rows += batch.num_rows
                writer.write_table(pa.Table.from_batches([batch]))
        return rows
