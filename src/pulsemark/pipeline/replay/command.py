"""The job `replay` on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..arguments import (
    TOKEN_VARIABLE,
    add_fail_on_data_loss,
    add_range,
    check_folder,
    check_range,
    range_of,
    rate,
    token_of,
)
from .job import replay
from .options import ReplayOptions, load_function, packed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["add_options", "check", "run"]

SCHEMA = (
    "topic string, target_topic string, first_index bigint, end_index bigint, messages bigint,"
    " entries bigint, bytes bigint, deduplicates boolean"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the job."""
    add_range(parser, offsets=True)
    add_fail_on_data_loss(parser)
    _add_target(parser)
    _add_limits(parser)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--service-url", required=True, metavar="URL", help="the target: pulsar://HOST:PORT"
    )
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="FOLDER",
        help="remembers how far the replay came; run the same command again to go on",
    )
    parser.add_argument(
        "--target-topic",
        metavar="NAME",
        help="where all topics go (default: each to its own name); partitions keep their numbers",
    )
    parser.add_argument(
        "--function",
        metavar="MODULE:FUNCTION",
        help="maps each message (default: entries go untouched)",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"a token for the target (default: the variable {TOKEN_VARIABLE})",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--messages-per-second", type=rate, metavar="N", help="a limit over all tasks"
    )
    parser.add_argument(
        "--bytes-per-second", type=rate, metavar="N", help="a limit over all tasks, such as 10M"
    )
    parser.add_argument(
        "--without-deduplication",
        action="store_true",
        help="replay also into a topic that does not deduplicate; a kill may then store an entry"
        " twice",
    )
    parser.add_argument(
        "--reconnect-s",
        type=float,
        default=60.0,
        metavar="S",
        help="how long the target may be away (default: %(default)g)",
    )


def options_of(given: argparse.Namespace) -> ReplayOptions:
    """The options that were given, checked. Raises OptionError."""
    return ReplayOptions(
        service_url=given.service_url,
        target_topic=given.target_topic,
        function=None if given.function is None else load_function(given.function),
        messages_per_s=given.messages_per_second,
        bytes_per_s=given.bytes_per_second,
        without_deduplication=given.without_deduplication,
        token=token_of(given.token_file),
        reconnect_s=given.reconnect_s,
    ).checked()


def check(given: argparse.Namespace) -> None:
    """Check the arguments before a session is started."""
    check_range(given)
    check_folder("checkpoint", Path(given.checkpoint), given.path)
    options = options_of(given)
    if options.function is not None:
        packed(options.function)


def run(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """Replay, and one row for each topic."""
    done = replay(
        spark,
        given.path,
        options_of(given),
        given.checkpoint,
        given.topic,
        fail_on_data_loss=given.fail_on_data_loss,
        **range_of(given),
    )
    rows = [
        (
            each.topic,
            each.target_topic,
            each.first_index,
            each.end_index,
            each.messages,
            each.entries,
            each.size_bytes,
            each.deduplicates,
        )
        for each in done.topics
    ]
    return spark.createDataFrame(rows, SCHEMA)
