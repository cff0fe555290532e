"""What appends wait for: an entry's commit, its group, and the batch of many groups.

A pending append is the bytes of its record and one row in its group. It has no object of its own,
which the garbage collector would have to follow. The caller gets an `Appended`, whose ``commit``
is the group.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Generic, Protocol, TypeVar

from ...metadata import Buffer
from ..errors import FencedError
from ..position import Position
from ..run import Run
from ..store_state import StoreState
from ..tail_cache import RecentEntries

_JOIN_BELOW_BYTES = 16 * 1024
"""Buffers smaller than this on average are joined: one copy is cheaper than a long gather."""

ROW_FIELDS = 4
"""The numbers of each entry: its append time, the highest entry time up to it, the run's
messages up to it (both including the entry), and where its record ends in the run."""

DoneCallback = Callable[[BaseException | None], None]
_Callback = TypeVar("_Callback")


class Committer(Protocol):
    """What a commit needs of the `GroupCommit` that finishes it."""

    state: StoreState
    settling: threading.Lock
    """Held while commits become done, and while callbacks are added to them."""

    def wake(self) -> None:
        """Have a thread commit what is pending."""

    def wait_for(self, commit: Commit, timeout_s: float | None) -> None:
        """Return when a commit is done."""


class Owner(Protocol):
    """The managed ledger a group belongs to, as the committer sees it."""

    name: str
    on_confirmed: list[Callable[[], None]]
    """Functions to call after each commit that added entries."""
    recent: RecentEntries
    """Where its newest entries are kept for readers."""

    def fence(self) -> None:
        """Under the lock: drop what is not durable; go on in a new ledger. Never raises."""


class _Awaited(Generic[_Callback]):
    """Something that a committer finishes. Without a committer it is done already."""

    __slots__ = ("_committer", "callbacks", "done")

    def __init__(self, committer: Committer | None) -> None:
        self._committer = committer
        self.callbacks: list[_Callback] = []
        self.done = committer is None

    def _keep(self, callback: _Callback) -> bool:
        """Keep ``callback`` until this is done, and wake a thread to finish it; False: it is."""
        committer = self._committer
        if committer is None or self.done:
            return False
        committer.state.check_process()
        with committer.settling:
            if self.done:
                return False
            self.callbacks.append(callback)
        committer.wake()
        return True


class Batch(_Awaited[Callable[[], None]]):
    """What is committed together, for callers that wait for appends to many topics at once."""

    __slots__ = ("groups", "is_cut_short", "is_in_journal", "journal_error", "size_bytes")

    def __init__(self, committer: Committer | None) -> None:
        super().__init__(committer)
        self.groups: dict[Run, Group] = {}
        self.size_bytes = 0
        self.is_cut_short = False
        """Groups were taken out: the batch must be finished even if it has no group left."""
        self.is_in_journal = False
        """For the engine: the batch is durable."""
        self.journal_error: OSError | None = None
        """For the engine: the batch could not be made durable, and never will be."""

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` when every commit of the batch is done; at once if all are done.

        Each commit says for itself whether it failed. Runs where ``Commit``'s callbacks do, and
        raises as their registration does.
        """
        if not self._keep(callback):
            callback()

    def groups_with_entries(self) -> list[Group]:
        """The groups that have entries. A group has none if an exception ended its first append."""
        return [group for group in self.groups.values() if group.rows]

    @property
    def is_due(self) -> bool:
        """Whether there is something to do."""
        return bool(self.groups) or self.is_cut_short


class Commit(_Awaited[DoneCallback]):
    """The commit of all appends to one topic in one batch."""

    __slots__ = ("batch", "error")

    def __init__(self, committer: Committer | None, batch: Batch) -> None:
        super().__init__(committer)
        self.batch = batch
        self.error: BaseException | None = None

    def add_done_callback(self, callback: DoneCallback) -> None:
        """Call ``callback(error or None)`` when durable or failed; at once if it is already.

        What became of a commit is a fact: one that was done answers also once the store is closed,
        and in a child process. For any other one a child process raises ForkedStoreError.

        Runs where the store's ``notify`` runs things. Without ``notify`` in a thread of the store
        that does nothing else: callbacks may call all of the store's methods, and wait.
        """
        if not self._keep(callback):
            callback(self.error)

    def settle(self, error: BaseException | None) -> list[Callable[[], None]]:
        """Mark it as done: durable, or failed with ``error``. Returns the callbacks to call.

        The caller holds the committer's ``settling`` lock.
        """
        self.error = error
        self.done = True
        callbacks, self.callbacks = self.callbacks, []
        return [partial(callback, error) for callback in callbacks]

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until durable.

        Raises FencedError if it is not to be, StoreFailedError if the store stopped before that
        was known, TimeoutError, CallbackError, and ForkedStoreError in a child process. An
        exception that a signal handler raises ends the wait and nothing else. Without a time-out
        the calling thread may write to the disk itself: then no exception ends the wait before
        the disk answers.

        What became of a commit is a fact: one that is done answers also once the store is closed,
        and in a child process.
        """
        if not self.done and self._committer is not None:
            self._committer.wait_for(self, timeout_s)
        if self.error is not None:
            raise self.error


class Group(Commit):
    """What one batch adds to one run."""

    __slots__ = ("buffers", "offset", "owner", "rows", "run")

    def __init__(
        self,
        committer: Committer | None,
        batch: Batch,
        owner: Owner,
        run: Run,
        offset: int,
    ) -> None:
        """``offset``: where the group begins in the run."""
        super().__init__(committer, batch)
        self.owner = owner
        self.run = run
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
        """Where the group ends in the run. The group must have an entry."""
        return self.rows[-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all records, and of the run's header where it comes first."""
        rows = self.rows
        return rows[-1] - self.offset if rows else 0

    def join_small_buffers(self) -> None:
        """Make one buffer of many small ones."""
        buffers = self.buffers
        if len(buffers) > 1 and self.size_bytes < _JOIN_BELOW_BYTES * len(buffers):
            self.buffers = [b"".join(buffers)]

    def show(self, count: int | None = None) -> None:
        """Let readers see the run up to the group's end, or up to its entry ``count``.

        Its rows must be in the run's index already.
        """
        end = len(self.rows) if count is None else count * ROW_FIELDS
        append_time_ms, _, next_message, _ = self.rows[end - ROW_FIELDS : end]
        self.run.show_group(self.run.written_count, next_message, append_time_ms)

    def refuse(self, reason: str) -> list[Callable[[], None]]:
        """Settle it as failed; the error says which of its entries readers see all the same."""
        return self.settle(FencedError(self.owner.name, reason, self.run.end_entry_id))

    def forget_content(self) -> None:
        """Free the bytes and rows: the caller may keep the commit for long."""
        self.buffers, self.rows = [], []


def all_buffers(groups: Sequence[Group]) -> list[Buffer]:
    """The bytes of these groups, in their order."""
    return list(chain.from_iterable([group.buffers for group in groups]))


@dataclass(slots=True)
class Appended:
    """Position and index of a new entry. It is stored once ``commit`` is done without error.

    It may be stored although its commit, which others share, has failed: see ``error``.
    """

    ledger_id: int
    entry_id: int
    index: int
    """Index of the entry's LAST message (PIP-70)."""
    time_ms: int
    commit: Commit

    @property
    def position(self) -> Position:
        """The entry's position."""
        return Position(self.ledger_id, self.entry_id)

    @property
    def error(self) -> BaseException | None:
        """Once ``commit`` is done: why this entry is not stored; None if it is.

        Who sends it again because its commit failed has it in the log twice, if it is stored.
        """
        error = self.commit.error
        if isinstance(error, FencedError) and self.entry_id < error.stored_end_id:
            return None
        return error


DONE = Commit(None, Batch(None))
"""For what needs no commit."""


def failed_commit(error: BaseException) -> Commit:
    """A commit that is done, and failed with ``error``."""
    commit = Commit(None, Batch(None))
    commit.error = error
    return commit
