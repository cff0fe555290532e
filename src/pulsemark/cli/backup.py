"""`pulsemark backup DIR` copies a data folder, and `pulsemark restore DIR` makes one of the copy.

    pulsemark backup /backups/2026-03-01 --data-dir /var/lib/pulsemark
    pulsemark backup /backups/2026-03-01 --verify
    pulsemark restore /backups/2026-03-01 --data-dir /var/lib/pulsemark

A broker may write to the folder meanwhile: the backup holds all that was acknowledged before the
command began. docs/operations.md explains what a backup of a folder in use is.

The target of both must not exist, or be empty: to go back to a backup, move the old folder away
first. It appears when all of it is on the disk. `restore` checks each file against its checksum.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from ..ledger import LedgerError
from ..maintenance.backup import BackupReport, back_up, read_manifest, restore
from .options import DEFAULT_DATA_DIR, add_data_dir, add_json, show_time
from .output import ByteCount, Progress, counted, json_line, size_text
from .parsing import CliError, Command


def _add_backup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", type=Path, metavar="DIR", help="the backup: a new folder")
    add_data_dir(parser, why="folder to copy; a broker may be using it")
    parser.add_argument(
        "--verify", action="store_true", help="read the whole backup afterwards, as `verify` does"
    )
    add_json(parser)


def _back_up(args: argparse.Namespace) -> int:
    """Make the backup; 1 if `--verify` finds damage in it."""
    logging.getLogger("pulsemark.ledger").addHandler(logging.NullHandler())
    folder = args.data_dir or DEFAULT_DATA_DIR
    if not folder.is_dir():
        raise CliError(f"{folder} is not a folder: name the one to copy with --data-dir")
    copied = ByteCount()
    with Progress(f"copying {folder}", lambda: copied.size_bytes, total=lambda: _size(folder)):
        report = back_up(folder, args.target, progress=copied.add)
    damages = _damages(args.target) if args.verify else None
    print(_as_json(report, damages) if args.json else _as_text(report, damages))
    return 1 if damages else 0


def _size(folder: Path) -> int:
    """Of the segments, which are nearly all of it."""
    return sum(path.stat().st_size for path in folder.glob("ledgers/*.log"))


def _damages(target: Path) -> list[str]:
    from ..maintenance.findings import Severity
    from ..maintenance.verify import verify_folder
    from ..maintenance.verify_topic import Checked

    checked = Checked()
    with Progress(f"reading {target}", lambda: checked.size_bytes, total=lambda: _size(target)):
        found = list(verify_folder(target, checked=checked))
    return [str(each) for each in found if each.severity is Severity.DAMAGE]


def _as_json(report: BackupReport, damages: list[str] | None) -> str:
    return json_line(
        {
            "source": str(report.source),
            "target": str(report.target),
            "was_in_use": report.was_in_use,
            "topics": report.topics,
            "segments": report.segments,
            "size_bytes": report.size_bytes,
            "passes": report.passes,
            "damages": damages,
        }
    )


def _as_text(report: BackupReport, damages: list[str] | None) -> str:
    state = "in use" if report.was_in_use else "not in use"
    figures = f"{counted(report.topics, 'topic')}, {counted(report.segments, 'segment')}"
    figures += f", {size_text(report.size_bytes)}"
    lines = [f"backed up {report.source} ({state}) to {report.target}: {figures}"]
    if damages is not None:
        lines.append(f"verified: {len(damages):,} damages" if damages else "verified: clean")
        lines += damages
    return "\n".join(lines)


def _add_restore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "backup", type=Path, metavar="BACKUP", help="a folder that `pulsemark backup` made"
    )
    add_data_dir(parser, why="the data folder to make; it must not exist, or be empty")
    add_json(parser)


def _restore(args: argparse.Namespace) -> int:
    """Make the data folder."""
    target = args.data_dir or DEFAULT_DATA_DIR
    copied, whole = ByteCount(), read_manifest(args.backup).size_bytes
    with Progress(f"copying {args.backup}", lambda: copied.size_bytes, total=lambda: whole):
        report = restore(args.backup, target, progress=copied.add)
    if args.json:
        fields = {
            "backup": str(report.backup),
            "target": str(report.target),
            "made_at_ms": report.made_at_ms,
            "files": report.files,
            "size_bytes": report.size_bytes,
        }
        print(json_line(fields))
    else:
        print(
            f"restored {report.target} as it was at {show_time(report.made_at_ms)}:"
            f" {report.files:,} files, {size_text(report.size_bytes)}"
        )
    return 0


ERRORS = (LedgerError, OSError)
COMMANDS = {
    "backup": Command(ERRORS, _add_backup, _back_up),
    "restore": Command(ERRORS, _add_restore, _restore),
}
