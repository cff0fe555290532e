"""Other tiers than a data folder: a lakehouse table that `offload` wrote, and counts in a file."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ...ledger.local.io.folder import MARKER_NAME
from ..errors import MissingExtraError, OptionError
from ..offload import DeltaTarget
from ..offload.manifest import MANIFEST_FOLDER, topic_folder
from ..offload.places import LocalPlace, Place, place_of
from ..offload.table import OffloadTable, ParquetFolder
from ..options import full_topic_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


__all__ = ["Counts", "TopicIndexes", "kind_of", "read_counts", "table_indexes"]

OPTION = "against"
_DELTA_LOG = "_delta_log"


@dataclass(frozen=True, slots=True)
class TopicIndexes:
    """What a tier has of a topic."""

    ranges: tuple[Range, ...]
    doubled: int = 0
    """Messages that it has more often than once."""
    end_index: int | None = None
    """It is not expected to have messages from this index on yet; None: it has no such place."""


def kind_of(place: str | os.PathLike[str] | OffloadTable) -> str:
    """``folder``, ``table`` or ``counts``. Raises OptionError for anything else."""
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
        if path.is_file() and path.suffix in (".json", ".jsonl", ".csv"):
            return "counts"
        if path.is_dir() and any(path.glob("part-*.csv")):
            return "counts"
        reason = "does not exist"
        if path.exists():
            reason = "is not a data folder, a table of an offload, or a .json, .jsonl or .csv file"
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


def _indexes_of_files(table: ParquetFolder, names: Iterable[str]) -> tuple[list[Range], int]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("spark", "pyarrow") from error
    ranges: list[Range] = []
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


@dataclass(slots=True)
class Counts:
    """What a tier has counted: by topic, by the first millisecond of a bucket."""

    tier: str
    by_topic: dict[str, dict[int, int]] = field(default_factory=dict)


def read_counts(place: str | os.PathLike[str], bucket_ms: int, topic: str | None) -> Counts:
    """The counts in a file of JSON, lines of JSON or CSV, or in a folder of CSV of `--out`.

    Each row has ``count`` and ``bucket_start`` (ISO-8601) or ``bucket_start_ms``; ``topic``, unless
    ``topic`` says which it is; and perhaps ``bucket_end`` or ``bucket_end_ms``, ``tier``, and
    ``doubled``, which does not count. So the rows of `pulsemark audit` and of this job fit.

    Raises:
        OptionError: the file cannot be read, or a row is not of this form.
    """
    found = _place(place)
    assert isinstance(found, LocalPlace), "kind_of says that it is a file of this machine"
    path = found.folder
    counts = Counts(path.stem)
    try:
        for number, row in enumerate(_rows(path), start=1):
            try:
                _add(counts, row, bucket_ms, topic)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
                raise OptionError(OPTION, str(place), f"row {number} {what}") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        reason = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise OptionError(OPTION, str(place), reason) from error
    return counts


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.is_dir():
        for part in sorted(path.glob("part-*.csv")):
            yield from _rows(part)
        return
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        yield from csv.DictReader(text.splitlines())
        return
    try:
        content = json.loads(text)
    except json.JSONDecodeError:
        content = [json.loads(line) for line in text.splitlines() if line.strip()]
    if isinstance(content, dict):
        content = content.get("rows", [content])
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise csv.Error("it is not a list of rows")
    yield from content


def _add(counts: Counts, row: Mapping[str, Any], bucket_ms: int, topic: str | None) -> None:
    name = row.get("topic") or topic
    if name is None:
        raise KeyError("topic")
    start_ms, end_ms = _time_ms(row, "bucket_start"), _time_ms(row, "bucket_end")
    if start_ms is None:
        if row.get("count") in (None, "", "0", 0):
            return  # a topic without messages
        raise KeyError("bucket_start")
    if start_ms % bucket_ms or (end_ms is not None and end_ms - start_ms != bucket_ms):
        raise ValueError(f"is of another bucket than one of {bucket_ms} ms")
    count = int(row["count"]) - int(row.get("doubled") or 0)
    if count < 0:
        raise ValueError(f"has the count {row['count']}")
    buckets = counts.by_topic.setdefault(full_topic_name(str(name)), {})
    buckets[start_ms] = buckets.get(start_ms, 0) + count
    counts.tier = str(row.get("tier") or counts.tier)


def _time_ms(row: Mapping[str, Any], name: str) -> int | None:
    number = row.get(f"{name}_ms")
    if number not in (None, ""):
        return int(str(number))
    value = row.get(name)
    if value in (None, ""):
        return None
    moment = datetime.fromisoformat(str(value))
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


Range: TypeAlias = tuple[int, int]
"""First index, and the one after the last."""

SHOWN_RANGES = 50


@dataclass(frozen=True, slots=True)
class IndexRun:
    """Messages ``[first_index, end_index)``, all in one bucket."""

    bucket_start_ms: int
    first_index: int
    end_index: int


def merged(ranges: Iterable[Range]) -> tuple[list[Range], int]:
    """The ranges in order, joined where they touch; and how many indexes were in several."""
    found: list[Range] = []
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


def of_indexes(indexes: NDArray[np.int64]) -> tuple[list[Range], int]:
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


def without(ranges: Sequence[Range], others: Sequence[Range]) -> Iterator[Range]:
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


def size(ranges: Iterable[Range]) -> int:
    """How many indexes there are."""
    return sum(end - first for first, end in ranges)


def text(ranges: Sequence[Range]) -> str:
    """The ranges for people: ``4-9,12``; the first of them, if there are very many."""
    shown = [
        str(first) if end == first + 1 else f"{first}-{end - 1}"
        for first, end in ranges[:SHOWN_RANGES]
    ]
    more = len(ranges) - len(shown)
    return ",".join(shown) + (f" and {more} more ranges" if more else "")
