"""docs/cli-reference.md: every command, from its parser."""

from __future__ import annotations

import argparse
import re

from pulsemark import cli
from pulsemark.cli.parsing import EXAMPLES

__all__ = ["commands_page"]

INTRODUCTION = """\
# Commands

Every command and option, made from the command line's own parsers by `tools/write_references.py`;
do not edit it. `pulsemark COMMAND --help` shows the same.

Exit codes: 0, done; 1, done, but something is wrong (damage found, messages missing); 2, bad input;
130, interrupted; 141, the reader of the output has closed it. Results go to stdout, everything else
to stderr. With `--json` a command prints one JSON object per line.

On a terminal, tables fit its width: long names are folded over several lines and never cut off,
and where that is too narrow each value has a line of its own. `NO_COLOR` is respected. Long
commands show a bar on stderr. In a pipe or a file, each row is one line, columns are separated by
spaces, and numbers are plain digits.

| command | what it does |
|---|---|
"""


def commands_page() -> str:
    """The page."""
    rows = [f"| [{name}](#{name}) | {text} |\n" for name, text in cli.COMMANDS.items()]
    parts = [INTRODUCTION, *rows]
    (whole,) = filter(_is_commands, cli.full_parser()._actions)
    commands: dict[str, argparse.ArgumentParser] = dict(whole.choices or {})
    for name, text in cli.COMMANDS.items():
        parts += [f"\n## {name}\n\n{_sentence(text)}\n", *_parser(commands[name], level=3)]
        if name in EXAMPLES:
            examples = "\n".join(EXAMPLES[name])
            parts.append(f"\nExamples:\n\n```sh\n{examples}\n```\n")
    return "".join(parts)


def _parser(parser: argparse.ArgumentParser, *, level: int) -> list[str]:
    parts = [_usage(parser)]
    options = [a for a in parser._actions if not _is_help(a) and not _is_commands(a)]
    if options:
        parts.append("\n| argument | meaning |\n|---|---|\n")
        parts += [f"| {_name(action)} | {_meaning(parser, action)} |\n" for action in options]
    for action in filter(_is_commands, parser._actions):
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}  # type: ignore[attr-defined]
        for name, sub in action.choices.items():  # type: ignore[union-attr]
            title = sub.prog.removeprefix("pulsemark ")
            parts.append(f"\n{'#' * level} {title}\n")
            if helps.get(name):
                parts.append(f"\n{_sentence(_text(helps[name]))}\n")
            parts += _parser(sub, level=level + 1)
    return parts


def _usage(parser: argparse.ArgumentParser) -> str:
    words = [parser.prog]
    for action in parser._actions:
        if _is_help(action):
            continue
        shown = _plain_name(action)
        words.append(shown if action.required or _is_needed(action) else f"[{shown}]")
    return f"\n```\n{' '.join(words)}\n```\n"


def _is_needed(action: argparse.Action) -> bool:
    return not action.option_strings and action.nargs not in ("?", "*")


def _plain_name(action: argparse.Action) -> str:
    if action.option_strings:
        names = action.option_strings
        name = next((each for each in names if each.startswith("--")), names[0])
        return f"{name} {_metavar(action)}".strip()
    return _metavar(action) or action.dest


def _metavar(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.choices and action.metavar is None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    metavar = action.metavar
    if isinstance(metavar, tuple):
        return " ".join(metavar)
    name = metavar or (action.dest.upper() if action.option_strings else action.dest)
    return f"{name}..." if action.nargs in ("*", "+") else name


def _name(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{_cell(_plain_name(action))}`"
    names = ", ".join(f"`{option}`" for option in action.option_strings)
    metavar = _metavar(action)
    return f"{names} `{_cell(metavar)}`" if metavar else names


def _meaning(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = action.help or ""
    if text:
        formatter = parser._get_formatter()
        text = formatter._expand_help(action)
    needed = " (required)" if action.required and action.option_strings else ""
    return _cell(_text(text) + needed)


def _text(text: str) -> str:
    """Without line breaks; what looks like HTML is kept as text."""
    return re.sub(r"\s+", " ", text).strip().replace("<", "&lt;")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _is_help(action: argparse.Action) -> bool:
    return isinstance(action, argparse._HelpAction)


def _is_commands(action: argparse.Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)
