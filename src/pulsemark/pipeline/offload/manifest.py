"""The manifest of an offload: which files count, and which messages each of them has.

Each run that copied something adds one manifest to the folder `_pulsemark` beside the files. It
names the manifest before it by number and checksum. So the newest one, the *head*, says which
others count and what is in them. Recording the head makes all files of the run count at once:

- In a folder of Parquet files it is the file with the highest number.
- In a Delta or Iceberg table the head is part of the table's own transaction that adds the files.
  A manifest that was written and not committed is not in the chain, and has no meaning.

A run writes the list of its files before it writes the files, and removes the list when they count.
A list that is there when a run begins is a killed run's: its files are used if the new run has the
same ones, and else removed if no manifest lists them. Only the holder of the target's lock does so;
in an object store nothing is removed, because there is no lock.

Workers of a killed run may live a little longer than their driver. They keep what they have written
to themselves when their run's list is gone.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from ...metadata import crc32c
from ..errors import OptionError
from ..marks import Mark
from .places import Place, read_bytes, write_bytes

MANIFEST_FOLDER = "_pulsemark"
VERSION = 2
"""Version 1 had no marks; such manifests are read."""
HOUR_MS = 3_600_000
LAST_HOUR_MS = 253_402_297_200_000
"""The last hour of the year 9999. What a wrong clock has stamped later is filed there."""
_CRC_BITS = 32
_NAME_MAX = 200
"""File systems take names of 255 bytes."""

_MANIFEST_NAME = re.compile(r"manifest-([0-9]{6,})-([0-9a-f]{8})\.json")


@dataclass(frozen=True, slots=True)
class OffloadedFile:
    """One file: messages ``[first_index, end_index)`` of a topic."""

    path: str
    """Relative to the place of the files."""
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
    mark: tuple[Any, ...] | None = None
    """Of the log's entry with the file's last message (`Mark.to_json`); None: an earlier version
    wrote the file, or the entry was not there."""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> OffloadedFile:
        """The file of `asdict`, through JSON. Raises TypeError, ValueError."""
        mark = Mark.from_json(values.get("mark"))
        return cls(**{**values, "mark": None if mark is None else tuple(mark.to_json())})


@dataclass(frozen=True, slots=True, order=True)
class Head:
    """The name of a manifest: its number, from 1, and the CRC-32C of its bytes."""

    number: int
    crc32c: int

    @property
    def path(self) -> str:
        """Relative to the place of the files."""
        return f"{MANIFEST_FOLDER}/manifest-{self.number:06d}-{self.crc32c:08x}.json"

    def to_int(self) -> int:
        """As one number; a later manifest has a higher one."""
        return self.number << _CRC_BITS | self.crc32c

    @classmethod
    def from_int(cls, value: int) -> Head:
        """The head of such a number."""
        return cls(value >> _CRC_BITS, value & (1 << _CRC_BITS) - 1)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All files of a target that count, and the columns that they have."""

    columns: tuple[str, ...] = ()
    files: tuple[OffloadedFile, ...] = ()
    head: Head | None = None
    """None: nothing was ever copied."""

    @property
    def runs(self) -> int:
        """How many runs have copied something."""
        return 0 if self.head is None else self.head.number

    def last_files(self) -> dict[tuple[str, int], OffloadedFile]:
        """By topic and log id: the file with the last message that is copied."""
        found: dict[tuple[str, int], OffloadedFile] = {}
        for file in self.files:
            last = found.setdefault((file.topic, file.log_id), file)
            if file.end_index > last.end_index:
                found[file.topic, file.log_id] = file
        return found

    def next_indexes(self) -> dict[tuple[str, int], int]:
        """By topic and log id: the first message that is not copied yet."""
        return {log: file.end_index for log, file in self.last_files().items()}


def file_name(topic: str, log_id: int, hour_ms: int, first_index: int, end_index: int) -> str:
    """The path of a file, relative to the place of the files."""
    hour = datetime.fromtimestamp(hour_ms / 1000, UTC).strftime("%Y-%m-%dT%H")
    name = f"{log_id}-{first_index:020d}-{end_index:020d}.parquet"
    return f"{topic_folder(topic)}/hour={hour}/{name}"


def topic_folder(topic: str) -> str:
    """The name of a topic's folder; long ones are cut, and their checksum keeps them apart."""
    name = quote(topic, safe="")
    if len(name) > _NAME_MAX:
        name = f"{name[:_NAME_MAX]}-{crc32c(topic.encode()):08x}"
    return f"topic={name}"


_newest_loaded: dict[str, Manifest] = {}
"""By place: the manifest that was loaded last, so that a follower does not read all of them again.
Its head says what is in it."""


def load_manifest(place: Place, head: Head | None) -> Manifest:
    """The manifests up to a head; an empty one if it is None.

    Raises:
        OptionError: a manifest is missing, damaged, or of a newer version.
    """
    files: list[list[OffloadedFile]] = []
    columns: tuple[str, ...] = ()
    following, known = head, _newest_loaded.get(place.uri, Manifest())
    while following is not None and following != known.head:
        content = _content(place, following)
        try:
            files.append([OffloadedFile.from_json(each) for each in content["files"]])
            columns = columns or tuple(content["columns"])
            number, previous = following.number, content["previous"]
            following = None if previous is None else Head(*previous)
        except (ValueError, KeyError, TypeError) as error:
            raise _bad(place, following, f"is damaged: {error!r}") from error
        if (following.number if following is not None else 0) != number - 1:
            raise _bad(place, head, f"does not name manifest {number - 1}")
    before = known if following is not None else Manifest()
    new = tuple(f for each in reversed(files) for f in each)
    loaded = Manifest(columns or before.columns, (*before.files, *new), head)
    _newest_loaded[place.uri] = loaded
    return loaded


def _content(place: Place, head: Head) -> dict[str, Any]:
    try:
        data = read_bytes(place, head.path)
    except FileNotFoundError as error:
        raise _bad(place, head, "is missing") from error
    if crc32c(data) != head.crc32c:
        raise _bad(place, head, "is damaged")
    try:
        content = json.loads(data)
        version = content["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise _bad(place, head, "is damaged") from error
    if version not in (1, VERSION):
        raise _bad(place, head, f"has version {version!r}; this program knows {VERSION}")
    return dict(content)


def _bad(place: Place, head: Head | None, reason: str) -> OptionError:
    name = "its manifest" if head is None else head.path.removeprefix(f"{MANIFEST_FOLDER}/")
    return OptionError("target", place.uri, f"{name} {reason}")


def newest_head(place: Place) -> Head | None:
    """The manifest with the highest number in a folder; None if it has none."""
    matches = map(_MANIFEST_NAME.fullmatch, place.names(MANIFEST_FOLDER))
    return max((Head(int(m[1]), int(m[2], 16)) for m in matches if m), default=None)


def write_manifest(
    place: Place, before: Manifest, columns: Sequence[str], files: Iterable[OffloadedFile]
) -> Head:
    """Write the manifest that follows another one; durable when it returns."""
    content = {
        "version": VERSION,
        "previous": None if before.head is None else [before.head.number, before.head.crc32c],
        "columns": list(columns),
        "files": [asdict(file) for file in files],
    }
    data = json.dumps(content, indent=1).encode()
    head = Head(before.runs + 1, crc32c(data))
    write_bytes(place, head.path, data)
    return head


_RUN_PREFIX = "unfinished-"


def begin_run(place: Place, paths: Iterable[str], counting: Container[str]) -> str:
    """Note what a run will write, and remove what killed runs left.

    Args:
        place: where the files are.
        paths: the files that it will write.
        counting: the files that a manifest lists; they stay.

    Returns:
        The run's name; empty where there are no locks, and so no notes.

    Raises:
        OptionError: a killed run's list is damaged, so what it left is not known.
    """
    if not place.has_locks:
        return ""
    run = uuid.uuid4().hex
    mine = set(paths)
    write_bytes(place, _path(run), json.dumps(sorted(mine)).encode())
    for name in place.names(MANIFEST_FOLDER):
        path = f"{MANIFEST_FOLDER}/{name}"
        if name.startswith("."):
            place.remove(path)
        elif name.startswith(_RUN_PREFIX) and path != _path(run):
            _remove(place, path, mine, counting)
            place.remove(path)
    return run


def is_current_run(place: Place, run: str) -> bool:
    """Whether no other run has begun since."""
    if not run:
        return True
    try:
        place.open(_path(run)).close()
    except FileNotFoundError:
        return False
    return True


def end_run(place: Place, run: str) -> None:
    """The files of a run count now."""
    if run:
        place.remove(_path(run))


def _path(run: str) -> str:
    return f"{MANIFEST_FOLDER}/{_RUN_PREFIX}{run}.json"


def _listed(place: Place, path: str) -> list[str]:
    """The files that a killed run's list names; all are below the place. Raises OptionError."""
    try:
        names = json.loads(read_bytes(place, path))
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(
        isinstance(each, str) and each.startswith("topic=") and ".." not in each.split("/")
        for each in names
    ):
        reason = (
            f"{path}, the list of files of a killed run, is damaged; remove it, and what"
            " --verify then finds that no manifest lists"
        )
        raise OptionError("target", place.uri, reason)
    return names


def _remove(place: Place, path: str, mine: set[str], counting: Container[str]) -> None:
    """Remove the files of a killed run, also half-written ones."""
    left = _listed(place, path)
    folders: dict[str, set[str]] = {}
    for each in left:
        file = PurePosixPath(each)
        folders.setdefault(str(file.parent), set()).add(file.name)
        if each not in mine and each not in counting:
            place.remove(each)
    for folder, names in folders.items():
        for name in place.names(folder):
            # The temporary name is the real one with a dot before it and the writer's id after it.
            if name.startswith(".") and name[1:].rpartition(".")[0] in names:
                place.remove(f"{folder}/{name}")
