"""What callers wait for after an append: a commit per topic, and a batch of commits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from ..run import Run
    from .group import Group
    from .group_commit import GroupCommit

DoneCallback = Callable[[BaseException | None], None]
_Callback = TypeVar("_Callback")


class _Awaited(Generic[_Callback]):
    """Something that a committer finishes. Without a committer it is done already."""

    __slots__ = ("_committer", "callbacks", "done")

    def __init__(self, committer: GroupCommit | None) -> None:
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

    def __init__(self, committer: GroupCommit | None) -> None:
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

    def __init__(self, committer: GroupCommit | None, batch: Batch) -> None:
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


DONE = Commit(None, Batch(None))
"""For what needs no commit."""


def failed_commit(error: BaseException) -> Commit:
    """A commit that is done, and failed with ``error``."""
    commit = Commit(None, Batch(None))
    commit.error = error
    return commit
