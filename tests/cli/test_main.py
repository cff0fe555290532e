"""The command as a whole: overview, version, wrong arguments, what it imports."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from pulsemark import __version__
from pulsemark.cli import COMMANDS, GROUPS, main

from .conftest import Folder


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints the installed versions, also of the package for checksums, and ends well."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    installed = f"pulsemark {__version__}, checksums by crc32c {version('crc32c')}\n"
    assert capsys.readouterr().out == installed


def test_where_only_crcmod_is_installed_everything_works(folder: Folder, tmp_path: Path) -> None:
    """It is named by --version; what either package wrote is sound for the other one."""
    program = (
        "import sys; sys.modules['crc32c'] = None; from pulsemark.cli import main;"
        "sys.exit(main(sys.argv[1:]))"
    )

    def ran(*arguments: object) -> str:
        command = [sys.executable, "-W", "ignore::RuntimeWarning", "-c", program]
        return subprocess.run(
            [*command, *map(str, arguments)],
            capture_output=True, text=True, check=True, timeout=200,
        ).stdout  # fmt: skip

    copied = tmp_path / "copied"
    assert ran("--version").endswith(f"checksums by crcmod {version('crcmod')}\n")
    assert ran("verify", folder.path).endswith(": clean\n")
    assert "entries: 10," in ran("mirror", folder.path, copied, "--topics", "orders", "--once")
    assert main(["verify", str(copied)]) == 0


def test_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """--help lists all commands with what they do."""
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for command, what in COMMANDS.items():
        assert command in text
        assert what.split()[0] in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`pulsemark COMMAND --help` works for every command."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: pulsemark {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["frobnicate"], "frobnicate"),
        (["--frobnicate"], "--frobnicate"),
        (["seek"], "TOPIC"),
        (["seek", "x"], "TIME"),
        (["seek", "x", "0", "--data-dir", "a", "--grpc", "b:1"], "--grpc"),
        (["seek", "x", "0", "--method", "sideways"], "sideways"),
        (["dump"], "PATH|TOPIC"),
        (["dump", "x", "--limit", "0"], "--limit"),
        (["dump", "x", "--limit", "-3"], "--limit"),
        (["dump", "x", "--from", "14"], "14"),
        (["dump", "x", "--from", "a:b"], "a:b"),
        (["standalone", "--port", "99999"], "99999"),
        (["standalone", "--port", "-1"], "-1"),
        (["standalone", "--port", "\u0663"], "--port"),
        (["standalone", "--http-port", "eighty"], "eighty"),
        (["standalone", "--max-message-size-bytes", "0"], "--max-message-size-bytes"),
        (["finder"], "ACTION"),
        (["finder", "serve", "--port", "1.5"], "1.5"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong arguments end in one line that names the culprit, and exit code 2."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("pulsemark: error: ")
    assert captured.err.count("\n") == 1
    assert named in captured.err


def test_help_imports_nothing_heavy() -> None:
    """The overview costs argparse and little more: no protobuf, gRPC, SQLite, uvloop or Spark."""
    code = (
        "import sys\nfrom pulsemark.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'google.protobuf', 'grpc', 'sqlite3', 'uvloop', 'asyncio', 'pyspark', 'h11'}\n"
        "print(sorted(heavy & sys.modules.keys()), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr == "[]\n"


def test_module_and_script_are_the_same_command() -> None:
    """`python -m pulsemark` is the command, and its exit code is the process's."""
    command = [sys.executable, "-m", "pulsemark", "dump", "/nowhere/at/all"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith("pulsemark: error: ")


def test_reader_that_goes_away_is_no_traceback() -> None:
    """When the reader of a pipe ends, the command ends without a message."""
    command = [sys.executable, "-m", "pulsemark", "--help"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    process.wait(30)
    assert b"Traceback" not in said


def test_the_command_alone_lists_all_commands_in_groups(pulsemark, capsys):
    """So does `help`, and `help COMMAND` is the command's --help."""
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    shown = pulsemark().out
    assert shown == pulsemark("help").out
    assert all(f"{heading}:" in shown for heading in GROUPS)
    with pytest.raises(SystemExit, match="0"):
        main(["help", "seek"])
    assert capsys.readouterr().out.startswith("usage: pulsemark seek ")


def test_the_option_of_another_protocol_leads_to_the_right_one(pulsemark):
    """Every command has --url; an address of another protocol is answered with the right form."""
    assert "this command has --url" in pulsemark("stats", "--service-url", "x").err
    assert "this command has --url" in pulsemark("consume", "x", "--grpc", "y").err
    wrong = pulsemark("stats", "--url", "pulsar://127.0.0.1:6650").error()
    assert "'pulsar://127.0.0.1:6650' is not of the form http://127.0.0.1:8080" in wrong
    wrong = pulsemark("consume", "x", "-s", "s", "--url", "http://127.0.0.1:8080").error()
    assert "'http://127.0.0.1:8080' is not of the form pulsar://127.0.0.1:6650" in wrong


def test_what_an_extra_brings(pulsemark, monkeypatch):
    """Without it the error names the module and how to install it."""
    monkeypatch.setitem(sys.modules, "jwt", None)
    refused = pulsemark("token", "create", "--secret-key", "k", "--subject", "a").error()
    assert (
        refused
        == "this needs jwt, which is not installed: pip install '/path/to/checkout[security]'"
    )


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (("--frobnicate", "topics"), "there is no option --frobnicate"),
        (("topics", "list", "a/b/c"), "'a/b/c': a namespace's name has the form tenant/namespace"),
        (("stats", "--namespace", "x"), "'x': a namespace's name has the form tenant/namespace"),
        (("retain", "--namespace", "x"), "'x': a namespace's name has the form tenant/namespace"),
        (("subscriptions", "create", "x", ""), "SUBSCRIPTION must not be empty"),
        (("perf", "produce", "x", "--rate", "-1"), "argument -r/--rate: '-1' is not a number"),
    ],
)
def test_wrong_arguments_are_named(pulsemark, call, named):
    """Each error says which argument is wrong, and its value, before a broker is asked."""
    assert named in pulsemark(*call).error()
