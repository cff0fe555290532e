"""The workers' part of a dry run: what a compaction of each topic would read, keep and write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ...compaction.compaction import MAX_UNCOMPRESSED_BYTES, estimate
from ...compaction.current_view import newest_view
from ...compaction.keys import Limits
from ...ledger import FolderReader
from ...ledger.errors import CompactionFailedError
from ..errors import JobFailedError
from ..tasks import spare_the_collector
from .views import figures_of

COMPACT_FORMAT = "pulsemark-compact"
PLAN_OPTION = "compactPlan"


@dataclass(frozen=True)
class TopicsPartition(InputPartition):
    """One task: some topics."""

    topics: tuple[str, ...]


class CompactSource(DataSource):
    """``spark.read.format("pulsemark-compact")``: the tasks of a plan."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return COMPACT_FORMAT

    def schema(self) -> str:
        """A topic's figures as JSON."""
        return "result string"

    def reader(self, schema: StructType) -> CompactReader:
        """The reader."""
        return CompactReader(json.loads(self.options[PLAN_OPTION.lower()]))


class CompactReader(DataSourceReader):
    """The tasks of the plan."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan

    def partitions(self) -> list[InputPartition]:
        """The topics, as they were planned."""
        return [TopicsPartition(tuple(topics)) for topics in self._plan["tasks"]]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Figures of each topic."""
        assert isinstance(partition, TopicsPartition), "the partitions are our own"
        spare_the_collector()
        plan = self._plan
        limits = Limits(MAX_UNCOMPRESSED_BYTES, plan["stage"], plan["property"])
        with FolderReader(plan["path"]) as folder:
            logs = folder.logs(partition.topics, lost=frozenset(plan["lost"]))
            for topic in partition.topics:
                log = logs[topic]
                try:
                    report = estimate(log, newest_view(folder, topic, log.topic_id), limits)
                except CompactionFailedError as error:
                    raise JobFailedError(str(error)) from error
                yield (json.dumps(asdict(figures_of(report))),)
