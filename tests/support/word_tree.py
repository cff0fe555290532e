"""The words that each command and action takes, read from its parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Option", "Words", "word_tree"]

#: Placeholders of arguments that are files or folders.
_PATH_NAMES = ("PATH", "FILE", "DIR", "FOLDER", "DATA_DIR", "BACKUP")


@dataclass(frozen=True, slots=True)
class Option:
    """An option, or with names () a positional argument."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    #: The values it may have; (): any.
    choices: tuple[str, ...] = ()
    is_path: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """What may follow the words of `path`: ("topics", "list")."""

    path: tuple[str, ...]
    #: Commands or actions, with what they do.
    commands: dict[str, str] = field(default_factory=dict)
    options: tuple[Option, ...] = ()
    arguments: tuple[Option, ...] = ()


def word_tree(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Words]:
    """The words of a parser, and of all parsers below it."""
    commands: dict[str, str] = {}
    below: dict[str, argparse.ArgumentParser] = {}
    options: list[Option] = []
    arguments: list[Option] = []
    for action in parser._actions:  # argparse has no public way to see them
        if isinstance(action, argparse._SubParsersAction):
            commands |= {each.dest: each.help or "" for each in action._choices_actions}
            below = dict(action.choices)
        elif action.help != argparse.SUPPRESS:
            (options if action.option_strings else arguments).append(_option(action))
    yield Words(path, commands, tuple(options), tuple(arguments))
    for name, sub in below.items():
        yield from word_tree(sub, (*path, name))


def _option(action: argparse.Action) -> Option:
    choices = tuple(str(each) for each in action.choices or ())
    names = action.metavar if isinstance(action.metavar, str) else ""
    is_path = action.type is Path or any(each in _PATH_NAMES for each in names.split("|"))
    text = " ".join((action.help or "").replace("%%", "%").split())
    return Option(tuple(action.option_strings), text, action.nargs != 0, choices, is_path)
