"""Options from a table, as argparse then parses them and shows them."""

from __future__ import annotations

import argparse

import pytest

from pulsemark.option_table import add_options

TABLE = """
topic TOPIC  short or full name
more TOPIC*
-m, --message TEXT...  may be
    repeated
--from=start TIME [now]  where to begin
--storage {files,memory}  where entries are kept
--kind KIND  one of two
--limit N! [5]
--[no-]audit
--[no-]sync [yes]
-v, --verbose
"""


def parsed(*arguments: str) -> dict[str, object]:
    """What the table's parser makes of a command line."""
    return vars(_parser().parse_args(["orders", *arguments, "--limit", "3"]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="x")
    add_options(parser, TABLE, {"N": int}, kind=("a", "b"), start=str.upper)
    return parser


def test_each_form_of_a_line() -> None:
    """Positional arguments, types, defaults, choices, names, switches, and what may be repeated."""
    assert parsed() == {
        "topic": "orders", "more": [], "message": None, "start": "NOW", "storage": None,
        "kind": None, "limit": 3, "audit": None, "sync": True, "verbose": False,
    }  # fmt: skip
    found = parsed(
        "bills", "-m", "x", "--message", "y", "--from", "1h", "--storage", "memory",
        "--kind", "b", "--no-audit", "--no-sync", "-v",
    )  # fmt: skip
    assert found == {
        "topic": "orders", "more": ["bills"], "message": ["x", "y"], "start": "1H",
        "storage": "memory", "kind": "b", "limit": 3, "audit": False, "sync": False,
        "verbose": True,
    }  # fmt: skip


@pytest.mark.parametrize("wrong", [["--storage", "tape"], ["--kind", "c"], ["--limit", "x"]])
def test_what_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A value that is not among the choices, or not of the type."""
    with pytest.raises(SystemExit):
        _parser().parse_args(["orders", *wrong])
    assert wrong[0] in capsys.readouterr().err


def test_help_goes_on_in_the_next_line() -> None:
    """A line that begins with a blank belongs to the help before it."""
    assert "may be repeated" in _parser().format_help()


ACTIONS = """
--json
list: what there is
either:
--here
--there
and:
--far
put: add one
exactly one of:
--one
--two
and:
--three {a,b}?
"""


def acted(*arguments: str) -> dict[str, object]:
    """What the parser of the actions makes of a command line."""
    parser = argparse.ArgumentParser(prog="x")
    add_options(parser, ACTIONS, {})
    return vars(parser.parse_args(arguments))


def test_actions_and_groups() -> None:
    """Each action has its options and those of all; a value may be missing."""
    place = {"here": True, "there": False, "far": True}
    assert acted("list", "--here", "--far", "--json") == {"action": "list", "json": True, **place}
    found = acted("put", "--two", "--three")
    assert (found["two"], found["three"], found["json"]) == (True, "a", False)


@pytest.mark.parametrize(
    "wrong", [["list", "--here", "--there"], ["put"], ["put", "--one", "--two"], ["list", "--one"]]
)
def test_groups_are_exclusive(wrong: list[str]) -> None:
    """Two of a group, none of one that is required, an option of another action."""
    with pytest.raises(SystemExit):
        acted(*wrong)
