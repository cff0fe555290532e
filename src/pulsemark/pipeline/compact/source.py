"""The Spark source of the job: of each topic it returns figures, or writes a file."""

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
from ...compaction.keys import Kept
from ...compaction.view import CompactedView
from ...ledger import FolderReader
from ...ledger.errors import CompactionFailedError
from ...ledger.local.folder_reader import FolderLog
from ..columns import arrow_schema_of
from ..errors import JobFailedError
from ..offload.places import place_of
from ..options import ReadOptions
from ..plan import Slice, segments_of
from ..tasks import LedgerPartition, spare_the_collector
from .job import figures_of
from .selection import Rule, kept_of, latest_rows

COMPACT_FORMAT = "pulsemark-compact"
PLAN_OPTION = "compactPlan"


@dataclass(frozen=True)
class TopicsPartition(InputPartition):
    """One task: some topics, and the file to write for each; None: only figures are wanted."""

    topics: tuple[tuple[Slice, str | None], ...]


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
    """The tasks of the plan."""

    def __init__(self, options: ReadOptions, plan: dict[str, Any]) -> None:
        self._options = options
        self._rule = Rule(plan["stage"], plan["property"])
        self._target = plan["target"]
        self._lost = frozenset(plan["lost"])
        self._tasks = plan["tasks"]

    def partitions(self) -> list[InputPartition]:
        """The topics, as they were planned."""
        return [
            TopicsPartition(tuple((Slice.from_json(part), path) for part, path in task))
            for task in self._tasks
        ]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Figures of each topic, or of the file that was written for it."""
        assert isinstance(partition, TopicsPartition), "the partitions are our own"
        spare_the_collector()
        names = [part.topic for part, _ in partition.topics]
        with FolderReader(self._options.path) as folder:
            logs = folder.logs(names, lost=self._lost)
            for part, path in partition.topics:
                log = logs[part.topic]
                view = newest_view(folder, part.topic, log.topic_id)
                if path is None:
                    yield (json.dumps(self._figures(log, view)),)
                else:
                    yield (json.dumps(self._written(log, view, part, path)),)

    def _figures(self, log: FolderLog, view: CompactedView | None) -> dict[str, Any]:
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
        return asdict(figures_of(report))

    def _written(
        self, log: FolderLog, view: CompactedView | None, part: Slice, path: str
    ) -> list[Any]:
        fail = self._options.fail_on_data_loss
        kept = kept_of(log, view, part.end, self._rule, fail_on_data_loss=fail)
        segments = segments_of([part], {part.topic: log})
        share = LedgerPartition((part,), self._lost, segments)
        place = place_of(self._target)
        rows = place.write(path, lambda file: self._fill(share, kept, file))
        with place.open(path) as written:
            return [part.topic, path, rows, written.size()]

    def _fill(self, share: LedgerPartition, kept: list[Kept], file: IO[bytes]) -> int:
        rows = 0
        with pq.ParquetWriter(file, arrow_schema_of(self._options.columns)) as writer:
            for batch in latest_rows(share, kept, self._options):
                rows += batch.num_rows
                writer.write_table(pa.Table.from_batches([batch]))
        return rows
