"""`pulsemark verify DATA_DIR|TOPIC...`: read a whole data folder and report what is wrong.

Nothing is changed and no lock is taken, so a folder in use can be verified too. The command prints
one line for each finding, then a summary. The exit code is 1 if something is damaged. Leftovers of
a crash and notes do not change it.
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ..ledger import LedgerError
from ..maintenance.finding import Finding, Severity
from ..maintenance.verify import Checked, verify_folder
from .errors import CliError
from .options import DEFAULT_DATA_DIR, add_data_dir, add_json, full_topic, json_line
from .stores import add_store, open_store_reader

ERRORS = (LedgerError, OSError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="DATA_DIR|TOPIC",
        help="a data folder; with --data-dir, topics of that folder (default: all)",
    )
    add_data_dir(parser, why="folder that the topics are in")
    add_store(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the findings. Returns 1 if something is damaged."""
    # The findings already contain everything that the store would log.
    logging.getLogger("pulsemark.ledger").addHandler(logging.NullHandler())
    checked = Checked()
    count: Counter[Severity] = Counter()
    for finding in _findings(args, checked):
        count[finding.severity] += 1
        print(json_line(finding.facts()) if args.json else finding)
    print(_as_json(checked, count) if args.json else _as_text(checked, count))
    return 1 if count[Severity.DAMAGE] else 0


def _findings(args: argparse.Namespace, checked: Checked) -> Iterator[Finding]:
    if args.store is None:
        folder, topics = _what(args)
        yield from verify_folder(folder, topics=topics, checked=checked)
        return
    from ..maintenance.verify_store import verify_logs

    if args.data_dir is not None:
        raise CliError("--data-dir and --store are two places: give one of them")
    with open_store_reader(args.store) as reader:
        names = [full_topic(text) for text in args.targets] or reader.topics()
        yield from verify_logs(map(reader.log, names), Path(args.store), checked)


def _what(args: argparse.Namespace) -> tuple[Path, list[str] | None]:
    """The folder, and the topics to verify; None means all."""
    if args.data_dir is not None:
        return args.data_dir, [full_topic(text) for text in args.targets] or None
    if len(args.targets) > 1:
        raise CliError("more than one folder was given (to name topics, add --data-dir)")
    folder = Path(args.targets[0]) if args.targets else DEFAULT_DATA_DIR
    if not folder.is_dir():
        raise CliError(f"{folder} is not a folder (to name a topic, add --data-dir)")
    return folder, None


def _as_json(checked: Checked, count: Counter[Severity]) -> str:
    return json_line(
        {
            "kind": "Summary",
            "topics": checked.topics,
            "segments": checked.segments,
            "entries": checked.entries,
            "messages": checked.messages,
            "control_entries": checked.control_entries,
            "size_bytes": checked.size_bytes,
            **{f"{severity.name.lower()}_count": count[severity] for severity in Severity},
        }
    )


def _as_text(checked: Checked, count: Counter[Severity]) -> str:
    found = [
        f"{count[severity]} {word if count[severity] == 1 else words}"
        for severity, word, words in (
            (Severity.DAMAGE, "damage", "damages"),
            (Severity.LEFTOVER, "leftover", "leftovers"),
            (Severity.NOTE, "note", "notes"),
        )
        if count[severity]
    ]
    control = f"{checked.control_entries} control entries, " if checked.control_entries else ""
    return (
        f"{checked.topics} topics, {checked.segments} segments, {checked.entries} entries, "
        f"{checked.messages} messages, {control}{checked.size_bytes} bytes: "
        f"{', '.join(found) or 'clean'}"
    )
