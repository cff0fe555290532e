"""Jobs by name, for the command line. Each parses its own options and reports its result.

A job is a function that takes a SparkSession, so it can also run on a cluster; here it runs in a
local session. Its result is printed as a table, or as lines of JSON.

`JOBS` (:mod:`.commands`) has of each job its options, and what is called. The session starts when
it is first used: it takes seconds, and what is refused before costs nothing. On a terminal the job
shows how many of its tasks Spark has done.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import cache
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias, cast

from ..ledger import LedgerError
from ..option_table import add_options
from .arguments import DATA_DIR, OF_ALL_JOBS, STORE, TYPES
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
from .session import local_session, require_spark

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession


EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
"""The exit code of argparse itself for options that it does not know."""
_FAILURES = (DataLossError, MissingExtraError, JavaNotFoundError, JobFailedError, ReplayError)
"""Errors that other options would not help against."""


Show: TypeAlias = Callable[[Sequence[str], Sequence[Mapping[str, object]]], object]
"""Prints a table, given its columns and rows."""


def run_job(
    name: str,
    arguments: Sequence[str],
    *,
    out: TextIO | None = None,
    err: TextIO | None = None,
    progress: TextIO | None = None,
    prog: str = "pulsemark pipeline",
    show: Show | None = None,
) -> int:
    """Run a job in a local Spark session.

    Args:
        name: one of ``JOBS``.
        arguments: the job's own options, as on the command line.
        out: where lines of JSON go; standard output by default.
        err: where errors are printed; standard error by default.
        progress: where the tasks are shown, if it is a terminal; None: nowhere.
        prog: the command's name in help texts.
        show: prints the table; None: lines of JSON go to ``out``.

    Returns:
        The exit code: 0 done; 1 the job failed, or something is missing, doubled or damaged; 2 bad
        input.

    Raises SystemExit: by argparse: 0 after ``--help``, 2 for options that it does not know.
    """
    out, err = out or sys.stdout, err or sys.stderr
    job = JOBS.get(name)
    if job is None:
        print(f"{prog}: unknown job {name!r}; available: {', '.join(JOBS)}", file=err)
        return EXIT_BAD_INPUT
    parser = _parser(f"{prog} {name}", job)
    given = parser.parse_intermixed_args(arguments)
    try:
        with _spark_in_a_line(), ExitStack() as shows:

            def start() -> SparkSession:
                session = local_session(f"pulsemark {name}", cores=given.cores)
                shows.enter_context(shown(session.sparkContext, progress))
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
    for flag in (_FLAGS.get(error.option), f"--{words}"):
        if flag is not None and re.search(rf"^  {flag}\b(?!-)", parser.format_help(), re.MULTILINE):
            return OptionError(flag, error.value, error.reason)
    return error


def _parser(prog: str, job: Job) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=job.summary)
    target = "path or URI of the folder of the Parquet files or of the Delta table; made if missing"
    table = f"""
{f"target TARGET?  {target}" if job.writes else ""}
either:
{DATA_DIR}{STORE if job.reads_stores else ""}
and:
{job.options}{OF_ALL_JOBS}"""
    add_options(parser, table, TYPES)
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
    """The line with the reason in Spark's report: a Python worker's error, else the first line."""
    lines = _OUR_ERROR.findall(report)
    return str(lines[-1] if lines else (report.strip().splitlines() or ["it does not say why"])[0])


def _done(
    job: Job, spark: SparkSession, given: argparse.Namespace
) -> tuple[DataFrame, ProblemsFoundError | None]:
    """Run the job. Return its rows in memory, and the problem that it has found."""
    problem = None
    try:
        rows = job.run(spark, given)
    except ProblemsFoundError as error:
        rows, problem = error.rows, error
    rows = rows.cache()
    rows.count()
    return rows, problem


def _print(
    rows: DataFrame,
    given: argparse.Namespace,
    out: TextIO,
    show: Show | None,
) -> None:
    shown = ({n: _shown(v) for n, v in row.asDict().items()} for row in rows.toLocalIterator())
    if show is not None and not given.json:
        show(rows.columns, list(shown))
        return
    for row in shown:
        print(json.dumps(row, ensure_ascii=False), file=out)


def _shown(value: object) -> object:
    """A time as ISO-8601 in UTC, which is the session's time zone."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    return value


@contextmanager
def shown(context: SparkContext, out: TextIO | None, *, every_s: float = 0.5) -> Iterator[None]:
    """Show on the terminal ``out`` in one line how many tasks of the block are done."""
    if out is None or not out.isatty():
        yield
        return
    ended = Event()

    def show() -> None:
        with suppress(Exception):  # a Spark that is gone ends the job by itself
            while not ended.wait(every_s):
                out.write(f"\r\x1b[K{tasks_text(context)}")
                out.flush()

    thread = Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        out.write("\r\x1b[K")
        out.flush()


def tasks_text(context: SparkContext) -> str:
    """The tasks of the stages that Spark runs now."""
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    if not known:
        return "planning"
    total = sum(stage.numTasks for stage in known)
    done = sum(stage.numCompletedTasks for stage in known)
    return f"{done} of {total} tasks, {sum(stage.numActiveTasks for stage in known)} running"
