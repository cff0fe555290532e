"""Data folders as source and target of a mirror.

A folder is read also while a broker writes to it. Every fact is known: index, time, count and kind
of each entry. Control entries are passed over. Schemas and numbers of partitions come from the
folder's catalog, which is read and never changed.

A folder is written while no broker has it open. It gets its own stamps, and the source's facts as
tags beside them. What a broker needs in its catalog to serve the topics is written, too:
namespaces, numbers of partitions, schemas.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from ..compaction.current_view import FolderForm, log_of_folder
from ..finder import IndexOutOfRangeError
from ..finder.mirror_progress import MirrorProgress
from ..finder.search import finder_of
from ..ledger import (
    Appended,
    CatalogError,
    CorruptEntryError,
    Entry,
    EntryKind,
    FencedError,
    FolderLog,
    FolderReader,
    InvalidEntryError,
    LedgerError,
    LedgerExtent,
    LocalStore,
    ManagedLedger,
    Position,
    TopicNotFoundError,
    entries_of,
)
from ..ledger.local.io.folder import CATALOG_NAME
from ..ledger.store import NAMESPACE_KIND, PARTITIONED_KIND, SCHEMA_KIND, TENANT_KIND
from ..maintenance.verify_catalog import read_property
from ..metadata import ChecksumError, MessageFormatError, StamperChain, peek, read_message_metadata
from ..metadata.schema_list import pack_schemas, unpack_schemas
from ..metadata.source_stamp import SourceStamp, record_set_tags_of
from ..proto.cursor_pb2 import CursorRecord
from ..proto.pulsar_api_pb2 import Schema
from ..wire import TopicName
from .entries import (
    Gap,
    Options,
    Resume,
    Source,
    SourceEntry,
    SourcePosition,
    Target,
    TopicSource,
    TopicTarget,
)
from .errors import OtherSourceError, TargetNotEmptyError, TargetRefusedError, TopicMissingError

DEFAULT_NAMESPACE = "public/default"
WINDOW_BYTES = 64 * 1024 * 1024
WINDOW_ENTRIES = 10_000


class FolderSource(Source):
    """A data folder. Raises ForeignFolderError, UnsupportedVersionError."""

    def __init__(self, folder: Path, cluster: str) -> None:
        super().__init__(str(folder))
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
        """The catalog's number; 0 for a plain topic, None if the catalog lacks it."""
        stored = self.property(PARTITIONED_KIND, topic)
        if stored is not None:
            return int(stored)
        return 0 if topic in self._reader.topics() else None

    def open(self, topic: str, resume: Resume) -> FolderSourceTopic:
        """Begin to read. Raises TopicMissingError, OtherSourceError."""
        return FolderSourceTopic(self, topic, self._cluster, resume)

    def log(self, topic: str) -> FolderLog | FolderForm:
        """The log that readers of a topic get, as it is now. Raises TopicMissingError."""
        try:
            return log_of_folder(self._reader, topic)
        except TopicNotFoundError as error:
            raise TopicMissingError(self.endpoint, topic) from error

    def property(self, kind: str, key: str) -> bytes | None:
        """A value of the folder's catalog."""
        return read_property(self._folder / CATALOG_NAME, kind, key)

    def close(self) -> None:
        """Close the files; a later call opens them again."""
        if self._open_reader is not None:
            self._open_reader.close()
            self._open_reader = None


class FolderSourceTopic(TopicSource):
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
            limits = {"max_entries": max_entries, "max_bytes": max_bytes}
            entries = self._log.read_stable(self._next, **limits)
            if not entries:
                self._refresh()
                entries = self._log.read_stable(self._next, **limits)
        except CorruptEntryError as error:
            if self._refresh():
                return []  # another view took the place of the one that was read
            self._next = error.next_position
            return [Gap(self._log.name, f"entry {error.position} is damaged: {error.reason}")]
        taken: list[SourceEntry | Gap] = []
        for entry in entries:
            taken.append(self._entry(entry))
            self._next = entry.position.following
        return taken

    @property
    def has_holes(self) -> bool:  # type: ignore[override]
        """Whether the log is cleaned (see `log_of_folder`)."""
        return isinstance(self._log, FolderForm)

    def _refresh(self) -> bool:
        """Bring the log up to date. Return whether its compacted view is another one."""
        before = self._view_generation
        self._log.refresh()
        return self._view_generation != before

    @property
    def _view_generation(self) -> int | None:
        view = self._log.view if isinstance(self._log, FolderForm) else None
        return None if view is None else view.generation

    def is_caught_up(self, position: SourcePosition | None) -> bool:
        """Whether everything before the end at the opening was taken."""
        try:
            return self._next >= self._end or not self._log.read_stable(self._next, max_entries=1)
        except CorruptEntryError:
            return False  # the next `take` reports it

    def rewind(self, position: SourcePosition | None = None) -> None:
        """Start again, at the entry with `position` or after it; None: at the first."""
        self._next = Position(*(position or (0, 0)))

    def schema(self, version: int) -> Schema | None:
        """Read the schema from the catalog."""
        name = str(TopicName.parse(self._log.name).partitioned)
        schemas = unpack_schemas(self._source.property(SCHEMA_KIND, name) or b"")
        return schemas[version] if version < len(schemas) else None

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


def _start(log: FolderLog | FolderForm, resume: Resume) -> Position:
    """The position to read from. Raises OtherSourceError: the target's last entry is missing."""
    if resume.position is not None:
        last = Position(*resume.position)
        if last >= log.end_position:
            reason = f"it has the source's entry {last}, but the source ends at {log.end_position}"
            raise OtherSourceError(log.name, reason)
        first = log.first_position
        if first is not None and last >= first and log.entry_message_count(last) is None:
            raise OtherSourceError(log.name, f"the source has no entry {last}")
        return last.following
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
    return found.position.following


class FolderTarget(Target):
    """A data folder, created if it is missing or empty. Raises what `LocalStore.open` does."""

    def __init__(self, folder: Path, options: Options) -> None:
        super().__init__(str(folder))
        self._folder = folder
        self._cluster = options.source_cluster
        self._append = options.append
        self._chain = StamperChain.from_names(options.stampers)
        self._open_store: LocalStore | None = LocalStore.open(folder)
        self._open_store.check_is_leader()

    @property
    def _store(self) -> LocalStore:
        if self._open_store is None:
            self._open_store = LocalStore.open(self._folder)
        return self._open_store

    def partitions(self, topic: str) -> int | None:
        """The catalog's number; 0 for a plain topic, None for one that is new here."""
        stored = self._store.catalog.get(PARTITIONED_KIND, topic)
        if stored is not None:
            return int(stored)
        return 0 if topic in self._store.topic_names() else None

    def check_partitions(self, topic: str, count: int | None, highest: int) -> None:
        """As `Target`; a topic that is new here, or has fewer, gets the source's number."""
        needed = highest + 1 if count is None else count
        here = self.partitions(topic)
        if needed and (here is None or 0 < here < needed):
            self._store.catalog.put(PARTITIONED_KIND, topic, str(needed).encode())
        super().check_partitions(topic, count, highest)

    def open(self, topic: str) -> FolderTargetTopic:
        """Begin to write. Raises TargetNotEmptyError, LedgerError."""
        self._add_namespace(TopicName.parse(topic))
        ledger = self._store.open_topic(topic)
        ledger.stampers = self._chain
        last = MirrorProgress(self._store.catalog).last(ledger, self._cluster)
        if last is None and ledger.last_position is not None and not self._append:
            raise TargetNotEmptyError(self.endpoint, topic, self._cluster)
        resume = Resume() if last is None else Resume(last.position, last.index)
        return FolderTargetTopic(self._store, ledger, self.endpoint, resume)

    def ledgers(self, topic: str) -> tuple[LedgerExtent, ...]:
        """The topic's ledgers that have entries. Raises TopicNotFoundError."""
        return self._ledger(topic).ledger_extents()

    def heads(self, topic: str, start: Position) -> Iterator[Entry]:
        """The topic's entries from ``start`` on."""
        return entries_of(self._ledger(topic), start)

    def move(self, topic: str, name: str, at: Position | None, record: CursorRecord) -> bool:
        """Let a subscription read on from ``at`` (None: the end); durable on return."""
        ledger = self._ledger(topic)
        at = ledger.end_position if at is None else at
        properties = dict(record.subscription_properties)
        cursor = ledger.open_cursor(name, initial=at, subscription_properties=properties)
        cursor.reset(at)
        cursor.persist().wait()
        return True

    def _ledger(self, topic: str) -> ManagedLedger:
        return self._store.open_topic(topic, create=False)

    def _add_namespace(self, name: TopicName) -> None:
        """Add tenant and namespace, which a broker needs to serve the topic."""
        catalog = self._store.catalog
        names = {DEFAULT_NAMESPACE, name.namespace} - {k for k, _ in catalog.items(NAMESPACE_KIND)}
        tenants = {each.split("/")[0] for each in names} - {
            k for k, _ in catalog.items(TENANT_KIND)
        }
        if names:
            catalog.write(
                [(TENANT_KIND, tenant, b"{}") for tenant in sorted(tenants)]
                + [(NAMESPACE_KIND, each, b"{}") for each in sorted(names)]
            )

    def close(self) -> None:
        """Close the folder: everything that was put is durable, or the disk failed."""
        if self._open_store is not None:
            self._open_store.close()
            self._open_store = None


class FolderTargetTopic(TopicTarget):
    """One topic of the folder."""

    def __init__(
        self, store: LocalStore, ledger: ManagedLedger, endpoint: str, resume: Resume
    ) -> None:
        self.resume = resume
        self._store = store
        self._ledger = ledger
        self._endpoint = endpoint
        self._pending: deque[tuple[Appended, int]] = deque()
        self._pending_bytes = 0

    def has_room(self, entry: SourceEntry) -> bool:
        """Whether fewer than WINDOW_BYTES and WINDOW_ENTRIES wait for the disk."""
        return self._pending_bytes < WINDOW_BYTES and len(self._pending) < WINDOW_ENTRIES

    def put(self, entry: SourceEntry) -> None:
        """Append the entry. Raises TargetRefusedError for one it cannot store, LedgerError."""
        assert entry.body is not None
        body = bytes(entry.body)
        try:
            appended = self._append(entry, body)
        except FencedError:
            if not self._pending:
                raise
            # A new ledger begins: what is pending must be stored first. If it failed, this raises.
            self._pending[-1][0].commit.wait()
            appended = self._append(entry, body)
        except (InvalidEntryError, ChecksumError) as error:
            raise TargetRefusedError(self._endpoint, self._ledger.name, str(error)) from error
        self._pending.append((appended, len(body)))
        self._pending_bytes += len(body)

    def _append(self, entry: SourceEntry, body: bytes) -> Appended:
        return self._ledger.append(
            body,
            message_count=entry.message_count,
            base=entry.stamp.metadata(),
            follows=self._pending[-1][0] if self._pending else None,
        )

    def stored(self) -> int:
        """The number of entries whose commits are done. Raises FencedError if one failed."""
        count = 0
        if self._pending and not self._pending[0][0].commit.done:
            self._pending[0][0].commit.wait()
        while self._pending and self._pending[0][0].commit.done:
            appended, size_bytes = self._pending.popleft()
            appended.commit.wait()
            self._pending_bytes -= size_bytes
            count += 1
        return count

    def add_schema(self, version: int, schema: Schema) -> int:
        """Put the schema after the catalog's last one. Return its version."""
        key = str(TopicName.parse(self._ledger.name).partitioned)
        schemas = unpack_schemas(self._store.catalog.get(SCHEMA_KIND, key) or b"")
        for number, known in enumerate(schemas):
            if known.type == schema.type and known.schema_data == schema.schema_data:
                return number
        try:
            self._store.catalog.put(SCHEMA_KIND, key, pack_schemas([*schemas, schema]))
        except CatalogError as error:
            raise TargetRefusedError(self._endpoint, self._ledger.name, str(error)) from error
        return len(schemas)

    def close(self) -> None:
        """Wait until pending entries are durable."""
        for appended, _ in self._pending:
            try:
                appended.commit.wait()
            except LedgerError:
                break
        self._pending.clear()
