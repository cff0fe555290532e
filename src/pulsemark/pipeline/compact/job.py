"""The driver's part of a dry run: plan the topics, and let the workers read them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...ledger import FolderReader
from ..arguments import checked_options
from ..errors import OptionError
from ..options import ReadOptions
from ..plan import packed, report, selected, slice_of
from ..session import require_spark
from .views import CompactedTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


STAGES = (1, 2)


def estimate_compaction(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    *,
    tombstone_stage: int = 1,
    tombstone_property: str | None = None,
    fail_on_data_loss: bool = True,
) -> list[CompactedTopic]:
    """What a compaction would read, keep and write, by topic. Nothing is written.

    Args:
        spark: the Spark session; its workers see the folder under this path.
        path: the data folder. A broker may be writing to it.
        topics: names; all topics by default.
        tombstone_stage: what deletes a key in Kafka's magic 2 (KIP-87): 1, the flag or a null
            value; 2, the flag alone.
        tombstone_property: a message of Pulsar's deletes its key if this property's last value is
            "true".
        fail_on_data_loss: False: messages that are missing are logged and left out.

    Raises:
        MissingExtraError: pyspark, pyarrow, numpy or cramjam is not installed.
        OptionError: an argument is malformed.
        ForeignFolderError, UnsupportedVersionError: the path is not a data folder of this version.
        TopicNotFoundError: a named topic does not exist.
        DataLossError: messages are missing.
    """
    require_spark()
    from .source import COMPACT_FORMAT, PLAN_OPTION, CompactSource

    if tombstone_stage not in STAGES:
        raise OptionError("tombstoneStage", str(tombstone_stage), "is not 1 or 2")
    if tombstone_property == "":
        raise OptionError("tombstoneProperty", tombstone_property, "is empty")
    fail = str(fail_on_data_loss).lower()
    options = ReadOptions.parse({**checked_options(path, topics), "failOnDataLoss": fail})
    with FolderReader(options.path) as reader:
        found = selected(reader, options)
        for error in found.lost_topics():
            report(error, options.fail_on_data_loss)
        slices = [slice_of(log, options, found.expected) for log in found.logs.values()]
    plan = {
        "path": str(options.path),
        "stage": tombstone_stage,
        "property": tombstone_property,
        "lost": sorted(found.expected.lost_ledgers),
        "tasks": [[part.topic for part in task] for task in packed(slices, lambda part: part)],
    }
    if not slices:
        return []
    spark.dataSource.register(CompactSource)
    rows = spark.read.format(COMPACT_FORMAT).option(PLAN_OPTION, json.dumps(plan)).load().collect()
    figures = [CompactedTopic(**json.loads(row[0])) for row in rows]
    return sorted(figures, key=lambda each: each.topic)
