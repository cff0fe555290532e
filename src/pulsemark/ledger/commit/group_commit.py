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

**The thread.** A thread that appends and waits commits its entries itself (`GroupCommit.wait_for`):
that saves one change of threads. While such threads commit (`is_led`), they do not wake this
thread, and it leaves the commits to them. It only looks from time to time whether they still do:
some appends have no caller that waits, and an exception may have ended a commit half way.

**Callbacks** are never called by the thread that commits.

With ``notify``, the caller's own scheduler calls them (an event loop, say). Without it, a thread of
the store does that does nothing else. So a callback may append and wait, make a checkpoint, open
and delete topics, and take its time. A store without threads calls them when no commit is running.
They are always called in the order of the commits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue

from ..errors import CallbackError, FencedError, LedgerError
from ..store_state import StoreState, holds, is_of_handler
from .batch import (
    Batch,
    Commit,
    EntryWriter,
    Group,
    Outcome,
    Owner,
    Pending,
    PendingLedgers,
    Wakeup,
    show,
)
from .read_throttle import ReadThrottle

_log = logging.getLogger(__name__)


CALLBACKS_TIMEOUT_S = 30.0
"""How long a store that is closed waits for callbacks that do not return."""

Notify = Callable[[Callable[[], None]], object]
"""Schedules a call in another place, and does not run it itself."""


class Delivery:
    """Calls callbacks: by ``notify``, or in a thread of the store, or where a commit ends."""

    def __init__(self, notify: Notify | None, *, threaded: bool) -> None:
        self._notify = notify
        self.notified_thread = -1
        """The thread in which ``notify`` runs calls, once it has run one; -1 until then."""
        self._calls: SimpleQueue[Sequence[Callable[[], None]] | None] = SimpleQueue()
        self._running: Callable[[], None] | None = None
        self._here: deque[Sequence[Callable[[], None]]] = deque()
        self._thread: threading.Thread | None = None
        if threaded and notify is None:
            self._thread = threading.Thread(
                target=self._run, name="pulsemark-callbacks", daemon=True
            )
            self._thread.start()

    def put(self, calls: Sequence[Callable[[], None]]) -> None:
        """Queue calls in this order, after all earlier ones. Called between two batches."""
        if not calls:
            return
        if self._notify is not None:
            _call(partial(self._notify, partial(self._run_notified, calls)))
        elif self._thread is not None:
            self._calls.put(calls)
        else:
            self._here.append(calls)

    def deliver_here(self) -> None:
        """In a store without threads: call what is due. Called after a batch."""
        while self._here:
            _call_all(self._here.popleft())

    def _run(self) -> None:
        while (calls := self._calls.get()) is not None:
            for self._running in calls:
                _call(self._running)

    def _run_notified(self, calls: Sequence[Callable[[], None]]) -> None:
        self.notified_thread = threading.get_ident()
        _call_all(calls)

    @property
    def is_own_thread(self) -> bool:
        """Whether this is the thread that calls callbacks."""
        return self._thread is threading.current_thread()

    def stop(self) -> None:
        """End the thread after its callbacks; do not wait for one that does not return."""
        self._calls.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CALLBACKS_TIMEOUT_S)
            if self._thread.is_alive():
                _log.error(
                    "a callback has not returned for %g s after the last commit; the store is "
                    "closed without it, and calls those after it when it returns: %s",
                    CALLBACKS_TIMEOUT_S,
                    self._running,
                )


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        _call(call)


def _call(function: Callable[[], object]) -> None:
    """Call a callback. An exception is logged, since the other callbacks must be called."""
    try:
        function()
    except BaseException as error:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and not isinstance(error, Exception):
            raise
        _log.exception("a callback raised an error; the store goes on")


_LONGEST_WAIT_S = min(threading.TIMEOUT_MAX, 1e6)


class Waiters:
    """The threads that wait until other threads make a condition true."""

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: deque[threading.Lock] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether no thread waits."""
        return not self._locks

    def wait(self, is_over: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until ``is_over()``, which is asked after each ``wake``; False: timed out."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not is_over():
            turn = threading.Lock()
            turn.acquire()
            self._locks.append(turn)
            if is_over():  # it may have come true before the lock was listed
                return True
            left_s = _LONGEST_WAIT_S if until_s is None else until_s - time.monotonic()
            if not turn.acquire(timeout=min(max(left_s, 0), _LONGEST_WAIT_S)) and until_s:
                return is_over()
        return True

    def wake(self) -> None:
        """Let every thread that waits ask again, the longest waiting first."""
        for _ in range(len(self._locks)):
            try:
                turn = self._locks.popleft()
            except IndexError:  # another thread wakes them, too
                return
            turn.release()


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

    def __init__(self, committer: GroupCommit, wakeup: Wakeup, *, threaded: bool) -> None:
        self._committer = committer
        self._wakeup = wakeup
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
        """Whether commits must wait for unprepared runs, as nobody commits later."""
        return self._thread is None or self.is_stopping

    def wake(self) -> None:
        """Wake a sleeping thread for entries that were appended without waking it."""
        wakeup = self._wakeup
        if wakeup.is_asleep and not wakeup.is_led and self._committer.has_work:
            wakeup.signals.put(None)

    def stop(self) -> None:
        """End the thread once everything is committed."""
        self.is_stopping = True
        self._wakeup.signals.put(None)
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
        is_wanted = self._wakeup.is_urgent or (committer.has_work and not self._wakeup.is_led)
        if not is_wanted and not self.is_stopping:
            last_taken = committer.pending.last_taken
            was_woken = self._sleep()
            is_at_it = committer.is_committing or committer.pending.last_taken is not last_taken
            if self._wakeup.is_led and (was_woken or is_at_it):
                return  # another thread commits: taking the next batch from it would slow down both
            self._wakeup.is_led = False
        self._wakeup.is_urgent = False
        if not committer.interval_ms:
            self._gather()
        with committer.between_batches():
            started_s = time.monotonic()
            committer.commit_next()
            self._commit_s = time.monotonic() - started_s
            committer.sync_if_due(at_once=self.is_stopping)

    def _sleep(self) -> bool:
        """Sleep until there is work; returns whether it was woken for it."""
        while not self._wakeup.signals.empty():
            self._wakeup.signals.get()
        self._wakeup.is_asleep = True
        try:
            # Check again: appends before the thread was marked as sleeping did not wake it.
            if self._wakeup.is_urgent or (not self._wakeup.is_led and self._committer.has_work):
                return True
            with suppress(Empty):
                timeout_s = _LOOK_IN_S if self._wakeup.is_led else self._committer.seconds_to_sync()
                if not self.is_stopping:
                    self._wakeup.signals.get(timeout=timeout_s)
                return True
            return False
        finally:
            self._wakeup.is_asleep = False

    def _gather(self) -> None:
        """Let a batch of many topics grow, as each topic in a batch costs a fixed time.

        The next batch waits a multiple of the time that the last one took, as long as more entries
        come, or until each topic has some entries in it.
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


class GroupCommit:
    """Commits what is pending, a batch at a time.

    ``state`` is stopped if a batch fails beyond repair. Appends wait while more than
    ``max_pending_bytes`` are not durable. Unless it is ``threaded``, threads that wait commit.
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
        self._unsynced_since_s: float | None = None
        """When the oldest batch was written that is not synced."""
        self.wakeup = Wakeup()
        pending_ledgers = PendingLedgers(self, writer, self.wakeup)
        self.pending = Pending(self, self.wakeup, pending_ledgers, max_bytes=max_pending_bytes)
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
        self.read_throttle = ReadThrottle(
            lambda: not self.pending.size_bytes or writer.is_waiting,
            lambda: delivery.notified_thread,
        )
        self.thread = CommitterThread(self, self.wakeup, threaded=threaded)
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
        self.wakeup.wake()
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
        self.wakeup.wake()
        if not self._done.wait(lambda: commit.done, timeout_s):
            raise TimeoutError(f"not durable within {timeout_s} s")

    def wake(self) -> None:
        """Have the thread commit what is pending, if it was not woken for it."""
        if self.wakeup.is_led:
            self.wakeup.wake()

    def wake_all(self) -> None:
        """Wake all threads that wait: the store has stopped. What is pending is still committed."""
        self._room.wake()
        self.wakeup.wake()

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
        self.wakeup.wake()
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
        self.wakeup.is_led = not is_sole
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
                self.wakeup.is_led = True
                try:
                    while not commit.done and self._commit_plainly():
                        pass
                finally:
                    self._committing_thread = 0
        except OSError as error:
            if is_of_handler(error):
                raise
        if self.pending.taken is not None or not (self._done.is_empty and self._room.is_empty):
            self.wakeup.wake()

    def _commit_plainly(self) -> bool:
        """Commit the oldest batch, if it is a plain one; an exception may end this anywhere."""
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
        self.read_throttle.committed()
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
        """Between batches: commit what is pending now, without later appends."""
        with self.lock:
            self.pending.join_pending_ledgers(at_once=True)
        for _ in self.pending.waiting:
            self.commit_next()

    def commit_next(self) -> bool:
        """Commit the oldest batch, or finish an interrupted one. Return whether it did."""
        with self.lock:
            batch = self.pending.taken or self.pending.take(waits=self.thread.commits_all)
        if batch is None:
            return False
        try:
            groups = batch.groups_with_entries()
            if groups:
                self._commit_groups(batch, groups)
                self.read_throttle.committed()
            with self.lock:
                self.pending.count_out(groups, ends=True)
            self._end_batch(batch)
        except BaseException as error:  # noqa: BLE001 - the thread must go on, for all others wait
            self.stop_store(error)
        return True

    def _commit_groups(self, batch: Batch, groups: Sequence[Group]) -> None:
        outcome = self._writer.write(batch, groups, sync=not self.interval_ms)
        if self.interval_ms:
            if self._unsynced_since_s is None:
                self._unsynced_since_s = time.monotonic()
            if not self.thread.is_absent:  # this is another thread: the committer's keeps the time
                self.wakeup.wake()
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
        """Call those who wait for the batch, and for entries. All its commits are settled."""
        with self.settling:
            batch.done = True
            callbacks, batch.callbacks = batch.callbacks, []
        owners, self._confirmed = self._confirmed, {}
        listeners = [call for owner in owners.values() for call in owner.on_confirmed]
        groups, batch.groups = batch.groups.values(), {}
        for group in groups:
            group.forget_content()
        # Receipts first, and last in this step: their thread needs the interpreter.
        self._delivery.put([*callbacks, *listeners])

    def stop_store(self, error: BaseException) -> None:
        """Stop the store after an irreparable failure, and fail all that wait."""
        if not self.state.has_failed:  # else it was stopped before, and it is known why
            _log.critical("the store stops", exc_info=error)
        self.state.fail(error)
        with self.lock:
            batches = self.pending.take_all()
        self.refuse([g for b in batches for g in b.groups.values()], self.state.error())
        for batch in batches:
            self._end_batch(batch)

    def refuse(self, groups: Collection[Group], error: LedgerError) -> None:
        """Fail the commits of these groups: their outcome is unknown."""
        calls: list[Callable[[], None]] = []
        with self.settling:
            for group in groups:
                if not group.done:
                    calls += group.settle(error)
        self._done.wake()
        self._room.wake()
        self._delivery.put(calls)

    # Between two batches

    @contextmanager
    def all_durable(self) -> Iterator[None]:
        """As ``between_batches``, with all that is pending synced. Raises StoreFailedError."""
        with self.between_batches():
            self.commit_all()
            self._sync_now()
            yield

    def fence(self, owners: Collection[Owner], error: Exception) -> None:
        """Fail the pending entries of these owners, which go on in new ledgers."""
        with self.between_batches():
            self._show_or_fence(Outcome(error=error), owners)

    def write_now(self, group: Group) -> None:
        """Make a group durable and show it, under the lock. Raises FencedError."""
        outcome = self._writer.write(group.batch, [group])
        self.pending.count_out([group], ends=False)
        if outcome.failed:
            group.owner.fence()
            raise FencedError(group.owner.name, str(outcome.error)) from outcome.error
        group.show()
        self._confirmed[id(group.owner)] = group.owner

    def sync_acknowledged(self) -> None:
        """Sync everything that was acknowledged; blocks only in interval mode.

        Call it after writing new data and before removing the old. Raises StoreFailedError if some
        could not be synced: then the old data must stay.
        """
        if self.interval_ms:
            with self.between_batches():
                self._sync_now()

    def _sync_now(self) -> None:
        self.sync_if_due(at_once=True)
        if self.state.has_failed:
            raise self.state.error()

    def seconds_to_sync(self) -> float | None:
        """Time left until the oldest batch must be synced; None: all batches are synced."""
        since_s = self._unsynced_since_s
        if since_s is None:
            return None
        return max(0.0, since_s + self.interval_ms / 1000 - time.monotonic())

    def sync_if_due(self, *, at_once: bool) -> None:
        """In interval mode: sync what is due. If that fails, the store stops."""
        left_s = self.seconds_to_sync()
        if left_s is None or (left_s > 0 and not at_once):
            return
        self._unsynced_since_s = None
        try:
            self._writer.sync()
        except Exception as error:  # noqa: BLE001 - whatever it is, the thread must go on
            self.stop_store(error)
