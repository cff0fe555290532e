"""Jobs by name, for the command line. Each parses its own options and reports its result.

A job is a function that takes a SparkSession, so it can also run on a cluster; here it runs in a
local session. Its result is printed as a table, or written to ``--out`` as CSV or Parquet.

`JOBS` (:mod:`.commands`) has of each job its options, and what is called. The session starts when
it is first used: it takes seconds, and what is refused before costs nothing.

What a job has done so far is a bar on a terminal. Spark knows its tasks, and most jobs have at
least as many as there are cores. The bar is drawn by rich, twice a second, in a thread; it is gone
when the job ends.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from ..ledger import LedgerError
from .arguments import add_options, check_new_folder, positive, take_folders
from .commands import JOBS, Job
from .errors import (
    DataLossError,
    JavaNotFoundError,
    JobFailedError,
    MissingExtraError,
    OptionError,
    PipelineError,
    ProblemsFoundError,
    ReplayError,
)
from .job_files import new_folder
from .session import local_session, require_spark

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from rich.console import Console, RenderableType
    from rich.progress import Progress


EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
"""The exit code of argparse itself for options that it does not know."""
_FAILURES = (DataLossError, MissingExtraError, JavaNotFoundError, JobFailedError, ReplayError)
"""Errors that other options would not help against."""


def run_job(
    name: str,
    arguments: Sequence[str],
    *,
    out: TextIO | None = None,
    err: TextIO | None = None,
    progress: TextIO | None = None,
    prog: str = "pulsemark pipeline",
    show: Callable[[Sequence[str], Sequence[Sequence[object]]], None] | None = None,
) -> int:
    """Run a job in a local Spark session.

    Args:
        name: one of ``JOBS``.
        arguments: the job's own options, as on the command line.
        out: where the table goes; standard output by default.
        err: where errors are printed; standard error by default.
        progress: where the progress is shown, if it is a terminal; None: nowhere.
        prog: the command's name in help texts.
        show: prints the table, given its columns and rows; None: as plain text to ``out``.

    Returns:
        The exit code: 0 done; 1 the job failed, or something is missing, doubled or damaged; 2 bad
        input.

    Raises:
        SystemExit: by argparse: 0 after ``--help``, 2 for options that it does not know.
    """
    out, err = out or sys.stdout, err or sys.stderr
    job = JOBS.get(name)
    if job is None:
        print(f"{prog}: unknown job {name!r}; available: {', '.join(JOBS)}", file=err)
        return EXIT_BAD_INPUT
    parser = _parser(f"{prog} {name}", job)
    given = parser.parse_intermixed_args(arguments)
    try:
        take_folders(given, writes=job.has_format)
        if given.out is not None:
            check_new_folder("--out", given.out)
        with _spark_in_a_line(), ExitStack() as shows:

            def start() -> SparkSession:
                session = local_session(f"pulsemark {name}", cores=given.cores)
                shows.enter_context(shown(session.sparkContext, name, progress))
                return session

            rows, problem = _done(job, cast("SparkSession", _LateSession(start)), given)
            shows.close()
            _print(rows, given, out, show)
        if problem is not None:
            raise problem
    except BrokenPipeError:
        raise
    except (PipelineError, LedgerError, OSError) as error:
        print(f"{prog} {name}: {_by_flag(error, parser)}", file=err)
        is_input = isinstance(error, PipelineError | LedgerError)
        return EXIT_BAD_INPUT if is_input and not isinstance(error, _FAILURES) else EXIT_FAILED
    return EXIT_OK


class _LateSession:
    """A session that is started when it is first used."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = cache(start)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._start(), name)


_FLAGS = {"path": "--data-dir", "topics": "--topic"}


def _by_flag(error: Exception, parser: argparse.ArgumentParser) -> Exception:
    """The error with the option's name on the command line: endingTime is --ending-time there."""
    if not isinstance(error, OptionError):
        return error
    words = re.sub("(?<=[a-z])(?=[A-Z])", "-", error.option).lower()
    for flag in (_FLAGS.get(error.option), f"--{words}", f"--against-{words}"):
        if flag is not None and re.search(rf"^  {flag}\b(?!-)", parser.format_help(), re.MULTILINE):
            return OptionError(flag, error.value, error.reason)
    return error


def _parser(prog: str, job: Job) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=job.summary)
    target = "path or URI of the folder of the Parquet files or of the Delta table; made if missing"
    text = target if job.has_format else argparse.SUPPRESS
    parser.add_argument("folders", nargs="*", metavar="TARGET", help=text)
    add_options(parser, job.options)
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write the rows to this folder, do not print"
    )
    parser.add_argument("--json", action="store_true", help="print each row as a line of JSON")
    parser.add_argument(
        "--out-format" if job.has_format else "--format",
        dest="out_format",
        choices=("csv", "parquet"),
        default="csv",
        help="of --out (default: csv)",
    )
    parser.add_argument(
        "--cores", type=positive, metavar="N", help="tasks at once (default: all cores)"
    )
    return parser


@contextmanager
def _spark_in_a_line() -> Iterator[None]:
    """Turn Spark's own errors, which fill a page, into a JobFailedError of one line."""
    require_spark()
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


def _done(
    job: Job, spark: SparkSession, given: argparse.Namespace
) -> tuple[DataFrame, ProblemsFoundError | None]:
    """Run the job: its rows, in memory or in ``--out``, and the problem that it has found."""
    problem = None
    try:
        rows = job.run(spark, given)
    except ProblemsFoundError as error:
        rows, problem = error.rows, error
    if given.out is None:
        rows = rows.cache()
        rows.count()
    else:
        _write(rows, given.out.absolute(), given.out_format)
    return rows, problem


def _write(rows: DataFrame, folder: Path, form: str) -> None:
    """Write the rows to a new folder, which is there when it is whole."""
    writer = rows.coalesce(1).write
    if form == "csv":
        writer = writer.option("header", "true")
    with new_folder(folder, "--out") as unfinished:
        writer.format(form).save(unfinished.as_uri())


def _print(
    rows: DataFrame,
    given: argparse.Namespace,
    out: TextIO,
    show: Callable[[Sequence[str], Sequence[Sequence[object]]], None] | None,
) -> None:
    if given.out is not None:
        print(f"written to {given.out}", file=out)
    elif given.json:
        for row in rows.toLocalIterator():
            print(json.dumps(row.asDict(), default=_json_value, ensure_ascii=False), file=out)
    else:
        cells = [list(row) for row in rows.toLocalIterator()]
        if show is None:
            print(table_text(rows.columns, cells), file=out)
        else:
            show(rows.columns, cells)


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


_EVERY_S = 0.5


def line_of(done: int, active: int, total: int) -> str:
    """How many tasks are done, of those that Spark knows now."""
    tasks = f"{done} of {total} tasks" if total else "planning"
    return f"{tasks}, {active} running" if active else tasks


@contextmanager
def shown(
    context: SparkContext, name: str, out: TextIO | None, *, every_s: float = _EVERY_S
) -> Iterator[None]:
    """Show the progress of what runs inside, if ``out`` is a terminal."""
    if out is None or not out.isatty():
        yield
        return
    from rich.console import Console

    console = Console(file=out, markup=False, highlight=False)
    with _bar(context, name, console, every_s):
        console.show_cursor(True)  # a killed process could not show it again
        yield


def _bar(context: SparkContext, name: str, console: Console, every_s: float) -> Progress:
    from rich import progress

    class Asking(progress.Progress):
        """Asks Spark whenever it is drawn."""

        def get_renderables(self) -> list[RenderableType]:
            with suppress(Exception):  # a bar that cannot be drawn must not end the job
                done, active, total = _tasks(context)
                for task in self.tasks:
                    counts = line_of(done, active, total)
                    self.update(task.id, completed=done, total=total or None, counts=counts)
            return list(super().get_renderables())

    bar = Asking(
        progress.TextColumn("{task.description}:", markup=False),
        progress.BarColumn(20),
        progress.TextColumn("{task.fields[counts]}", markup=False),
        progress.TimeElapsedColumn(),
        console=console, transient=True, redirect_stdout=False, redirect_stderr=False,
        refresh_per_second=1 / every_s,
    )  # fmt: skip
    bar.add_task(name, total=None, counts=line_of(0, 0, 0))
    return bar


def _tasks(context: SparkContext) -> tuple[int, int, int]:
    """Done, active and all tasks of the stages that run now."""
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return (
        sum(stage.numCompletedTasks for stage in known),
        sum(stage.numActiveTasks for stage in known),
        sum(stage.numTasks for stage in known),
    )
