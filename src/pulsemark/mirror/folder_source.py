"""Reads topics from a data folder, also while a broker writes to it.

Every fact is known: index, time, count and kind of each entry. Control entries are passed over.
Schemas and numbers of partitions come from the folder's catalog, which is read and never changed.
"""

from __future__ import annotations

from pathlib import Path

from ..compaction.compacted_log import CompactedLog
from ..compaction.current_view import log_of_folder
from ..finder import IndexOutOfRangeError
from ..finder.search import finder_of
from ..ledger import (
    CorruptEntryError,
    Entry,
    EntryKind,
    FolderLog,
    FolderReader,
    Position,
    TopicNotFoundError,
)
from ..ledger.local.io.folder import CATALOG_NAME
from ..ledger.store import PARTITIONED_KIND, SCHEMA_KIND
from ..maintenance.verify_catalog import read_property
from ..metadata import MessageFormatError, peek, read_message_metadata
from ..metadata.schema_list import unpack_schemas
from ..metadata.source_stamp import SourceStamp, record_set_tags_of
from ..proto.pulsar_api_pb2 import Schema
from ..wire import TopicName
from .entries import Gap, Place, Resume, SourceEntry
from .errors import OtherSourceError, TopicMissingError


class FolderSource:
    """A data folder. Raises ForeignFolderError, UnsupportedVersionError."""

    def __init__(self, folder: Path, cluster: str) -> None:
        self.place = str(folder)
        self._folder = folder
        self._cluster = cluster
        self._open_reader: FolderReader | None = FolderReader(folder)

    @property
    def _reader(self) -> FolderReader:
        if self._open_reader is None:
            self._open_reader = FolderReader(self._folder)
        return self._open_reader

    def topics(self, namespaces: list[str]) -> list[str]:
        """The topics with entries."""
        wanted = set(namespaces)
        return [name for name in self._reader.topics() if TopicName.parse(name).namespace in wanted]

    def partitions(self, topic: str) -> int | None:
        """As the catalog says; None if the catalog does not know, 0 if the topic is a plain one."""
        stored = self.property(PARTITIONED_KIND, topic)
        if stored is not None:
            return int(stored)
        return 0 if topic in self._reader.topics() else None

    def open(self, topic: str, resume: Resume) -> FolderTopic:
        """Begin to read. Raises TopicMissingError, OtherSourceError."""
        return FolderTopic(self, topic, self._cluster, resume)

    def log(self, topic: str) -> FolderLog | CompactedLog:
        """What is read as a topic's log, as it is now. Raises TopicMissingError."""
        try:
            return log_of_folder(self._reader, topic)
        except TopicNotFoundError as error:
            raise TopicMissingError(self.place, topic) from error

    def property(self, kind: str, key: str) -> bytes | None:
        """A value of the folder's catalog."""
        return read_property(self._folder / CATALOG_NAME, kind, key)

    def descriptors(self) -> list[int]:
        """None: a folder does not say when it grows."""
        return []

    def ping(self, timeout_s: float) -> None:
        """Nothing to do: a folder is always there, or its calls fail."""

    def close(self) -> None:
        """Close the files; they are opened again when they are needed."""
        if self._open_reader is not None:
            self._open_reader.close()
            self._open_reader = None


class FolderTopic:
    """One topic of a folder."""

    def __init__(self, source: FolderSource, topic: str, cluster: str, resume: Resume) -> None:
        self._source = source
        self._log = log = source.log(topic)
        self._cluster = cluster
        self._next = _start(log, resume)
        self._end = log.end_position

    def take(self, max_entries: int, max_bytes: int) -> list[SourceEntry | Gap]:
        """The next entries; a damaged entry is a gap."""
        try:
            entries = self._log.read(self._next, max_entries=max_entries, max_bytes=max_bytes)
            if not entries:
                self._refresh()
                entries = self._log.read(self._next, max_entries=max_entries, max_bytes=max_bytes)
        except CorruptEntryError as error:
            if self._refresh():
                return []  # another view took the place of the one that was read
            self._next = error.next_position
            return [Gap(self._log.name, f"entry {error.position} is damaged: {error.reason}")]
        taken: list[SourceEntry | Gap] = []
        for entry in entries:
            taken.append(self._entry(entry))
            at = entry.position
            self._next = Position(at.ledger_id, at.entry_id + 1)
        return taken

    @property
    def has_holes(self) -> bool:
        """Whether the log is cleaned (see `log_of_folder`)."""
        return isinstance(self._log, CompactedLog)

    def _refresh(self) -> bool:
        """Look what the folder has now; whether that is another view."""
        if isinstance(self._log, FolderLog):
            self._log.refresh()
            return False
        before, self._log = self._log.view, self._source.log(self._log.name)
        now = self._log.view if isinstance(self._log, CompactedLog) else None
        return (before and before.generation) != (now and now.generation)

    def attend(self) -> None:
        """Nothing to do."""

    def confirm(self, place: Place) -> None:
        """Nothing to do: a folder has no place for its readers."""

    def is_caught_up(self, place: Place | None) -> bool:
        """Whether everything before the end at the opening was taken."""
        try:
            return self._next >= self._end or not self._log.read(self._next, max_entries=1)
        except CorruptEntryError:
            return False  # the next `take` reports it

    def rewind(self, place: Place | None = None) -> None:
        """Begin again, with the entry at `place` or after it; None: with the first one."""
        self._next = Position(*(place or (0, 0)))

    def schema(self, version: int) -> Schema | None:
        """From the catalog."""
        name = str(TopicName.parse(self._log.name).partitioned)
        schemas = unpack_schemas(self._source.property(SCHEMA_KIND, name) or b"")
        return schemas[version] if version < len(schemas) else None

    def close(self) -> None:
        """Nothing to do."""

    def _entry(self, entry: Entry) -> SourceEntry:
        prefix = peek(entry.prefix)
        has_time = prefix is not None and prefix.HasField("broker_timestamp")
        time_ms = prefix.broker_timestamp if prefix is not None and has_time else None
        tags = record_set_tags_of(prefix)
        stamp = SourceStamp(self._cluster, *entry.position, entry.index, time_ms, tags)
        if entry.kind is not EntryKind.DATA:
            return SourceEntry(stamp, entry.message_count, None)
        version = schema_version_of(entry.body) if tags is None else b""
        return SourceEntry(stamp, entry.message_count, entry.body, version)


def schema_version_of(body: memoryview | bytes) -> bytes:
    """The schema version that a producer's header names; b"" if it names none."""
    try:
        return read_message_metadata(body).schema_version
    except MessageFormatError:
        return b""


def _start(log: FolderLog | CompactedLog, resume: Resume) -> Position:
    """Where reading goes on. Raises OtherSourceError if the log lacks the target's last entry."""
    if resume.place is not None:
        place = Position(*resume.place)
        if place >= log.end_position:
            reason = f"it has the source's entry {place}, but the source ends at {log.end_position}"
            raise OtherSourceError(log.name, reason)
        first = log.first_position
        if first is not None and place >= first and log.entry_message_count(place) is None:
            raise OtherSourceError(log.name, f"the source has no entry {place}")
        return Position(place.ledger_id, place.entry_id + 1)
    if resume.sequence_id is None:
        return Position(0, 0)
    index = resume.sequence_id
    if index >= log.next_index:
        reason = f"it has the source's index {index}, but the source's next is {log.next_index}"
        raise OtherSourceError(log.name, reason)
    try:
        found = finder_of(log).by_index(index)
    except IndexOutOfRangeError:
        return Position(0, 0)  # removed meanwhile; the gap will show
    if found.first_index > index:
        return found.position  # it was compacted away
    if found.index != index:
        raise OtherSourceError(log.name, f"index {index} is not the last of an entry")
    return Position(found.position.ledger_id, found.position.entry_id + 1)
