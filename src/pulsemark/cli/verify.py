"""Maintenance of a data folder: `pulsemark verify`, `rebuild-catalog`, `backup` and `restore`.

`verify` changes nothing and takes no lock, so a folder in use can be verified too. It prints one
line for each finding, then a summary. The exit code is 1 if something is damaged. Leftovers of a
crash and notes do not change it.

`rebuild-catalog` makes the catalog again from the segments, when a folder cannot be opened because
its catalog is damaged. The folder must not be in use. The old catalog is kept next to the new one.
Everything in it that can still be read is copied.

`backup` copies a folder. A broker may write to it meanwhile: the backup holds all that was
acknowledged before the command began (docs/operations.md). `restore` makes a folder of the copy,
and checks each file against its checksum. The target of both must not exist, or be empty: to go
back to a backup, move the old folder away first. The target appears when all of it is on the disk.
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from ..ledger import LedgerError
from ..maintenance.backup import BackupReport, back_up, read_manifest, restore
from ..maintenance.findings import Finding, Severity
from ..maintenance.rebuild import RebuiltCatalog, rebuild_catalog
from ..maintenance.verify import sizes_of_topics, verify_folder
from ..maintenance.verify_topic import Checked
from .options import DEFAULT_DATA_DIR, IN_DATA_DIR, JSON, declared, full_topic, show_time
from .output import ByteCount, Progress, counted, json_line, size_text
from .parsing import CliError, Command
from .stores import STORE, data_dir_of, open_store_reader, partitions_among


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
    if args.json:
        counts = {f"{severity.name.lower()}_count": count[severity] for severity in Severity}
        print(json_line({"kind": "Summary", **asdict(checked), **counts}))
    else:
        print(_as_text(checked, count))
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
    """The folder and the topics to verify; None means all."""
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


def _rebuild(args: argparse.Namespace) -> int:
    """Rebuild the catalog and print what was found."""
    logging.getLogger("pulsemark.ledger").addHandler(logging.NullHandler())
    rebuilt = rebuild_catalog(args.folder or args.data_dir or DEFAULT_DATA_DIR)
    print(json_line(asdict(rebuilt)) if args.json else _rebuilt_text(rebuilt))
    return 0


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


# -- backups ---------------------------------------------------------------------------------------


def _back_up(args: argparse.Namespace) -> int:
    """Make the backup. Return 1 if `--verify` finds damage in it."""
    logging.getLogger("pulsemark.ledger").addHandler(logging.NullHandler())
    folder = args.data_dir or DEFAULT_DATA_DIR
    if not folder.is_dir():
        raise CliError(f"{folder} is not a folder: name the one to copy with --data-dir")
    copied = ByteCount()
    with Progress(f"copying {folder}", lambda: copied.size_bytes, total=lambda: _stored(folder)):
        report = back_up(folder, args.target, progress=copied.add)
    damages = _damages(args.target) if args.verify else None
    if args.json:
        print(json_line({**asdict(report), "damages": damages}))
    else:
        print(_backup_text(report, damages))
    return 1 if damages else 0


def _stored(folder: Path) -> int:
    """The bytes of the segments, which are nearly all of a folder."""
    return sum(path.stat().st_size for path in folder.glob("ledgers/*.log"))


def _damages(target: Path) -> list[str]:
    checked = Checked()
    with Progress(f"reading {target}", lambda: checked.size_bytes, total=lambda: _stored(target)):
        found = list(verify_folder(target, checked=checked))
    return [str(each) for each in found if each.severity is Severity.DAMAGE]


def _backup_text(report: BackupReport, damages: list[str] | None) -> str:
    state = "in use" if report.was_in_use else "not in use"
    figures = f"{counted(report.topics, 'topic')}, {counted(report.segments, 'segment')}"
    figures += f", {size_text(report.size_bytes)}"
    lines = [f"backed up {report.source} ({state}) to {report.target}: {figures}"]
    if damages is not None:
        lines.append(f"verified: {len(damages):,} damages" if damages else "verified: clean")
        lines += damages
    return "\n".join(lines)


def _restore(args: argparse.Namespace) -> int:
    """Make the data folder."""
    target = args.data_dir or DEFAULT_DATA_DIR
    copied, whole = ByteCount(), read_manifest(args.backup).size_bytes
    with Progress(f"copying {args.backup}", lambda: copied.size_bytes, total=lambda: whole):
        report = restore(args.backup, target, progress=copied.add)
    if args.json:
        print(json_line(asdict(report)))
    else:
        print(
            f"restored {report.target} as it was at {show_time(report.made_at_ms)}:"
            f" {report.files:,} files, {size_text(report.size_bytes)}"
        )
    return 0


ERRORS = (LedgerError, OSError)
_BACKUP = declared(f"""
target DIR  the backup: a new folder
--data-dir PATH  folder to copy; a broker may be using it {IN_DATA_DIR}
--verify  read the whole backup afterwards, as `verify` does
{JSON}""")
_RESTORE = declared(f"""
backup BACKUP  a folder that `pulsemark backup` made
--data-dir PATH  the data folder to make; it must not exist, or be empty {IN_DATA_DIR}
{JSON}""")
_VERIFY = declared(f"""
targets DATA_DIR|TOPIC*  a data folder, or topics of --data-dir (default: all of it)
--data-dir PATH  folder that the topics are in {IN_DATA_DIR}
{STORE}{JSON}""")
_REBUILD = declared(f"""
either:
folder DATA_DIR?  as --data-dir
--data-dir PATH  a folder not in use {IN_DATA_DIR}
and:
{JSON}""")
COMMANDS = {
    "backup": Command(ERRORS, _BACKUP, _back_up),
    "restore": Command(ERRORS, _RESTORE, _restore),
    "verify": Command(ERRORS, _VERIFY, _verify),
    "rebuild-catalog": Command(ERRORS, _REBUILD, _rebuild),
}
