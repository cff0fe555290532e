"""Group commit: one sync makes durable whatever was appended meanwhile.

While one batch is synced the next one gathers (`Pending`), so that all appends to all topics in it
share the price of one sync. The committer's thread commits it, or a thread that waits for it.

A batch goes through these steps: journal block, sync, bytes into segments, entries become visible,
callbacks. If the journal fails, every ledger in the batch is fenced with all its pending entries;
if one segment cannot be written, only its ledger is fenced. What was written whole into it stays:
readers of the folder may have seen it. The error says how far, for who would append it again.

Ledgers are only fenced between two batches (``fence``), so that a batch on its way never shows
rows that were just dropped.

Signal handlers run in the main thread and may raise there between any two steps. So the main
thread commits only what another thread can carry on from any step (``_commit_in_main_thread``):
each step is one run of assignments, or may be done twice. The batch stays in ``Pending.taken``
until it is committed completely, and the next thread that commits begins with it. The main thread
leaves everything else to the committer's thread, and waits.

With ``interval_ms`` a batch is acknowledged once it is written, and synced within that time: a
power cut can lose that much, a crash of the process nothing. It is off unless it is configured.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from ..errors import CallbackError, FencedError, LedgerError
from ..read_turns import ReadTurns
from ..store_state import StoreState
from ..uninterrupted import holds, is_of_handler
from ..waiting import Waiters
from .beginning import Beginning
from .bell import Bell
from .commit import Batch, Commit, Group, Owner
from .committer_thread import CommitterThread
from .delivery import Delivery
from .entry_writer import EntryWriter, Outcome
from .pending import Pending
from .remember import show
from .unsynced import Unsynced

_log = logging.getLogger(__name__)


class GroupCommit:
    """Commits what is pending, a batch at a time.

    Args:
        writer: where batches go.
        state: the store's; it is stopped if a batch fails in a way that has no repair.
        delivery: who calls the callbacks.
        max_pending_bytes: appends wait while more is not yet durable.
        interval_ms: see above; 0: each batch is synced before it is acknowledged.
        threaded: False: no thread is started; the threads that wait for batches commit them.
    """

    def __init__(
        self,
        writer: EntryWriter,
        state: StoreState,
        delivery: Delivery,
        *,
        max_pending_bytes: int,
        interval_ms: int = 0,
        threaded: bool = True,
    ) -> None:
        self._writer = writer
        self.state = state
        self._delivery = delivery
        self.interval_ms = interval_ms
        self.unsynced = Unsynced(interval_ms)
        self.bell = Bell()
        beginning = Beginning(self, writer, self.bell)
        self.pending = Pending(self, self.bell, beginning, max_bytes=max_pending_bytes)
        self.lock = self.pending.lock
        self._committing = threading.Lock()
        """Held by the thread that commits, and by a thread that needs that no other one commits."""
        self._committing_thread = 0
        self.settling = threading.Lock()
        """Held while commits become done, and while callbacks are added to them."""
        self._done = Waiters()
        self._room = Waiters()
        self._confirmed: dict[int, Owner] = {}
        """Owners that have new durable entries, and whose listeners are to be called."""
        self.read_turns = ReadTurns(
            lambda: not self.pending.size_bytes or writer.is_waiting,
            lambda: delivery.notified_thread,
        )
        self.thread = CommitterThread(self, self.bell, threaded=threaded)
        self.thread.start()

    # Waiting

    def wait_for_room(self) -> None:
        """Wait while too much is pending. A thread that holds the lock does not wait."""
        if holds(self.lock):
            return
        if self.thread.is_absent:
            self.flush()
            return
        self.refuse_committer("append, with too much pending,")
        self.bell.ring()
        self._room.wait(lambda: self.pending.has_room or self.state.is_over)

    def wait_for(self, commit: Commit, timeout_s: float | None) -> None:
        """Return when a commit is done. Raises TimeoutError, CallbackError."""
        self.state.check_process()
        self.refuse_committer("wait for a commit")
        if self.thread.is_absent:
            self._commit_until_done(commit, is_sole=True)
        elif timeout_s is None and not self.interval_ms:
            # Two changes of thread are a large part of the price of a single durable append. With
            # a time-out another batch's sync must not hold the caller up; in interval mode the
            # committer's thread sees to it that syncs are made in time.
            if threading.current_thread() is threading.main_thread():
                self._commit_in_main_thread(commit)
            else:
                self._commit_until_done(commit, is_sole=False)
        if commit.done:
            return
        self.bell.ring()
        if not self._done.wait(lambda: commit.done, timeout_s):
            raise TimeoutError(f"not durable within {timeout_s} s")

    def wake(self) -> None:
        """Have the thread commit what is pending, if it was not woken for it."""
        if self.bell.is_led:
            self.bell.ring()

    def wake_all(self) -> None:
        """Wake all threads that wait: the store has stopped. What is pending is still committed."""
        self._room.wake()
        self.bell.ring()

    def refuse_committer(self, what: str) -> None:
        """Raise CallbackError in the thread that is committing: it would wait for itself."""
        if self._committing_thread == threading.get_ident():
            raise CallbackError(what)

    def flush(self) -> None:
        """Commit what is pending; the main thread has the committer's thread do it."""
        is_main = threading.current_thread() is threading.main_thread()
        if self.thread.is_absent or not is_main or holds(self.lock):
            with self.between_batches():
                self.commit_all()
            return
        with self.lock:
            pending = [self.pending.last_taken, *self.pending.waiting]
        self.bell.ring()
        self._done.wait(lambda: all(batch.done for batch in pending))

    def stop(self) -> None:
        """Commit what is pending and end the thread."""
        self.thread.stop()
        if self.thread.is_absent:
            self.flush()

    # Committing: who does it

    @contextmanager
    def between_batches(self) -> Iterator[None]:
        """No batch is on its way inside the block. Not for a threaded store's main thread."""
        self.refuse_committer("flush or checkpoint")
        with self._committing:
            self._committing_thread = threading.get_ident()
            try:
                if self.pending.taken is not None:
                    self.commit_next()
                yield
            finally:
                self._committing_thread = 0
        self._wake_waiting_threads()

    def _wake_waiting_threads(self) -> None:
        """Wake threads that wait. This comes last, so that they do not compete for the CPU."""
        self._delivery.deliver_here()
        self._done.wake()
        if self.pending.has_room:
            self._room.wake()

    def _commit_until_done(self, commit: Commit, *, is_sole: bool) -> None:
        """Commit in the caller's thread; unless ``is_sole``, only if no other one commits now."""
        if not self._committing.acquire(blocking=is_sole):
            return
        self._committing_thread = threading.get_ident()
        self.bell.is_led = not is_sole
        try:
            while not commit.done and (self._commit_plainly() or self.commit_next()):
                pass
        except OSError:
            self.commit_next()  # fails the commits of a store that has stopped
        finally:
            self._committing_thread = 0
            self._committing.release()
        self._wake_waiting_threads()

    def _commit_in_main_thread(self, commit: Commit) -> None:
        """Commit in the main thread, where an exception may end it at any step.

        The committer's thread carries on what an exception left: the append woke it, or it looks
        for work by itself. It also fails what the disk refuses.
        """
        if self.is_committing:
            return
        try:
            with self._committing:
                self._committing_thread = threading.get_ident()
                self.bell.is_led = True
                try:
                    while not commit.done and self._commit_plainly():
                        pass
                finally:
                    self._committing_thread = 0
        except OSError as error:
            if is_of_handler(error):
                raise
        if self.pending.taken is not None or not (self._done.is_empty and self._room.is_empty):
            self.bell.ring()

    def _commit_plainly(self) -> bool:
        """Commit the oldest batch, in the plain case; False: it is not plain, or not finished.

        An exception may end it anywhere; ``commit_next`` carries on from there.
        """
        pending = self.pending
        with self.lock:
            if pending.taken is not None:
                return False
            groups = pending.oldest.groups_with_entries()
            if not groups or (write := self._writer.plain_write(groups)) is None:
                return False
            batch = pending.take()
        assert batch is not None
        write(batch, groups)
        with self.lock:
            show(groups, keep=threading.current_thread() is not threading.main_thread())
        self.read_turns.committed()
        with self.settling:
            is_called = bool(batch.callbacks)
            for group in groups:
                is_called = is_called or bool(group.callbacks or group.owner.on_confirmed)
                group.done = True
            if not is_called:
                batch.done = True
        if is_called:
            return False  # the batch is finished once they are called
        with self.lock:
            pending.count_out(groups, ends=True)
        batch.groups = {}
        for group in groups:
            group.forget_content()
        return True

    # Committing, in any other thread

    @property
    def is_committing(self) -> bool:
        """Whether a thread commits just now."""
        return self._committing.locked()

    @property
    def has_work(self) -> bool:
        """Whether there is something to commit."""
        return self.pending.is_work_there(waits=self.thread.commits_all)

    def commit_all(self) -> None:
        """Between batches: commit what is pending now; not what others add meanwhile."""
        with self.lock:
            self.pending.join_beginning(at_once=True)
        for _ in self.pending.waiting:
            self.commit_next()

    def commit_next(self) -> bool:
        """Commit the oldest batch, or the one that was left half way; whether there was one."""
        with self.lock:
            batch = self.pending.taken or self.pending.take(waits=self.thread.commits_all)
        if batch is None:
            return False
        try:
            groups = batch.groups_with_entries()
            if groups:
                self._commit_groups(batch, groups)
                self.read_turns.committed()
            with self.lock:
                self.pending.count_out(groups, ends=True)
            self._end_batch(batch)
        except BaseException as error:  # noqa: BLE001 - the thread must go on, for all others wait
            self.stop_store(error)
        return True

    def _commit_groups(self, batch: Batch, groups: Sequence[Group]) -> None:
        outcome = self._writer.write(batch, groups, sync=not self.interval_ms)
        if self.interval_ms:
            self.unsynced.add(groups)
            if not self.thread.is_absent:  # this is another thread: the committer's keeps the time
                self.bell.ring()
        self._show_or_fence(outcome)
        if self._writer.broken:
            broken, self._writer.broken = self._writer.broken, []
            self._show_or_fence(Outcome(error=OSError("a file could not be synced")), broken)

    def _show_or_fence(self, outcome: Outcome, fenced: Collection[Owner] = ()) -> None:
        """Show what is durable, fence ledgers where something is not, settle their commits."""
        with self.lock:
            owners = {id(group.owner): group.owner for group in outcome.failed}
            owners.update((id(owner), owner) for owner in fenced)
            dropped = self.pending.take_out(owners.keys())
            show(outcome.good)
            for owner in owners.values():
                owner.fence()
            self.pending.count_out(dropped, ends=False)
        calls: list[Callable[[], None]] = []
        with self.settling:
            for group in outcome.good:
                calls += group.settle(None)
            for group in (*outcome.failed, *dropped):
                calls += group.refuse(str(outcome.error))
            for group in (*outcome.good, *outcome.failed):  # a failed one may have whole records
                self._confirmed[id(group.owner)] = group.owner
        self._delivery.put(calls)
        self._writer.shown(outcome.good)

    def _end_batch(self, batch: Batch) -> None:
        """All its commits are settled: call those who wait for the batch, and for entries."""
        with self.settling:
            batch.done = True
            callbacks, batch.callbacks = batch.callbacks, []
        owners, self._confirmed = self._confirmed, {}
        listeners = [call for owner in owners.values() for call in owner.on_confirmed]
        groups, batch.groups = batch.groups.values(), {}
        for group in groups:
            group.forget_content()
        # First those who wait for a receipt; last of all, for their thread needs the interpreter.
        self._delivery.put([*callbacks, *listeners])

    def stop_store(self, error: BaseException) -> None:
        """Something failed that has no repair here: stop the store, and fail all that wait."""
        if not self.state.has_failed:  # else it was stopped before, and it is known why
            _log.critical("the store stops", exc_info=error)
        self.state.fail(error)
        with self.lock:
            batches = self.pending.take_all()
        self.refuse([g for b in batches for g in b.groups.values()], self.state.error())
        for batch in batches:
            self._end_batch(batch)

    def refuse(self, groups: Collection[Group], error: LedgerError) -> None:
        """End the waiting for these groups: their outcome is unknown."""
        calls: list[Callable[[], None]] = []
        with self.settling:
            for group in groups:
                if not group.done:
                    calls += group.settle(error)
        self._done.wake()
        self._room.wake()
        self._delivery.put(calls)

    # What is done between two batches

    @contextmanager
    def all_durable(self) -> Iterator[None]:
        """As ``between_batches``, once all that is pending is committed and synced."""
        with self.between_batches():
            self.commit_all()
            self.sync_if_due(at_once=True)
            yield

    def fence(self, owners: Collection[Owner], error: Exception) -> None:
        """Fail whatever these have pending; they go on in new ledgers."""
        with self.between_batches():
            self._show_or_fence(Outcome(error=error), owners)

    def write_now(self, group: Group) -> None:
        """Make one group durable and show it, between two batches and under the lock.

        Raises FencedError if that fails: its owner goes on as it was, in a new ledger.
        """
        outcome = self._writer.write(group.batch, [group])
        self.pending.count_out([group], ends=False)
        if outcome.failed:
            group.owner.fence()
            raise FencedError(group.owner.name, str(outcome.error)) from outcome.error
        group.show()
        self._confirmed[id(group.owner)] = group.owner

    def sync_acknowledged(self) -> None:
        """Have everything that was acknowledged on the disk; blocks only in interval mode.

        Whoever removes the old after writing the new calls this in between. Raises OSError if some
        of it could not be synced, and is in no checkpoint yet: then the old must stay.
        """
        if not self.interval_ms:
            return
        with self.between_batches():
            self.sync_if_due(at_once=True)
            if self.unsynced.failures > self.unsynced.repaired:
                reason = "acknowledged entries could not be synced, so nothing older is removed"
                raise OSError(errno.EIO, reason)

    def sync_if_due(self, *, at_once: bool) -> None:
        """In interval mode: sync what was acknowledged without. Ledgers are fenced on failure."""
        left_s = self.unsynced.seconds_left()
        if left_s is None or (left_s > 0 and not at_once):
            return
        owners = self.unsynced.take()
        try:
            self._writer.sync()
        except Exception as error:  # noqa: BLE001 - whatever it is, the thread must go on
            self.unsynced.failures += 1
            _log.error("acknowledged entries of the last interval may be lost: %s", error)
            self._show_or_fence(Outcome(error=error), owners)
