"""The jobs: the options of each, what is checked before Spark starts, and what is called."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import compact_job, offload_job
from .arguments import checked_options
from .audit import AuditLabels, audit, parse_bucket_ms, parse_by
from .control import control_entries
from .errors import ProblemsFoundError
from .skew import draw_skew, skew
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


def _add_range(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="the data folder; a broker may be writing to it")
    parser.add_argument(
        "--topic", action="append", metavar="NAME", help="only this topic; may be repeated"
    )
    times = "ms since the epoch or ISO-8601, UTC unless it says otherwise"
    parser.add_argument("--starting-time", metavar="TIME", help=f"begin here; {times}")
    parser.add_argument("--ending-time", metavar="TIME", help="end here")


def _add_audit_options(parser: argparse.ArgumentParser) -> None:
    _add_range(parser)
    parser.add_argument("--bucket", default="1 minute", help="bucket width (default: %(default)s)")
    parser.add_argument(
        "--by", default="", metavar="TAGS", help="divide the rows by tags, such as producer,service"
    )
    parser.add_argument("--tier", default="broker", help="label (default: %(default)s)")
    parser.add_argument("--host", help="label (default: this machine's name)")
    parser.add_argument("--datacenter", help="label (default: none)")
    parser.add_argument("--application", help="label (default: none)")


def _check_range(given: argparse.Namespace) -> None:
    checked_options(given.path, given.topic, given.starting_time, given.ending_time, None)


def _check_audit(given: argparse.Namespace) -> None:
    _check_range(given)
    parse_bucket_ms(given.bucket)
    parse_by(given.by)


def _run_audit(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    return audit(
        spark,
        given.path,
        given.topic,
        bucket=given.bucket,
        by=given.by,
        starting_time=given.starting_time,
        ending_time=given.ending_time,
        labels=AuditLabels(given.tier, given.host, given.datacenter, given.application),
    )


def _run_control(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    rows = control_entries(
        spark,
        given.path,
        given.topic,
        starting_time=given.starting_time,
        ending_time=given.ending_time,
    )
    # As text: a table for people, and CSV, hold no map of bytes.
    return rows.selectExpr(
        "* EXCEPT (tags)",
        "array_join(transform(map_entries(tags),"
        " tag -> concat(tag.key, '=', decode(tag.value, 'UTF-8'))), ' ') AS tags",
    )


def _add_verify_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="the data folder; a broker may be writing to it")
    parser.add_argument(
        "--topic", action="append", metavar="NAME", help="only this topic; may be repeated"
    )


def _check_verify(given: argparse.Namespace) -> None:
    checked_options(given.path, given.topic, None, None, None)


def _run_verify(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    rows = verify(spark, given.path, given.topic).orderBy("topic", "ledger_id", "entry_id").cache()
    damages = rows.where("severity = 'damage'").count()
    if damages:
        raise ProblemsFoundError(rows, f"findings of damage in {given.path}: {damages}")
    return rows


def _add_skew_options(parser: argparse.ArgumentParser) -> None:
    _add_range(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it, for example skew.png")


def _run_skew(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    rows = skew(
        spark,
        given.path,
        given.topic,
        starting_time=given.starting_time,
        ending_time=given.ending_time,
    )
    if given.plot is not None:
        rows = rows.cache()
        draw_skew(rows, given.plot)
    return rows


JOBS: Mapping[str, Job] = {
    "audit": Job(
        "count messages by topic and time, and the ones that are missing",
        _add_audit_options,
        _check_audit,
        _run_audit,
    ),
    "control": Job("list control entries", _add_range, _check_range, _run_control),
    "skew": Job(
        "compare producers' clocks with the broker's",
        _add_skew_options,
        _check_range,
        _run_skew,
    ),
    "verify": Job(
        "check all bytes of a folder, and list what is damaged",
        _add_verify_options,
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
}
