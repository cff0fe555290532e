"""The files of a backup: copied with their checksums, and listed in ``BACKUP.json``.

``BACKUP.json`` is one JSON object, UTF-8: ``what`` ("pulsemark backup"), ``version`` (1),
``made_at_ms``, ``source`` (the folder's path), and ``files``: path, size_bytes and crc32c (8 hex
digits) of every other file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..ledger.errors import LedgerError, UnsupportedVersionError
from ..metadata.crc import crc32c

__all__ = ["MANIFEST_NAME", "BackupDamagedError", "Copy", "Manifest", "copy_whole", "read_manifest"]

MANIFEST_NAME = "BACKUP.json"
MANIFEST_VERSION = 1
_WHAT = "pulsemark backup"
_CHUNK_BYTES = 1 << 20
_ZEROS = bytes(_CHUNK_BYTES)

Progress = Callable[[int], None]
"""Called with the number of bytes that were copied since the last call."""


class BackupDamagedError(LedgerError):
    """A folder is not a finished backup, or one of its files is not as it was made.

    `path` is the file or folder, `reason` says what is wrong.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


@dataclass(slots=True)
class Copy:
    """A file's copy, which grows as the file does: only what was added is copied again."""

    source: Path
    target: Path
    size_bytes: int = 0
    crc: int = 0

    def extend(self, progress: Progress) -> None:
        """Copy what the file has by now. Raises FileNotFoundError, OSError."""
        with self.source.open("rb") as source:
            size = os.fstat(source.fileno()).st_size
            if size < self.size_bytes:  # recovery cut off what was not synced
                self.size_bytes = self.crc = 0
            if size == self.size_bytes and self.target.exists():
                return
            with self.target.open("r+b" if self.size_bytes else "wb") as target:
                self._append(source, target, size, progress)

    def _append(self, source: Any, target: Any, size: int, progress: Progress) -> None:
        source.seek(self.size_bytes)
        target.seek(self.size_bytes)
        while self.size_bytes < size:
            chunk = source.read(min(_CHUNK_BYTES, size - self.size_bytes))
            if not chunk:
                break
            if chunk == _ZEROS:  # a hole, or as good as one
                target.seek(len(chunk), os.SEEK_CUR)
            else:
                target.write(chunk)
            self.crc = crc32c(chunk, self.crc)
            self.size_bytes += len(chunk)
            progress(len(chunk))
        target.truncate(self.size_bytes)


def copy_whole(source: Path, target: Path, progress: Progress) -> Copy:
    """Copy a file that does not change. Raises OSError."""
    copy = Copy(source, target)
    copy.extend(progress)
    return copy


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a backup; its path is relative to the backup."""

    path: str
    size_bytes: int
    crc32c: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a finished backup consists of."""

    made_at_ms: int
    source: str
    files: tuple[ListedFile, ...]

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(each.size_bytes for each in self.files)

    def write(self, folder: Path) -> None:
        """Write it, durably but for its name. Raises OSError."""
        fields = {"what": _WHAT, "version": MANIFEST_VERSION, **asdict(self)}
        with (folder / MANIFEST_NAME).open("w", encoding="utf-8") as file:
            json.dump(fields, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())


def listed(folder: Path, copies: Iterable[Copy]) -> tuple[ListedFile, ...]:
    """What the manifest says of these copies, sorted by path."""
    files = (
        ListedFile(str(each.target.relative_to(folder)), each.size_bytes, f"{each.crc:08x}")
        for each in copies
    )
    return tuple(sorted(files, key=lambda file: file.path))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a backup.

    Raises BackupDamagedError, UnsupportedVersionError, OSError.
    """
    path = folder / MANIFEST_NAME
    try:
        fields = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        reason = "it does not exist" if not folder.exists() else f"it has no {MANIFEST_NAME}"
        raise BackupDamagedError(folder, f"this is not a finished backup: {reason}") from None
    except ValueError as error:
        raise BackupDamagedError(path, f"it is not JSON: {error}") from error
    try:
        if fields["what"] != _WHAT:
            raise BackupDamagedError(path, "it is not of a pulsemark backup")
        if fields["version"] > MANIFEST_VERSION:
            raise UnsupportedVersionError(
                path, "backup version", fields["version"], MANIFEST_VERSION
            )
        files = tuple(ListedFile(**each) for each in fields["files"])
        for each in files:
            _check_path(each.path)
        return Manifest(int(fields["made_at_ms"]), str(fields["source"]), files)
    except (LookupError, TypeError, ValueError) as error:
        raise BackupDamagedError(path, f"a field is missing or wrong: {error}") from error


def _check_path(text: str) -> None:
    path = Path(text)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"the path {text} leaves the backup")
