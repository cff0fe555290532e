"""The `pulsemark` command.

Rules of this package:

- A command's module has `add_arguments(parser)`, and `run(args)`, which returns the exit code. A
  module of several commands lists them in `COMMANDS`. The module is imported only when its command
  is called. So `--help` and `--version` load nothing but argparse.
- Bad input gives one line `pulsemark: error: ...` on stderr and exit code 2, never a traceback.
  Each command lists in `ERRORS` the typed errors that its input can cause. Any other error is a
  mistake in the program and shows its traceback.
- Results go to stdout, everything else to stderr. `--json` prints one JSON object per line.
- Exit codes: 0 done; 1 done, but something is wrong (damage found, an audit that misses messages);
  2 bad input; 130 interrupted; 141 the reader of stdout has closed it.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn, cast

from ..extras import install_command
from .parsing import CliError, Command, Parser

if TYPE_CHECKING:
    from typing_extensions import Buffer


EXIT_BAD_INPUT = 2
ALL = "*"
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

# The commands in groups, as the overview shows them, each with its line. A command's module has the
# same name, if `MODULES` names no other.
GROUPS = {
    "Run a broker": {
        "standalone": "run a broker over a data folder",
        "config": "check and show the configuration of a broker",
        "token": "make keys and tokens, and show tokens",
        "finder": "serve searches by time and index over gRPC, without a broker",
    },
    "Publish, receive, administrate": {
        "topics": "list, create, show and delete topics",
        "subscriptions": "list, create, reset and delete the subscriptions of a topic",
        "namespaces": "list, create and delete namespaces",
        "schemas": "show, upload and delete the schemas of topics",
        "policies": "show or change the policies of a namespace or topic",
        "produce": "publish messages",
        "consume": "receive messages, or look at them",
        "stats": "show rates and backlogs of topics, once or again and again",
        "perf": "measure rates and latencies of publishing, receiving and seeking",
    },
    "Search and look": {
        "seek": "find the first entry at or after a time",
        "dump": "print the entries of a data folder, a topic or a segment file",
        "control": "add and list control entries, and list leader epochs",
        "audit": "show what was counted of a topic by time and tags, or compare tiers",
        "pipeline": "run a Spark job over a data folder",
    },
    "Keep data": {
        "verify": "read a whole data folder and report what is damaged",
        "backup": "copy a data folder, also while a broker writes to it",
        "restore": "make a data folder of a backup",
        "retain": "apply retention now, or show what it would remove",
        "rebuild-catalog": "rebuild a data folder's catalog from its segments",
        "mirror": "copy topics to another broker or data folder, unopened",
    },
    "Keep a second machine": {
        "follow": "keep a second data folder that can take a broker's place",
        "promote": "make a follower's data folder a leader's",
    },
    "More": {
        "completion": "print a script that completes words in bash, zsh or fish",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}

#: Command -> its module, if that has several commands.
MODULES = {
    "topics": "topics", "namespaces": "topics", "schemas": "topics", "subscriptions": "topics",
    "stats": "topics",
    "produce": "messages", "consume": "messages", "backup": "verify", "restore": "verify",
    "verify": "verify", "rebuild-catalog": "verify", "mirror": "mirror", "follow": "mirror",
    "promote": "mirror", "seek": "seek", "finder": "seek", "completion": "parsing",
}  # fmt: skip


def _overview() -> str:
    """The commands in groups."""
    lines = ["usage: pulsemark COMMAND ..."]
    for heading, group in GROUPS.items():
        lines += ["", f"{heading}:", *(f"  {name:<16} {text}" for name, text in group.items())]
    return "\n".join([*lines, "", "`pulsemark help COMMAND` has its options and examples."])


#: Modules that come with an extra.
EXTRAS = {
    "jwt": "security", "cryptography": "security", "kafka": "kafka", "kazoo": "bookkeeper",
    "cramjam": "compression", "pyspark": "spark", "pyarrow": "spark", "matplotlib": "plot",
}  # fmt: skip


class _Version(argparse.Action):
    """Looks up the versions only when `--version` is given."""

    def __call__(self, *_: object) -> NoReturn:
        from importlib.metadata import version

        from .. import __version__
        from ..metadata.crc import IMPLEMENTATION

        print(f"pulsemark {__version__}, checksums by {IMPLEMENTATION} {version(IMPLEMENTATION)}")
        sys.exit(0)


def _load(name: str) -> Command:
    gc.disable()  # imports leave no garbage that is worth looking for, now or later
    try:
        module = importlib.import_module(f".{MODULES.get(name, name)}", __name__)
    finally:
        gc.freeze()
        gc.enable()
    if name in MODULES:
        return cast("Command", module.COMMANDS[name])
    return Command(module.ERRORS, module.add_arguments, module.run)


def _parser(called: str | None) -> argparse.ArgumentParser:
    parser = Parser(
        prog="pulsemark",
        description="A broker for clients of Pulsar and Kafka, and tools for the ledgers it keeps.",
        epilog="`pulsemark COMMAND --help` has the command's options and examples. Times are ISO"
        " 8601,\nunix milliseconds, 14:05, or relative to now: -15m. Exit codes: 0 done; 1 done,"
        " but something\nis wrong (damage, missing messages); 2 bad input; 130 interrupted; 141"
        " the reader of the\noutput has closed it.",
    )
    parser.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        help="print the versions of pulsemark and its checksums",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    # A command that is called needs no parser of another one.
    for name in (called,) if called in COMMANDS else COMMANDS:
        text = COMMANDS[name]
        sub = commands.add_parser(name, help=text, description=f"{text.capitalize()}.")
        if called in (name, ALL):
            _load(name).add_arguments(sub)
    return parser


def full_parser() -> argparse.ArgumentParser:
    """The parser with the arguments of all commands. Loads all their modules."""
    return _parser(ALL)


def _as_utf8(argument: str) -> str:
    """An argument in UTF-8, also where Python was told that the locale has another encoding."""
    try:
        return os.fsencode(argument).decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return argument


def _protect_times(arguments: Sequence[str]) -> list[str]:
    """Put a space before a time like -5m, so that argparse does not take it for an option."""
    return [f" {text}" if text[:1] == "-" and text[1:2].isdigit() else text for text in arguments]


def _run(arguments: Sequence[str]) -> int:
    if not arguments or list(arguments) == ["help"]:
        print(_overview())
        return 0
    if arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    called = next((text for text in arguments if not text.startswith("-")), None)
    args = _parser(called).parse_args(_protect_times(arguments))
    command = _load(args.command)
    try:
        return command.run(args)
    except BrokenPipeError:  # an OSError, but not bad input
        raise
    except UnicodeEncodeError as error:
        text = str(error.object)
        if not any("\udc80" <= letter <= "\udcff" for letter in text):
            raise
        # So Python shows bytes of the command line that are no text; paths and messages may be so.
        raise CliError(f"{text!r} is not UTF-8 text") from error
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise CliError(
            f"this needs {error.name}, which is not installed: {install_command(extra)}"
        ) from error
    except command.errors as error:
        raise CliError(_reason_of(error)) from error


def _reason_of(error: Exception) -> str:
    """The error's text; of system errors the file and the message, without the number."""
    if isinstance(error, OSError) and error.strerror and str(error).startswith("[Errno"):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _flush() -> None:
    """Write out the rest of the output. Raises BrokenPipeError, CliError."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard(sys.stdout.fileno())
        raise CliError(f"the output cannot be written: {error.strerror}") from error


def _say(text: str) -> None:
    """Write a line to stderr. If that is closed, the exit code alone reports the failure."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _discard(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process, and return its exit code."""
    # Otherwise gRPC's C library would print its own lines to stderr.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        prepare_streams()
        try:
            return _run(list(map(_as_utf8, sys.argv[1:])) if arguments is None else arguments)
        finally:
            _flush()
    except CliError as error:
        _say(f"pulsemark: error: {' '.join(str(error).split())}")
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard(sys.stdout.fileno())
        return EXIT_BROKEN_PIPE


# The standard streams, as the caller left them. A caller may have closed one of them (`>&-`). Then
# the first file or socket that is opened gets its number, and what a C library writes to "standard
# error" would go into that file, be it a segment. So closed streams become /dev/null before
# anything else is opened. What an output's encoding has no letter for is written as an escape.


class _Output(io.FileIO):
    """Standard output, whose errors name it.

    Otherwise "No space left on device" could also mean the folder that a command works on.
    """

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            _discard(self.fileno())
            raise CliError(f"the output cannot be written: {error.strerror}") from error


def _discard(number: int) -> None:
    """Redirect a descriptor to /dev/null, so that later writes do not fail a second time."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, number)
    os.close(nothing)


def prepare_streams() -> None:
    """Open closed standard streams, and let outputs encode any text."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _open(number)
            mode = "w" if number else "r"
            opened = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - stays open
            setattr(sys, name, opened)
    if sys.stdout is sys.__stdout__ and isinstance(sys.stdout, io.TextIOWrapper):
        before = sys.stdout
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Output(before.fileno(), "w", closefd=False)),
            encoding=before.encoding,
            errors="backslashreplace",
            line_buffering=before.line_buffering,
            write_through=before.write_through,
        )
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _open(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        os.set_inheritable(number, True)
