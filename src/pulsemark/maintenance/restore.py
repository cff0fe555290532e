"""Making a data folder of a backup (`backup`).

Every file is checked against the list in ``BACKUP.json`` while it is copied. The new folder appears
when it is complete and on the disk. Ids of new ledgers begin above all that the backed-up folder
may have given after the backup: so a position that a client still knows never means another entry.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ..ledger.local.catalog import Catalog
from ..ledger.local.io.files import OsFiles
from ..ledger.local.io.folder import CATALOG_NAME, check_marker, journal_folder, ledgers_folder
from ..ledger.local.recovery import LEDGER_IDS_SKIPPED
from .backup_files import BackupDamagedError, ListedFile, Progress, copy_whole, read_manifest
from .staging import TargetError, fill_at_once, sync_file

__all__ = ["RestoreReport", "restore"]


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The result of `restore`."""

    backup: Path
    target: Path
    made_at_ms: int
    files: int
    size_bytes: int


def restore(backup: Path, target: Path, *, progress: Progress = lambda _: None) -> RestoreReport:
    """Make ``target`` a data folder with what a backup has. Blocks.

    Raises BackupDamagedError: it is no finished backup, or a file is not as it was made;
    ForeignFolderError, UnsupportedVersionError: a newer version made it; TargetError: the target
    has something in it; CatalogError, OSError. Then there is no target.
    """
    manifest = read_manifest(backup)
    check_marker(OsFiles(), backup)
    if target.absolute().resolve().is_relative_to(backup.resolve()):
        raise TargetError(target, f"it is inside of the backup {backup}")
    with fill_at_once(target) as staging:
        ledgers_folder(staging).mkdir()
        journal_folder(staging).mkdir()
        for each in manifest.files:
            _copy_checked(backup, staging, each, progress)
        if (staging / CATALOG_NAME).exists():
            with closing(Catalog(staging / CATALOG_NAME)) as catalog:
                catalog.reserve_ledger_ids(LEDGER_IDS_SKIPPED)
        for path in staging.rglob("*"):
            if path.is_file():
                sync_file(path)
    return RestoreReport(
        backup, target, manifest.made_at_ms, len(manifest.files), manifest.size_bytes
    )


def _copy_checked(backup: Path, staging: Path, each: ListedFile, progress: Progress) -> None:
    source = backup / each.path
    try:
        copy = copy_whole(source, staging / each.path, progress)
    except FileNotFoundError:
        raise BackupDamagedError(source, "the file is missing") from None
    if copy.size_bytes != each.size_bytes:
        reason = f"it has {copy.size_bytes} bytes; {each.size_bytes} were backed up"
        raise BackupDamagedError(source, reason)
    if f"{copy.crc:08x}" != each.crc32c:
        raise BackupDamagedError(source, "its content is not what was backed up (CRC32C)")
