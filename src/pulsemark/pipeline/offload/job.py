"""The driver's part of an offload: plan, let the workers write, and let the files count.

Steps of a run:

1. Lock the target, so that there is one run at a time, as far as its place has locks.
2. Plan: what each topic has after the messages that the manifest lists, in pieces.
3. Note what will be written, and remove what killed runs left (see `manifest`).
4. The workers write the pieces; a file that is complete from a killed run is used as it is.
5. Commit: from then on all new files count (see `table`). If the table has changed since step 2,
   the run begins again with step 2, and finds its files complete where they are still needed.

A topic of which messages are lost is not copied, and is an error when the others are: one topic
does not keep the others waiting.

So a run that was killed and repeated gives the same table as one that was not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...ledger import FolderReader, TopicLog
from ...maintenance.expected import Expected
from ..arguments import check_folder, checked_options
from ..columns import DEFAULT_COLUMNS, ERROR_COLUMN
from ..errors import DataLossError, JobFailedError, OptionError
from ..marks import Mark, check_place
from ..options import Bound, BoundKind, ReadOptions
from ..plan import packed, report, selected, slice_of
from ..session import require_spark
from .delta_table import DeltaTarget
from .manifest import Manifest, OffloadedFile, begin_run, end_run
from .places import LocalPlace
from .table import OffloadTable, ParquetFolder, TableChangedError, format_of, table_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .writer import Piece


_ATTEMPTS = 10
"""How often a run begins again because others change the table."""

DEFAULT_ROWS_PER_FILE = 1_000_000


@dataclass(frozen=True, slots=True)
class OffloadResult:
    """What a run has copied."""

    files: tuple[OffloadedFile, ...]

    @property
    def rows(self) -> int:
        """Messages."""
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Of the files."""
        return sum(file.size_bytes for file in self.files)


def offload(
    spark: SparkSession,
    path: str | os.PathLike[str],
    target: OffloadTable | str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    *,
    ending_time: str | int | None = None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    rows_per_file: int = DEFAULT_ROWS_PER_FILE,
    fail_on_data_loss: bool = True,
) -> OffloadResult:
    """Copy what is new in a data folder to a table; each message is copied once.

    Args:
        spark: the Spark session; its workers see both folders under these paths.
        path: the data folder. A broker may be writing to it.
        target: a folder of Parquet files (a path, or a URI of a file system that pyarrow or fsspec
            knows), a `DeltaTarget` or an `IcebergTarget`; made if it is missing.
        topics: names; all topics by default.
        ending_time: copy up to the first entry at or after it; ms since the epoch, or ISO-8601.
        columns: the columns of the source that the files have; the same in all runs.
        rows_per_file: a file ends at a multiple of so many messages, or with its hour.
        fail_on_data_loss: False: messages that are missing are logged and left out. If a log is not
            the one that was copied, the copy goes on at the index where it ended.

    Raises:
        MissingExtraError: pyspark, pyarrow or numpy is not installed.
        OptionError: an argument is malformed, the target has files of other columns, or another
            run writes to it.
        ForeignFolderError, UnsupportedVersionError: the path is not a data folder of this version.
        TopicNotFoundError: a named topic does not exist.
        DataLossError: messages that were not copied are gone, or a topic's log is not the one
            that was copied. The other topics are copied by then.
        JobFailedError: others change the table all the time.
    """
    require_spark()
    from .writer import table_schema

    if rows_per_file < 1:
        raise OptionError("rowsPerFile", str(rows_per_file), "is not 1 or more")
    texts = {
        **checked_options(path, topics, ending_time=ending_time),
        "columns": ",".join(columns),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
    }
    options = ReadOptions.parse(texts)
    table = table_of(target)
    check_table(table, options)
    table.create(table_schema(options.columns))
    with table.lock():
        for _ in range(_ATTEMPTS):
            try:
                return _run(spark, table, options, texts, rows_per_file)
            except TableChangedError as error:
                changed = error
    raise JobFailedError(f"given up after {_ATTEMPTS} attempts: {changed}")


def check_table(table: OffloadTable, options: ReadOptions) -> None:
    """Check before any work whether a table fits. Raises OptionError."""
    if ERROR_COLUMN in options.columns:
        raise OptionError("columns", ERROR_COLUMN, "has rows that are not messages")
    table.check_columns(options.columns)
    if not isinstance(table, ParquetFolder | DeltaTarget):
        return
    if isinstance(table.place, LocalPlace):
        check_folder("target", table.place.folder)
    found = format_of(table.place)
    if found not in (None, table.format):
        reason = f"is a table of the format {found}, not {table.format}"
        raise OptionError("target", table.name, reason)


def _run(
    spark: SparkSession,
    table: OffloadTable,
    options: ReadOptions,
    texts: dict[str, str],
    rows_per_file: int,
) -> OffloadResult:
    """One attempt. Raises TableChangedError."""
    manifest = table.load()
    if manifest.columns not in ((), options.columns):
        reason = f"the target has {','.join(manifest.columns)}"
        raise OptionError("columns", ",".join(options.columns), reason)
    pieces, lost, errors = _planned(manifest, options, rows_per_file)
    place = table.place
    counting = {file.path for file in manifest.files}
    run = begin_run(place, [piece.path for piece in pieces], counting)
    files: tuple[OffloadedFile, ...] = ()
    if pieces:
        tasks = packed(pieces, lambda piece: piece.part)
        plan = {
            "target": place.uri,
            "constants": table.constants,
            "run": run,
            "lost": sorted(lost),
            "tasks": [[piece.to_json() for piece in task] for task in tasks],
        }
        files = _written(spark, texts, plan, place.access)
        table.commit(manifest, options.columns, files)
    end_run(place, run)
    if errors:
        raise errors[0]
    return OffloadResult(files)


def _planned(
    manifest: Manifest, options: ReadOptions, rows_per_file: int
) -> tuple[list[Piece], frozenset[int], list[DataLossError]]:
    """What is to be copied, the ledgers that are lost, and why topics are not copied."""
    from .writer import pieces_of

    copied = manifest.last_files()
    pieces: list[Piece] = []
    with FolderReader(options.path) as reader:
        found = selected(reader, options)
        errors = list(found.lost_topics())
        if not options.fail_on_data_loss:
            for error in errors:
                report(error, False)
            errors = []
        for log in found.logs.values():
            try:
                first, end = _bounds(log, log.topic_id, copied, options, found.expected)
            except DataLossError as error:
                errors.append(error)
            else:
                pieces += pieces_of(log, first, end, rows_per_file)
    return pieces, found.expected.lost_ledgers, errors


def _bounds(
    log: TopicLog,
    log_id: int,
    copied: Mapping[tuple[str, int], OffloadedFile],
    options: ReadOptions,
    expected: Expected,
) -> tuple[int, int]:
    """The messages of a topic that are not copied yet. Raises DataLossError."""
    last = copied.get((log.name, log_id))
    if last is None:
        whole = slice_of(log, options, expected)
        earlier = [file for (topic, _), file in copied.items() if topic == log.name]
        if earlier:
            reason = "the topic was deleted and created again, perhaps before they were copied"
            end = max(earlier, key=lambda file: file.log_id).end_index
            report(DataLossError(log.name, end, None, reason), options.fail_on_data_loss)
        return whole.first_index, whole.end_index
    try:
        check_place(log, last.end_index, Mark.from_json(last.mark), expected)
    except DataLossError as error:
        report(error, options.fail_on_data_loss)
    first = max(last.end_index, log.first_index)
    if first > log.next_index:
        return first, first
    part = slice_of(log, replace(options, start=Bound(BoundKind.INDEX, first)), expected)
    return part.first_index, part.end_index


def _written(
    spark: SparkSession, options: dict[str, str], plan: dict[str, Any], access: Mapping[str, str]
) -> tuple[OffloadedFile, ...]:
    """Let the workers write all pieces of a plan."""
    from .writer import ACCESS_OPTION, OFFLOAD_FORMAT, PLAN_OPTION, OffloadSource

    spark.dataSource.register(OffloadSource)
    reader = spark.read.format(OFFLOAD_FORMAT).options(**options)
    if access:
        reader = reader.option(ACCESS_OPTION, json.dumps(dict(access)))
    rows = reader.option(PLAN_OPTION, json.dumps(plan)).load().collect()
    files = [OffloadedFile.from_json(json.loads(row[0])) for row in rows]
    return tuple(sorted(files, key=lambda file: (file.topic, file.log_id, file.first_index)))
