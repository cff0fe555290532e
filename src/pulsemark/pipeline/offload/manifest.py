"""The manifest of an offload: which files count, and which messages each of them has.

Each run that copied something adds one manifest to the folder `_pulsemark` beside the files. It
names the manifest before it by number and checksum. So the newest one, the *head*, says which
others count and what is in them. Recording the head makes all files of the run count at once:

- In a folder of Parquet files it is the file with the highest number.
- In a Delta or Iceberg table the head is part of the table's own transaction that adds the files.
  A manifest that was written and not committed is not in the chain, and has no meaning.

A run leaves a note before it writes files, and removes it when they count. A note that is there
when a run begins is a killed run's: its files are used if the new run has the same ones, and else
removed if no manifest lists them. Only the holder of the target's lock does so; in an object store
nothing is removed, because there is no lock.

Workers of a killed run may live a little longer than their driver. They keep what they have written
to themselves when their run's note is gone.

Rows that a typed table cannot take are in files of a second table, *rejected*. The manifest lists
these files too, so they count with the others; the second table is brought up to it afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from ...metadata import crc32c
from ..errors import OptionError
from ..marks import Mark
from .places import Place, read_bytes, write_bytes

MANIFEST_FOLDER = "_pulsemark"
VERSION = 3
"""Version 1 had no marks, 2 only binary values, appended by hour; such manifests are read."""
HOUR_MS = 3_600_000
LAST_HOUR_MS = 253_402_297_200_000
"""The last hour of the year 9999. What a wrong clock has stamped later is filed there."""
_CRC_BITS = 32
_NAME_MAX = 200
"""File systems take names of 255 bytes."""

_BUCKETS = re.compile(r"bucket\(([1-9][0-9]{0,4})\)")
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
    """The hour (or day) of the entries' broker times, in ms since the epoch."""
    first_index: int
    end_index: int
    rows: int
    """Rows; fewer than indexes if the range has control entries, or rejected messages."""
    size_bytes: int
    crc32c: int
    """A checksum of the file's bytes."""
    mark: Mark | None = None
    """Of the log's entry with the file's last message; None: an earlier version wrote the file, or
    the entry was not there."""
    rejected: int = 0
    """Messages of the range that are in the table of rejected rows."""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> OffloadedFile:
        """The file of `to_json`. Raises TypeError, ValueError."""
        return cls(**{**values, "mark": Mark.from_json(values.get("mark"))})

    def to_json(self) -> dict[str, Any]:
        """The fields for JSON."""
        return {**asdict(self), "mark": None if self.mark is None else self.mark.to_json()}


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
class Layout:
    """The properties that all runs of a target share."""

    columns: tuple[str, ...]
    typed: bool = False
    """Whether values are columns of their schema's type."""
    write_mode: str = "append"
    """``append``: a row for each message; ``upsert``: for each key, its latest message."""
    partition_by: str = "hour"
    """Beside the topic: ``hour``, ``day``; for `upsert` ``topic``, or ``bucket(N)`` of the key."""

    @property
    def upserts(self) -> bool:
        """Whether a row is a key."""
        return self.write_mode == "upsert"

    @property
    def buckets(self) -> int:
        """How many buckets keys are in; 0: none."""
        found = _BUCKETS.fullmatch(self.partition_by)
        return int(found[1]) if found else 0

    @property
    def period(self) -> str:
        """The time whose messages a worker's file holds."""
        return self.partition_by if self.partition_by in PERIODS_MS else "day"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a target that count."""

    files: tuple[OffloadedFile, ...] = ()
    head: Head | None = None
    """None: nothing was ever copied."""
    layout: Layout | None = None
    schema: str = ""
    """The columns with their types, as a text that `table` makes; empty: an earlier version."""
    rejected: tuple[OffloadedFile, ...] = ()
    """The files of the table of rejected rows."""
    expired_ms: int = 0
    """Files of earlier hours were removed: their lifetime is over."""

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


PERIODS_MS = {"hour": HOUR_MS, "day": 24 * HOUR_MS}
"""How long the time is whose messages are filed together."""
_LABELS = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d"}


def file_name(
    topic: str, log_id: int, hour_ms: int, first_index: int, end_index: int, period: str = "hour"
) -> str:
    """The path of a file, relative to the place of the files."""
    label = datetime.fromtimestamp(hour_ms / 1000, UTC).strftime(_LABELS[period])
    name = f"{log_id}-{first_index:020d}-{end_index:020d}.parquet"
    return f"{topic_folder(topic)}/{period}={label}/{name}"


def topic_folder(topic: str) -> str:
    """The name of a topic's folder; long ones are cut, and their checksum keeps them apart."""
    name = quote(topic, safe="")
    if len(name) > _NAME_MAX:
        name = f"{name[:_NAME_MAX]}-{crc32c(topic.encode()):08x}"
    return f"topic={name}"


def load_manifest(place: Place, head: Head | None, known: Manifest) -> Manifest:
    """The manifests up to a head; an empty one if it is None.

    Those up to the head of ``known`` are not read again: the table has loaded them before.

    Raises OptionError: a manifest is missing, damaged, or of a newer version.
    """
    contents: list[dict[str, Any]] = []
    following = head
    while following is not None and following != known.head:
        content = _content(place, following)
        try:
            for name in ("files", "rejected"):
                content[name] = [OffloadedFile.from_json(x) for x in content.get(name, ())]
            layout = content.get("layout") or {"columns": content["columns"]}
            content["layout"] = Layout(**{**layout, "columns": tuple(layout["columns"])})
            contents.append(content)
            number, previous = following.number, content["previous"]
            following = None if previous is None else Head(*previous)
        except (ValueError, KeyError, TypeError) as error:
            raise _bad(place, following, f"is damaged: {error!r}") from error
        if (following.number if following is not None else 0) != number - 1:
            raise _bad(place, head, f"does not name manifest {number - 1}")
    if head is None or not contents:
        return Manifest() if head is None else known
    before = known if following is not None else Manifest()
    files, rejected = (
        (*earlier, *(file for each in reversed(contents) for file in each[name]))
        for name, earlier in (("files", before.files), ("rejected", before.rejected))
    )
    newest = contents[0]
    expired_ms = int(newest.get("expired_ms", 0))
    schema = str(newest.get("schema", ""))
    return Manifest(files, head, newest["layout"], schema, rejected, expired_ms)


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
    if version not in (1, 2, VERSION):
        raise _bad(place, head, f"has version {version!r}; this program knows {VERSION}")
    return dict(content)


def _bad(place: Place, head: Head | None, reason: str) -> OptionError:
    name = "its manifest" if head is None else head.path.removeprefix(f"{MANIFEST_FOLDER}/")
    return OptionError("target", place.uri, f"{name} {reason}")


def newest_head(place: Place) -> Head | None:
    """The manifest with the highest number in a folder; None if it has none."""
    matches = map(_MANIFEST_NAME.fullmatch, place.names(MANIFEST_FOLDER))
    return max((Head(int(m[1]), int(m[2], 16)) for m in matches if m), default=None)


def write_manifest(place: Place, after: Manifest) -> Head:
    """Write what a manifest has beyond the one that its head names; durable when it returns."""
    content = {
        "version": VERSION,
        "previous": None if after.head is None else [after.head.number, after.head.crc32c],
        "layout": None if after.layout is None else asdict(after.layout),
        "schema": after.schema,
        "expired_ms": after.expired_ms,
        "files": [file.to_json() for file in after.files],
        "rejected": [file.to_json() for file in after.rejected],
    }
    data = json.dumps(content, indent=1).encode()
    head = Head(after.runs + 1, crc32c(data))
    write_bytes(place, head.path, data)
    return head


CHANGES_FOLDER = f"{MANIFEST_FOLDER}/changes"
"""The workers' files of an upsert, until they are merged."""
_RUN_PREFIX = "unfinished-"
_OUR_FILE = re.compile(r"(\.?)[0-9]+-[0-9]{20}-[0-9]{20}\.parquet(\.[0-9a-f]+)?")


def begin_run(place: Place, run: str, mine: Container[str], counting: Container[str]) -> None:
    """Note that a run begins, and remove what killed runs left.

    Args:
        place: where the files are.
        run: the run's name; empty where there are no locks, and so no notes.
        mine: the files that it will write; those that are complete are used.
        counting: the files that a manifest lists; they stay.
    """
    if not run:
        return
    write_bytes(place, _path(run), b"")
    names = place.names(MANIFEST_FOLDER)
    left = [name for name in names if name.startswith((".", _RUN_PREFIX))]
    killed = [name for name in left if f"{MANIFEST_FOLDER}/{name}" != _path(run)]
    if killed:
        for topic in place.names(""):
            for part in place.names(topic) if topic.startswith("topic=") else ():
                _sweep(place, f"{topic}/{part}", mine, counting)
        _sweep(place, CHANGES_FOLDER, mine, ())
    for name in killed:
        place.remove(f"{MANIFEST_FOLDER}/{name}")


def _sweep(place: Place, folder: str, mine: Container[str], counting: Container[str]) -> None:
    """Remove files of killed runs from a folder, also half-written ones."""
    for name in place.names(folder):
        ours = _OUR_FILE.fullmatch(name)
        path = f"{folder}/{name}"
        if ours and (ours[1] or (path not in mine and path not in counting)):
            place.remove(path)


def is_current_run(place: Place, run: str) -> bool:
    """Whether no other run has begun since this one."""
    if not run:
        return True
    try:
        place.open(_path(run)).close()
    except FileNotFoundError:
        return False
    return True


def end_run(place: Place, run: str) -> None:
    """Remove the run's note: its files count now."""
    if run:
        place.remove(_path(run))


def _path(run: str) -> str:
    return f"{MANIFEST_FOLDER}/{_RUN_PREFIX}{run}.json"
