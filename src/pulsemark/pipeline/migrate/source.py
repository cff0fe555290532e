"""The Spark source that a migration uses: a task copies one topic and checks the copy.

A topic is copied by one task, because each segment's header has facts of all before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ...ledger.local.io.fd_cache import FdCache
from ...ledger.local.io.files import OsFiles
from ...ledger.local.segment.filer import Filer
from ..errors import MigrateError
from ..tasks import spare_the_collector
from . import folder_topics, pulsar_topics
from .entry_format import EntryFormat
from .segments import Digest, Written
from .staging import Staging

MIGRATE_FORMAT = "pulsemark-migrate"
PLAN_OPTION = "migratePlan"
TOKEN_OPTION = "migrateToken"  # noqa: S105
"""An option of its own: Spark does not show options with such names."""


@dataclass(frozen=True)
class TopicPartition(InputPartition):
    """One task: the number of a topic in the plan."""

    number: int


class MigrateSource(DataSource):
    """``spark.read.format("pulsemark-migrate")``: copies the topics of a plan."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return MIGRATE_FORMAT

    def schema(self) -> str:
        """The topic's number and, as JSON, the `Written` of its last segment, or null."""
        return "number int, written string"

    def reader(self, schema: StructType) -> MigrateReader:
        """The reader."""
        content = json.loads(self.options[PLAN_OPTION.lower()])
        return MigrateReader({**content, "token": self.options.get(TOKEN_OPTION.lower())})


class MigrateReader(DataSourceReader):
    """One partition for each topic of the plan."""

    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content

    def partitions(self) -> list[InputPartition]:
        """The topics, the largest first, so that the last tasks are short."""
        return [TopicPartition(number) for number in self._content["order"]]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str | None]]:
        """Copy one topic, and check the copy."""
        assert isinstance(partition, TopicPartition), "the partitions are our own"
        spare_the_collector()
        content = self._content
        planned = content["plan"]["topics"][partition.number]
        staging, form = Staging(content["target"]), EntryFormat(content["entry_format"])
        if content["url"] is None:
            done = folder_topics.copy_topic(Path(content["source"]), staging, planned, form)
        else:
            done = pulsar_topics.copy_topic(
                content["url"], content["token"], staging, planned, form
            )
        if done is not None:
            check_copy(staging, planned, done)
        yield partition.number, None if done is None else json.dumps(done.to_json())


def check_copy(staging: Staging, planned: dict[str, Any], done: Written) -> None:
    """Read a topic's copy as a broker would, and compare it with what was read of the source.

    Makes the segments' index files on the way. Raises MigrateError if it is not equal.
    """
    files = OsFiles()
    listed = _segments_of(staging, planned)
    fds = FdCache(files)
    try:
        filer = Filer(files, fds, staging.data)
        segments, _ = filer.open_topic(planned["topic"], planned["topic_id"], listed)
        digest = Digest()
        for segment in segments:
            row = segment.cut_rows
            while row < segment.entry_count:
                entries = segment.read(row, 4096, 8 << 20)
                for entry in entries:
                    digest = digest.plus(
                        entry.position, entry.message_count, entry.index, entry.body
                    )
                row += len(entries)
        filer.sync_folder()
    finally:
        fds.close()
    if digest != done.digest:
        reason = f"its copy is not equal: {digest} instead of {done.digest}"
        raise MigrateError(planned["topic"], reason)


def _segments_of(staging: Staging, planned: dict[str, Any]) -> list[tuple[int, int]]:
    if "segments" in planned:
        return [(ledger_id, number) for ledger_id, number, _ in planned["segments"]]
    found: list[tuple[int, int]] = []
    while staging.written(planned["topic_id"], len(found)) is not None:
        found.append((planned["topic_id"], len(found)))
    return found
