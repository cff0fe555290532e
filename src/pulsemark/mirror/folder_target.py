"""Writes topics into a data folder that no broker has open.

The folder gets its own stamps, and the source's facts as tags beside them. What a broker needs in
its catalog to serve the topics is written, too: namespaces, numbers of partitions, schemas.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from ..finder.mirror_places import MirrorPlaces
from ..ledger import (
    Appended,
    CatalogError,
    FencedError,
    InvalidEntryError,
    LedgerError,
    LocalStore,
    ManagedLedger,
)
from ..ledger.store import (
    NAMESPACE_KIND,
    PARTITIONED_KIND,
    SCHEMA_KIND,
    TENANT_KIND,
)
from ..metadata import ChecksumError, StamperChain
from ..metadata.schema_list import pack_schemas, unpack_schemas
from ..proto.pulsar_api_pb2 import Schema
from ..wire import TopicName
from .entries import Resume, SourceEntry
from .errors import PartitionCountError, TargetNotEmptyError, TargetRefusedError

DEFAULT_NAMESPACE = "public/default"
WINDOW_BYTES = 64 * 1024 * 1024
WINDOW_ENTRIES = 10_000


class FolderTarget:
    """A data folder; a missing or empty one becomes one. Raises what `LocalStore.open` does."""

    def __init__(
        self, folder: Path, cluster: str, *, stampers: tuple[str, ...], append: bool
    ) -> None:
        self.place = str(folder)
        self._folder = folder
        self._cluster = cluster
        self._append = append
        self._chain = StamperChain.from_names(stampers)
        self._open_store: LocalStore | None = LocalStore.open(folder)
        self._open_store.check_is_leader()

    @property
    def _store(self) -> LocalStore:
        if self._open_store is None:
            self._open_store = LocalStore.open(self._folder)
        return self._open_store

    def check_partitions(self, topic: str, count: int | None, highest: int) -> None:
        """Check the catalog's number; a topic that is new here gets the source's number."""
        stored = self._store.catalog.get(PARTITIONED_KIND, topic)
        here = 0 if stored is None else int(stored)
        needed = highest + 1 if count is None else count
        is_new = stored is None and topic not in self._store.topic_names()
        if is_new and needed:
            self._store.catalog.put(PARTITIONED_KIND, topic, str(needed).encode())
        elif here != needed and (count is not None or here < needed):
            raise PartitionCountError(topic, needed, here)

    def open(self, topic: str) -> FolderTopic:
        """Begin to write. Raises TargetNotEmptyError, LedgerError."""
        self._add_namespace(TopicName.parse(topic))
        ledger = self._store.open_topic(topic)
        ledger.stampers = self._chain
        last = MirrorPlaces(self._store.catalog).last(ledger, self._cluster)
        if last is None and ledger.last_position is not None and not self._append:
            raise TargetNotEmptyError(self.place, topic, self._cluster)
        resume = Resume() if last is None else Resume(last.position, last.index)
        return FolderTopic(self._store, ledger, self.place, resume)

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

    def descriptors(self) -> list[int]:
        """None: commits need no reading."""
        return []

    def ping(self, timeout_s: float) -> None:
        """Nothing to do: a folder is always there, or its calls fail."""

    def close(self) -> None:
        """Close the folder; everything that was put is durable then, or the disk failed."""
        if self._open_store is not None:
            self._open_store.close()
            self._open_store = None


class FolderTopic:
    """One topic of the folder."""

    def __init__(
        self, store: LocalStore, ledger: ManagedLedger, place: str, resume: Resume
    ) -> None:
        self.resume = resume
        self._store = store
        self._ledger = ledger
        self._place = place
        self._pending: deque[tuple[Appended, int]] = deque()
        self._pending_bytes = 0

    def has_room(self, entry: SourceEntry) -> bool:
        """At most WINDOW_BYTES and WINDOW_ENTRIES wait for the disk."""
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
            raise TargetRefusedError(self._place, self._ledger.name, str(error)) from error
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
        """The entries whose commits are done. Raises FencedError if one failed."""
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
        """Put the schema after those that the catalog has; its version."""
        key = str(TopicName.parse(self._ledger.name).partitioned)
        schemas = unpack_schemas(self._store.catalog.get(SCHEMA_KIND, key) or b"")
        for number, known in enumerate(schemas):
            if known.type == schema.type and known.schema_data == schema.schema_data:
                return number
        try:
            self._store.catalog.put(SCHEMA_KIND, key, pack_schemas([*schemas, schema]))
        except CatalogError as error:
            raise TargetRefusedError(self._place, self._ledger.name, str(error)) from error
        return len(schemas)

    def close(self) -> None:
        """Wait for what is pending."""
        for appended, _ in self._pending:
            try:
                appended.commit.wait()
            except LedgerError:
                break
        self._pending.clear()
