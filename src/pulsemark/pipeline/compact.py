"""Compaction as a job: the latest message of each key.

estimate_compaction  what a compaction would keep and write, in parallel by topic
compact_folder       make the compacted views of a folder that no broker uses

The topics' own compacted views are what consumers read with `readCompacted`. Which messages are
kept is decided by the package `compaction`, for all of them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..compaction.cleaner import limits_of
from ..compaction.compaction import (
    MAX_UNCOMPRESSED_BYTES,
    CompactionReport,
    compact,
    estimate,
)
from ..compaction.current_view import newest_view
from ..compaction.keys import Limits
from ..ledger import FolderReader, LocalStore
from ..ledger.errors import CompactionFailedError
from ..maintenance.verify_catalog import follow_transactions
from .arguments import checked_options, option_texts
from .errors import JobFailedError, OptionError
from .plan import report, selected, slice_of
from .session import require_spark
from .slices import packed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def estimate_compaction(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    *,
    tombstone_stage: int = 1,
    tombstone_property: str | None = None,
    fail_on_data_loss: bool = True,
) -> list[CompactionReport]:
    """Estimate what a compaction would read, keep and write, by topic. Writes nothing.

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
    limits = _limits(tombstone_stage, tombstone_property)
    options = checked_options(option_texts(path, topics, fail_on_data_loss=fail_on_data_loss))
    with FolderReader(options.path) as reader:
        found = selected(reader, options)
        for error in found.lost_topics():
            report(error, options.fail_on_data_loss)
        slices = [slice_of(log, options, found.expected) for log in found.logs.values()]
    from .workers import results_of

    work = partial(_estimates, options.path, found.expected.lost_ledgers, limits)
    tasks = [[part.topic for part in task] for task in packed(slices, lambda part: part)]
    return sorted(results_of(spark, work, tasks), key=lambda each: each.topic)


def _limits(tombstone_stage: int, tombstone_property: str | None) -> Limits:
    if tombstone_stage not in (1, 2):
        raise OptionError("tombstoneStage", str(tombstone_stage), "is not 1 or 2")
    if tombstone_property == "":
        raise OptionError("tombstoneProperty", tombstone_property, "is empty")
    return Limits(MAX_UNCOMPRESSED_BYTES, tombstone_stage, tombstone_property)


def _estimates(
    path: Path, lost: Collection[int], limits: Limits, topics: Sequence[str]
) -> Iterator[CompactionReport]:
    """Estimate the compactions of one task's topics."""
    with FolderReader(path) as folder:
        logs = folder.logs(topics, lost=lost)
        follow_transactions(path, logs.values())
        for topic, log in logs.items():
            try:
                figures = estimate(log, newest_view(folder, topic, log.topic_id), limits)
            except CompactionFailedError as error:
                raise JobFailedError(str(error)) from error
            yield figures


def compact_folder(
    path: str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    *,
    tombstone_stage: int = 1,
    tombstone_property: str | None = None,
) -> list[CompactionReport]:
    """Make new compacted views in a folder that no other process uses.

    Args:
        path: the data folder.
        topics: names; all topics by default.
        tombstone_stage: see `estimate_compaction`.
        tombstone_property: see `estimate_compaction`.

    Raises:
        OptionError: an argument is malformed.
        FolderLockedError: a broker or another process uses the folder.
        TopicNotFoundError: a named topic does not exist.
        CompactionFailedError, CompressionUnavailableError: see `compaction.compaction.compact`.
    """
    limits = _limits(tombstone_stage, tombstone_property)
    options = checked_options(option_texts(path, topics))
    with FolderReader(options.path) as reader:
        names, _ = options.select(reader.topics())
    with LocalStore.open(Path(path)) as store:
        ledgers = (store.open_topic(name, create=False) for name in names)
        return [compact(ledger, limits=limits_of(ledger, limits)) for ledger in ledgers]
