"""Finds files in a data folder that are not needed, or not known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ..ledger.local.io.files import Files
from ..ledger.local.io.folder import (
    CATALOG_NAME,
    LOCK_NAME,
    MARKER_NAME,
    NEW_CATALOG_NAME,
    PROBE_NAME,
    RESERVE_NAME,
    journal_folder,
    ledgers_folder,
)
from .finding import Finding
from .findings import ForeignFile, LeftoverFile

_ROOT_NAMES = {
    MARKER_NAME,
    LOCK_NAME,
    CATALOG_NAME,
    CATALOG_NAME + "-wal",
    CATALOG_NAME + "-shm",
    RESERVE_NAME,
    "ledgers",
    "journal",
    "lost+found",
}
_OLD_CATALOG = re.compile(re.escape(CATALOG_NAME) + r"\.old-\d+(-wal|-shm)?")
_SEGMENT_FILE = re.compile(r"([0-9a-f]{16}-[0-9a-f]{8})\.(log|idx|cut)")
_JOURNAL_FILE = re.compile(r"[0-9a-f]{8}\.journal")
_UNFINISHED = "a file that was being written when its process ended"


def stray_files(files: Files, folder: Path) -> Iterator[Finding]:
    """The files that have no use. A file that is gone by now was in use a moment ago."""
    for finding in [
        *_in_root(files, folder),
        *_in_ledgers(files, folder),
        *_in_journal(files, folder),
    ]:
        if isinstance(finding.path, Path) and files.exists(finding.path):
            yield finding


def _in_root(files: Files, folder: Path) -> Iterator[Finding]:
    for name in sorted(set(_names(files, folder)) - _ROOT_NAMES):
        if _OLD_CATALOG.fullmatch(name):
            yield LeftoverFile(path=folder / name, reason="a catalog that was replaced")
        elif name.removesuffix("-wal").removesuffix("-shm") == NEW_CATALOG_NAME:
            yield LeftoverFile(path=folder / name, reason=_UNFINISHED)
        elif name == PROBE_NAME:
            yield LeftoverFile(path=folder / name, reason="a test file of a process that ended")
        else:
            yield _unknown(folder / name, MARKER_NAME + ".new")


def _in_ledgers(files: Files, folder: Path) -> Iterator[Finding]:
    parent = ledgers_folder(folder)
    names = set(_names(files, parent))
    for name in sorted(names):
        match = _SEGMENT_FILE.fullmatch(name)
        if match is None:
            stem = _SEGMENT_FILE.fullmatch(name.removesuffix(".new"))
            yield _unknown(parent / name, name if stem else "")
        elif f"{match[1]}.log" not in names:
            yield LeftoverFile(path=parent / name, reason="its segment does not exist")


def _in_journal(files: Files, folder: Path) -> Iterator[Finding]:
    parent = journal_folder(folder)
    for name in sorted(_names(files, parent)):
        if not _JOURNAL_FILE.fullmatch(name):
            yield ForeignFile(path=parent / name)


def _unknown(path: Path, unfinished: str) -> Finding:
    if path.name == unfinished:
        return LeftoverFile(path=path, reason=_UNFINISHED)
    return ForeignFile(path=path)


def _names(files: Files, folder: Path) -> list[str]:
    try:
        return files.listdir(folder)
    except FileNotFoundError:
        return []
