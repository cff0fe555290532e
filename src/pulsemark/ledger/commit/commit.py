"""What those who append wait for: a commit per topic, a batch for all committed together.

A commit's entries gather in a group, one for each run that a batch adds to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from ...metadata import Buffer
from ..run import Run
from ..store_state import StoreState

PendingEntry = tuple[Sequence[Buffer], int, int, int, int]
"""What the engine made of the entry (`LedgerStore.pack`), append time, highest entry time up to and
with it, messages of the run up to and with it, and where it ends in the run."""
DoneCallback = Callable[[BaseException | None], None]
_Callback = TypeVar("_Callback")


class Committer(Protocol):
    """Who finishes commits, as those see it that wait for one (see `GroupCommit`)."""

    state: StoreState
    settling: threading.Lock

    def wake(self) -> None:
        """See that a thread commits what is pending."""

    def wait_for(self, commit: Commit, timeout_s: float | None) -> None:
        """Return when a commit is done."""


class _Awaited(Generic[_Callback]):
    """Something that a committer finishes; without one it is done."""

    __slots__ = ("_committer", "callbacks", "done")

    def __init__(self, committer: Committer | None) -> None:
        self._committer = committer
        self.callbacks: list[_Callback] = []
        self.done = committer is None

    def _keep(self, callback: _Callback) -> bool:
        """Keep ``callback`` until it is done, and see that a thread finishes it; False: it is."""
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
    """What is committed together: for those who wait for appends to many topics at once."""

    __slots__ = ("groups", "is_cut_short", "size_bytes")

    def __init__(self, committer: Committer | None) -> None:
        super().__init__(committer)
        self.groups: dict[Run, Group] = {}
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

    def __init__(self, committer: Committer | None, batch: Batch) -> None:
        super().__init__(committer)
        self.batch = batch
        self.error: BaseException | None = None

    def add_done_callback(self, callback: DoneCallback) -> None:
        """Call ``callback(error or None)`` when durable or failed; at once if it is already.

        Runs where the store's ``notify`` runs things. Without ``notify`` in a thread of the store
        that does nothing else: callbacks may call all of the store's methods, and wait.
        """
        if not self._keep(callback):
            callback(self.error)

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until durable.

        Raises FencedError if it is not to be, StoreFailedError if the store stopped before that
        was known, TimeoutError, CallbackError, and ForkedStoreError in a child process. An
        exception that a signal handler raises ends the wait and nothing else.
        """
        if not self.done and self._committer is not None:
            self._committer.wait_for(self, timeout_s)
        if self.error is not None:
            raise self.error


DONE = Commit(None, Batch(None))
"""For what needs no commit."""


class Owner(Protocol):
    """The managed ledger a group belongs to, as the committer sees it."""

    name: str
    on_confirmed: list[Callable[[], None]]
    """Called after each commit that added entries."""

    def fence(self) -> None:
        """Under the lock: forget what is not durable, go on in a new ledger. Never raises."""


@dataclass(slots=True)
class Group:
    """What one batch adds to one run."""

    owner: Owner
    segment: Run
    offset: int
    """Where in the run its first entry goes; 0: it is the run's first."""
    commit: Commit
    entries: list[PendingEntry] = field(default_factory=list)
    size_bytes: int = 0
    buffers: list[Buffer] = field(default_factory=list)
    """What is written, once the group is on its way; for the engine to use."""


def show(segment: Run, last: PendingEntry) -> None:
    """Let readers see the run up to ``last``, whose row is the last one there."""
    _, append_time_ms, _, next_message, _ = last
    segment.show_group(segment.written_count, next_message, append_time_ms)
