"""The memory engine's data folder: ledgers and metadata in memory, which one store owns.

It outlives the stores that are opened on it, as a folder does. Opening a second store takes it
over: from then on the first store's appends and changes raise OwnershipLostError and have no
effect, as those of a fenced writer in BookKeeper.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import CatalogError, OwnershipLostError
from ..run import Columns, RunHeader, chain_of


class Content(Columns):
    """The entries of one run with their rows. It only grows; a cut makes another one."""

    def __init__(self, header: RunHeader) -> None:
        super().__init__()
        self.header = header
        self.entries: list[bytes] = []
        """Each entry after its head (see `store`); b"" if it was removed."""
        self.cut_rows = 0

    def first(self, rows: int) -> Content:
        """A new content with the first rows only."""
        part = Content(self.header)
        part.entries = self.entries[:rows]
        part.keep_first(self, rows)
        part.cut_rows = min(self.cut_rows, rows)
        return part


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
        self.ledgers: dict[int, list[Content]] = {}
        """The runs by topic id; changed, as all else, inside one of the blocks below."""

    def take_over(self, owner: object) -> None:
        """Make ``owner`` the only one who may change anything, from now on."""
        with self._lock:
            self._owner = owner

    def give_back(self, owner: object) -> None:
        """End the ownership of ``owner``, if it has the folder."""
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

    def counting(self, topic_id: int) -> list[Content]:
        """The runs of a topic's log, oldest first (`ledger.run.chain_of`); others are dropped."""
        by_header = {id(each.header): each for each in self.ledgers.get(topic_id, [])}
        counting = []
        for link in chain_of(content.header for content in by_header.values()):
            content, end = by_header[id(link.header)], link.end_entry_id
            rows = len(content) if end is None else end - link.header.first_entry_id
            if rows > 0:
                counting.append(content if rows >= len(content) else content.first(rows))
        self.ledgers[topic_id] = counting
        return list(counting)
