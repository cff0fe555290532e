"""The command ``compact``: its options, and what it prints."""

from __future__ import annotations

import argparse
from dataclasses import astuple
from typing import TYPE_CHECKING

from ..arguments import (
    add_fail_on_data_loss,
    add_storage_option,
    add_topic,
    check_folder,
    checked_options,
    pairs,
)
from ..columns import DEFAULT_COLUMNS
from ..errors import OptionError
from ..offload import DeltaTarget
from ..offload.places import LocalPlace, place_of
from ..options import ReadOptions
from . import (
    CompactedTopic,
    compact_by_broker,
    compact_folder,
    compact_to_table,
    estimate_compaction,
)
from .job import STAGES, check_new_folder
from .views import check_admin_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIGURES = (
    "topic string, entries_before bigint, entries_after bigint, messages bigint, keys bigint,"
    " tombstones bigint, unkeyed bigint, unreadable bigint, damaged bigint, bytes_before bigint,"
    " bytes_after bigint"
)
_FILES = "topic string, path string, rows bigint, bytes bigint"


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options of the command."""
    parser.add_argument("path", help="the data folder")
    parser.add_argument(
        "target",
        nargs="?",
        help="write the latest messages there: a new folder of Parquet files, or a Delta table,"
        " which is replaced. Without it, the topics' own compacted views are made",
    )
    parser.add_argument(
        "--format", choices=("parquet", "delta"), help="of the target (default: parquet)"
    )
    add_storage_option(parser)
    add_topic(parser)
    add_fail_on_data_loss(parser)
    parser.add_argument("--columns", help=f"of the target (default: {','.join(DEFAULT_COLUMNS)})")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be kept, and write nothing"
    )
    parser.add_argument(
        "--admin-url",
        metavar="URL",
        help="of the broker that has the folder open: it makes the views, by its own policies",
    )
    parser.add_argument(
        "--tombstone-stage",
        type=int,
        choices=STAGES,
        help="what deletes a key in Kafka's magic 2: 1, the flag or a null value; 2, the flag"
        " (default: 1)",
    )
    parser.add_argument(
        "--tombstone-property", metavar="NAME", help="a message deletes its key if this is 'true'"
    )


def check(given: argparse.Namespace) -> None:
    """What can be checked before a session is started."""
    checked_options(given.path, given.topic)
    for option, value in (("--format", given.format), ("--columns", given.columns)):
        if value is not None and given.target is None:
            raise OptionError(option, value, "is for a TARGET only")
    if given.admin_url is not None:
        others = {
            "target": given.target,
            "--dry-run": given.dry_run or None,
            "--tombstone-stage": given.tombstone_stage,
            "--tombstone-property": given.tombstone_property,
        }
        for option, value in others.items():
            if value is not None:
                raise OptionError(option, str(value), "is not for --admin-url")
        check_admin_url(given.admin_url)
    if given.tombstone_property == "":
        raise OptionError("--tombstone-property", "", "is empty")
    _check_target(given)


def _check_target(given: argparse.Namespace) -> None:
    if given.storage_option is not None and given.format != "delta":
        raise OptionError("--storage-option", str(given.storage_option), "is for --format delta")
    if given.target is None:
        return
    if not given.target:
        raise OptionError("target", given.target, "is empty")
    ReadOptions.parse({"path": "/", "topicsPattern": ".*", "columns": ",".join(_columns(given))})
    place = place_of(given.target)
    if given.format == "delta":
        DeltaTarget(given.target, storage_options=pairs("--storage-option", given.storage_option))
        if isinstance(place, LocalPlace):
            check_folder("target", place.folder, given.path)
        return
    if not isinstance(place, LocalPlace):
        raise OptionError("target", given.target, "is not a folder of this machine")
    check_folder("target", place.folder, given.path)
    check_new_folder(place.folder)


def _columns(given: argparse.Namespace) -> list[str]:
    return list(DEFAULT_COLUMNS) if given.columns is None else given.columns.split(",")


def run(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """Compact, or say what a compaction would do; a row for each topic."""
    rule = {
        "tombstone_stage": given.tombstone_stage or 1,
        "tombstone_property": given.tombstone_property,
    }
    if given.dry_run:
        fail = given.fail_on_data_loss
        figures = estimate_compaction(
            spark, given.path, given.topic, fail_on_data_loss=fail, **rule
        )
        return _figures(spark, figures)
    if given.target is None and given.admin_url is not None:
        return _figures(spark, compact_by_broker(given.admin_url, given.path, given.topic))
    if given.target is None:
        return _figures(spark, compact_folder(given.path, given.topic, **rule))
    target: DeltaTarget | str = given.target
    if given.format == "delta":
        options = pairs("--storage-option", given.storage_option)
        target = DeltaTarget(given.target, storage_options=options)
    files = compact_to_table(
        spark,
        given.path,
        target,
        given.topic,
        columns=_columns(given),
        fail_on_data_loss=given.fail_on_data_loss,
        **rule,
    )
    return spark.createDataFrame([astuple(file) for file in files], _FILES)


def _figures(spark: SparkSession, figures: list[CompactedTopic]) -> DataFrame:
    return spark.createDataFrame([astuple(each) for each in figures], _FIGURES)
