"""What those who append wait for: a commit per topic, a batch for all committed together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from .group_commit import Group, GroupCommit
    from .segment import Segment

DoneCallback = Callable[[BaseException | None], None]
_Callback = TypeVar("_Callback")


class _Awaited(Generic[_Callback]):
    """Something that a committer finishes; without one it is done."""

    __slots__ = ("_committer", "callbacks", "done")

    def __init__(self, committer: GroupCommit | None) -> None:
        self._committer = committer
        self.callbacks: list[_Callback] = []
        self.done = committer is None

    def _keep(self, callback: _Callback) -> bool:
        """Keep ``callback`` until it is done, and see that somebody finishes it; False: it is."""
        if self._committer is None:
            return False
        with self._committer.settled:
            if self.done:
                return False
            self.callbacks.append(callback)
        self._committer.wake()
        return True


class Batch(_Awaited[Callable[[], None]]):
    """What is committed together: for those who wait for appends to many topics at once."""

    __slots__ = ("groups", "is_cut_short", "size_bytes")

    def __init__(self, committer: GroupCommit | None) -> None:
        super().__init__(committer)
        self.groups: dict[Segment, Group] = {}
        self.size_bytes = 0
        self.is_cut_short = False
        """Groups were taken out: it has to be finished even if none is left."""

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` when every commit of the batch is done; at once if they are.

        Each commit says for itself whether it failed. Runs where ``Commit``'s callbacks do.
        """
        if not self._keep(callback):
            callback()

    @property
    def is_due(self) -> bool:
        """Whether there is something to do."""
        return bool(self.groups) or self.is_cut_short


class Commit(_Awaited[DoneCallback]):
    """What all appends to one topic in one batch wait for."""

    __slots__ = ("batch", "error")

    def __init__(self, committer: GroupCommit | None, batch: Batch) -> None:
        super().__init__(committer)
        self.batch = batch
        self.error: BaseException | None = None

    def add_done_callback(self, callback: DoneCallback) -> None:
        """Call ``callback(error or None)`` when durable or failed; at once if it is already.

        Runs where the store's ``notify`` runs things; without one in the committer's thread.
        """
        if not self._keep(callback):
            callback(self.error)

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until durable. Raises FencedError if it is not to be, TimeoutError."""
        if self._committer is not None:
            self._committer.lead(self)
            with self._committer.settled:
                if not self._committer.settled.wait_for(lambda: self.done, timeout_s):
                    raise TimeoutError(f"not durable within {timeout_s} s")
        if self.error is not None:
            raise self.error

    def _finish(self, error: BaseException | None) -> list[DoneCallback]:
        """Under the condition's lock: settle, and hand over who is to be called."""
        self.error = error
        self.done = True
        callbacks, self.callbacks = self.callbacks, []
        return callbacks


DONE = Commit(None, Batch(None))
"""For what needs no commit."""
