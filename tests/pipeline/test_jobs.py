"""Jobs by name, before any Spark is started."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pulsemark.pipeline import JOBS, run_job
from pulsemark.pipeline.jobs import reason_of, table_text


def run(name: str, *arguments: str) -> tuple[int, str]:
    """Exit code and what was told."""
    err = io.StringIO()
    return run_job(name, arguments, out=io.StringIO(), err=err), err.getvalue()


def test_an_unknown_job_is_bad_input() -> None:
    """The jobs that there are are named."""
    code, told = run("sing")
    assert code == 2
    assert "'sing'" in told
    assert all(name in told for name in JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_every_job_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--help names the job, as it was called, and its options."""
    with pytest.raises(SystemExit) as ended:
        run_job(name, ["--help"], prog="mark pipe")
    assert ended.value.code == 0
    assert f"usage: mark pipe {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [[], ["/x", "--depth", "3"], ["/x", "--format", "xml"], ["/x", "--cores", "0"]]
)
def test_bad_options_end_as_argparse_ends(arguments: list[str]) -> None:
    """Exit code 2, before a session is started."""
    with pytest.raises(SystemExit) as ended:
        run_job("audit", arguments)
    assert ended.value.code == 2


def test_what_is_there_is_refused_before_the_work(tmp_path: Path) -> None:
    """An output folder that exists costs no session."""
    code, told = run("audit", "/nowhere", "--out", str(tmp_path))
    assert code == 2
    assert f"--out = '{tmp_path}': exists already" in told


def test_an_output_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    """One line with the option's name, for a folder below a file as for a name too long."""
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file" / "x", Path("/proc/nowhere/x"), tmp_path / ("n" * 300)):
        code, told = run("audit", "/nowhere", "--out", str(out))
        assert code == 2
        assert told.count("\n") == 1
        assert f"option --out = '{out}': cannot be written" in told
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (
            "[X] Job aborted.\npulsemark.pipeline.errors.DataLossError: t: is missing\n at java",
            "DataLossError: t: is missing",
        ),
        ("first\nsecond", "first"),
        ("", "it does not say why"),
    ],
)
def test_of_spark_s_report_one_line_is_told(report: str, reason: str) -> None:
    """The Python worker's error where there is one."""
    assert reason_of(report) == reason


def test_tables_are_aligned() -> None:
    """Numbers to the right, text to the left, nothing for null, no blanks at the ends."""
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    rows = [("a", 1, None, moment), ("long name", 20, None, None)]
    assert table_text(["name", "n", "x", "at"], rows).split("\n") == [
        "name        n  x  at",
        "a           1     2026-01-02 00:00:00+00:00",
        "long name  20",
    ]
    assert table_text(["a", "b"], []) == "a  b"
