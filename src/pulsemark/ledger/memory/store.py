"""A store in memory, for data that need not outlive the process, and its engine, a `LedgerStore`.

It has no files, no segments and no journal. Entries are durable as soon as the folder has them. An
entry is kept as one piece of bytes (`ledger.entry.unpack`): a head, then the entry as Pulsar would
store it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import cast

from ...metadata import Clock, SystemClock
from ..commit.batch import Batch, EntryWriter, Group, Outcome, Owner
from ..commit.group_commit import Notify
from ..entry import HEAD, KINDS, Entry, RecordHead, stamp_ms_of, unpack
from ..position import Position
from ..run import (
    ROW_FIELDS,
    DamagedRecordError,
    IoCount,
    Probe,
    Row,
    Run,
    RunHeader,
)
from ..store import LedgerStore, MetadataStore
from ..store_core import StoreOptions, StoreSetup
from ..store_state import StoreState, make_uninterrupted
from ..topic_store import TopicStore
from .folder import Content, MemoryFolder

_NAME = Path("memory")


class MemoryStore(TopicStore):
    """Topics in memory. Make one with ``MemoryStore.open``.

    Raises what a `TopicStore` does. Its content is in ``memory``: another store can be opened on
    that, after this one was closed, or in its place.
    """

    engine: MemoryLedgers

    @classmethod
    def open(
        cls,
        memory: MemoryFolder | None = None,
        *,
        clock: Clock | None = None,
        options: StoreOptions | None = None,
        notify: Notify | None = None,
        threaded: bool = True,
    ) -> MemoryStore:
        """Open the content of ``memory``; without ``memory`` an empty store. Blocks.

        A store that has ``memory`` open already loses it: its appends and changes fail from now on
        (OwnershipLostError, then StoreFailedError), and it can only be closed. ``notify`` and
        ``threaded`` mean the same as in `StoreSetup`. Raises CatalogError, OSError.
        """
        setup = StoreSetup(clock or SystemClock(), options or StoreOptions(), notify, threaded)
        opening = partial(cls._open, MemoryFolder() if memory is None else memory, setup)
        return make_uninterrupted(opening, cls.close) if threaded else opening()

    @classmethod
    def _open(cls, memory: MemoryFolder, setup: StoreSetup) -> MemoryStore:
        engine = MemoryLedgers(memory)
        try:
            return cls(engine, StoreState(_NAME), setup)
        except BaseException:
            engine.close()
            raise

    @property
    def memory(self) -> MemoryFolder:
        """The store's content."""
        return self.engine.folder


class MemoryRun(Run):
    """A run of entries in memory."""

    overhead_bytes = (HEAD.size, HEAD.size)

    def __init__(self, content: Content, replace: Callable[[Content, Content], None]) -> None:
        """``replace`` puts other content in the place of this run's in the folder."""
        super().__init__(content.header)
        self.content = content
        self._replace = replace

    def show_all(self) -> None:
        """Let readers see all entries: the run was opened again."""
        content = self.content
        count = len(content)
        self.cut_rows = content.cut_rows
        self.show_group(count, content.nexts[-1], content.append_times[-1])

    @property
    def time_max_ms(self) -> int:
        times = self.content.times
        return times[-1] if times else self.content.header.entry_time_floor_ms

    @property
    def written_count(self) -> int:
        return len(self.content.times)

    # Rows

    def row(self, row: int, io: IoCount | None = None) -> Row:
        return self.content.row(row)

    def chunk(self, row: int, io: IoCount | None = None) -> Content:
        """All rows, since all are in memory."""
        return self.content

    def find_time(self, time_ms: int, limit: int, io: IoCount | None = None) -> int:
        return self.content.find_time(time_ms, limit)

    def find_message(self, message: int, limit: int, io: IoCount | None = None) -> int:
        return self.content.find_message(message, limit)

    # Entries

    def _data(self, row: int) -> bytes:
        try:
            data = self.content.entries[row]
        except IndexError:
            data = b""
        if data:
            return data
        if self.removed:
            raise FileNotFoundError(f"ledger {self.ledger_id} was removed")
        raise DamagedRecordError(row, "the entry was removed")

    def read(self, row: int, max_entries: int, max_bytes: int) -> list[Entry]:
        entries = self._entries(row, max_entries, max_bytes)
        return [unpack(self.ledger_id, memoryview(data)) for data in entries]

    def read_stored(self, row: int, max_entries: int, max_bytes: int) -> list[memoryview]:
        entries = self._entries(row, max_entries, max_bytes)
        return [memoryview(data)[HEAD.size :] for data in entries]

    def _entries(self, row: int, max_entries: int, max_bytes: int) -> list[bytes]:
        found: list[bytes] = []
        size = 0
        for number in range(row, min(row + max_entries, self.entry_count)):
            try:
                data = self._data(number)
            except (DamagedRecordError, FileNotFoundError):
                if found:
                    break
                raise
            size += len(data)
            if found and size > max_bytes:
                break
            found.append(data)
        return found

    def probes(self, row: int, offset: int, count: int, io: IoCount) -> Iterator[Probe]:
        for number in range(row, row + count):
            try:
                head = self.head(number, io)
            except DamagedRecordError:
                continue
            stamp_ms = stamp_ms_of(head.prefix)
            yield Probe(number, stamp_ms, head.append_time_ms, head.index, head.message_count)

    def head(self, row: int, io: IoCount | None = None) -> RecordHead:
        data = self._data(row)
        kind, message_count, append_time_ms, index, prefix_size, _, _ = HEAD.unpack_from(data)
        if io is not None:
            io.add(HEAD.size + prefix_size)
        return RecordHead(
            Position(self.ledger_id, self.first_entry_id + row),
            KINDS[kind],
            message_count,
            index,
            append_time_ms,
            memoryview(data)[HEAD.size : HEAD.size + prefix_size],
            len(data) - HEAD.size - prefix_size,
            len(data),
        )

    # Removing

    def is_gone(self, row: int) -> bool:
        """As `Run.is_gone`; another owner may have removed it."""
        if not (self.removed or self.content.entries):
            self.mark_removed()
        self.cut_rows = max(self.cut_rows, self.content.cut_rows)
        return self.removed or row < self.cut_rows

    def truncate(self, entry_count: int) -> None:
        content = self.content.first(entry_count)
        self._replace(self.content, content)
        self._sample = self._own_times = None
        self.entry_count = min(self.entry_count, entry_count)
        self.content = content
        if entry_count:
            self.show_group(entry_count, content.nexts[-1], content.append_times[-1])
        else:
            self.show_group(0, 0, content.header.stamp_floor_ms)

    def cut_head(self, rows: int) -> None:
        self.content.cut_rows = rows
        self.cut_rows = rows
        self.content.entries[:rows] = [b""] * rows

    def drop(self) -> None:
        """Give the memory back: the run was removed."""
        self.content.entries = []


class MemoryMetadata(MetadataStore):
    """The metadata of a `MemoryFolder`, for one owner. Each call raises OwnershipLostError."""

    def __init__(self, folder: MemoryFolder, owner: object) -> None:
        self._folder = folder
        self._owner = owner

    def topics(self) -> dict[str, int]:
        with self._folder.owned_by(self._owner):
            return dict(self._folder.topics)

    def create_topics(self, names: Sequence[str]) -> dict[str, int]:
        with self._folder.changed_by(self._owner) as folder:
            for name in names:
                if name not in folder.topics:
                    folder.topics[name] = folder.next_topic_id
                    folder.next_topic_id += 1
            return {name: folder.topics[name] for name in names}

    def reserve_ledger_ids(self, count: int) -> int:
        with self._folder.changed_by(self._owner) as folder:
            first = folder.next_ledger_id
            folder.next_ledger_id += count
            return first

    def get(self, kind: str, key: str) -> bytes | None:
        with self._folder.owned_by(self._owner):
            return self._folder.values.get(kind, {}).get(key)

    def items(self, kind: str) -> list[tuple[str, bytes]]:
        with self._folder.owned_by(self._owner):
            return sorted(self._folder.values.get(kind, {}).items())

    def write(self, changes: Iterable[tuple[str, str, bytes | None]]) -> None:
        checked = [(kind, key, None if v is None else bytes(v)) for kind, key, v in changes]
        with self._folder.changed_by(self._owner) as folder:
            for kind, key, value in checked:
                if value is None:
                    folder.values.get(kind, {}).pop(key, None)
                else:
                    folder.values.setdefault(kind, {})[key] = value


class MemoryWriter(EntryWriter):
    """Appends entries to the ledgers of a `MemoryFolder`."""

    def __init__(self, folder: MemoryFolder, owner: object) -> None:
        self._folder = folder
        self._owner = owner
        self.broken: list[Owner] = []

    def write(self, batch: Batch, groups: Sequence[Group], *, sync: bool = True) -> Outcome:
        """As `EntryWriter.write`: all groups are added, or none. Raises OwnershipLostError."""
        outcome = Outcome()
        with self._folder.owned_by(self._owner):
            if self._folder.refusal is not None:
                outcome.failed, outcome.error = list(groups), self._folder.refusal
                return outcome
            for group in groups:
                content = cast("MemoryRun", group.run).content
                if not len(content):
                    self._folder.ledgers.setdefault(group.run.header.topic_id, []).append(content)
                _add(content, group)
                outcome.good.append(group)
        return outcome


class MemoryLedgers(LedgerStore):
    """Ledgers in a `MemoryFolder`, which this engine takes over."""

    def __init__(self, folder: MemoryFolder) -> None:
        self.folder = folder
        folder.take_over(self)
        self.metadata = MemoryMetadata(folder, self)
        self.writer = MemoryWriter(folder, self)

    # Ledgers

    def create(self, header: RunHeader) -> MemoryRun:
        """A run; the folder has it from its first entry on."""
        return MemoryRun(Content(header), self._replace)

    def open(self, name: str, topic_id: int) -> list[Run]:
        """The runs that count, each sealed. Raises OwnershipLostError."""
        with self.folder.owned_by(self):
            contents = self.folder.counting(topic_id)
        runs = [MemoryRun(content, self._replace) for content in contents]
        for run in runs:
            run.show_all()
        return list(runs)

    def _replace(self, old: Content, new: Content) -> None:
        with self.folder.owned_by(self):
            kept = self.folder.ledgers.get(old.header.topic_id, [])
            kept[:] = [new if each is old else each for each in kept]

    def void(self, run: Run) -> None:
        """Nothing to do: the folder does not have the run yet."""
        run.mark_removed()

    # Removing

    def remove(self, topic_id: int, runs: Sequence[Run]) -> Callable[[], None]:
        mine = cast("Sequence[MemoryRun]", runs)
        gone = {id(run.content) for run in mine}
        with self.folder.changed_by(self) as folder:
            kept = folder.ledgers.get(topic_id, [])
            kept[:] = [each for each in kept if id(each) not in gone]
        for run in mine:
            run.mark_removed()
        return partial(_drop, mine)

    def remove_topic(
        self, topic_id: int, runs: Sequence[Run], note: tuple[str, str]
    ) -> Callable[[], None]:
        kind, key = note
        with self.folder.changed_by(self) as folder:
            folder.values.setdefault(kind, {})[key] = b""
            for name in [name for name, each in folder.topics.items() if each == topic_id]:
                del folder.topics[name]
            folder.ledgers.pop(topic_id, None)
        return partial(_drop, cast("Sequence[MemoryRun]", runs))

    # The whole

    def probe(self) -> None:
        """Raise the OSError that a test has set, if any."""
        if self.folder.refusal is not None:
            raise self.folder.refusal

    def close(self) -> None:
        """Give up the ownership of the folder."""
        self.folder.give_back(self)


def _add(content: Content, group: Group) -> None:
    """Add the group's entries: its bytes, cut at the ends of its rows."""
    data, start = b"".join(group.buffers), group.offset
    for end in group.rows[ROW_FIELDS - 1 :: ROW_FIELDS]:
        content.entries.append(data[start - group.offset : end - group.offset])
        start = end
    content.add(group.rows)


def _drop(runs: Sequence[MemoryRun]) -> None:
    for run in runs:
        run.drop()
