"""What holds for every command: help with examples, wrong options, no broker, `| head`."""

from __future__ import annotations

import os
import re
import shlex
import socket
from contextlib import redirect_stdout

import pytest

from pulsemark.cli import COMMANDS, full_parser, main
from pulsemark.cli.parsing import EXAMPLES
from pulsemark.testing import running_broker
from tests.support.word_tree import Words, word_tree

TREE = list(word_tree(full_parser()))
LEAVES = [words for words in TREE if words.path and not words.commands]
EVERY = pytest.mark.parametrize("words", LEAVES, ids=lambda words: "-".join(words.path))
TIME = re.compile(r"-\d")
TOPIC = "persistent://public/default/orders"

#: What an action needs beside its arguments.
NEEDED = {
    ("consume",): ("--peek",),
    ("produce",): ("--message", "x"),
    ("schemas", "upload"): ("--type", "STRING"),
    ("policies", "set"): ("--time", "1", "--size", "1"),
}
#: Values of arguments, by action; otherwise `orders`.
GIVEN = {
    ("policies", "get"): ("orders", "retention"),
    ("policies", "set"): ("orders", "retention"),
    ("policies", "unset"): ("orders", "retention"),
    ("subscriptions", "reset"): ("orders", "s", "-1h"),
    ("seek",): ("orders", "-1h"),
    ("mirror",): ("pulsar://127.0.0.1:1", "nowhere"),
    ("control", "append"): ("orders", "checkpoint", "c"),
    ("namespaces", "list"): (),
    ("namespaces", "create"): ("public/x",),
    ("namespaces", "delete"): ("public/x",),
    ("topics", "list"): (),
}


def call_of(words: Words) -> list[str]:
    """The command with its arguments."""
    given = GIVEN.get(words.path, ("orders",) * len(words.arguments))
    return [*words.path, *given, *NEEDED.get(words.path, ())]


def names(words: Words) -> set[str]:
    """The names of a command's options."""
    return {name for option in words.options for name in option.names}


def test_every_command_has_examples():
    """They are of that command, and its parser accepts each."""
    assert EXAMPLES.keys() == COMMANDS.keys()
    parser = full_parser()
    for command, examples in EXAMPLES.items():
        for example in examples:
            words = shlex.split(example.partition(" > ")[0].rpartition(" | ")[2])
            assert words[:2] == ["pulsemark", command]
            parser.parse_args([f" {word}" if TIME.match(word) else word for word in words[1:]])


@EVERY
def test_help(words, capsys):
    """`--help` shows the usage of the action, and examples."""
    with pytest.raises(SystemExit) as ended:
        main([*words.path, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: pulsemark {' '.join(words.path)}" in shown
    assert "examples:\n  " in shown


@EVERY
def test_a_wrong_option(words, pulsemark):
    """One line, with the option and the help page of the very action."""
    if words.path == ("pipeline",):
        error = pulsemark("pipeline", "audit", "x", "--frobnicate").error()
        assert "--frobnicate" in error
        assert "(see pulsemark pipeline audit --help)" in error
        return
    error = pulsemark(*words.path, "--frobnicate").error()
    assert "there is no option --frobnicate" in error
    assert f"(see pulsemark {' '.join(words.path)} --help)" in error


@EVERY
def test_json(words):
    """Every action with results has `--json`; the others print a script, or serve."""
    makers = ("create-secret-key", "create-key-pair", "create")
    without: set[tuple[str, ...]] = {("token", each) for each in makers}
    without |= {("token", "show"), ("token", "validate"), ("completion",), ("pipeline",)}
    assert ("--json" in names(words)) == (words.path not in without)


ASKING = {"--admin-url": "http://127.0.0.1:1", "--service-url": "pulsar://127.0.0.1:1",
          "--grpc": "127.0.0.1:1"}  # fmt: skip


@EVERY
def test_no_broker(words, pulsemark, tmp_path, monkeypatch):
    """Without a broker the error is one line with the address."""
    monkeypatch.chdir(tmp_path)
    if words.path == ("mirror",):
        assert "127.0.0.1:1" in pulsemark(*call_of(words), "--topics", "orders", "--once").err
        return
    for option in sorted(names(words) & ASKING.keys()):
        call = call_of(words)
        if words.path == ("control", "append"):
            (tmp_path / "t").write_text("token")
            call += ["--token-file", "t"]
        ran = pulsemark(*call, option, ASKING[option])
        assert ran.status == 2, ran
        assert ran.err.startswith("pulsemark: error: ")
        assert ran.err.count("\n") == 1
        assert "127.0.0.1:1" in ran.err
        assert "Traceback" not in ran.err


@pytest.fixture
def silent_port():
    """A port where connections are accepted, and nothing is answered."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@EVERY
def test_a_broker_that_does_not_answer(words, pulsemark, silent_port, tmp_path, monkeypatch):
    """Where a broker is asked over HTTP, the command gives up after --request-timeout."""
    monkeypatch.chdir(tmp_path)
    if "--request-timeout" not in names(words):
        assert "--admin-url" not in names(words)
        return
    url = f"http://127.0.0.1:{silent_port}"
    for wrong in ("0", "-1", "x", "nan", "inf", "1e9"):
        error = pulsemark(*call_of(words), f"--request-timeout={wrong}").error()
        assert "--request-timeout" in error
    ran = pulsemark(*call_of(words), "--admin-url", url, "--request-timeout", "0.2")
    assert ran.error() == f"cannot connect to {url}: no answer within 0.2 s"


def into_a_closed_pipe(call: list[str]) -> int:
    """The exit code of a command whose output no one reads."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe, redirect_stdout(pipe):
        return main(call)


@EVERY
def test_a_closed_pipe(words):
    """`| head`: the help page of each action ends with 141, without a traceback."""
    assert into_a_closed_pipe([*words.path, "--help"]) == 141


@pytest.mark.parametrize(
    "call",
    [
        ("dump", "orders"), ("dump", "orders", "--json"), ("verify",), ("seek", "orders", "-1h"),
        ("audit", "--data-dir", "pulsemark-data"),
        ("completion", "bash"), ("control", "list", "orders"), ("config", "show", "--all"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_output_into_a_closed_pipe(call, folder, tmp_path, monkeypatch):
    """The same for output about a folder."""
    monkeypatch.chdir(tmp_path)
    folder.path.rename(tmp_path / "pulsemark-data")
    status = into_a_closed_pipe(list(call))
    assert status in (0, 141)
    assert status == 141 or call[0] == "control"  # no control entries: nothing is printed


def test_a_closed_pipe_of_a_broker():
    """The same for output about a broker."""
    with running_broker(storage="memory") as broker:
        broker.admin.create_topic(TOPIC)
        for call in ("topics list", "stats", "namespaces list", "topics show orders"):
            assert into_a_closed_pipe([*call.split(), "--admin-url", broker.http_url]) == 141
