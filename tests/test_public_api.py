"""The public names are frozen: a change of one is meant, and written down."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FROZEN = ROOT / "tests" / "data" / "public_api.txt"
sys.path.insert(0, str(ROOT / "tools"))
try:
    from references.public_api import PACKAGES, public_api
finally:
    sys.path.remove(str(ROOT / "tools"))


def test_public_names_and_signatures_are_as_written_down() -> None:
    """Each name that is added, gone or changed is shown with the command that accepts it."""
    changes = difflib.unified_diff(
        FROZEN.read_text(encoding="utf-8").splitlines(), public_api().splitlines(), lineterm="", n=0
    )
    text = "\n".join(changes)
    assert not text, f"{text}\nif you mean that: python tools/write_references.py"


def test_a_changed_signature_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter more is another line of the file."""
    import pulsemark.ledger

    def entries_of(log: object, more: int = 0) -> None:
        """Stands for the function."""

    before = public_api()
    monkeypatch.setattr(pulsemark.ledger, "entries_of", entries_of)
    assert public_api() != before


#: What the search below finds, and what cannot come out of the call.
NEVER = {
    "Broker.close: BrokerStateError": "its parts exist when they are closed",
    "run_job.: JobFailedError": "a PipelineError becomes an exit code",
    "run_job.: OptionError": "a PipelineError becomes an exit code",
}


def raised_in(function: Callable[..., Any], owner: type | None, seen: set[object]) -> set[str]:
    """The errors that a function raises, itself or in private functions that it calls."""
    if function in seen or not inspect.isfunction(function):
        return set()
    seen.add(function)
    if function.__module__ == "pulsemark.records":  # wrong arguments, as of any dataclass
        return set()
    try:
        source = inspect.getsource(function)
    except OSError:  # a dataclass made it
        return set()
    found = set(re.findall(r"^\s*raise (\w+Error)\b", source, re.MULTILINE))
    for name in re.findall(r"\bself\.(_\w+)\(", source):
        called = inspect.getattr_static(owner, name, None) if owner else None
        if called is not None:
            found |= raised_in(called, owner, seen)
    for name in re.findall(r"(?<![\w.])(_\w+)\(", source):
        called = function.__globals__.get(name)
        if called is not None:
            found |= raised_in(called, None, seen)
    handled = " ".join(re.findall(r"^\s*except ([^:]*):", source, re.MULTILINE))
    return {error for error in found if not re.search(rf"\b{error}\b", handled)}


def undocumented() -> list[str]:
    """Each public function and method whose own lines raise an error that no docstring names."""
    missing = []
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            is_ours = (getattr(value, "__module__", "") or "").startswith("pulsemark.")
            if not is_ours or getattr(value, "_is_protocol", False):
                continue
            members = {"": value}
            if inspect.isclass(value):
                members = {
                    member: getattr(one, "__func__", one)
                    for member, one in vars(value).items()
                    if not member.startswith("_") or member == "__init__"
                }
            for member, one in members.items():
                if inspect.isfunction(one):
                    about = f"{inspect.getdoc(one)} {inspect.getdoc(value)}"
                    owner = value if inspect.isclass(value) else None
                    missing += [
                        f"{package}.{name}.{member}: {error}"
                        for error in raised_in(one, owner, set())
                        if error not in about and error != "AssertionError"
                    ]
    return sorted(line for line in missing if not line.endswith(tuple(NEVER)))


def test_public_calls_name_the_errors_that_they_raise() -> None:
    """Each error that a public call raises itself is in its docstring, or in its class's."""
    assert undocumented() == []


def test_the_face_has_every_error_of_the_ledger() -> None:
    """Who catches an error of a store finds it where the store is."""
    import pulsemark
    import pulsemark.ledger

    errors = {name for name in pulsemark.ledger.__all__ if name.endswith("Error")}
    assert errors <= set(pulsemark.__all__)
    from pulsemark.ledger import errors as module

    all_errors = {
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    }
    assert all_errors == errors
