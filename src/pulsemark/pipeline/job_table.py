"""The jobs: the options of each, what is checked before Spark starts, and what is called."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import audit_command
from .arguments import checked_options
from .columns import DEFAULT_COLUMNS
from .control import control_entries
from .errors import JobFailedError, ProblemsFoundError
from .job_arguments import add_range, add_topics, check_range, positive, range_of
from .migrate import command as migrate_command
from .offload import offload, truncate_offloaded, verify_offload
from .offload.job import DEFAULT_ROWS_PER_FILE
from .replay import command as replay_command
from .skew import check_plot, draw_skew, skew
from .verify import verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Job:
    """One job: its summary, its options, and its function."""

    summary: str
    add_options: Callable[[argparse.ArgumentParser], None]
    check: Callable[[argparse.Namespace], object]
    """Checks the arguments before a session is started, which takes seconds."""
    run: Callable[[SparkSession, argparse.Namespace], DataFrame]


def _run_control(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    rows = control_entries(
        spark,
        given.path,
        given.topic,
        **range_of(given),
    )
    # As text: a table for people, and CSV, hold no map of bytes.
    return rows.selectExpr(
        "* EXCEPT (tags)",
        "array_join(transform(map_entries(tags),"
        " tag -> concat(tag.key, '=', decode(tag.value, 'UTF-8'))), ' ') AS tags",
    )


def _check_verify(given: argparse.Namespace) -> None:
    checked_options(given.path, given.topic)


def _run_verify(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    rows = verify(spark, given.path, given.topic).orderBy("topic", "ledger_id", "entry_id").cache()
    damages = rows.where("severity = 'damage'").count()
    if damages:
        raise ProblemsFoundError(rows, f"findings of damage in {given.path}: {damages}")
    return rows


def _add_skew_options(parser: argparse.ArgumentParser) -> None:
    add_range(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it, for example skew.png")


def _check_skew(given: argparse.Namespace) -> None:
    check_range(given)
    if given.plot is not None:
        check_plot(given.plot)


def _run_skew(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    rows = skew(
        spark,
        given.path,
        given.topic,
        **range_of(given),
    )
    if given.plot is not None:
        rows = rows.cache()
        draw_skew(rows, given.plot)
    return rows


def _add_offload_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="the data folder; a broker may be writing to it")
    parser.add_argument("target", help="the folder of the Parquet files; made if it is missing")
    parser.add_argument(
        "--topic", action="append", metavar="NAME", help="only this topic; may be repeated"
    )
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
        help="then check all files of the target; exit code 1 if bad",
    )
    parser.add_argument(
        "--truncate",
        action="store_true",
        help="then remove verified and acknowledged messages from the ledgers; the broker must be"
        " stopped",
    )


def _check_offload(given: argparse.Namespace) -> None:
    checked_options(given.path, given.topic, ending_time=given.ending_time)


def _run_offload(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    done = offload(
        spark,
        given.path,
        given.target,
        given.topic,
        ending_time=given.ending_time,
        columns=given.columns.split(","),
        rows_per_file=given.rows_per_file,
    )
    if given.verify or given.truncate:
        problems = [p for check in verify_offload(given.path, given.target) for p in check.problems]
        if problems:
            raise JobFailedError(f"{given.target} is not verified: {'; '.join(problems)}")
    left = truncate_offloaded(given.path, given.target) if given.truncate else {}
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
    schema = "topic string, files bigint, rows bigint, bytes bigint, first_index_left bigint"
    return spark.createDataFrame(rows, schema)


JOBS: Mapping[str, Job] = {
    "audit": Job(
        "count messages by topic and time, and the ones that are missing, also in another tier",
        audit_command.add_options,
        audit_command.check,
        audit_command.run,
    ),
    "control": Job("list control entries", add_range, check_range, _run_control),
    "skew": Job(
        "compare producers' clocks with the broker's",
        _add_skew_options,
        _check_skew,
        _run_skew,
    ),
    "verify": Job(
        "check all bytes of a folder, and list what is damaged",
        add_topics,
        _check_verify,
        _run_verify,
    ),
    "offload": Job(
        "copy what is new to Parquet files, by hour of broker time",
        _add_offload_options,
        _check_offload,
        _run_offload,
    ),
    "replay": Job(
        "publish a range of messages again, to another topic or broker",
        replay_command.add_options,
        replay_command.check,
        replay_command.run,
    ),
    "migrate": Job(
        "make a new data folder, with or without stamps, from a folder or a broker",
        migrate_command.add_options,
        migrate_command.check,
        migrate_command.run,
    ),
}
