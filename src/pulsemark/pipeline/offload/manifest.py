"""The manifest of an offload: which files count, and which messages each of them has.

The target folder looks like this; Spark and others read it as a table that is partitioned by topic
and hour, and skip names that begin with an underscore:

    topic=<topic, percent-encoded>/hour=2026-03-01T14/<first index>-<end index>.parquet
    _pulsemark/manifest-000001.json ...

Each run that copied something adds one manifest. A file counts if a manifest lists it. It is
written in whole, synced and renamed before that, so a killed run leaves no half of a file under its
name.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from ...metadata import crc32c
from ..durable_files import write_durably
from ..errors import OptionError

MANIFEST_FOLDER = "_pulsemark"
VERSION = 1
HOUR_MS = 3_600_000
_READ_BYTES = 4 << 20

_MANIFEST_NAME = re.compile(r"manifest-([0-9]{6,})\.json")


@dataclass(frozen=True, slots=True)
class OffloadedFile:
    """One file: messages ``[first_index, end_index)`` of a topic."""

    path: str
    """Relative to the target folder."""
    topic: str
    log_id: int
    """The id of the topic's log: a topic that is created again has another one."""
    hour_ms: int
    """The hour of the entries' broker times, in ms since the epoch."""
    first_index: int
    end_index: int
    rows: int
    """Messages; fewer than indexes if the range has control entries."""
    size_bytes: int
    crc32c: int
    """Of the file's bytes."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """All files of a target that count, and the columns that they have."""

    columns: tuple[str, ...]
    files: tuple[OffloadedFile, ...]
    runs: int
    """How many runs have copied something."""

    def next_index(self, topic: str, log_id: int) -> int | None:
        """The first message that is not copied yet; None: nothing of this log is."""
        ends = (f.end_index for f in self.files if (f.topic, f.log_id) == (topic, log_id))
        return max(ends, default=None)


def file_name(topic: str, log_id: int, hour_ms: int, first_index: int, end_index: int) -> str:
    """The path of a file, relative to the target folder."""
    hour = datetime.fromtimestamp(hour_ms / 1000, UTC).strftime("%Y-%m-%dT%H")
    name = f"{log_id}-{first_index:020d}-{end_index:020d}.parquet"
    return f"topic={quote(topic, safe='')}/hour={hour}/{name}"


def load_manifest(target: Path) -> Manifest:
    """The manifests of a target folder; an empty one if it has none.

    Raises:
        OptionError: a manifest is damaged, of a newer version, or one of them is missing.
    """
    files: list[OffloadedFile] = []
    columns: tuple[str, ...] = ()
    paths = _manifest_paths(target)
    for number, path in enumerate(paths, start=1):
        if int(_MANIFEST_NAME.fullmatch(path.name)[1]) != number:  # type: ignore[index]
            raise OptionError("target", str(target), f"manifest {number} is missing")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            version = content["version"]
            if version != VERSION:
                reason = f"{path.name} has version {version!r}; this program knows {VERSION}"
                raise OptionError("target", str(target), reason)
            files += [OffloadedFile(**each) for each in content["files"]]
            columns = tuple(content["columns"])
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, OptionError):
                raise
            raise OptionError("target", str(target), f"{path.name} is damaged: {error}") from error
    return Manifest(columns, tuple(files), len(paths))


def _manifest_paths(target: Path) -> list[Path]:
    try:
        paths = list((target / MANIFEST_FOLDER).iterdir())
    except FileNotFoundError:
        return []
    return sorted(path for path in paths if _MANIFEST_NAME.fullmatch(path.name))


def add_manifest(
    target: Path, manifest: Manifest, columns: Sequence[str], files: Iterable[OffloadedFile]
) -> None:
    """Let files count, all of them or none; durable when it returns."""
    content = {"version": VERSION, "columns": list(columns), "files": [asdict(f) for f in files]}
    path = target / MANIFEST_FOLDER / f"manifest-{manifest.runs + 1:06d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, json.dumps(content, indent=1).encode())


def file_checksum(path: Path) -> tuple[int, int]:
    """The size in bytes and the CRC-32C of a file, as they are on the disk now."""
    size = checksum = 0
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            size += len(data)
            checksum = crc32c(data, checksum)
    return size, checksum


@contextlib.contextmanager
def target_lock(target: Path) -> Iterator[None]:
    """Only one run at a time writes to a target. Raises OptionError if another one does."""
    folder = target / MANIFEST_FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        reason = f"cannot be written: {error.strerror}"
        raise OptionError("target", str(target), reason) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise OptionError("target", str(target), "another offload is writing to it") from error
    try:
        yield
    finally:
        os.close(fd)


def remove_strays(target: Path, kept: Mapping[str, object]) -> int:
    """Remove files of killed runs: those that are not listed and will not be written again."""
    removed = 0
    for path in target.glob("topic=*/hour=*/*"):
        if path.relative_to(target).as_posix() not in kept:
            path.unlink()
            removed += 1
    return removed
