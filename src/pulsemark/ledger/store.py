"""The seam between a topic's log and what keeps it: ledgers of entries, and metadata.

`ManagedLedger`, cursors, finder, broker and jobs stand on these two protocols. Above the seam, and
so the same for every engine: positions, stamps, index and time, group commit and receipts, when a
ledger ends, leader epochs, retention, cursors. An engine gets entries whose bytes begin with the
broker's prefix, in order, and keeps them. ARCHITECTURE.md lists each method with its promise, and
with what Apache BookKeeper and ZooKeeper would do for it.

`pulsemark.testing.conformance` is the suite that every engine has to pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from .commit.entry_writer import EntryWriter
from .commit.group_commit import GroupCommit
from .run import Run, RunHeader

T = TypeVar("T")


class MetadataStore(Protocol):
    """What changes seldom: topics by name, ledger ids, and values by kind and key.

    Each change is made as a whole, and durable when the call returns; where it raises CatalogError
    nothing has changed. Calls block. Safe between threads.
    """

    def topics(self) -> dict[str, int]:
        """Every topic's id by name."""
        ...

    def create_topic(self, name: str) -> int:
        """Add a topic and return its id, never given before; the id it has, if it is there."""
        ...

    def reserve_ledger_ids(self, count: int) -> int:
        """Reserve ``count`` ledger ids, higher than all before, never given again; the first."""
        ...

    def get(self, kind: str, key: str) -> bytes | None:
        """What is stored under (kind, key); None where nothing is."""
        ...

    def items(self, kind: str) -> list[tuple[str, bytes]]:
        """All of a kind, by key."""
        ...

    def put(self, kind: str, key: str, value: bytes) -> None:
        """Store ``value`` under (kind, key)."""
        ...

    def delete(self, kind: str, key: str) -> bool:
        """Remove (kind, key); whether it was there."""
        ...

    def write(self, changes: Iterable[tuple[str, str, bytes | None]]) -> None:
        """Store several values, or remove them (None), all of them or none: (kind, key, value)."""
        ...


class LedgerStore(Protocol):
    """An engine: makes, appends to, reads, seals and removes ledgers. One owner at a time.

    Making one takes the ownership: a second owner is refused (FolderLockedError), or the first one
    is fenced from then on. A fenced owner's writes raise OwnershipLostError.
    """

    @property
    def metadata(self) -> MetadataStore:
        """Topics, ledger ids and values."""
        ...

    @property
    def writer(self) -> EntryWriter:
        """Appends entries; see there."""
        ...

    def start(self, committer: GroupCommit) -> None:
        """The store is made: the engine may work in the background, and fence owners."""
        ...

    # Ledgers

    def create(self, header: RunHeader) -> Run:
        """A run to append to. Nothing has to be durable before its first entry is. Raises OSError.

        ``header.segment_no`` 0 begins a ledger; above that the ledger goes on in a new run.
        """
        ...

    def open(self, name: str, topic_id: int) -> list[Run]:
        """The runs with entries that make a topic's log, oldest first: recovered, and sealed.

        All entries that were acknowledged are there, with their indexes; no one appends to these
        runs any more. Raises CatalogError, OSError, UnsupportedVersionError.
        """
        ...

    def began(self, segment: Run) -> None:
        """Under the lock: a run is appended to from now on."""
        ...

    def sealed(self, segment: Run) -> None:
        """Under the lock: no entry follows in this run once those are written that are pending."""
        ...

    def void(self, segment: Run) -> None:
        """Under the lock: nothing of this run, which began here, became durable or ever will."""
        ...

    # Removing

    def remove(self, topic_id: int, segments: Sequence[Run]) -> Callable[[], None]:
        """Decide, durably, that a topic no longer has these runs.

        Returns what gives their space back, to be called once they are out of sight. Should that
        not happen, the next owner does it. Raises CatalogError, OSError: nothing has changed then.
        """
        ...

    def remove_topic(
        self, topic_id: int, segments: Sequence[Run], note: tuple[str, str]
    ) -> Callable[[], None]:
        """As ``remove``, for a topic with all of its runs. ``note`` is the (kind, key) of an empty
        value that is stored in the same change.
        """
        ...

    def freeing(self, work: Callable[[], T]) -> T:
        """Do what makes room, or must not fail for want of room, as far as the engine can help."""
        ...

    # The whole

    def probe(self) -> None:
        """See whether writes are taken just now. Blocks. Raises OSError."""
        ...

    def checkpoint(self) -> None:
        """Have everything that was acknowledged where reading finds it at the next opening without
        repeating anything. Blocks. Raises CatalogError, OSError.
        """
        ...

    def finish(self) -> None:
        """All is committed and sealed: end the background work. Raises OSError, CatalogError."""
        ...

    def close(self) -> None:
        """Give up the ownership and all resources, after ``finish`` or instead of it."""
        ...
