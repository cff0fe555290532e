"""Jobs by name, for the command line. Each parses its own options and reports its result.

A job is a function that takes a SparkSession, so it can also run on a cluster; here it runs in a
local session. Its result is printed as a table, or written to ``--out`` as CSV or Parquet.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ..ledger import LedgerError
from .arguments import checked_options
from .audit import AuditLabels, audit, parse_bucket_ms, parse_by
from .columns import DEFAULT_COLUMNS
from .control import control_entries
from .errors import (
    JavaNotFoundError,
    JobFailedError,
    MissingExtraError,
    OptionError,
    PipelineError,
)
from .offload import offload, truncate_offloaded, verify_offload
from .offload.job import DEFAULT_ROWS_PER_FILE
from .session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
"""The exit code of argparse itself for options that it does not know."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job: its summary, its options, and its function."""

    summary: str
    add_options: Callable[[argparse.ArgumentParser], None]
    check: Callable[[argparse.Namespace], object]
    """Checks the arguments before a session is started, which takes seconds."""
    run: Callable[[SparkSession, argparse.Namespace], DataFrame]


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
        type=_positive,
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
    checked_options(given.path, given.topic, None, given.ending_time, None)


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
        "count messages by topic and time, and the ones that are missing",
        _add_audit_options,
        _check_audit,
        _run_audit,
    ),
    "control": Job("list control entries", _add_range, _check_range, _run_control),
    "offload": Job(
        "copy what is new to Parquet files, by hour of broker time",
        _add_offload_options,
        _check_offload,
        _run_offload,
    ),
}


def run_job(
    name: str,
    arguments: Sequence[str],
    *,
    out: TextIO | None = None,
    err: TextIO | None = None,
    prog: str = "pulsemark pipeline",
) -> int:
    """Run a job in a local Spark session.

    Args:
        name: one of ``JOBS``.
        arguments: the job's own options, as on the command line.
        out: where the table goes; standard output by default.
        err: where errors are printed; standard error by default.
        prog: the command's name in help texts.

    Returns:
        The exit code: 0 done, 1 the job failed, 2 bad input.

    Raises:
        SystemExit: by argparse: 0 after ``--help``, 2 for options that it does not know.
    """
    out, err = out or sys.stdout, err or sys.stderr
    job = JOBS.get(name)
    if job is None:
        print(f"{prog}: unknown job {name!r}; available: {', '.join(JOBS)}", file=err)
        return EXIT_BAD_INPUT
    given = _parser(f"{prog} {name}", job).parse_args(arguments)
    try:
        _check_out(given.out)
        job.check(given)
        spark = local_session(f"pulsemark {name}", cores=given.cores)
        with _spark_in_a_line():
            _print_or_write(job.run(spark, given), given, out)
    except (MissingExtraError, JavaNotFoundError, JobFailedError) as error:
        print(f"{prog} {name}: {error}", file=err)
        return EXIT_FAILED
    except (PipelineError, LedgerError) as error:
        print(f"{prog} {name}: {error}", file=err)
        return EXIT_BAD_INPUT
    return EXIT_OK


def _parser(prog: str, job: Job) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=job.summary)
    job.add_options(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write the rows to this folder, do not print"
    )
    parser.add_argument("--json", action="store_true", help="print each row as a line of JSON")
    parser.add_argument(
        "--format", choices=("csv", "parquet"), default="csv", help="of --out (default: csv)"
    )
    parser.add_argument(
        "--cores", type=_positive, metavar="N", help="tasks at once (default: all cores)"
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return number


def _check_out(folder: Path | None) -> None:
    """Check before a long job that the folder does not exist yet and can be written."""
    if folder is None:
        return
    try:
        if folder.exists():
            raise OptionError("--out", str(folder), "exists already; name a new folder")
        folder = folder.absolute()
        parent = next(each for each in folder.parents if each.exists())
        tempfile.TemporaryDirectory(dir=parent).cleanup()
    except (OSError, ValueError) as error:
        if isinstance(error, OptionError):
            raise
        reason = f"cannot be written: {getattr(error, 'strerror', None) or error}"
        raise OptionError("--out", str(folder), reason) from error


@contextmanager
def _spark_in_a_line() -> Iterator[None]:
    """Turn Spark's own errors, which fill a page, into a JobFailedError of one line."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise JobFailedError(reason_of(str(error))) from error


_OUR_ERROR = re.compile(r"^(?:pulsemark\.[\w.]+\.)?(\w+(?:Error|Exception): .+)$", re.MULTILINE)


def reason_of(report: str) -> str:
    """The line of Spark's report that says why: a Python worker's error, else the first line."""
    lines = _OUR_ERROR.findall(report)
    return str(lines[-1] if lines else (report.strip().splitlines() or ["it does not say why"])[0])


def _print_or_write(rows: DataFrame, given: argparse.Namespace, out: TextIO) -> None:
    if given.out is None and given.json:
        for row in rows.toLocalIterator():
            print(json.dumps(row.asDict(), default=_json_value, ensure_ascii=False), file=out)
        return
    if given.out is None:
        print(table_text(rows.columns, [list(row) for row in rows.toLocalIterator()]), file=out)
        return
    writer = rows.coalesce(1).write
    if given.format == "csv":
        writer = writer.option("header", "true")
    writer.format(given.format).save(str(given.out.absolute()))
    print(f"written to {given.out}", file=out)


def _json_value(value: object) -> str:
    """Times as ISO-8601 in UTC; the session's time zone is UTC."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    raise TypeError(f"{type(value).__name__} has no JSON form")


def table_text(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table for people: numbers are aligned right, null is empty."""
    cells = [["" if value is None else str(value) for value in row] for row in rows]
    widths = [
        max(len(line[column]) for line in [list(names), *cells]) for column in range(len(names))
    ]
    is_number = [all(isinstance(row[at], int | None) for row in rows) for at in range(len(names))]
    lines = []
    for line in [list(names), *cells]:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, is_number, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)
