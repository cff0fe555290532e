"""The driver's part: plan the topics, let the workers read them, and show the table at once."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ...ledger import FolderReader
from ...ledger.local.io.files import OsFiles
from ...ledger.local.io.folder import make_folder_durably
from ..arguments import check_folder, check_new_folder, checked_options
from ..columns import DEFAULT_COLUMNS, ERROR_COLUMN, arrow_schema_of
from ..errors import JobFailedError, OptionError
from ..job_files import new_folder
from ..offload.delta_table import DeltaTarget
from ..offload.places import LocalPlace, place_of
from ..options import ReadOptions
from ..plan import packed, report, selected, slice_of
from ..session import require_spark
from .views import CompactedTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


STAGES = (1, 2)


@dataclass(frozen=True, slots=True)
class LatestFile:
    """A file of the latest messages of one topic."""

    topic: str
    path: str
    rows: int
    size_bytes: int


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
    rule = _checked_rule(tombstone_stage, tombstone_property)
    texts = _texts(path, topics, fail_on_data_loss)
    results = _results(spark, texts, rule, target=None)
    return sorted((CompactedTopic(**each) for each in results), key=lambda each: each.topic)


def compact_to_table(
    spark: SparkSession,
    path: str | os.PathLike[str],
    target: DeltaTarget | str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    *,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    tombstone_stage: int = 1,
    tombstone_property: str | None = None,
    fail_on_data_loss: bool = True,
) -> list[LatestFile]:
    """Write the latest message of each key to a table, in the order of the log.

    The table shows all topics at once: a folder is renamed when it is complete, and a Delta table
    is overwritten in one commit.

    Args:
        spark: the Spark session; its workers see both folders under these paths.
        path: the data folder. A broker may be writing to it.
        target: a new folder for Parquet files, or a Delta table, which is replaced.
        topics: names; all topics by default.
        columns: the columns of the source that the table has.
        tombstone_stage: see `estimate_compaction`.
        tombstone_property: see `estimate_compaction`.
        fail_on_data_loss: see `estimate_compaction`.

    Raises:
        OptionError: an argument is malformed, or the folder exists.
        JobFailedError: the Delta table could not be replaced.
        The errors of `estimate_compaction`.
    """
    rule = _checked_rule(tombstone_stage, tombstone_property)
    texts = {**_texts(path, topics, fail_on_data_loss), "columns": ",".join(columns)}
    names = ReadOptions.parse(texts).columns
    if ERROR_COLUMN in names:
        raise OptionError("columns", ERROR_COLUMN, "has rows that are not messages")
    place = target.place if isinstance(target, DeltaTarget) else place_of(target)
    if isinstance(place, LocalPlace):
        check = check_folder if isinstance(target, DeltaTarget) else check_new_folder
        check("target", place.folder)
    if isinstance(target, DeltaTarget):
        files = _files(_results(spark, texts, rule, target.place.uri))
        _overwrite(target, names, files)
        return files
    if not isinstance(place, LocalPlace):
        raise OptionError("target", str(target), "is not a folder of this machine")
    with new_folder(place.folder, "target") as unfinished:
        make_folder_durably(OsFiles(), unfinished)
        return _files(_results(spark, texts, rule, unfinished.as_uri()))


def _texts(
    path: str | os.PathLike[str], topics: str | Sequence[str] | None, fail_on_data_loss: bool
) -> dict[str, str]:
    return {
        **checked_options(path, topics),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
    }


def _checked_rule(stage: int, name: str | None) -> dict[str, Any]:
    require_spark()
    if stage not in STAGES:
        raise OptionError("tombstoneStage", str(stage), "is not 1 or 2")
    if name == "":
        raise OptionError("tombstoneProperty", name, "is empty")
    return {"stage": stage, "property": name}


def _results(
    spark: SparkSession, texts: dict[str, str], rule: dict[str, Any], target: str | None
) -> list[Any]:
    """The results of all topics."""
    from .source import COMPACT_FORMAT, PLAN_OPTION, CompactSource

    options = ReadOptions.parse(texts)
    with FolderReader(options.path) as reader:
        found = selected(reader, options)
        for error in found.lost_topics():
            report(error, options.fail_on_data_loss)
        slices = [slice_of(log, options, found.expected) for log in found.logs.values()]
    run = uuid.uuid4().hex
    tasks = [
        [
            (
                part.to_json(),
                None if target is None else f"part-{number:05d}-{run}.parquet",
            )
            for number, part in task
        ]
        for task in packed(enumerate(slices), itemgetter(1))
    ]
    if not tasks:
        return []
    plan = {**rule, "target": target, "lost": sorted(found.expected.lost_ledgers), "tasks": tasks}
    spark.dataSource.register(CompactSource)
    reader_ = spark.read.format(COMPACT_FORMAT).options(**texts)
    rows = reader_.option(PLAN_OPTION, json.dumps(plan)).load().collect()
    return [json.loads(row[0]) for row in rows]


def _files(results: list[Any]) -> list[LatestFile]:
    return sorted((LatestFile(*each) for each in results), key=lambda each: each.topic)


def _overwrite(target: DeltaTarget, columns: Sequence[str], files: Sequence[LatestFile]) -> None:
    """Let a Delta table have these files and no others, in one commit.

    Raises:
        OptionError: the target is a table of other columns.
        JobFailedError: another process changed the table meanwhile.
    """
    from deltalake import CommitProperties, Schema
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import AddAction, RemoveAction

    schema = arrow_schema_of(columns)
    target.create(schema, ())
    if target.schema() != schema:
        raise OptionError("target", target.name, "is a Delta table of other columns")
    now_ms = int(time.time() * 1000)
    actions: list[AddAction | RemoveAction] = [
        AddAction(
            file.path, file.size_bytes, {}, now_ms, True, json.dumps({"numRecords": file.rows})
        )
        for file in files
    ]
    properties = CommitProperties(custom_metadata={"pulsemark": "compact"})
    try:
        target.opened().create_write_transaction(
            actions, "overwrite", Schema.from_arrow(schema), [], commit_properties=properties
        )
    except CommitFailedError as error:
        raise JobFailedError(f"{target.name}: {error}") from error
    target.sync_log()
