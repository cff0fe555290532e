"""The parser of every command: wrong arguments end in one line that says what was meant.

It names the closest word that there is, and the help page of the very command or action that does
not know the argument. `--help` ends with examples (`examples`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from .errors import CliError
from .examples import EXAMPLES

__all__ = ["Parser", "closest"]


#: Options that say where a broker is. Which one a command has depends on the protocol it speaks.
ADDRESSES = ("--admin-url", "--service-url", "--grpc", "--url", "--broker", "--grpc-url")


def closest(text: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the closest known word; "" if none is close."""
    import difflib

    known = list(known)
    if text in ADDRESSES:
        there = next((each for each in ADDRESSES if each in known), None)
        return f"; this command has {there} for the broker's address" if there else ""
    near = difflib.get_close_matches(text, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises CliError, in one line."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**settings)

    def error(self, message: str) -> NoReturn:
        """Raise CliError, with this parser's help page."""
        raise CliError(f"{message} (see {self.prog} --help)")

    def format_help(self) -> str:
        """The help page, with the examples of this command or action at its end."""
        name = self.prog.partition(" ")[2]
        shown = EXAMPLES.get(name.partition(" ")[0], ())
        mine = [line for line in shown if f"pulsemark {name}" in line] or list(shown)
        if mine and name:
            self.epilog = "\n  ".join(["examples:", *mine])
        return super().format_help()

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As argparse's. Words that are left over are refused here: the error names the command."""
        # Before anything else: a misspelled option is reported before a missing one.
        unknown = self._first_unknown(args or ())
        if unknown is not None:
            self.error(f"there is no option {unknown}{closest(unknown, self._known_options())}")
        found, left = super().parse_known_args(args, namespace)
        if left:
            unknown = left[0].partition("=")[0].strip()
            if unknown in self._known_options():
                self.error(f"{unknown} comes after --, where nothing is an option any more")
            what = "option" if unknown.startswith("-") else "argument"
            self.error(f"there is no {what} {unknown}{closest(unknown, self._known_options())}")
        return found, left

    def _known_options(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]

    def _first_unknown(self, args: Sequence[str]) -> str | None:
        """The first long option that this parser does not know, if it reads all of them itself."""
        if any(action.nargs in (argparse.PARSER, argparse.REMAINDER) for action in self._actions):
            return None
        known = self._known_options()
        for text in args:
            name = text.partition("=")[0]
            if text == "--":
                return None
            if text.startswith("--") and not any(each.startswith(name) for each in known):
                return name
        return None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(each) for each in action.choices]
            near = closest(str(value), known) or f"; choose from {', '.join(known)}"
            raise argparse.ArgumentError(action, f"there is no {value!r}{near}")
