"""The Spark source that an offload uses: a task writes one file and returns its facts as a row.

Spark runs a source's reads in its workers and repeats those that fail, which is what an offload
needs. A repeated task finds the file of its first try complete, or writes it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..columns import arrow_schema_of
from ..options import ReadOptions
from .pieces import Piece
from .writer import write_piece

OFFLOAD_FORMAT = "pulsemark-offload"
PLAN_OPTION = "offloadPlan"


@dataclass(frozen=True)
class PiecePartition(InputPartition):
    """One task: one file."""

    piece: Piece


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
        return OffloadReader(ReadOptions.parse(options), plan)


class OffloadReader(DataSourceReader):
    """One partition for each piece of the plan."""

    def __init__(self, options: ReadOptions, plan: dict[str, Any]) -> None:
        self._options = options
        self._target = Path(plan["target"])
        self._lost = frozenset(plan["lost"])
        self._pieces = plan["pieces"]

    def partitions(self) -> list[InputPartition]:
        """The pieces, as they were planned."""
        return [PiecePartition(Piece.from_json(values)) for values in self._pieces]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Write one file."""
        assert isinstance(partition, PiecePartition), "the partitions are our own"
        schema = arrow_schema_of(self._options.columns)
        done = write_piece(partition.piece, self._target, self._options, schema, self._lost)
        yield (json.dumps(asdict(done)),)
