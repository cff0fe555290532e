"""`pulsemark pipeline JOB ...`: run a Spark job over a data folder, in a local session.

The pipeline package has the jobs, their options and their output. This module only adds the rules
of the command line: bad input gives one line and exit code 2; a job that cannot run (no Spark, no
Java, a failed task) gives one line and exit code 1. The output of Spark and its JVM is printed to
stderr after a job has succeeded. After a failure it is left out, because it would repeat the same
error on many pages.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO, TextIO

from ..pipeline import JOBS, run_job
from .options import declared
from .output import print_rows
from .parsing import CliError

ERRORS: tuple[type[Exception], ...] = ()

_PROG = "pulsemark pipeline"
_NAME = re.compile(rf"^{_PROG}(?: \S+)?: (?:error: )?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    jobs = "; ".join(f"{name}: {job.summary}" for name, job in JOBS.items())
    declared(f"job JOB  {jobs}", job=tuple(JOBS))(parser)
    parser.add_argument(
        "arguments",
        metavar="...",
        nargs=argparse.REMAINDER,
        help=f"the job's own options, see {_PROG} JOB --help",
    )


def run(args: argparse.Namespace) -> int:
    """Run the job."""
    said = io.StringIO()
    with tempfile.TemporaryFile() as noise:
        try:
            with _stderr_into(noise) as terminal, contextlib.redirect_stderr(said):
                status = run_job(
                    args.job, args.arguments,
                    err=said, progress=terminal, prog=_PROG, show=_show,
                )  # fmt: skip
        except SystemExit as ended:  # argparse: --help was given, or an option is wrong
            status = int(ended.code or 0)
        except (KeyboardInterrupt, BrokenPipeError):
            raise
        except BaseException:
            _replay(noise)
            raise
        if status == 2:
            reason = _NAME.sub("", (said.getvalue().splitlines() or [""])[-1])
            of_parser = said.getvalue().startswith("usage:")
            raise CliError(f"{reason} (see {_PROG} {args.job} --help)" if of_parser else reason)
        if status == 0:
            _replay(noise)
    for line in said.getvalue().splitlines():
        print(_NAME.sub("pulsemark: error: ", line), file=sys.stderr)
    return status


def _show(names: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """Print a job's table as the other commands print theirs."""
    print_rows(rows, names, as_json=False)


@contextlib.contextmanager
def _stderr_into(file: BinaryIO) -> Iterator[TextIO]:
    """Redirect file descriptor 2 to a file, for the JVM too, which prints much to stderr.

    What it yields writes to where stderr went before.
    """
    before = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        with open(before, "w", closefd=False) as text:  # a descriptor has no path
            yield text
    finally:
        os.dup2(before, 2)
        os.close(before)


def _replay(noise: BinaryIO) -> None:
    noise.seek(0)
    sys.stderr.write(noise.read().decode(errors="replace"))
