"""`pulsemark completion bash|zsh|fish`: print a script that completes commands and options.

    pulsemark completion bash > ~/.local/share/bash-completion/completions/pulsemark

shtab makes the script from the parsers of all commands. It calls nothing while the user types.
"""

from __future__ import annotations

import argparse
from pathlib import Path

ERRORS: tuple[type[Exception], ...] = ()
SHELLS = ("bash", "zsh", "fish")
#: Placeholders of arguments that are files or folders.
PATH_NAMES = ("PATH", "FILE", "DIR", "FOLDER", "DATA_DIR", "BACKUP")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from . import full_parser

    parser = full_parser()
    _prepare(parser, shtab.FILE)
    print(shtab.complete(parser, args.shell))
    return 0


def _prepare(parser: argparse.ArgumentParser, completer: object) -> None:
    """Mark what is a path, and make choices tuples: shtab takes a dict for commands."""
    for action in parser._actions:  # argparse has no public way to see them
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                _prepare(each, completer)
            continue
        if action.choices is not None:
            action.choices = tuple(action.choices)
        names = action.metavar if isinstance(action.metavar, str) else ""
        if action.type is Path or any(name in PATH_NAMES for name in names.split("|")):
            action.complete = completer  # type: ignore[attr-defined]
