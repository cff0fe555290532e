"""The parser of every command: wrong arguments give one line with a suggestion.

It names the closest known word, and the help page of the command or action that does not know the
argument. `--help` ends with `EXAMPLES`, each of which a test parses. `pulsemark completion` prints
what bash, zsh and fish need to complete the words that the parsers know.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn


class CliError(Exception):
    """Bad input. The message is the line that the user sees."""


class Command(NamedTuple):
    """A command's function, errors and parser settings, as its module declares them."""

    errors: tuple[type[Exception], ...]
    """The typed errors that its input can cause."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    """Runs the command; returns the exit code."""


#: Options with a broker's address, of this command and of other tools.
ADDRESSES = ("--url", "--service-url", "--admin-url", "--grpc", "--broker", "--grpc-url")

#: The examples in each command's help page.
EXAMPLES: dict[str, list[str]] = {}
for _line in """\
pulsemark standalone
pulsemark standalone --data-dir /var/lib/pulsemark --grpc-port 6680 --kafka-port 9092
pulsemark standalone --config pulsemark.toml --log-format json --log-level info
pulsemark topics list public/default
pulsemark topics create orders --partitions 4
pulsemark topics show orders
pulsemark topics delete orders --force
pulsemark subscriptions list orders
pulsemark subscriptions create orders billing --at earliest
pulsemark subscriptions reset orders billing -15m
pulsemark subscriptions reset orders billing earliest
pulsemark subscriptions skip orders billing
pulsemark subscriptions delete orders billing
pulsemark namespaces list
pulsemark namespaces create acme/orders
pulsemark namespaces delete acme/orders
pulsemark schemas show orders
pulsemark schemas upload orders --type AVRO --file order.avsc
pulsemark schemas delete orders
pulsemark stats
pulsemark stats orders --interval 2
pulsemark stats --namespace acme/orders --json
pulsemark produce orders --message paid --key 42 --property shop=north
tail -f app.log | pulsemark produce logs
pulsemark consume orders --subscription billing --num-messages 10
pulsemark consume orders --peek --from earliest
pulsemark perf produce orders --rate 1000 --size 1024 --time 30
pulsemark perf consume orders --subscription load --num-messages 100000
pulsemark perf seek orders --rate 20 --num-messages 200
pulsemark policies show orders
pulsemark policies get orders retention --applied
pulsemark policies set public/default retention --time 60 --size 512
pulsemark policies set orders brokerEntryMetadata --stampers broker-time,index,producer
pulsemark policies set orders maxProducersPerTopic --value 10
pulsemark policies unset orders retention
pulsemark control append orders checkpoint 17 --url 127.0.0.1:6680 --token-file t
pulsemark control list orders
pulsemark control epochs orders
pulsemark seek orders -15m
pulsemark seek orders 2026-03-01T10:00:00Z --data-dir /var/lib/pulsemark --json
pulsemark seek orders 14:05 --url 127.0.0.1:6680
pulsemark dump orders --limit 10
pulsemark dump orders --from-time -10m --payload
pulsemark dump pulsemark-data --json
pulsemark dump pulsemark-data/ledgers/0000000000000001-00000000.log
pulsemark verify
pulsemark verify /var/lib/pulsemark
pulsemark verify orders --data-dir /var/lib/pulsemark --json
pulsemark rebuild-catalog --data-dir /var/lib/pulsemark
pulsemark backup /backups/2026-03-01 --data-dir /var/lib/pulsemark
pulsemark backup /backups/2026-03-01 --verify
pulsemark restore /backups/2026-03-01 --data-dir /var/lib/pulsemark
pulsemark retain --dry-run
pulsemark retain orders --url http://127.0.0.1:8080
pulsemark retain --data-dir /var/lib/pulsemark --config broker.conf
pulsemark mirror pulsar://127.0.0.1:6650 backup --topics orders --once --verify
pulsemark mirror pulsemark-data copied --topics orders --once
pulsemark follow grpc://leader:6680 --data-dir pulsemark-data --metrics-port 9100
pulsemark follow /mnt/leader --data-dir copied --topics orders --once
pulsemark promote --data-dir pulsemark-data
pulsemark finder serve --data-dir pulsemark-data --port 6680
pulsemark token create-secret-key --output secret.key
pulsemark token create --secret-key secret.key --subject ann --expiry-time 30d
pulsemark token show --token-file ann.token
pulsemark token validate --secret-key secret.key --token-file ann.token
pulsemark audit orders --by producer --from -1h
pulsemark audit --data-dir pulsemark-data --bucket '1 hour'
pulsemark audit compare orders --tier billing
pulsemark pipeline audit --data-dir pulsemark-data --topic orders --by producer
pulsemark pipeline offload lake --data-dir pulsemark-data --format delta
pulsemark pipeline audit --data-dir pulsemark-data --by producer --clock-errors
pulsemark config check broker.conf
pulsemark config check pulsemark.toml --json
pulsemark config show --config pulsemark.toml
pulsemark completion bash > ~/.local/share/bash-completion/completions/pulsemark
pulsemark completion zsh > ~/.zfunc/_pulsemark
pulsemark completion fish > ~/.config/fish/completions/pulsemark.fish
""".splitlines():
    EXAMPLES.setdefault(_line.rpartition("| ")[2].split()[1], []).append(_line)


def closest(text: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the closest known word; "" if none is close."""
    import difflib

    known = list(known)
    if text in ADDRESSES:
        there = next((each for each in ADDRESSES if each in known), None)
        return f"; this command has {there} for the broker's address" if there else ""
    near = difflib.get_close_matches(text, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises CliError, in one line."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault(
            "formatter_class", partial(argparse.RawDescriptionHelpFormatter, width=78)
        )
        super().__init__(**settings)

    def error(self, message: str) -> NoReturn:
        """Raise CliError, with this parser's help page."""
        # A value such as -1 has a space before it, so that argparse takes it for no option.
        shown = message.replace("' -", "'-")
        raise CliError(f"{shown} (see {self.prog} --help)")

    def format_help(self) -> str:
        """The help page, with the examples of this command or action at its end."""
        name = self.prog.partition(" ")[2]
        shown = EXAMPLES.get(name.partition(" ")[0], [])
        mine = [line for line in shown if f"pulsemark {name}" in line] or shown
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
        """The first long option that this parser does not know, of those that it reads itself."""
        kinds = [action.nargs for action in self._actions]
        if argparse.REMAINDER in kinds:
            return None
        known = self._known_options()
        for text in args:
            name = text.partition("=")[0]
            if text == "--" or (argparse.PARSER in kinds and not text.startswith("-")):
                return None
            if text.startswith("--") and not any(each.startswith(name) for each in known):
                return name
        return None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(each) for each in action.choices]
            near = closest(str(value), known) or f"; choose from {', '.join(known)}"
            raise argparse.ArgumentError(action, f"there is no {value!r}{near}")


SHELLS = ("bash", "zsh", "fish")
#: Placeholders of arguments that are files or folders.
PATH_NAMES = ("PATH", "FILE", "DIR", "FOLDER", "DATA_DIR", "BACKUP")


def _add_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def _complete(args: argparse.Namespace) -> int:
    """Print the script that shtab makes. It calls nothing while the user types."""
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


COMMANDS = {"completion": Command((), _add_completion, _complete)}
