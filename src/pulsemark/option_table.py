"""Command-line options as a table that reads like a help page, declared for argparse.

    --limit N                     at most N entries per topic
    -m, --message TEXT...         a message; may be repeated
    --from=start TIME             leave out what ended before
    --storage {files,memory} [files]  where entries are kept
    --service-url URL!            the target
    --[no-]audit                  also what is off by default
    topic TOPIC                   short or full name

Each line has flags, or the name of a positional argument; the placeholder of its value; and after
two blanks a help. After the placeholder ``!`` means that the option is required, ``...`` that it
may be repeated, ``?`` that a positional argument, or an option's value, may be missing, ``*`` that
there may be any number of them. ``{a,b}`` are the values that an option may have, and ``[x]`` is
the default. ``=name`` is how the parsed value is called, if not by the first long flag. A line that
begins with a blank goes on with the help before it. Other lines are:

    either:                       of the options below, one may be given
    exactly one of:               of those below, one must be given
    and:                          those below are in no such group
    create: create a topic        the options below are of the action `create`

Options before the first action are of all actions, after their own.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

_LINE = re.compile(
    r"(?P<flags>-[^\s,]+(?:, -[^\s,]+)*|\w+)(?: (?P<value>[^ \[]\S*?)(?P<mark>!|\.\.\.|[*?])?)?"
    r"(?: \[(?P<default>.*?)\])?(?:  +(?P<help>.+))?"
)
_MARKS: Mapping[str | None, dict[str, Any]] = {
    None: {},
    "!": {"required": True},
    "...": {"action": "append"},
    "?": {"nargs": "?"},
    "*": {"nargs": "*"},
}


_GROUPS: Mapping[str, bool | None] = {"either:": False, "exactly one of:": True, "and:": None}
"""Whether one of the group must be given; None: no group."""
_ACTION = re.compile(r"^([a-z-]+): (.+)$", re.MULTILINE)


def add_options(
    parser: argparse.ArgumentParser,
    table: str,
    types: Mapping[str, Callable[[str], Any]],
    /,
    **special: Callable[[str], Any] | Collection[str],
) -> None:
    """Declare the options of a table.

    Args:
        parser: gets them.
        table: see the module.
        types: by placeholder, of values that are no text.
        special: by the value's name, other types of single options; or the values it may have, if
            the help has a placeholder for them.
    """
    shared, *parts = _ACTION.split(table)
    if parts:
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        for name, text, own in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            action = actions.add_parser(name, help=text, description=f"{text.capitalize()}.")
            add_options(action, own + shared, types, **special)
        return
    group: argparse._ActionsContainer = parser
    for line in map(str.strip, re.split(r"\n(?!\s)", table.strip())):
        if line in _GROUPS:
            group, is_required = parser, _GROUPS[line]
            if is_required is not None:
                group = parser.add_mutually_exclusive_group(required=is_required)
            continue
        _add_argument(group, line, types, special)


def _add_argument(
    group: argparse._ActionsContainer,
    line: str,
    types: Mapping[str, Callable[[str], Any]],
    special: Mapping[str, Callable[[str], Any] | Collection[str]],
) -> None:
    found = _LINE.fullmatch(re.sub(r"\s*\n\s*", " ", line))
    assert found is not None, line
    text, _, dest = found["flags"].partition("=")
    flags, value, default = text.split(", "), found["value"], found["default"]
    how: dict[str, Any] = {"help": found["help"], **_MARKS[found["mark"]]}
    if dest:
        how["dest"] = dest
    if default is not None:
        how["default"] = default
    if text.startswith("--[no-]"):
        flags = [text.replace("[no-]", "")]
        how["action"] = argparse.BooleanOptionalAction
        how["default"] = None if default is None else default == "yes"
    elif value is None:
        how["action"] = "store_true"
    elif value.startswith("{"):
        how["choices"] = value[1:-1].split(",")
        how |= {"const": how["choices"][0]} if found["mark"] == "?" else {}
    else:
        how |= {"metavar": value, "type": types.get(value, str)}
    long = next((flag for flag in flags if flag.startswith("--")), flags[0])
    other = special.get(dest or long.lstrip("-").replace("-", "_"))
    if other is not None:
        how["type" if callable(other) else "choices"] = other
    group.add_argument(*flags, **how)
