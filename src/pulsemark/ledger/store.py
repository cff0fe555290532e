"""The interface of a storage engine: ledgers of entries, and metadata.

`ManagedLedger`, cursors, finder, broker and jobs use these two protocols. The same for every
engine, and so above these protocols: positions, stamps, index and time, group commit and receipts,
the end of a ledger, leader epochs, retention, cursors. An engine gets entries whose bytes begin
with the broker's prefix, in order, and keeps them. ARCHITECTURE.md lists each method with its
promise, and with what Apache BookKeeper and ZooKeeper would do for it.

`pulsemark.testing.conformance` is the suite that every engine has to pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from .commit.group_commit import EntryWriter, GroupCommit
from .run import Run, RunHeader

T = TypeVar("T")

DELETING_KIND = "deleting"
"""Kind of a value, by topic id: the topic is being deleted. It is stored in the change that removes
the topic from the topics."""
CONTROL_NOTE_KIND = "control-entries"
"""The ledgers with control entries, and where these are (`control_positions`)."""
SEEN_PROPERTY_KIND = "retention-seen"
"""Kind of a value, by topic id: a note of `retention` about append times that cannot be used."""


class MetadataStore(Protocol):
    """Data that seldom changes: topics by name, ledger ids, and values by kind and key.

    Each change is made as a whole, and is durable when the call returns. If a call raises
    CatalogError, nothing has changed. Calls block. Safe between threads.
    """

    def topics(self) -> dict[str, int]:
        """Every topic's id by name."""

    def create_topic(self, name: str) -> int:
        """Add a topic and return its id, which is new; if the topic exists, its existing id."""

    def create_topics(self, names: Sequence[str]) -> dict[str, int]:
        """As `create_topic` for many names at once, in one change; their ids by name."""

    def reserve_ledger_ids(self, count: int) -> int:
        """Reserve ``count`` ledger ids, higher than all before; returns the first."""

    def get(self, kind: str, key: str) -> bytes | None:
        """The value stored under (kind, key); None if there is none."""

    def items(self, kind: str) -> list[tuple[str, bytes]]:
        """All (key, value) pairs of a kind, ordered by key."""

    def put(self, kind: str, key: str, value: bytes) -> None:
        """Store ``value`` under (kind, key)."""
        self.write([(kind, key, value)])

    def delete(self, kind: str, key: str) -> bool:
        """Remove (kind, key); returns whether it was there."""

    def write(self, changes: Iterable[tuple[str, str, bytes | None]]) -> None:
        """Store several values, or remove them (None), all of them or none: (kind, key, value)."""

    def moment(self) -> int:
        """What `write_since` can be told: values that are read from now on are not older."""
        return 0

    def write_since(self, moment: int, changes: Iterable[tuple[str, str, bytes | None]]) -> None:
        """As `write`, if no other broker has changed one of these values since ``moment``.

        Raises ChangedElsewhereError, where several brokers change the values; then nothing has
        changed.
        """
        self.write(changes)

    def report_since(self, moment: int, places: Iterable[tuple[str, str]]) -> None:
        """Report again which of these values, by kind and key, others changed since ``moment``."""
        return  # a store with one broker has no others


class LedgerStore(Protocol):
    """An engine: creates, appends to, reads, seals and removes ledgers. One owner at a time.

    Creating the engine takes the ownership: a second owner is refused (FolderLockedError), or the
    first one is fenced from then on. A fenced owner's writes raise OwnershipLostError.
    """

    @property
    def metadata(self) -> MetadataStore:
        """Topics, ledger ids and values."""

    @property
    def writer(self) -> EntryWriter:
        """What appends entries."""

    def start(self, committer: GroupCommit) -> None:
        """The store is ready: the engine may work in the background, and fence owners."""

    # Ledgers

    def create(self, header: RunHeader) -> Run:
        """A new run to append to. Nothing must be durable before its first entry. Raises OSError.

        ``header.segment_no`` 0 begins a ledger; above that the ledger goes on in a new run.
        """

    def open(self, name: str, topic_id: int) -> list[Run]:
        """The runs with entries that make a topic's log, oldest first; recovered and sealed.

        They have all acknowledged entries with their indexes, and no other owner appends to them
        any more. Raises CatalogError, OSError, UnsupportedVersionError.
        """

    def began(self, run: Run) -> None:
        """Under the lock: a run is appended to from now on."""

    def sealed(self, run: Run) -> None:
        """Under the lock: no entry follows in this run after those that are pending."""

    def void(self, run: Run) -> None:
        """Under the lock: no entry of this run, begun by this owner, is or will be durable."""

    # Removing

    def remove(self, topic_id: int, runs: Sequence[Run]) -> Callable[[], None]:
        """Remove these runs from a topic, durably.

        Returns a function that frees their space, to be called once no reader can see them. If it
        is never called, the next owner does it. Raises CatalogError, OSError: nothing has changed
        then.
        """

    def remove_topic(
        self, topic_id: int, runs: Sequence[Run], note: tuple[str, str]
    ) -> Callable[[], None]:
        """As ``remove``, for a topic with all of its runs. ``note`` is the (kind, key) of an empty
        value that is stored in the same change.
        """

    def freeing(self, work: Callable[[], T]) -> T:
        """Do work that frees space, or must work on a full disk, with what help the engine has."""

    # The whole

    def probe(self) -> None:
        """Check whether writes are possible now. Blocks. Raises OSError."""

    def checkpoint(self) -> None:
        """Bring everything that was acknowledged to its final place, so that the next opening has
        nothing to repeat. Blocks. Raises CatalogError, OSError.
        """

    def finish(self) -> None:
        """All is committed and sealed: end the background work. Raises OSError, CatalogError."""

    def close(self) -> None:
        """Give up the ownership and all resources, after ``finish`` or instead of it."""
