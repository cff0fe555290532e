"""The command ``offload``: its options, and what it prints."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..arguments import (
    add_fail_on_data_loss,
    add_storage_option,
    add_topic,
    checked_options,
    pairs,
    positive,
)
from ..columns import DEFAULT_COLUMNS
from ..errors import JobFailedError, OptionError
from ..options import ReadOptions
from . import DeltaTarget, IcebergTarget, offload, truncate_offloaded, verify_offload
from .job import DEFAULT_ROWS_PER_FILE, check_table
from .table import OffloadTable, table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "delta", "iceberg")
_RESULT = "topic string, files bigint, rows bigint, bytes bigint, first_index_left bigint"


def add_table_options(parser: argparse.ArgumentParser) -> None:
    """The options that name a table in one of the formats."""
    parser.add_argument(
        "target",
        nargs="?",
        help="path or URI of the folder of the Parquet files or of the Delta table; made if it is"
        " missing",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="parquet", help="of the table (default: %(default)s)"
    )
    add_storage_option(parser)
    parser.add_argument(
        "--table", metavar="NAMESPACE.TABLE", help="of Iceberg; made if it is missing"
    )
    parser.add_argument(
        "--catalog", metavar="NAME", help="in pyiceberg's configuration (default: default)"
    )
    parser.add_argument(
        "--catalog-property",
        action="append",
        metavar="KEY=VALUE",
        help="of the catalog, for example uri=sqlite:////srv/catalog.db; may be repeated",
    )


def table_from(given: argparse.Namespace) -> OffloadTable:
    """The table that the options name. Raises OptionError, MissingExtraError."""
    only = {
        "--table": ("iceberg", given.table),
        "--catalog": ("iceberg", given.catalog),
        "--catalog-property": ("iceberg", given.catalog_property),
        "--storage-option": ("delta", given.storage_option),
    }
    for option, (kind, value) in only.items():
        if value is not None and given.format != kind:
            raise OptionError(option, str(value), f"is for --format {kind} only")
    if given.format == "iceberg":
        if given.target is not None:
            raise OptionError("target", given.target, "an Iceberg table is named by --table")
        if given.table is None:
            raise OptionError("--table", None, "is required for --format iceberg")
        properties = pairs("--catalog-property", given.catalog_property)
        return IcebergTarget(given.table, given.catalog or "default", properties)
    if not given.target:
        raise OptionError("target", given.target, "is required")
    if given.format == "delta":
        options = pairs("--storage-option", given.storage_option)
        return DeltaTarget(given.target, storage_options=options)
    return table_of(str(given.target))


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options of the command."""
    parser.add_argument("path", help="the data folder; a broker may be writing to it")
    add_table_options(parser)
    add_topic(parser)
    add_fail_on_data_loss(parser)
    parser.add_argument(
        "--ending-time",
        metavar="TIME",
        help="copy up to here; ms since the epoch or ISO-8601, UTC unless it says otherwise",
    )
    parser.add_argument(
        "--columns", default=",".join(DEFAULT_COLUMNS), help="of the files (default: %(default)s)"
    )
    parser.add_argument(
        "--rows-per-file",
        type=positive,
        default=DEFAULT_ROWS_PER_FILE,
        metavar="N",
        help="a file ends at a multiple of so many messages (default: %(default)s)",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="then read the whole table back and check it; exit code 1 if it is bad",
    )
    parser.add_argument(
        "--truncate",
        action="store_true",
        help="then remove verified and acknowledged messages from the ledgers; the broker must be"
        " stopped",
    )


def check(given: argparse.Namespace) -> None:
    """What can be checked before a session is started."""
    texts = checked_options(given.path, given.topic, ending_time=given.ending_time)
    options = ReadOptions.parse({**texts, "columns": given.columns})
    table = table_from(given)
    check_table(table, options)
    table.load()


def run(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """Copy, then verify and truncate if it is wished; a row for each topic."""
    table = table_from(given)
    done = offload(
        spark,
        given.path,
        table,
        given.topic,
        ending_time=given.ending_time,
        columns=given.columns.split(","),
        rows_per_file=given.rows_per_file,
        fail_on_data_loss=given.fail_on_data_loss,
    )
    if (given.verify or given.truncate) and table.load().head is not None:
        problems = [p for check in verify_offload(given.path, table) for p in check.problems]
        if problems:
            raise JobFailedError(f"{table.name} is not verified: {'; '.join(problems)}")
    left: dict[str, int] = {}
    if given.truncate and table.load().head is not None:
        left = truncate_offloaded(given.path, table)
    rows = [
        (
            topic,
            sum(1 for file in done.files if file.topic == topic),
            sum(file.rows for file in done.files if file.topic == topic),
            sum(file.size_bytes for file in done.files if file.topic == topic),
            left.get(topic),
        )
        for topic in sorted({*left, *(file.topic for file in done.files)})
    ]
    return spark.createDataFrame(rows, _RESULT)
