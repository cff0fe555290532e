"""What another tier has of a folder's messages, compared with the folder, which is the measure.

Another tier is another data folder, or a table that `offload` wrote. Their indexes are compared, so
it is known which messages differ. Consumers' counts are compared by `pulsemark audit compare`.

=========  =====================================================================================
missing    the folder has these messages, the other tier does not
extra      the other tier has them, the folder does not, though it reaches so far back
doubled    the other tier has them more often than once
lost       the folder itself has lost them, or files of the topic; the other tier may have them
pending    an offload has not come so far yet; this is no problem
=========  =====================================================================================
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from ..ledger import FolderReader
from ..ledger.local.io.folder import MARKER_NAME
from .arguments import Range, checked_options
from .audit import parse_bucket_ms
from .errors import MissingExtraError, OptionError
from .offload import DeltaTarget
from .offload.manifest import MANIFEST_FOLDER, topic_folder
from .offload.places import LocalPlace, Place, place_of
from .offload.table import OffloadTable, ParquetFolder
from .options import ReadOptions, select_topics
from .session import require_spark

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Difference:
    """Messages of one topic and bucket that the tiers do not both have."""

    topic: str
    bucket_start_ms: int | None
    """None: the bucket is not known, because only the other tier has the messages."""
    what: str
    messages: int
    indexes: str | None
    """As ``4-9,12``, or the reason why they are not known; None: only counts are known."""
    count: int | None
    """The folder's count of the bucket."""
    other_count: int | None
    """The other tier's count of the bucket."""

    @property
    def is_problem(self) -> bool:
        """Whether something is wrong."""
        return self.what != "pending"


def losses_of(
    gaps: Mapping[str, Sequence[IndexRange]], reasons: Mapping[str, str]
) -> list[Difference]:
    """What the folder itself has lost: indexes without an entry, and files."""
    found = []
    for topic in sorted({*gaps, *reasons}):
        ranges, _ = merged(gaps.get(topic, ()))
        indexes = text(ranges) if ranges else reasons.get(topic)
        found.append(Difference(topic, None, "lost", size(ranges), indexes, None, None))
    return found


def compare_indexes(
    ours: Mapping[str, Sequence[IndexRun]], theirs: Mapping[str, TopicIndexes]
) -> list[Difference]:
    """The differences by index; a topic that the other tier does not have has nothing there."""
    found: list[Difference] = []
    for topic in sorted({*ours, *theirs}):
        runs = ours.get(topic, ())
        other = theirs.get(topic, TopicIndexes(()))
        found += _lacking(topic, runs, other)
        found += _surplus(topic, runs, other)
    return found


def _lacking(topic: str, runs: Iterable[IndexRun], other: TopicIndexes) -> Iterator[Difference]:
    """What the other tier does not have, bucket by bucket."""
    buckets: dict[int, list[IndexRange]] = {}
    for run in runs:
        buckets.setdefault(run.bucket_start_ms, []).append((run.first_index, run.end_index))
    for start_ms in sorted(buckets):
        ranges, _ = merged(buckets[start_ms])
        lacking = list(without(ranges, other.ranges))
        if not lacking:
            continue
        count = size(ranges)
        counts = (count, count - size(lacking))
        end = other.end_index
        parts = {"missing": lacking}
        if end is not None:
            parts = {
                "missing": [(first, min(last, end)) for first, last in lacking if first < end],
                "pending": [(max(first, end), last) for first, last in lacking if last > end],
            }
        for what, part in parts.items():
            if part:
                yield Difference(topic, start_ms, what, size(part), text(part), *counts)


def _surplus(topic: str, runs: Sequence[IndexRun], other: TopicIndexes) -> Iterator[Difference]:
    """What only the other tier has; what retention removed from the folder's head is expected."""
    ranges, _ = merged((run.first_index, run.end_index) for run in runs)
    if ranges:
        first = ranges[0][0]
        inside = [(max(first, low), high) for low, high in other.ranges if high > first]
        extra = list(without(inside, ranges))
        if extra:
            yield Difference(topic, None, "extra", size(extra), text(extra), None, None)
    if other.doubled:
        yield Difference(topic, None, "doubled", other.doubled, None, None, None)


OPTION = "against"
_DELTA_LOG = "_delta_log"


@dataclass(frozen=True, slots=True)
class TopicIndexes:
    """What a tier has of a topic."""

    ranges: tuple[IndexRange, ...]
    doubled: int = 0
    """Messages that it has more often than once."""
    end_index: int | None = None
    """It is not expected to have messages from this index on yet; None: it has no such place."""


def kind_of(place: str | os.PathLike[str] | OffloadTable) -> str:
    """``folder`` or ``table``. Raises OptionError for anything else."""
    if not isinstance(place, str | os.PathLike):
        return "table"
    found = _place(place)
    try:
        if not isinstance(found, LocalPlace):
            if found.names(MANIFEST_FOLDER) or found.names(_DELTA_LOG):
                return "table"
            raise OptionError(OPTION, str(place), "has no table of an offload")
        path = found.folder
        if (path / MARKER_NAME).exists():
            return "folder"
        if (path / MANIFEST_FOLDER).is_dir() or (path / _DELTA_LOG).is_dir():
            return "table"
        reason = "does not exist"
        if path.exists():
            reason = "is not a data folder or a table of an offload"
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    raise OptionError(OPTION, str(place), reason)


def _place(name: str | os.PathLike[str]) -> Place:
    try:
        return place_of(name)
    except OptionError as error:
        raise OptionError(OPTION, str(name), error.reason) from error


def table_indexes(
    place: str | os.PathLike[str] | OffloadTable, log_ids: Mapping[str, int]
) -> dict[str, TopicIndexes]:
    """What a table has of each topic: the files in its folder, or what it says itself.

    Only the column ``__index`` is read. ``log_ids`` are those of the topics' logs: files of a topic
    that was deleted and created again do not count.

    Raises:
        OptionError: the manifest or a file cannot be read, or the files have no column `__index`.
    """
    if isinstance(place, str | os.PathLike) and _place(place).names(_DELTA_LOG):
        place = DeltaTarget(str(place))
    if not isinstance(place, str | os.PathLike):
        return _indexes_by_table(place, log_ids)
    table = ParquetFolder(str(place))
    manifest = table.load()
    ends = manifest.next_indexes()
    by_topic: dict[str, list[str]] = {topic: [] for topic in log_ids}
    for file in manifest.files:
        if log_ids.get(file.topic) == file.log_id:
            by_topic[file.topic].append(file.path)
    # Who reads the folder sees files that no manifest lists, too.
    topics = {topic_folder(topic): topic for topic in log_ids}
    for path in table.data_paths() - {file.path for file in manifest.files}:
        topic = topics.get(path.partition("/")[0])
        if topic is not None and path.endswith(".parquet"):
            by_topic[topic].append(path)
    found = {}
    for topic, names in by_topic.items():
        ranges, doubled = _indexes_of_files(table, names)
        end_index = ends.get((topic, log_ids[topic]))
        found[topic] = TopicIndexes(tuple(ranges), doubled, 0 if end_index is None else end_index)
    return found


def _indexes_by_table(table: OffloadTable, log_ids: Mapping[str, int]) -> dict[str, TopicIndexes]:
    ends = table.load().next_indexes()
    found = {}
    for topic, log_id in log_ids.items():
        end_index = ends.get((topic, log_id))
        if end_index is None:
            found[topic] = TopicIndexes((), 0, 0)
            continue
        ranges, doubled = of_indexes(table.indexes_of(topic))
        found[topic] = TopicIndexes(tuple(ranges), doubled, end_index)
    return found


def _indexes_of_files(table: ParquetFolder, names: Iterable[str]) -> tuple[list[IndexRange], int]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("spark", "pyarrow") from error
    ranges: list[IndexRange] = []
    doubled = 0
    for name in names:
        try:
            with table.place.open(name) as source:
                column = parquet.ParquetFile(source).read(["__index"])
            indexes = column.column(0).to_numpy()
        except FileNotFoundError:
            continue  # its messages are missing
        except (OSError, pa.ArrowException, IndexError) as error:
            reason = f"{name} cannot be read: {str(error).splitlines()[0]}"
            raise OptionError(OPTION, table.name, reason) from error
        of_file, more = of_indexes(indexes)
        ranges += of_file
        doubled += more
    joined, more = merged(ranges)
    return joined, doubled + more


IndexRange: TypeAlias = tuple[int, int]
"""First index, and the one after the last."""

SHOWN_RANGES = 50


@dataclass(frozen=True, slots=True)
class IndexRun:
    """Messages ``[first_index, end_index)``, all in one bucket."""

    bucket_start_ms: int
    first_index: int
    end_index: int


def merged(ranges: Iterable[IndexRange]) -> tuple[list[IndexRange], int]:
    """The ranges in order, joined where they touch; and how many indexes were in several."""
    found: list[IndexRange] = []
    doubled = 0
    for first, end in sorted(ranges):
        if first >= end:
            continue
        if found and first <= found[-1][1]:
            before_first, before_end = found[-1]
            doubled += max(0, min(end, before_end) - first)
            found[-1] = (before_first, max(before_end, end))
        else:
            found.append((first, end))
    return found, doubled


def of_indexes(indexes: NDArray[np.int64]) -> tuple[list[IndexRange], int]:
    """The ranges of single indexes in any order; and how many of them came more than once."""
    import numpy as np

    if not len(indexes):
        return [], 0
    distinct = np.unique(indexes)
    breaks = np.flatnonzero(np.diff(distinct) != 1) + 1
    firsts = distinct[np.concatenate([[0], breaks])]
    lasts = distinct[np.concatenate([breaks - 1, [len(distinct) - 1]])]
    ranges = list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))
    return ranges, len(indexes) - len(distinct)


def without(ranges: Sequence[IndexRange], others: Sequence[IndexRange]) -> Iterator[IndexRange]:
    """What is in ``ranges`` and not in ``others``; both are in order."""
    at = 0
    for start, end in ranges:
        while at < len(others) and others[at][1] <= start:
            at += 1
        first, place = start, at
        while first < end:
            if place == len(others) or others[place][0] >= end:
                yield first, end
                break
            if others[place][0] > first:
                yield first, others[place][0]
            first = max(first, others[place][1])
            place += 1


def size(ranges: Iterable[IndexRange]) -> int:
    """How many indexes there are."""
    return sum(end - first for first, end in ranges)


def text(ranges: Sequence[IndexRange]) -> str:
    """The ranges for people: ``4-9,12``; the first of them, if there are very many."""
    shown = [
        str(first) if end == first + 1 else f"{first}-{end - 1}"
        for first, end in ranges[:SHOWN_RANGES]
    ]
    more = len(ranges) - len(shown)
    return ",".join(shown) + (f" and {more} more ranges" if more else "")


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

        rows = [astuple(each) for each in self.differences]
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
    **bounds: Unpack[Range],
) -> TierComparison:
    """Compare a data folder, message by message, with another tier.

    Args:
        spark: the Spark session.
        path: the data folder, which is the measure.
        against: another data folder, or the target of an `offload` (a folder, or an `OffloadTable`
            such as `IcebergTarget`).
        topics: names; all topics by default.
        bucket: width of the buckets in which differences are shown.
        tier: the folder's label.
        bounds: which messages of the folder are compared, see `Range`.

    Raises:
        MissingExtraError: pyspark, pyarrow or numpy is not installed.
        OptionError: an argument is malformed, or the other tier cannot be read.
        ForeignFolderError, UnsupportedVersionError: not a data folder of this version.
        TopicNotFoundError: a named topic does not exist.
    """
    require_spark()
    bucket_ms = parse_bucket_ms(bucket)
    kind = kind_of(against)
    options = checked_options(path, topics, **bounds)
    found = _found(spark, options, bucket_ms)
    if kind == "table" or not isinstance(against, str | os.PathLike):
        theirs = table_indexes(against, _log_ids(path, found.runs))
    else:
        theirs = _folder_indexes(
            spark, against, _topics_of(options) if topics is not None else None
        )
    if any(value is not None for value in bounds.values()):
        theirs = _inside(found.runs, theirs)
    differences = [
        *compare_indexes(found.runs, theirs),
        *losses_of(found.gaps, found.reasons),
    ]
    name = str(against) if isinstance(against, str | os.PathLike) else against.name
    return TierComparison(tier, name, bucket_ms, tuple(differences))


@dataclass(slots=True)
class _Found:
    """What a folder has of its topics, and what it has lost."""

    runs: dict[str, list[IndexRun]] = field(default_factory=dict)
    gaps: dict[str, list[IndexRange]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def _topics_of(options: dict[str, str]) -> list[str]:
    read = ReadOptions.parse(options)
    with FolderReader(read.path) as folder:
        names, _ = select_topics(read.topics, folder.topics())
    return list(names)


def _found(spark: SparkSession, options: dict[str, str], bucket_ms: int) -> _Found:
    """The runs of a folder by topic, and its losses, found by Spark's tasks."""
    from .job_sources import RUNS, audit_tasks, runs
    from .workers import rows_of

    read = ReadOptions.parse(options)
    work = partial(runs, read, bucket_ms)
    found = _Found()
    for row in rows_of(spark, work, audit_tasks(read), RUNS).collect():
        topic = row["topic"]
        if row["loss"] is not None:
            found.reasons[topic] = row["loss"]
            continue
        of_topic = found.runs.setdefault(topic, [])
        if row["bucket_start_ms"] is not None:
            of_topic.append(IndexRun(row["bucket_start_ms"], row["first_index"], row["end_index"]))
        elif row["first_index"] is not None:
            found.gaps.setdefault(topic, []).append((row["first_index"], row["end_index"]))
    return found


def _folder_indexes(
    spark: SparkSession, path: str | os.PathLike[str], names: list[str] | None
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
    for topic, runs in _found(spark, options, 1 << 60).runs.items():
        ranges, doubled = merged((run.first_index, run.end_index) for run in runs)
        found[topic] = TopicIndexes(tuple(ranges), doubled)
    return found


def _log_ids(
    path: str | os.PathLike[str], topics: Sequence[str] | dict[str, Any]
) -> dict[str, int]:
    with FolderReader(path) as folder:
        return {topic: log.topic_id for topic, log in folder.logs(topics).items()}


def _inside(
    ours: dict[str, list[IndexRun]], theirs: dict[str, TopicIndexes]
) -> dict[str, TopicIndexes]:
    """What lies before our last message: with a range no more can be compared."""
    found = {}
    for topic, runs in ours.items():
        other, end = theirs.get(topic), max((run.end_index for run in runs), default=0)
        if other is not None and runs:
            inside = ((first, min(last, end)) for first, last in other.ranges if first < end)
            found[topic] = replace(other, ranges=tuple(inside))
    return found
