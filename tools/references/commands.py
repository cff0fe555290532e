"""Every command, from its parser: docs/cli-reference.md, and the manual page pulsemark(1)."""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Iterator

from pulsemark import __version__, cli
from pulsemark.cli.parsing import EXAMPLES

__all__ = ["commands_page", "man_page"]

EXIT_CODES = """\
Exit codes: 0, done; 1, done, but something is wrong (damage found, messages missing); 2, bad input;
130, interrupted; 141, the reader of the output has closed it. Results go to stdout, everything else
to stderr. With `--json` a command prints one JSON object per line.
"""
INTRODUCTION = f"""\
# Commands

Every command and option, made from the command line's own parsers by `tools/write_references.py`;
do not edit it. `pulsemark COMMAND --help` and `man pulsemark` show the same.

{EXIT_CODES}
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
    for name, text, command in _commands_of(cli.full_parser()):
        parts += [f"\n## {name}\n\n{_sentence(text)}\n", *_parser(command, level=3)]
        if name in EXAMPLES:
            examples = "\n".join(EXAMPLES[name])
            parts.append(f"\nExamples:\n\n```sh\n{examples}\n```\n")
    return "".join(parts)


MAN_PAGE = """\
.TH PULSEMARK 1 {date} "pulsemark {version}" "User Commands"
.nh
.ad l
.SH NAME
pulsemark \\- Pulsar\\-compatible broker and ledger storage with stamped entries
.SH SYNOPSIS
.B pulsemark
.I COMMAND
\\&...
.SH DESCRIPTION
A broker for the clients of Pulsar and Kafka, for tests and for production, and the tools for what
it stores.
.B pulsemark COMMAND \\-\\-help
shows the part of this page that is about one command.
.PP
{exit_codes}\
.SH COMMANDS
{commands}"""


def man_page() -> str:
    """The page for man, of the time SOURCE_DATE_EPOCH."""
    moment = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    parts: list[str] = []
    for name, text, command in _commands_of(cli.full_parser()):
        parts += _man_parts(command, text)
        if name in EXAMPLES:
            lines = "\n".join(map(_roff, EXAMPLES[name]))
            parts.append(f".PP\nExamples:\n.PP\n.nf\n.RS 4\n{lines}\n.RE\n.fi\n")
    return MAN_PAGE.format(
        date=time.strftime("%Y-%m-%d", moment), version=__version__,
        exit_codes=_roff(EXIT_CODES.replace("`", "")), commands="".join(parts),
    )  # fmt: skip


def _man_parts(parser: argparse.ArgumentParser, text: str) -> Iterator[str]:
    yield f".SS {_roff(parser.prog)}\n"
    if text:
        yield f"{_roff(_sentence(text))}\n"
    yield f".PP\n.B {_roff(_usage(parser))}\n"
    for action in _arguments_of(parser):
        name = ", ".join(action.option_strings) or _plain_name(action)
        metavar = _metavar(action) if action.option_strings else ""
        yield f'.TP\n.BR {_roff(name, quoted=True)} " " {_roff(metavar, quoted=True)}\n'
        yield f"{_roff(_meaning(parser, action))}\n"
    for _, each, command in _commands_of(parser):
        yield from _man_parts(command, each)


def _roff(text: str, *, quoted: bool = False) -> str:
    """Text as roff takes it, also where a line begins; `quoted`: as one argument of a macro."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    if quoted:
        return '"' + text.replace('"', '""') + '"'
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


def _commands_of(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """A parser's commands: name, help, and their own parsers."""
    for action in filter(_is_commands, parser._actions):
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}  # type: ignore[attr-defined]
        for name, sub in action.choices.items():  # type: ignore[union-attr]
            yield name, helps.get(name, ""), sub


def _arguments_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [a for a in parser._actions if not _is_help(a) and not _is_commands(a)]


def _parser(parser: argparse.ArgumentParser, *, level: int) -> list[str]:
    parts = [f"\n```\n{_usage(parser)}\n```\n"]
    options = _arguments_of(parser)
    if options:
        parts.append("\n| argument | meaning |\n|---|---|\n")
        for action in options:
            meaning = _cell(_meaning(parser, action).replace("<", "&lt;"))
            parts.append(f"| {_name(action)} | {meaning} |\n")
    for _, text, sub in _commands_of(parser):
        parts.append(f"\n{'#' * level} {sub.prog.removeprefix('pulsemark ')}\n")
        if text:
            parts.append(f"\n{_sentence(text)}\n")
        parts += _parser(sub, level=level + 1)
    return parts


def _usage(parser: argparse.ArgumentParser) -> str:
    words = [parser.prog]
    for action in parser._actions:
        if _is_help(action):
            continue
        shown = _plain_name(action)
        words.append(shown if action.required or _is_needed(action) else f"[{shown}]")
    return " ".join(words)


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
    needed = "(required)" if action.required and action.option_strings else ""
    return re.sub(r"\s+", " ", f"{text} {needed}").strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _is_help(action: argparse.Action) -> bool:
    return isinstance(action, argparse._HelpAction)


def _is_commands(action: argparse.Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)
