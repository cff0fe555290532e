"""`pulsemark restore BACKUP`: make a data folder of a backup.

    pulsemark restore /backups/2026-03-01 --data-dir /var/lib/pulsemark

The data folder must not exist, or be empty: to go back to a backup, move the old folder away first.
Each file is checked against its checksum. The folder appears when all of it is on the disk.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..ledger import LedgerError
from ..maintenance.backup import read_manifest, restore
from .options import DEFAULT_DATA_DIR, add_data_dir, add_json, json_line
from .progress import ByteCount, Progress, size_text
from .times import show_time

ERRORS = (LedgerError, OSError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "backup", type=Path, metavar="BACKUP", help="a folder that `pulsemark backup` made"
    )
    add_data_dir(parser, why="the data folder to make; it must not exist, or be empty")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
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
