"""Jobs by name, before any Spark is started."""

from __future__ import annotations

import io
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pulsemark.pipeline import JOBS, run_job
from pulsemark.pipeline.jobs import reason_of, shown


def run(name: str, *arguments: str) -> tuple[int, str]:
    """Exit code and what was printed."""
    err = io.StringIO()
    return run_job(name, arguments, out=io.StringIO(), err=err), err.getvalue()


def test_an_unknown_job_is_bad_input() -> None:
    """The jobs that there are are named."""
    code, printed = run("sing")
    assert code == 2
    assert "'sing'" in printed
    assert all(name in printed for name in JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_every_job_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--help names the job, as it was called, and its options."""
    with pytest.raises(SystemExit) as ended:
        run_job(name, ["--help"], prog="mark pipe")
    assert ended.value.code == 0
    assert f"usage: mark pipe {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["/x", "--data-dir"],
        ["/x", "--depth", "3"],
        ["/x", "--format", "xml"],
        ["/x", "--cores", "0"],
        ["/x", "--follow", "--every", "soon"],
        ["/x", "--follow", "--metrics-port", "70000"],
    ],
)
def test_bad_options_end_as_argparse_ends(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and the option's name, before a session is started."""
    with pytest.raises(SystemExit) as ended:
        run_job("offload", arguments)
    assert ended.value.code == 2
    assert re.search(f"error: .*{arguments[-1 - (len(arguments) > 2)]}", capsys.readouterr().err)


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
def test_of_spark_s_report_one_line_is_printed(report: str, reason: str) -> None:
    """The Python worker's error where there is one."""
    assert reason_of(report) == reason


def no_session(*_: object, **__: object) -> None:
    """Instead of a session: it would cost seconds."""
    pytest.fail("a session was started")


REPLAY = ("--service-url", "pulsar://127.0.0.1:1", "--checkpoint", "{tmp}/cp")


@pytest.mark.parametrize(
    ("job", "arguments", "message"),
    [
        (
            "audit",
            ("--data-dir", "{tmp}/no"),
            "no is not a pulsemark data folder: it does not exist",
        ),
        ("audit", ("--data-dir", "{tmp}"), "it has no PULSEMARK file"),
        ("audit", ("--data-dir", "{data}", "--topic", "absent"), "absent"),
        ("audit", (), "pulsemark-data is not a pulsemark data folder: it does not exist"),
        ("audit", ("--store", "zk://x"), "option --.* = 'zk://x': "),
        (
            "audit",
            ("--data-dir", "{data}", "--bucket", "5 parsecs"),
            "option --bucket = '5 parsecs'",
        ),
        (
            "audit",
            ("--data-dir", "{data}", "--starting-time", "noon"),
            "option --starting-time = 'noon'",
        ),
        ("audit", ("--data-dir", "{data}", "--html", "{tmp}"), "option --html = .*is a folder"),
        (
            "audit",
            ("--data-dir", "{data}", "--html", "{tmp}/file/x"),
            "option --html = .*cannot be written",
        ),
        (
            "audit",
            ("--data-dir", "{data}", "--html", "{data}/x.html"),
            "--html = .*is inside the data folder",
        ),
        (
            "replay",
            ("--data-dir", "{data}", *REPLAY[:3], "", *REPLAY[4:]),
            "--checkpoint = '': is empty",
        ),
        (
            "offload",
            ("--data-dir", "{data}", "{tmp}/o", "--columns", "value,__error"),
            "'__error'.* that are not",
        ),
        (
            "audit",
            ("--data-dir", "{data}", "--clock-errors"),
            "option --clock-errors = 'true': needs rows by prod",
        ),
        ("audit", ("--data-dir", "{data}", "--topic", ""), "option --topic"),
        ("replay", ("--data-dir", "{tmp}/no", *REPLAY), "no is not a pulsemark data folder"),
        (
            "replay",
            ("--data-dir", "{data}", *REPLAY, "--token-file", "{tmp}/no"),
            "option --token-file",
        ),
        (
            "replay",
            ("--data-dir", "{data}", *REPLAY, "--reconnect-s", "-1"),
            "option --reconnect-s = '-1'",
        ),
        (
            "replay",
            ("--data-dir", "{data}", *REPLAY, "--reconnect-s", "nan"),
            "option --reconnect-s = 'nan'",
        ),
        (
            "replay",
            ("--data-dir", "{data}", *REPLAY, "--target-topic", "a/b"),
            "option --target-topic = 'a/b'",
        ),
        (
            "replay",
            ("--data-dir", "{data}", *REPLAY, "--starting-offsets", "9", "--ending-offsets", "3"),
            "option --ending-offsets = '3'",
        ),
        (
            "replay",
            ("--data-dir", "{data}", "--service-url", "http://x", "--checkpoint", "{tmp}/cp"),
            "option --service-url = 'http://x'",
        ),
    ],
)
def test_nonsense_costs_no_session(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    job: str,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    """Exit code 2 and one line, and nothing is left."""
    from pulsemark.ledger import LocalStore

    monkeypatch.setattr("pulsemark.pipeline.jobs.local_session", no_session)
    LocalStore.open(tmp_path / "data").close()
    (tmp_path / "file").write_text("x")
    places = {"tmp": str(tmp_path), "data": str(tmp_path / "data")}
    code, printed = run(job, *(text.format_map(places) for text in arguments))
    assert code == 2
    assert printed.count("\n") == 1
    assert re.search(message, printed), printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "file"]


@pytest.mark.parametrize("rate", ["0", "-1", "fast", "1T", "inf", "nan"])
def test_rates_that_are_none(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By argparse, with the option's name."""
    with pytest.raises(SystemExit) as ended:
        run_job("replay", ["--service-url", "x", "--checkpoint", "c",
                           "--bytes-per-second", rate])  # fmt: skip
    assert ended.value.code == 2
    assert "--bytes-per-second" in capsys.readouterr().err


def test_a_replay_takes_no_time_that_moves(capsys: pytest.CaptureFixture[str]) -> None:
    """Run again, the same command would be another replay; the error has the moment to write."""
    with pytest.raises(SystemExit) as ended:
        run_job("replay", ["--service-url", "x", "--checkpoint", "c", "--starting-time=-1h"])
    assert ended.value.code == 2
    assert re.search(
        r"--starting-time: '-1h' means another .* write \d{13}", capsys.readouterr().err
    )


class Terminal(io.StringIO):
    """A terminal that says when something was written."""

    def __init__(self, *, is_terminal: bool = True) -> None:
        super().__init__()
        self.is_terminal = is_terminal
        self.written = threading.Event()

    def isatty(self) -> bool:
        """Whether it is one."""
        return self.is_terminal

    def write(self, text: str) -> int:
        """Remember it."""
        self.written.set()
        return super().write(text)


def context(fails: bool = False) -> Any:
    """A Spark that runs two stages."""

    def info(stage: int) -> Any:
        if fails:
            raise ConnectionError
        return SimpleNamespace(numTasks=10, numCompletedTasks=stage, numActiveTasks=2)

    tracker = SimpleNamespace(getActiveStageIds=lambda: [3, 4], getStageInfo=info)
    return SimpleNamespace(statusTracker=lambda: tracker)


def test_a_terminal_shows_the_tasks() -> None:
    """Those of all stages together; at the end the line is cleared."""
    out = Terminal()
    with shown(context(), out, every_s=0.001):
        assert out.written.wait(30)
    assert "7 of 20 tasks, 4 running" in out.getvalue()
    assert out.getvalue().endswith("\r\x1b[K")


def test_other_outputs_show_nothing() -> None:
    """A file, a pipe, no output at all."""
    out = Terminal(is_terminal=False)
    for where in (out, None):
        with shown(context(), where, every_s=0.001):
            pass
    assert out.getvalue() == ""


def test_a_spark_that_is_gone_does_no_harm() -> None:
    """The job ends as it would without the line."""
    out = Terminal()
    with shown(context(fails=True), out, every_s=0.001):
        time.sleep(0.05)
    assert out.getvalue() == "\r\x1b[K"
