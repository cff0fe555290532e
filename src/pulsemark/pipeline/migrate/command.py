"""The job `migrate` on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..job_arguments import token_of
from .entry_format import EntryFormat
from .job import check_migration, migrate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["add_options", "check", "run"]

SCHEMA = (
    "topic string, entries bigint, messages bigint, bytes bigint, changed bigint, next_index bigint"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the job."""
    parser.add_argument("source", help="a data folder, or pulsar://HOST:PORT")
    parser.add_argument("target", help="the new data folder")
    parser.add_argument(
        "--entry-format",
        choices=[str(form) for form in EntryFormat],
        default=str(EntryFormat.STAMPED),
        help="with broker time and index in front of each entry, or without (default: %(default)s)",
    )
    parser.add_argument(
        "--topic", action="append", metavar="NAME", help="of a broker; may be repeated"
    )
    parser.add_argument(
        "--namespace",
        action="append",
        metavar="TENANT/NAMESPACE",
        help="all topics of it, of a broker; may be repeated",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="a token for the broker (default: the variable PULSEMARK_TOKEN)",
    )


def check(given: argparse.Namespace) -> None:
    """Check the arguments before a session is started."""
    check_migration(given.source, given.target, given.entry_format, given.topic, given.namespace)
    token_of(given.token_file)


def run(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """Migrate, and one row for each topic."""
    done = migrate(
        spark,
        given.source,
        given.target,
        entry_format=given.entry_format,
        topics=given.topic,
        namespaces=given.namespace,
        token=token_of(given.token_file),
    )
    rows = [
        (each.topic, each.entries, each.messages, each.body_bytes, each.changed, each.next_index)
        for each in done.topics
    ]
    return spark.createDataFrame(rows, SCHEMA)
