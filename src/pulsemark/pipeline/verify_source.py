"""The Spark source that the job `verify` uses: each task verifies some topics."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..ledger import Position
from ..ledger.bookkeeper.address import StoreAddress, is_store_address
from ..maintenance.findings import Finding
from ..maintenance.verify import Checked, verify_around_topics, verify_logs, verify_topics
from .options import opened_store
from .verify import SUMMARY, VERIFY_SCHEMA

VERIFY_FORMAT = "pulsemark-verify"
TASKS_OPTION = "verifyTasks"

Row = tuple[str | None, str, str | None, int | None, int | None, str | None, str]


@dataclass(frozen=True)
class TopicsPartition(InputPartition):
    """The topics of one task; none: everything in the folder that is in no topic."""

    topics: tuple[str, ...]


class VerifySource(DataSource):
    """``spark.read.format("pulsemark-verify")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return VERIFY_FORMAT

    def schema(self) -> str:
        """One row for each finding."""
        return VERIFY_SCHEMA

    def reader(self, schema: StructType) -> VerifyReader:
        """The reader."""
        tasks = json.loads(self.options[TASKS_OPTION])
        return VerifyReader(self.options["path"], tasks)


class VerifyReader(DataSourceReader):
    """One partition for each list of topics."""

    def __init__(self, place: str, tasks: list[list[str]]) -> None:
        """``place``: a data folder, or the address of a store."""
        self._place = place
        self._tasks = tasks

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        return [TopicsPartition(tuple(topics)) for topics in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        """The findings of one task."""
        assert isinstance(partition, TopicsPartition), "the partitions are our own"
        # The findings already contain everything that the store would log.
        logging.getLogger("pulsemark.ledger").addHandler(logging.NullHandler())
        if not partition.topics:
            yield from map(_row, verify_around_topics(Path(self._place)))
            return
        checked = Checked()
        yield from map(_row, self._findings(partition.topics, checked))
        what = (
            f"{checked.topics} topics, {checked.segments} segments, {checked.entries} entries,"
            f" {checked.messages} messages, {checked.size_bytes} bytes"
        )
        yield None, SUMMARY, None, None, None, None, what

    def _findings(self, topics: Sequence[str], checked: Checked) -> Iterator[Finding]:
        if not is_store_address(self._place):
            yield from verify_topics(Path(self._place), topics, checked=checked)
            return
        with opened_store(StoreAddress.parse(self._place)) as reader:
            yield from verify_logs(map(reader.log, topics), self._place, checked)


def _row(finding: Finding) -> Row:
    facts = finding.facts()
    place = facts.get("position") or facts.get("first")
    position = place if isinstance(place, dict) else dict.fromkeys(Position._fields)
    return (
        str(facts["severity"]),
        str(facts["kind"]),
        finding.topic,
        position["ledger_id"],
        position["entry_id"],
        str(finding.path) if finding.path is not None else None,
        finding.what,
    )
