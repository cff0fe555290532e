"""The interface of a storage engine: ledgers of entries, and metadata.

`ManagedLedger`, cursors, finder, broker and jobs use these two protocols. The same for every
engine, and so above these protocols: positions, stamps, index and time, group commit and receipts,
the end of a ledger, leader epochs, retention, cursors. An engine gets entries whose bytes begin
with the broker's prefix, in order, and keeps them. docs/internals.md lists each method with its
promise, and with what Apache BookKeeper and ZooKeeper would do for it.

`pulsemark.testing.conformance` is the suite that every engine has to pass.

**Views.**
What the ledger package needs of compacted views: their names, and the catalog's property.

The `compaction` package makes, reads and searches views. The ledger package needs three facts
only: a topic's views are removed with the topic; their names are reserved; and a view records how
far the log went, so that no index is given twice if the newest ledger is lost (``TopicStore``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from ..records import record
from .commit.batch import EntryWriter
from .commit.group_commit import GroupCommit
from .errors import UnsupportedVersionError
from .position import Position
from .run import Run, RunHeader

T = TypeVar("T")

DELETING_KIND = "deleting"
"""Kind of a value, by topic id: the topic is being deleted. It is stored in the change that removes
the topic from the topics."""
CONTROL_NOTE_KIND = "control-entries"
"""The ledgers with control entries, and where these are (`topic_log.ControlPositions`)."""
TRANSACTIONS_NOTE_KIND = "transactions"
"""What is known of a topic's transactions (`transactions.Transactions`)."""
PENDING_ACKS_KIND = "pending-acks"
"""What open transactions have acknowledged of a topic's subscriptions, by topic id."""
FOLLOWS_KIND = "follows"
"""Kind of the values of a follower's folder: `FOLLOWS_PLACE` says which place it follows; other
keys are topics without entries, with the index of their next message."""
FOLLOWS_PLACE = "place"
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
        return self.create_topics([name])[name]

    def create_topics(self, names: Sequence[str]) -> dict[str, int]:
        """As `create_topic` for many names at once, in one change; their ids by name."""

    def reserve_ledger_ids(self, count: int) -> int:
        """Reserve ``count`` ledger ids, higher than all before; returns the first."""

    def get(self, kind: str, key: str) -> bytes | None:
        """The value stored under (kind, key), or None."""

    def items(self, kind: str) -> list[tuple[str, bytes]]:
        """All (key, value) pairs of a kind, ordered by key."""

    def put(self, kind: str, key: str, value: bytes) -> None:
        """Store ``value`` under (kind, key)."""
        self.write([(kind, key, value)])

    def delete(self, kind: str, key: str) -> bool:
        """Remove (kind, key); returns whether it was there."""
        was_there = self.get(kind, key) is not None
        self.write([(kind, key, None)])
        return was_there

    def write(self, changes: Iterable[tuple[str, str, bytes | None]]) -> None:
        """Store several values, or remove them (None), all of them or none: (kind, key, value)."""

    def moment(self) -> int:
        """A moment for `write_since`: values read from now on are not older than it."""
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

    Engines derive theirs from it: what it does by itself is right for one without background work.
    Creating the engine takes the ownership: a second owner is refused (FolderLockedError), or the
    first one is fenced from then on. A fenced owner's writes raise OwnershipLostError.
    """

    metadata: MetadataStore
    """Topics, ledger ids and values."""
    writer: EntryWriter
    """Appends entries."""

    def start(self, committer: GroupCommit) -> None:
        """The store is ready: the engine may work in the background, and fence owners."""
        return

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
        """Note that a run is appended to from now on. Under the lock."""
        return

    def sealed(self, run: Run) -> None:
        """Note that no entry follows in this run after the pending ones. Under the lock."""
        return

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
        return work()

    # The whole

    def probe(self) -> None:
        """Check whether writes are possible now. Blocks. Raises OSError."""

    def checkpoint(self) -> None:
        """Bring everything that was acknowledged to its final place, so that the next opening has
        nothing to repeat. Blocks. Raises CatalogError, OSError.
        """
        return

    def finish(self) -> None:
        """All is committed and sealed: end the background work. Raises OSError, CatalogError."""
        return

    def close(self) -> None:
        """Give up the ownership and all resources, after ``finish`` or instead of it."""


TENANT_KIND = "tenant"
NAMESPACE_KIND = "namespace"
"""The policies of a namespace, by tenant/namespace."""
PARTITIONED_KIND = "partitioned-topic"
"""The number of partitions, by the topic's full name."""
SCHEMA_KIND = "schema"
"""All versions of a topic's schema (`metadata.schema_list`), by the topic's full name."""


VIEW_TOPIC_PREFIX = "compacted/"
"""Names of views begin with this; those of clients' topics have a domain and a namespace."""
VIEW_PROPERTY_KIND = "compaction"
"""Kind of the catalog's property that says which view of a topic counts."""
CLEANER_PROPERTY_KIND = "cleaner"
"""Kind of a value, by topic id: the topic's log is cleaned as Kafka's are, and reads go on from the
view to the log (`compaction.cleaner`)."""
VIEW_VERSION = 1
PROPERTY = struct.Struct("<HHI6Q")


class BadViewError(Exception):
    """The bytes are not part of a view; the view's reader goes on without them."""


@record(frozen=True)
class ViewSummary:
    """The facts about a view, in its footer and in the catalog."""

    horizon: Position
    """The last entry of the log that went into it; everything after it is read from the log."""
    next_index: int
    """Index of the first message after the horizon."""
    time_max_ms: int
    """Highest entry time in the log up to the horizon."""
    entry_count: int
    message_count: int

    @classmethod
    def of(cls, numbers: Sequence[int]) -> ViewSummary:
        """The summary that has these ``numbers``."""
        ledger_id, entry_id, *others = numbers
        return cls(Position(ledger_id, entry_id), *others)

    def numbers(self) -> tuple[int, ...]:
        """Its fields in the order in which they are stored."""
        return (
            *self.horizon,
            self.next_index,
            self.time_max_ms,
            self.entry_count,
            self.message_count,
        )

    def pack(self, generation: int) -> bytes:
        """The catalog's property: version and generation of the view, and the summary."""
        return PROPERTY.pack(VIEW_VERSION, 0, generation, *self.numbers())


def unpack_property(value: bytes, name: str) -> tuple[int, ViewSummary]:
    """Generation and summary from the catalog. Raises BadViewError, UnsupportedVersionError."""
    if len(value) < 2:
        raise BadViewError("the catalog's property is cut off")
    version = int.from_bytes(value[:2], "little")
    if version > VIEW_VERSION:
        raise UnsupportedVersionError(Path(name), "compacted view version", version, VIEW_VERSION)
    if len(value) != PROPERTY.size:
        raise BadViewError(f"the catalog's property has {len(value)} bytes")
    _, _, generation, *numbers = PROPERTY.unpack(value)
    return generation, ViewSummary.of(numbers)
