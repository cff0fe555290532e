"""The driver's part of an offload: plan, let the workers write, and let the files count.

Steps of a run:

1. Lock the target, so that there is one run at a time.
2. Plan: what each topic has after the messages that the manifest lists, in pieces.
3. Remove files that no manifest lists and that are no piece of this run: a killed run's.
4. The workers write the pieces; a file that is complete from a killed run is used as it is.
5. Sync the folders and add a manifest: from then on all new files count.

So a run that was killed and repeated gives the same table as one that was not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...ledger import FolderReader
from ..arguments import checked_options
from ..columns import DEFAULT_COLUMNS
from ..durable_files import sync_folder
from ..errors import OptionError
from ..expected import expected_of
from ..options import ReadOptions, select_topics
from ..registration import require_spark
from .manifest import (
    Manifest,
    OffloadedFile,
    add_manifest,
    load_manifest,
    remove_strays,
    target_lock,
)
from .pieces import Piece, pieces_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_ROWS_PER_FILE = 5_000_000


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
    path: str | Path,
    target: str | Path,
    topics: str | Sequence[str] | None = None,
    *,
    ending_time: str | int | None = None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    rows_per_file: int = DEFAULT_ROWS_PER_FILE,
    fail_on_data_loss: bool = True,
) -> OffloadResult:
    """Copy what is new in a data folder to Parquet files; each message is copied once.

    Args:
        spark: the Spark session; its workers see both folders under these paths.
        path: the data folder. A broker may be writing to it.
        target: the folder of the files; made if it is missing.
        topics: names; all topics by default.
        ending_time: copy up to the first entry at or after it; ms since the epoch, or ISO-8601.
        columns: the columns of the source that the files have; the same in all runs.
        rows_per_file: a file ends at a multiple of so many messages, or with its hour.
        fail_on_data_loss: False: messages that are missing are logged and left out.

    Raises:
        MissingExtraError: pyspark, pyarrow or numpy is not installed.
        OptionError: an argument is malformed, the target has files of other columns, or another
            run writes to it.
        ForeignFolderError, UnsupportedVersionError: the path is not a data folder of this version.
        TopicNotFoundError: a named topic does not exist.
        DataLossError: messages that were not copied are gone.
    """
    require_spark()
    if rows_per_file < 1:
        raise OptionError("rowsPerFile", str(rows_per_file), "is not 1 or more")
    texts = {
        **checked_options(path, topics, ending_time=ending_time),
        "columns": ",".join(columns),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
    }
    options = ReadOptions.parse(texts)
    folder = Path(target).absolute()
    with target_lock(folder):
        manifest = load_manifest(folder)
        if manifest.columns not in ((), options.columns):
            raise OptionError("columns", ",".join(columns), f"the target has {manifest.columns}")
        pieces, lost = _planned(manifest, options, rows_per_file)
        kept = dict.fromkeys([file.path for file in manifest.files] + [p.path for p in pieces])
        remove_strays(folder, kept)
        if not pieces:
            return OffloadResult(())
        # The largest first, so that the last tasks are short.
        pieces.sort(key=lambda piece: -piece.part.message_count)
        named = [piece.to_json() for piece in pieces]
        plan = {"target": str(folder), "lost": sorted(lost), "pieces": named}
        files = _written(spark, texts, plan)
        sync_folder(folder)
        add_manifest(folder, manifest, options.columns, files)
        return OffloadResult(files)


def _planned(
    manifest: Manifest, options: ReadOptions, rows_per_file: int
) -> tuple[list[Piece], frozenset[int]]:
    with FolderReader(options.path) as reader:
        expected = expected_of(reader, options.path)
        names, _ = select_topics(options.topics, reader.topics())
        logs = reader.logs(names, lost=expected.lost_ledgers)
        pieces = [
            piece
            for log in logs.values()
            for piece in pieces_of(log, manifest, options, rows_per_file)
        ]
    return pieces, expected.lost_ledgers


def _written(
    spark: SparkSession, options: dict[str, str], plan: dict[str, Any]
) -> tuple[OffloadedFile, ...]:
    """Let the workers write all pieces of a plan."""
    from .source import OFFLOAD_FORMAT, PLAN_OPTION, OffloadSource

    spark.dataSource.register(OffloadSource)
    reader = spark.read.format(OFFLOAD_FORMAT).options(**options)
    rows = reader.option(PLAN_OPTION, json.dumps(plan)).load().collect()
    files = [OffloadedFile(**json.loads(row["file"])) for row in rows]
    return tuple(sorted(files, key=lambda file: (file.topic, file.first_index)))
