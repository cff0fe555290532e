"""Progress: a bar on standard error where that is a terminal, gone at the end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pulsemark.cli.output import ByteCount, Progress

CLEARED = "\x1b[2K"


def test_a_bar_shows_what_is_done(terminal):
    """How much of how much; at the end the line is cleared."""
    shown = terminal("stderr", 100)
    count = ByteCount()
    with Progress("copying", lambda: count.size_bytes, total=lambda: 4096):
        count.add(2048)
    assert "copying" in shown.getvalue()
    assert "2.0 KiB of 4.0 KiB" in shown.getvalue()
    assert shown.getvalue().endswith(CLEARED)


def test_nothing_elsewhere(capsys):
    """Into a pipe nothing is written, and the total is not even counted."""
    with Progress("copying", lambda: 1, total=lambda: pytest.fail("counted")) as progress:
        progress.say("found")
    assert capsys.readouterr() == ("found\n", "")


def test_results_above_the_bar(terminal):
    """What is said on the same terminal stands on lines of its own."""
    bar, out = terminal("stderr"), terminal("stdout")
    with Progress("reading", lambda: 1, in_bytes=False) as progress:
        drawn = bar.getvalue().count(CLEARED)
        progress.say("found")
        assert bar.getvalue().count(CLEARED) > drawn
    assert out.getvalue() == "found\n"


def test_a_total_that_cannot_be_read(terminal):
    """The work goes on without it, and says itself what it cannot read."""
    shown = terminal("stderr")

    def total() -> int:
        raise PermissionError(13, "Permission denied")

    with Progress("reading", lambda: 7, total=total, in_bytes=False):
        pass
    assert "7" in shown.getvalue()


@pytest.mark.parametrize("command", ["verify", "backup", "dump", "audit"])
def test_commands_have_a_bar(command, terminal, pulsemark, folder, tmp_path):
    """Those that read a whole folder; what they print is the same as without."""
    call: list[object] = {
        "verify": ["verify", folder.path],
        "backup": ["backup", tmp_path / "backup", "--data-dir", folder.path, "--verify"],
        "dump": ["dump", folder.path],
        "audit": ["audit", "--data-dir", folder.path],
    }[command]
    without = pulsemark(*call)
    if command == "backup":
        (tmp_path / "backup").rename(tmp_path / "other")
    shown = terminal("stderr")
    assert pulsemark(*call).out == without.out
    assert "\x1b[" in shown.getvalue()
    assert without.err.count("\x1b") == 0


def test_rich_is_loaded_for_terminals_only(folder):
    """Neither a piped command nor a broker's start pays for it."""
    program = (
        "import sys; from pulsemark.cli import main;"
        "calls = ['verify', sys.argv[1]], ['dump', sys.argv[1]], ['config', 'show'];"
        "statuses = [main(call) for call in calls];"
        "import pulsemark.cli.standalone, pulsemark.cli.topics, pulsemark.cli.perf;"
        "sys.exit('rich' in sys.modules or any(statuses))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(folder.path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
