"""The Spark source that an offload uses: a task writes files and returns their facts as rows.

Spark runs a source's reads in its workers and repeats those that fail, which is what an offload
needs. A repeated task finds the files of its first try complete, or writes them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..options import ReadOptions
from .iceberg_place import iceberg_place
from .pieces import Piece
from .places import place_of
from .writer import PieceWriter

OFFLOAD_FORMAT = "pulsemark-offload"
PLAN_OPTION = "offloadPlan"
ACCESS_OPTION = "offloadSecret"
"""How the workers reach the target; Spark hides options of such names in its plans."""


@dataclass(frozen=True)
class PiecesPartition(InputPartition):
    """One task: some files."""

    pieces: tuple[Piece, ...]


class OffloadSource(DataSource):
    """``spark.read.format("pulsemark-offload")``: writes the files of a plan."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return OFFLOAD_FORMAT

    def schema(self) -> str:
        """An `OffloadedFile` as JSON."""
        return "file string"

    def reader(self, schema: StructType) -> OffloadReader:
        """The reader."""
        options = dict(self.options)
        plan = json.loads(options.pop(PLAN_OPTION.lower()))
        access = json.loads(options.pop(ACCESS_OPTION.lower(), "{}"))
        return OffloadReader(ReadOptions.parse(options), plan, access)


class OffloadReader(DataSourceReader):
    """The tasks of the plan."""

    def __init__(self, options: ReadOptions, plan: dict[str, Any], access: dict[str, str]) -> None:
        self._options = options
        self._access = access
        self._target = plan["target"]
        self._constants = plan["constants"]
        self._run = plan["run"]
        self._lost = frozenset(plan["lost"])
        self._tasks = plan["tasks"]

    def partitions(self) -> list[InputPartition]:
        """The pieces, as they were planned."""
        return [
            PiecesPartition(tuple(Piece.from_json(values) for values in task))
            for task in self._tasks
        ]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Write the files of one task."""
        assert isinstance(partition, PiecesPartition), "the partitions are our own"
        place = (
            iceberg_place(self._target, self._access) if self._access else place_of(self._target)
        )
        writer = PieceWriter(place, self._run, self._options, self._lost, self._constants)
        for piece in partition.pieces:
            yield (json.dumps(asdict(writer.write(piece))),)
