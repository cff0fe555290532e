"""The thread that commits what no other thread commits: when it wakes, and how long it gathers.

A thread that appends and waits commits its entries itself (`GroupCommit.wait_for`): that saves one
change of threads. While such threads commit (`is_led`), they do not wake this thread, and it leaves
the commits to them. It only looks from time to time whether they still do: some appends have no
caller that waits, and an exception may have ended a commit half way.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from queue import Empty
from typing import TYPE_CHECKING

from .bell import Bell

if TYPE_CHECKING:
    from .group_commit import GroupCommit

_MANY_GROUPS = 64
_ENTRIES_PER_GROUP = 8
GATHER_RATIO = 6
GATHER_MAX_S = 0.2
_GATHER_POLL_S = 0.002
"""See ``CommitterThread._gather``."""

_LOOK_IN_S = 0.005
"""How often the thread looks for work while appending threads commit it themselves."""


class CommitterThread:
    """The committer's thread. If ``threaded`` is False, no thread is started."""

    def __init__(self, committer: GroupCommit, bell: Bell, *, threaded: bool) -> None:
        self._committer = committer
        self._bell = bell
        self.is_stopping = False
        self._commit_s = 0.0
        """How long the last commit of this thread took."""
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._run, name="pulsemark-commit", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        if self._thread is not None:
            self._thread.start()

    @property
    def is_absent(self) -> bool:
        """Whether the caller cannot wait for the thread: it does not run, or it is the caller."""
        return self._thread is None or self._thread is threading.current_thread()

    @property
    def commits_all(self) -> bool:
        """Whether a commit must wait for runs that are not ready: none can come later."""
        return self._thread is None or self.is_stopping

    def wake(self) -> None:
        """Wake the thread, if it sleeps, for what was appended without waking it."""
        bell = self._bell
        if bell.is_asleep and not bell.is_led and self._committer.has_work:
            bell.strokes.put(None)

    def stop(self) -> None:
        """End the thread once everything is committed."""
        self.is_stopping = True
        self._bell.strokes.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not (self.is_stopping and not self._committer.has_work):
            try:
                self._take_turn()
            except BaseException as error:  # noqa: BLE001 - the thread must go on
                self._committer.stop_store(error)

    def _take_turn(self) -> None:
        committer = self._committer
        is_wanted = self._bell.is_rung or (committer.has_work and not self._bell.is_led)
        if not is_wanted and not self.is_stopping:
            last_taken = committer.pending.last_taken
            was_rung = self._sleep()
            is_at_it = committer.is_committing or committer.pending.last_taken is not last_taken
            if self._bell.is_led and (was_rung or is_at_it):
                return  # another thread commits: taking the next batch from it would slow down both
            self._bell.is_led = False
        self._bell.is_rung = False
        if not committer.interval_ms:
            self._gather()
        with committer.between_batches():
            started_s = time.monotonic()
            committer.commit_next()
            self._commit_s = time.monotonic() - started_s
            committer.sync_if_due(at_once=self.is_stopping)

    def _sleep(self) -> bool:
        """Sleep until there is work; returns whether the bell rang for it."""
        while not self._bell.strokes.empty():
            self._bell.strokes.get()
        self._bell.is_asleep = True
        try:
            # Asked again: what came before the thread was seen to sleep did not ring the bell.
            if self._bell.is_rung or (not self._bell.is_led and self._committer.has_work):
                return True
            with suppress(Empty):
                timeout_s = (
                    _LOOK_IN_S if self._bell.is_led else self._committer.unsynced.seconds_left()
                )
                if not self.is_stopping:
                    self._bell.strokes.get(timeout=timeout_s)
                return True
            return False
        finally:
            self._bell.is_asleep = False

    def _gather(self) -> None:
        """Let a batch of many topics grow.

        Each topic in a batch costs a fixed amount of time, however few entries it adds, and the
        threads that append meanwhile need the same processor. So batches of many topics take only
        a share of the time: the next batch waits a multiple of the time that the last one took,
        as long as more entries come, or until each topic has some entries in the batch.
        """
        pending = self._committer.pending
        with pending.lock:
            gathering, seen = pending.oldest, -1
        until_s = time.monotonic() + min(GATHER_RATIO * self._commit_s, GATHER_MAX_S)
        while (
            len(gathering.groups) > _MANY_GROUPS
            and not self.is_stopping
            and seen < pending.entry_count < _ENTRIES_PER_GROUP * len(gathering.groups)
            and gathering is pending.gathering
            and time.monotonic() < until_s
        ):
            seen = pending.entry_count
            time.sleep(_GATHER_POLL_S)
