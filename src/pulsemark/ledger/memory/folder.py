"""The memory engine's data folder: ledgers and metadata in memory, which one store owns.

It outlives the stores that are opened on it, as a folder does. Opening a second store takes it
over: from then on the first store's appends and changes raise OwnershipLostError and have no
effect, as those of a fenced writer in BookKeeper.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import CatalogError, OwnershipLostError
from ..run import RunHeader, chain_of


class Content:
    """The `Rows` of one run, read without a lock. It only grows; a cut makes another one."""

    first_row = 0
    next_before = 0

    def __init__(self, header: RunHeader) -> None:
        self.header = header
        self.entries: list[bytes] = []
        """Each entry after its head (see `run`); b"" if it was removed."""
        self.times: array[int] = array("Q")
        self.nexts: array[int] = array("I")
        self.offsets: array[int] = array("I")
        self.ends: array[int] = array("I")
        """Where each entry begins and ends, as if all stood one after another."""
        self.append_times: array[int] = array("Q")
        self.cut_rows = 0

    def add(self, data: bytes, append_time_ms: int, time_ms: int, next_message: int) -> None:
        """Add an entry; ``time_ms`` is the running maximum of times."""
        self.entries.append(data)
        self.times.append(time_ms)
        self.nexts.append(next_message)
        self.append_times.append(append_time_ms)
        start = self.ends[-1] if self.ends else 0
        self.offsets.append(start)
        self.ends.append(start + len(data))

    def first(self, rows: int) -> Content:
        """A new content with the first rows only."""
        part = Content(self.header)
        part.entries = self.entries[:rows]
        part.times, part.nexts = self.times[:rows], self.nexts[:rows]
        part.offsets, part.ends = self.offsets[:rows], self.ends[:rows]
        part.append_times = self.append_times[:rows]
        part.cut_rows = min(self.cut_rows, rows)
        return part

    def __len__(self) -> int:
        return len(self.entries)


class MemoryFolder:
    """Ledgers and metadata in memory. Safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner: object = None
        self.refusal: OSError | None = None
        """For tests of failures: while it is set, writes and changes fail with it."""
        self.topics: dict[str, int] = {}
        self.values: dict[str, dict[str, bytes]] = {}
        self.next_topic_id = 1
        self.next_ledger_id = 0
        self._ledgers: dict[int, list[Content]] = {}

    def take_over(self, owner: object) -> None:
        """From now on ``owner`` alone may change anything."""
        with self._lock:
            self._owner = owner

    def give_back(self, owner: object) -> None:
        """If ``owner`` has the folder, it has no owner from now on."""
        with self._lock:
            if self._owner is owner:
                self._owner = None

    @contextmanager
    def owned_by(self, owner: object) -> Iterator[None]:
        """Keep ``owner`` the owner for the whole block. Raises OwnershipLostError."""
        with self._lock:
            if self._owner is not owner:
                raise OwnershipLostError("memory")
            yield

    @contextmanager
    def changed_by(self, owner: object) -> Iterator[MemoryFolder]:
        """Change something, as a whole. Raises OwnershipLostError; CatalogError if writes fail:
        then nothing has changed.
        """
        with self.owned_by(owner):
            if self.refusal is not None:
                raise CatalogError(Path("memory"), str(self.refusal))
            yield self

    # Ledgers: call these inside one of the two blocks above

    def keep(self, content: Content) -> None:
        """Add a run to its topic."""
        self._ledgers.setdefault(content.header.topic_id, []).append(content)

    def replace(self, old: Content, new: Content) -> None:
        """Replace ``old`` by ``new``, if ``old`` is still there."""
        kept = self._ledgers.get(old.header.topic_id, [])
        kept[:] = [new if each is old else each for each in kept]

    def forget(self, topic_id: int, gone: Sequence[Content]) -> None:
        """Remove these from a topic."""
        names = {id(content) for content in gone}
        kept = self._ledgers.get(topic_id, [])
        kept[:] = [each for each in kept if id(each) not in names]

    def forget_topic(self, topic_id: int) -> None:
        """Remove all contents of a topic."""
        self._ledgers.pop(topic_id, None)

    def counting(self, topic_id: int) -> list[Content]:
        """The runs of a topic's log, oldest first (`ledger.run.chain_of`); others are dropped."""
        by_header = {id(each.header): each for each in self._ledgers.get(topic_id, [])}
        counting = []
        for link in chain_of(content.header for content in by_header.values()):
            content, end = by_header[id(link.header)], link.end_entry_id
            rows = len(content) if end is None else end - link.header.first_entry_id
            if rows > 0:
                counting.append(content if rows >= len(content) else content.first(rows))
        self._ledgers[topic_id] = counting
        return list(counting)
