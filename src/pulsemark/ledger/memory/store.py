"""A store in memory, for data that need not outlive the process, and its engine, a `LedgerStore`.

It has no files, no segments and no journal. Entries are durable as soon as the folder has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

from ...metadata import Clock, SystemClock
from ..commit.batch import Batch, EntryWriter, Group, Outcome, Owner
from ..commit.group_commit import Notify
from ..run import ROW_FIELDS, Run, RunHeader
from ..store import LedgerStore, MetadataStore
from ..store_core import StoreOptions, StoreSetup
from ..store_state import StoreState, make_uninterrupted
from ..topic_store import TopicStore
from .folder import Content, MemoryFolder
from .run import MemoryRun

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


class MemoryMetadata(MetadataStore):
    """The metadata of a `MemoryFolder`, for one owner. Each call raises OwnershipLostError."""

    def __init__(self, folder: MemoryFolder, owner: object) -> None:
        self._folder = folder
        self._owner = owner

    def topics(self) -> dict[str, int]:
        with self._folder.owned_by(self._owner):
            return dict(self._folder.topics)

    def create_topic(self, name: str) -> int:
        with self._folder.changed_by(self._owner) as folder:
            if name not in folder.topics:
                folder.topics[name] = folder.next_topic_id
                folder.next_topic_id += 1
            return folder.topics[name]

    def create_topics(self, names: Sequence[str]) -> dict[str, int]:
        return {name: self.create_topic(name) for name in names}

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

    def delete(self, kind: str, key: str) -> bool:
        with self._folder.changed_by(self._owner) as folder:
            return folder.values.get(kind, {}).pop(key, None) is not None

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
                    self._folder.keep(content)
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
            self.folder.replace(old, new)

    def void(self, run: Run) -> None:
        """Nothing to do: the folder does not have the run yet."""
        run.mark_removed()

    # Removing

    def remove(self, topic_id: int, runs: Sequence[Run]) -> Callable[[], None]:
        mine = cast("Sequence[MemoryRun]", runs)
        with self.folder.changed_by(self) as folder:
            folder.forget(topic_id, [run.content for run in mine])
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
            folder.forget_topic(topic_id)
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
