"""The driver's part of a comparison of two tiers."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

from ...ledger import FolderReader
from ..arguments import Range, checked_options
from ..audit import parse_bucket_ms
from ..errors import OptionError
from ..offload.table import OffloadTable
from ..options import ReadOptions, select_topics
from ..session import require_spark
from .compare import Difference, compare_counts, compare_indexes, losses_of
from .others import IndexRun, TopicIndexes, kind_of, merged, read_counts, table_indexes
from .others import Range as IndexRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


__all__ = ["TierComparison", "compare_tiers"]


@dataclass(frozen=True, slots=True)
class TierComparison:
    """What a comparison found."""

    tier: str
    other_tier: str
    bucket_ms: int
    differences: tuple[Difference, ...]

    @property
    def problems(self) -> tuple[Difference, ...]:
        """The differences without those that are only not copied yet."""
        return tuple(each for each in self.differences if each.is_problem)

    def frame(self, spark: SparkSession) -> DataFrame:
        """The differences as rows."""
        from pyspark.sql import functions as f

        rows = [
            (
                each.topic,
                each.bucket_start_ms,
                each.what,
                each.messages,
                each.indexes,
                each.count,
                each.other_count,
            )
            for each in self.differences
        ]
        schema = (
            "topic string, start_ms bigint, what string, messages bigint, indexes string,"
            " count bigint, other_count bigint"
        )
        start = f.col("start_ms")
        return spark.createDataFrame(rows, schema).select(
            "topic",
            f.timestamp_millis(start).alias("bucket_start"),
            f.timestamp_millis(start + self.bucket_ms).alias("bucket_end"),
            f.lit(self.tier).alias("tier"),
            f.lit(self.other_tier).alias("other_tier"),
            *("what", "messages", "indexes", "count", "other_count"),
        )


def compare_tiers(
    spark: SparkSession,
    path: str | os.PathLike[str],
    against: str | os.PathLike[str] | OffloadTable,
    topics: str | Sequence[str] | None = None,
    *,
    bucket: str = "1 minute",
    tier: str = "broker",
    by_source: bool = False,
    **bounds: Unpack[Range],
) -> TierComparison:
    """Compare a data folder, message by message, with another tier.

    Args:
        spark: the Spark session.
        path: the data folder, which is the measure.
        against: another data folder, the target of an `offload` (a folder, or an `OffloadTable`
            such as `IcebergTarget`), or counts in a file (see `read_counts`).
        topics: names; all topics by default.
        bucket: width of the buckets in which differences are shown; counts have the same.
        tier: the folder's label.
        by_source: the other folder is a mirror's target: compare by the indexes of its source.
        bounds: which messages of the folder are compared, see `Range`; with counts all buckets
            that the range touches should be whole.

    Raises:
        MissingExtraError: pyspark, pyarrow or numpy is not installed.
        OptionError: an argument is malformed, or the other tier cannot be read.
        ForeignFolderError, UnsupportedVersionError: not a data folder of this version.
        TopicNotFoundError: a named topic does not exist.
    """
    require_spark()
    bucket_ms = parse_bucket_ms(bucket)
    kind = kind_of(against)
    if by_source and kind != "folder":
        raise OptionError("bySource", "true", "is for another data folder only")
    options = checked_options(path, topics, **bounds)
    names = _topics_of(options)
    name = str(against) if isinstance(against, str | os.PathLike) else against.name
    if isinstance(against, str | os.PathLike) and kind == "counts":
        only = names[0] if topics is not None and len(names) == 1 else None
        counts = read_counts(against, bucket_ms, only)
        if topics is not None:
            counts.by_topic = {n: c for n, c in counts.by_topic.items() if n in names}
        found = _found(spark, options, bucket_ms)
        differences = [*compare_counts(found.runs, counts), *found.losses()]
        return TierComparison(tier, counts.tier, bucket_ms, tuple(differences))
    found = _found(spark, options, bucket_ms)
    ours = found.runs
    if kind == "table" or not isinstance(against, str | os.PathLike):
        theirs = table_indexes(against, _log_ids(path, ours))
    else:
        theirs = _folder_indexes(spark, against, names if topics is not None else None, by_source)
    theirs = _inside(ours, theirs, is_whole=not any(value is not None for value in bounds.values()))
    differences = [*compare_indexes(ours, theirs), *found.losses()]
    return TierComparison(tier, name, bucket_ms, tuple(differences))


@dataclass(slots=True)
class _Found:
    """What a folder has of its topics, and what it has lost."""

    runs: dict[str, list[IndexRun]] = field(default_factory=dict)
    gaps: dict[str, list[IndexRange]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def losses(self) -> list[Difference]:
        """As differences."""
        return losses_of(self.gaps, self.reasons)


def _topics_of(options: dict[str, str]) -> list[str]:
    read = ReadOptions.parse(options)
    with FolderReader(read.path) as folder:
        names, _ = select_topics(read.topics, folder.topics())
    return list(names)


def _found(
    spark: SparkSession, options: dict[str, str], bucket_ms: int, *, by_source: bool = False
) -> _Found:
    """The runs of a folder by topic, and its losses, found by Spark's tasks."""
    from ..audit_source import BUCKET_OPTION
    from .ledger import RUNS_FORMAT, SOURCE_OPTION, RunsSource

    spark.dataSource.register(RunsSource)
    reader: Any = spark.read.format(RUNS_FORMAT).options(**options)
    reader = reader.option(BUCKET_OPTION, str(bucket_ms))
    reader = reader.option(SOURCE_OPTION, json.dumps(by_source))
    found = _Found()
    for row in reader.load().collect():
        topic = row["topic"]
        if row["loss"] is not None:
            found.reasons[topic] = row["loss"]
            continue
        runs = found.runs.setdefault(topic, [])
        if row["bucket_start_ms"] is not None:
            runs.append(IndexRun(row["bucket_start_ms"], row["first_index"], row["end_index"]))
        elif row["first_index"] is not None:
            found.gaps.setdefault(topic, []).append((row["first_index"], row["end_index"]))
    return found


def _folder_indexes(
    spark: SparkSession, path: str | os.PathLike[str], names: list[str] | None, by_source: bool
) -> dict[str, TopicIndexes]:
    with FolderReader(path) as folder:
        there = folder.topics()
    if names is not None:
        names = [name for name in names if name in there]
        if not names:
            return {}
    options = checked_options(path, names)
    found = {}
    # One bucket: the other folder's times do not matter.
    for topic, runs in _found(spark, options, 1 << 60, by_source=by_source).runs.items():
        ranges, doubled = merged((run.first_index, run.end_index) for run in runs)
        found[topic] = TopicIndexes(tuple(ranges), doubled)
    return found


def _log_ids(
    path: str | os.PathLike[str], topics: Sequence[str] | dict[str, Any]
) -> dict[str, int]:
    with FolderReader(path) as folder:
        return {topic: log.topic_id for topic, log in folder.logs(topics).items()}


def _inside(
    ours: dict[str, list[IndexRun]], theirs: dict[str, TopicIndexes], *, is_whole: bool
) -> dict[str, TopicIndexes]:
    """With a range only what lies between our first and last message can be compared."""
    if is_whole:
        return theirs
    found = {}
    for topic, other in theirs.items():
        runs = ours.get(topic, ())
        if not runs:
            continue
        end = max(run.end_index for run in runs)
        ranges = tuple((first, min(last, end)) for first, last in other.ranges if first < end)
        found[topic] = TopicIndexes(ranges, other.doubled, other.end_index)
    return found
