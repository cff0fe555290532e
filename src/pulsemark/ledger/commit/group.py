"""Appends that are not yet durable: what one batch adds to one run.

A pending append is the bytes of its record and one row in the group. It has no object of its own,
which the garbage collector would have to follow. The caller gets an `Appended`, whose ``commit``
is the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from ...metadata import Buffer
from ..run import Run
from .commit import Batch, Commit

if TYPE_CHECKING:
    from ..tail_cache import RecentEntries
    from .group_commit import GroupCommit

_JOIN_BELOW_BYTES = 16 * 1024
"""Buffers smaller than this on average are joined: one copy is cheaper than a long gather."""

ROW_FIELDS = 4
"""The numbers of each entry: its append time, the highest entry time up to it, the segment's
messages up to it (both including the entry), and where its record ends in the segment."""


class Owner(Protocol):
    """The managed ledger a group belongs to, as the committer sees it."""

    name: str
    on_confirmed: list[Callable[[], None]]
    """Functions to call after each commit that added entries."""
    recent: RecentEntries
    """Where its newest entries are kept for readers."""

    def fence(self) -> None:
        """Under the lock: drop what is not durable; go on in a new ledger. Never raises."""


class Group(Commit):
    """What one batch adds to one run."""

    __slots__ = ("buffers", "offset", "owner", "rows", "segment")

    def __init__(
        self,
        committer: GroupCommit | None,
        batch: Batch,
        owner: Owner,
        segment: Run,
        offset: int,
    ) -> None:
        """``offset``: where the group begins in the segment."""
        super().__init__(committer, batch)
        self.owner = owner
        self.segment = segment
        self.offset = offset
        self.buffers: list[Buffer] = []
        """The records' bytes, one after another."""
        self.rows: list[int] = []
        """`ROW_FIELDS` numbers for each entry, one entry after another."""

    @property
    def entry_count(self) -> int:
        """How many entries were appended."""
        return len(self.rows) // ROW_FIELDS

    @property
    def end_offset(self) -> int:
        """Where the group ends in the segment. The group must have an entry."""
        return self.rows[-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all records, and of the segment's header where it comes first."""
        rows = self.rows
        return rows[-1] - self.offset if rows else 0

    def join_small_buffers(self) -> None:
        """Make one buffer of many small ones."""
        buffers = self.buffers
        if len(buffers) > 1 and self.size_bytes < _JOIN_BELOW_BYTES * len(buffers):
            self.buffers = [b"".join(buffers)]

    def show(self, count: int | None = None) -> None:
        """Let readers see the segment up to the group's end, or up to its entry ``count``.

        Its rows must be in the segment's index already.
        """
        end = len(self.rows) if count is None else count * ROW_FIELDS
        append_time_ms, _, next_message, _ = self.rows[end - ROW_FIELDS : end]
        self.segment.show_group(self.segment.written_count, next_message, append_time_ms)

    def forget_content(self) -> None:
        """Free the bytes and rows: the caller may keep the commit for long."""
        self.buffers, self.rows = [], []


def all_buffers(groups: Sequence[Group]) -> list[Buffer]:
    """The bytes of these groups, in their order."""
    return list(chain.from_iterable([group.buffers for group in groups]))
