"""The Spark source that a replay uses: a task replays some parts and returns their figures.

Spark runs a source's reads in its workers and, on a cluster, repeats those that fail. A repeated
task goes on where the checkpoint and the target are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..options import ReadOptions
from ..tasks import spare_the_collector
from .checkpoint import Checkpoint, Part
from .function import unpacked
from .options import ReplayOptions
from .stream import Paces, PartReplay

REPLAY_FORMAT = "pulsemark-replay"
PLAN_OPTION = "replayPlan"
TOKEN_OPTION = "replayToken"  # noqa: S105
"""An option of its own: Spark does not show options with such names."""


@dataclass(frozen=True)
class PartsPartition(InputPartition):
    """One task: the numbers of its parts."""

    numbers: tuple[int, ...]


class ReplaySource(DataSource):
    """``spark.read.format("pulsemark-replay")``: replays the parts of a plan."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return REPLAY_FORMAT

    def schema(self) -> str:
        """The number of a part, and its `Progress` as JSON."""
        return "number int, progress string"

    def reader(self, schema: StructType) -> ReplayReader:
        """The reader."""
        options = dict(self.options)
        plan = json.loads(options.pop(PLAN_OPTION.lower()))
        plan["options"]["token"] = options.pop(TOKEN_OPTION.lower(), None)
        return ReplayReader(ReadOptions.parse(options), plan)


class ReplayReader(DataSourceReader):
    """One partition for each task of the plan."""

    def __init__(self, read: ReadOptions, plan: dict[str, Any]) -> None:
        self._read = read
        self._plan = plan

    def partitions(self) -> list[InputPartition]:
        """The tasks, as they were planned."""
        return [PartsPartition(tuple(numbers)) for numbers in self._plan["tasks"]]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        """Replay the parts of one task, one after another."""
        assert isinstance(partition, PartsPartition), "the partitions are our own"
        spare_the_collector()
        plan = self._plan
        options = ReplayOptions(**plan["options"])
        function = None if plan["function"] is None else unpacked(plan["function"])
        paces = Paces(options, len(plan["tasks"]))
        for number in partition.numbers:
            replay = PartReplay(
                self._read,
                options,
                Checkpoint(plan["checkpoint"]),
                number,
                Part.from_json(plan["parts"][number]),
                plan["names"][number],
                paces,
                function,
                frozenset(plan["lost"]),
            )
            yield number, json.dumps(asdict(replay.run()))
