"""What a broker needs of its store: a store of its own, or its part of a cluster's stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from ..ledger import Cursor, ManagedLedger
from ..ledger.store import MetadataStore

__all__ = ["CacheFigures", "ChangedCursors", "Storage"]

T = TypeVar("T")


class CacheFigures(Protocol):
    """The newest entries in memory, in figures; `TailCache` is one."""

    @property
    def hit_entries(self) -> int: ...  # noqa: D102
    @property
    def hit_bytes(self) -> int: ...  # noqa: D102
    @property
    def missed_entries(self) -> int: ...  # noqa: D102
    @property
    def missed_bytes(self) -> int: ...  # noqa: D102
    @property
    def evictions(self) -> int: ...  # noqa: D102
    @property
    def used_size_bytes(self) -> int: ...  # noqa: D102
    @property
    def entry_count(self) -> int: ...  # noqa: D102
    @property
    def inserted_entries(self) -> int: ...  # noqa: D102
    @property
    def evicted_entries(self) -> int: ...  # noqa: D102
    @property
    def max_size_bytes(self) -> int: ...  # noqa: D102

    def evict_old(self) -> None:
        """Drop the entries that are too old."""


class ChangedCursors(Protocol):
    """The durable cursors; `CursorStore` is one."""

    def changed(self) -> Iterable[Cursor]:
        """Those with changes that are not stored yet."""


class Storage(Protocol):
    """Topics and settings. `TopicStore` is one; its methods say what they raise."""

    @property
    def catalog(self) -> MetadataStore:
        """Settings and names; its calls block."""

    @property
    def owner_id(self) -> str:
        """Identifies this opening of the store."""

    @property
    def name(self) -> str:
        """The store's name in messages."""

    @property
    def is_whole(self) -> bool:
        """Whether all topics are in this store, not only those of some bundles."""

    @property
    def cursors(self) -> ChangedCursors:
        """The durable cursors."""

    @property
    def tail_cache(self) -> CacheFigures:
        """The newest entries, for their figures."""

    def topic_names(self) -> list[str]:
        """Full names of all topics, sorted."""

    def add_topics(self, names: Sequence[str]) -> None:
        """Create those of these topics that do not exist. Blocks."""

    def open_topic(self, name: str) -> ManagedLedger:
        """A topic's ledger; it is created if it does not exist. Blocks."""

    def open_internal(self, name: str) -> ManagedLedger:
        """A log that a part of the broker keeps for itself. Blocks."""

    def delete_topic(self, name: str) -> None:
        """Remove a topic with all that it has. Blocks."""

    def freeing(self, work: Callable[[], T]) -> T:
        """Do work that frees space, or must be possible on a full disk. Blocks."""

    def probe(self) -> None:
        """Check whether writes are possible. Blocks. Raises OSError."""

    def wake_committer(self) -> None:
        """Have committed what was appended without waking the committer."""

    def reads_are_due(self) -> bool:
        """Whether readers of old entries have to wait for writers now."""

    def never_wait_here(self) -> None:
        """As `StoreCore.never_wait_here`, for all stores, also those that are opened later."""

    def close(self) -> None:
        """Close it. Blocks."""
