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
from ..maintenance.findings import Finding, Severity
from ..maintenance.verify import sizes_of_topics, verify_folder
from ..maintenance.verify_topic import Checked
from .errors import CliError
from .options import DEFAULT_DATA_DIR, add_data_dir, add_json, counted, full_topic, json_line
from .progress import Progress
from .stores import add_store, data_dir_of, open_store_reader, partitions_among

ERRORS = (LedgerError, OSError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="DATA_DIR|TOPIC",
        help="a data folder, or topics of --data-dir (default: all of it)",
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
    folder, topics = (None, None) if args.store is not None else _what(args)
    with Progress(
        "reading", lambda: checked.size_bytes, total=lambda: _size(folder, topics)
    ) as progress:
        for finding in _findings(args, folder, topics, checked):
            count[finding.severity] += 1
            progress.say(json_line(finding.facts()) if args.json else str(finding))
    print(_as_json(checked, count) if args.json else _as_text(checked, count))
    return 1 if count[Severity.DAMAGE] else 0


def _size(folder: Path | None, topics: list[str] | None) -> int | None:
    if folder is None:
        return None
    sizes = sizes_of_topics(folder)
    return sum(size for name, size in sizes.items() if topics is None or name in topics)


def _findings(
    args: argparse.Namespace, folder: Path | None, topics: list[str] | None, checked: Checked
) -> Iterator[Finding]:
    if folder is not None:
        yield from verify_folder(folder, topics=topics, checked=checked)
        return
    from ..maintenance.verify import verify_logs

    if args.data_dir is not None:
        raise CliError("--data-dir and --store are two places: give one of them")
    with open_store_reader(args.store) as reader:
        names = [full_topic(text) for text in args.targets] or reader.topics()
        yield from verify_logs(map(reader.log, names), args.store, checked)


def _what(args: argparse.Namespace) -> tuple[Path, list[str] | None]:
    """The folder, and the topics to verify; None means all."""
    folders = [text for text in args.targets if Path(text).is_dir()]
    if args.data_dir is None and folders:
        if len(args.targets) > 1:
            raise CliError(f"{folders[0]} is a folder: name one folder, or topics of --data-dir")
        return Path(folders[0]), None
    if not args.targets:
        return args.data_dir or DEFAULT_DATA_DIR, None
    folder = data_dir_of(args, args.targets[0])
    names = list(sizes_of_topics(folder))
    topics: list[str] = []
    for topic in map(full_topic, args.targets):
        topics += [topic] if topic in names else partitions_among(names, topic) or [topic]
    return folder, topics


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
        f"{counted(checked.topics, 'topic')}, {counted(checked.segments, 'segment')},"
        f" {counted(checked.entries, 'entry')}, {counted(checked.messages, 'message')},"
        f" {control}{counted(checked.size_bytes, 'byte')}: "
        f"{', '.join(found) or 'clean'}"
    )
