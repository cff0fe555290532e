"""The jobs: the options of each, what is checked before Spark starts, and what is called."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import audit_command, compact_job, offload_job
from .arguments import checked_options
from .control import control_entries
from .errors import ProblemsFoundError
from .job_arguments import add_range, add_topics, check_range, range_of
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
    has_format: bool = False
    """Whether ``--format`` is an option of its own; that of ``--out`` is then ``--out-format``."""


def _run_control(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    rows = control_entries(
        spark,
        given.path,
        given.topic,
        **range_of(given),
    )
    # As text: a table for people, and CSV, hold no map of bytes. A value that is not UTF-8 is
    # written in hex.
    return rows.selectExpr(
        "* EXCEPT (tags)",
        "array_join(transform(map_entries(tags),"
        " tag -> concat(tag.key, '=', if(is_valid_utf8(cast(tag.value AS string)),"
        " cast(tag.value AS string), concat('0x', hex(tag.value))))), ' ') AS tags",
    )


def _check_verify(given: argparse.Namespace) -> None:
    checked_options(given.path, given.topic)


def _run_verify(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    rows = verify(spark, given.path, given.topic).orderBy("topic", "ledger_id", "entry_id").cache()
    damages = rows.where("severity = 'damage'").count()
    if damages:
        raise ProblemsFoundError(rows, f"places of damage in {given.path}: {damages}")
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
        "copy what is new to a Parquet, Delta or Iceberg table, by hour of broker time",
        offload_job.add_options,
        offload_job.check,
        offload_job.run,
        has_format=True,
    ),
    "compact": Job(
        "keep the latest message of each key: in the topics' compacted views, or in a table",
        compact_job.add_options,
        compact_job.check,
        compact_job.run,
        has_format=True,
    ),
    "replay": Job(
        "publish a range of messages again, to another topic or broker",
        replay_command.add_options,
        replay_command.check,
        replay_command.run,
    ),
}
