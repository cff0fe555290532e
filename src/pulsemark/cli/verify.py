"""`pulsemark verify` says what is wrong in a data folder, `rebuild-catalog` repairs its catalog.

`verify` changes nothing and takes no lock, so a folder in use can be verified too. It prints one
line for each finding, then a summary. The exit code is 1 if something is damaged. Leftovers of a
crash and notes do not change it.

`rebuild-catalog` makes the catalog again from the segments, when a folder cannot be opened because
its catalog is damaged. The folder must not be in use. The old catalog is kept next to the new one.
Everything in it that can still be read is copied.
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ..ledger import LedgerError
from ..maintenance.findings import Finding, Severity
from ..maintenance.rebuild import RebuiltCatalog, rebuild_catalog
from ..maintenance.verify import sizes_of_topics, verify_folder
from ..maintenance.verify_topic import Checked
from .options import DEFAULT_DATA_DIR, add_data_dir, add_json, full_topic
from .output import Progress, counted, json_line
from .parsing import CliError, Command
from .stores import add_store, data_dir_of, open_store_reader, partitions_among


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="DATA_DIR|TOPIC",
        help="a data folder, or topics of --data-dir (default: all of it)",
    )
    add_data_dir(parser, why="folder that the topics are in")
    add_store(parser)
    add_json(parser)


def _verify(args: argparse.Namespace) -> int:
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


def _add_rebuild(parser: argparse.ArgumentParser) -> None:
    place = parser.add_mutually_exclusive_group()
    place.add_argument("folder", nargs="?", type=Path, metavar="DATA_DIR", help="as --data-dir")
    add_data_dir(place, why="a folder not in use")
    add_json(parser)


def _rebuild(args: argparse.Namespace) -> int:
    """Rebuild the catalog and print what was found."""
    logging.getLogger("pulsemark.ledger").addHandler(logging.NullHandler())
    rebuilt = rebuild_catalog(args.folder or args.data_dir or DEFAULT_DATA_DIR)
    print(_rebuilt_json(rebuilt) if args.json else _rebuilt_text(rebuilt))
    return 0


def _rebuilt_json(rebuilt: RebuiltCatalog) -> str:
    return json_line(
        {
            "folder": str(rebuilt.folder),
            "moved_to": str(rebuilt.moved_to) if rebuilt.moved_to else None,
            "topics": rebuilt.topics,
            "segments": rebuilt.segments,
            "kept_topics": rebuilt.kept_topics,
            "kept_properties": rebuilt.kept_properties,
            "all_kept": rebuilt.all_kept,
        }
    )


def _rebuilt_text(rebuilt: RebuiltCatalog) -> str:
    found = f"{counted(rebuilt.topics, 'topic')} with {counted(rebuilt.segments, 'segment')}"
    lines = [f"found {found} from segment files"]
    if rebuilt.moved_to is not None:
        lines += [
            f"the old catalog is now {rebuilt.moved_to}",
            f"topics without entries read from it: {rebuilt.kept_topics}",
            f"namespaces, schemas and the like read from it: {rebuilt.kept_properties}",
        ]
    if not rebuilt.all_kept:
        lines.append(
            "lost: everything that only the old catalog held and that could not be read: "
            "namespaces, policies, schemas, partitioned topics, topics without entries"
        )
    return "\n".join(lines)


ERRORS = (LedgerError, OSError)
COMMANDS = {
    "verify": Command(ERRORS, _add_verify, _verify),
    "rebuild-catalog": Command(ERRORS, _add_rebuild, _rebuild),
}
