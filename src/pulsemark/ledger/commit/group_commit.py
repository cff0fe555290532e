"""Group commit: one sync makes durable whatever was appended meanwhile.

A thread does it, or the thread that waits for an append. ``lock`` orders appends: positions and
indexes are assigned under it, and a batch takes its appends in that order. While one batch is
synced the next one gathers, so that the price of a sync is shared by however many appends and
topics there are.

A batch: journal block, sync, bytes into segments, entries become visible, callbacks. Where the
journal fails, every ledger in the batch is fenced with all it has pending; where only one
segment cannot be written, only its ledger is. Records that came whole into the segment before
that stay visible, though nobody is told that they are stored: a reader of the folder may have
seen them already, and what was seen is never taken back.

Ledgers are only fenced between two batches (``fence``), so that a batch on its way never shows
rows that were just dropped.

Signal handlers run in the main thread and may raise there between any two steps. So the main
thread never commits: it waits, and the committer's thread does it. What the main thread does have
to change, at an append, is written down first, in one assignment (``adding``), and carried out
after that; whoever takes the lock next carries out what an exception left (``finish_append``).

With ``interval_ms`` a batch is acknowledged once it is written, and synced within that time: a
power cut can lose that much, a crash of the process nothing. Only for those who ask for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue

from ..aside import holds
from ..errors import CallbackError, FencedError, LedgerError
from ..read_turns import ReadTurns
from ..run import Run
from ..store_state import StoreState
from ..waiting import Waiters
from .commit import Batch, Commit, Group, Owner, show
from .delivery import Delivery
from .entry_writer import EntryWriter, Outcome
from .tail import MAX_PENDING_ENTRIES, Adding

_log = logging.getLogger(__name__)

_BATCH_BYTES = 16 * 1024 * 1024
"""What comes when a batch has grown to this waits for the next: recovery holds one in memory."""

_MANY_GROUPS = 64
_ENTRIES_PER_GROUP = 8
_GATHER_RATIO = 6
_GATHER_MAX_S = 0.2
_GATHER_POLL_S = 0.002
"""See ``GroupCommit._gather``."""

_LOOK_IN_S = 0.005
"""How often the thread looks for work while those who append commit it themselves."""


class GroupCommit:
    """The committer's thread and the batch that gathers for it.

    Args:
        writer: where batches go.
        state: the store's; it fails when a batch does in a way that cannot be repaired.
        delivery: who calls the callbacks.
        max_pending_bytes: appends wait while more is not yet durable.
        interval_ms: see above; 0: each batch is synced.
        threaded: False has no thread: batches are committed by the threads that wait for them.
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
        self._interval_ms = interval_ms
        self._unsynced: dict[int, Owner] = {}
        self._unsynced_since_s = 0.0
        self._took_s = 0.0
        """How long the last commit of this thread took."""
        self._is_led = False
        """Those who append wait, and so commit themselves: the thread need not be woken."""
        self._is_rung = False
        self._bell: SimpleQueue[None] = SimpleQueue()
        """Wakes the thread."""
        self.max_pending_bytes = max_pending_bytes
        self.lock = threading.RLock()
        self._leading = threading.Lock()
        self._leader = 0
        """The thread that commits just now."""
        self.settling = threading.Lock()
        """Held while commits become done, and while callbacks are added to them."""
        self._settled = Waiters()
        self._room = Waiters()
        self._batches = deque([Batch(self)])
        """Those that wait; the last one gathers."""
        self._committing = Batch(None)
        """On its way, or done."""
        self._on_its_way: list[Group] = []
        self.pending_bytes = 0
        self.pending_entries = 0
        self.adding: Adding | None = None
        """An append that is not yet carried out in full."""
        self._confirmed: dict[int, Owner] = {}
        """Who has new durable entries and is to be told."""
        self.read_turns = ReadTurns(
            lambda: not self.pending_bytes or writer.is_waiting,
            lambda: delivery.notified_thread,
        )
        self._stopping = False
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._run, name="pulsemark-commit", daemon=True)
            self._thread.start()

    # Appending, under ``lock``

    def group(self, owner: Owner, segment: Run, offset: int) -> Group:
        """The group that gathers for ``segment``; a new one begins at ``offset``."""
        batch = self._batches[-1]
        if batch.size_bytes >= _BATCH_BYTES:
            batch = Batch(self)
            self._batches.append(batch)
        group = batch.groups.get(segment)
        if group is None:
            group = batch.groups[segment] = Group(owner, segment, offset, Commit(self, batch))
        if not (self._is_rung or self._is_led):
            self._bell.put(None)
            self._is_rung = True
        return group

    def finish_append(self) -> None:
        """Carry out the append that is written down: each step may be done a second time."""
        adding = self.adding
        if adding is None:
            return
        ledger, tail, group, entry, group_bytes, batch_bytes, pending_bytes, pending = adding
        entries = group.entries
        if not entries or entries[-1] is not entry:
            entries.append(entry)
        ledger.tail = tail
        group.size_bytes = group_bytes
        group.commit.batch.size_bytes = batch_bytes
        self.pending_bytes = pending_bytes
        self.pending_entries = pending
        self.adding = None

    @property
    def has_room(self) -> bool:
        """Whether appends need not wait."""
        return (
            self.pending_bytes <= self.max_pending_bytes
            and self.pending_entries <= MAX_PENDING_ENTRIES
        )

    def wait_for_room(self) -> None:
        """Wait while too much is pending. Not with the lock held: then it is let pass."""
        if holds(self.lock):
            return
        if self._thread is None or self._thread is threading.current_thread():
            self.flush()
            return
        self.refuse_leader("append, with too much pending,")
        self.wake()
        self._room.wait(lambda: self.has_room or self.state.is_over)

    # Waiting and committing

    @contextmanager
    def between_batches(self) -> Iterator[None]:
        """No batch is on its way inside. Not in the main thread of a store with threads."""
        self.refuse_leader("flush or checkpoint")
        with self._leading:
            self._leader = threading.get_ident()
            try:
                yield
            finally:
                self._leader = 0
        self._tell()

    def _tell(self) -> None:
        """Let those who wait see what is done: last, so that they need not share the processor."""
        self._delivery.deliver_here()
        self._settled.wake()

    def refuse_leader(self, what: str) -> None:
        """Raise CallbackError in the thread that commits just now: it would wait for itself."""
        if self._leader == threading.get_ident():
            raise CallbackError(what)

    @contextmanager
    def all_durable(self) -> Iterator[None]:
        """As ``between_batches``, once all that is pending is committed and synced."""
        with self.between_batches():
            self.commit_all()
            if self._unsynced:
                self._sync()
            yield

    def flush(self) -> None:
        """Commit what is pending; the main thread has the committer's do it."""
        if not self._hands_over():
            with self.between_batches():
                self.commit_all()
            return
        with self.lock:
            self.finish_append()
            pending = [self._committing, *(batch for batch in self._batches if batch.is_due)]
        self._bell.put(None)
        self._settled.wait(lambda: all(batch.done for batch in pending))

    def _hands_over(self) -> bool:
        """Whether this is the main thread, of a store that has another one for commits."""
        return (
            self._thread is not None
            and threading.current_thread() is threading.main_thread()
            and not holds(self.lock)
        )

    def fence(self, owners: Collection[Owner], error: Exception) -> None:
        """Fail whatever these have pending; they go on in new ledgers."""
        with self.between_batches():
            self._settle(Outcome(error=error), owners)

    def write_now(self, group: Group) -> None:
        """Make one group durable and show it, between two batches and under the lock.

        Raises FencedError if that fails: its owner goes on as it was, in a new ledger.
        """
        outcome = self._writer.write([group])
        if outcome.failed:
            group.owner.fence()
            raise FencedError(group.owner.name, str(outcome.error)) from outcome.error
        show(group.segment, group.entries[-1])
        self._confirmed[id(group.owner)] = group.owner

    def wait_for(self, commit: Commit, timeout_s: float | None) -> None:
        """Return when a commit is done. Raises TimeoutError, CallbackError."""
        self.state.check_process()
        self.refuse_leader("wait for a commit")
        thread = threading.current_thread()
        if self._thread is None or self._thread is thread:
            self._lead(commit)
        elif not (timeout_s is not None or self._interval_ms or thread is threading.main_thread()):
            # Two changes of thread are a good part of the price of a single durable append. With
            # a time-out no one else's sync may hold the caller up; in interval mode it is the
            # committer's thread that keeps the time.
            self._lead(commit, is_sole=False)
        if commit.done:
            return
        self.wake()
        if not self._settled.wait(lambda: commit.done, timeout_s):
            raise TimeoutError(f"not durable within {timeout_s} s")

    def _lead(self, commit: Commit, *, is_sole: bool = True) -> None:
        """Commit in the caller's thread, if no other one is at it just now."""
        if not self._leading.acquire(blocking=is_sole):
            return
        self._leader = threading.get_ident()
        try:
            while not commit.done and self._commit_next():
                self._is_led = not is_sole
        finally:
            self._leader = 0
            self._leading.release()
        self._tell()

    def wake_all(self) -> None:
        """Let all who wait see that the store has stopped; what is pending is still committed."""
        self._room.wake()
        self._bell.put(None)

    def wake(self) -> None:
        """Have the thread commit what is pending, where it was not woken for it."""
        if self._is_led:
            self._bell.put(None)

    def stop(self) -> None:
        """Commit what is pending and end the thread."""
        self._stopping = True
        self._bell.put(None)
        if self._thread is None or self._thread is threading.current_thread():
            self.flush()
        else:
            self._thread.join()

    # The thread

    def _run(self) -> None:
        while not (self._stopping and not self._batches[0].is_due):
            try:
                self._take_turn()
            except BaseException as error:  # noqa: BLE001 - the thread must go on
                self._fail(error)

    def _take_turn(self) -> None:
        if not (self._batches[0].is_due or self._stopping):
            with suppress(Empty):
                self._bell.get(timeout=_LOOK_IN_S if self._is_led else self._seconds_to_sync())
        with self.lock:
            self._is_led = self._is_rung = False
            while not self._bell.empty():
                self._bell.get()
        if not self._interval_ms:
            self._gather()
        with self.between_batches():
            started_s = time.monotonic()
            self._commit_next()
            self._took_s = time.monotonic() - started_s
            if self._unsynced and (self._stopping or self._seconds_to_sync() == 0):
                self._sync()

    def _gather(self) -> None:
        """Let a batch of many topics grow.

        Each topic in a batch has its price, whatever it has to add, and those who append meanwhile
        work for the same processor. So batches of many topics take their share of the time, and no
        more: the next one waits some times as long as the last one took, if more keeps coming, or
        until each topic has some entries in it.
        """
        gathering, seen = self._batches[0], -1
        until_s = time.monotonic() + min(_GATHER_RATIO * self._took_s, _GATHER_MAX_S)
        while (
            len(gathering.groups) > _MANY_GROUPS
            and not self._stopping
            and seen < self.pending_entries < _ENTRIES_PER_GROUP * len(gathering.groups)
            and gathering is self._batches[-1]
            and time.monotonic() < until_s
        ):
            seen = self.pending_entries
            time.sleep(_GATHER_POLL_S)

    def commit_all(self) -> None:
        """Between batches: commit what is pending now; not what others add meanwhile."""
        for _ in range(len(self._batches)):
            self._commit_next()

    def _commit_next(self) -> bool:
        """Commit the oldest batch; whether there was one."""
        with self.lock:
            self.finish_append()
            batch = self._batches[0]
            if not batch.is_due:
                return False
            self._batches.popleft()
            if not self._batches:
                self._batches.append(Batch(self))
            self._committing = batch
            self._on_its_way, batch.groups = list(batch.groups.values()), {}
        try:
            if self._on_its_way:
                self._commit(self._on_its_way)
                self.read_turns.committed()
        except BaseException as error:  # noqa: BLE001 - the thread must go on, to tell all others
            self._fail(error)
        self._on_its_way = []
        self._finish_batch(batch)
        return True

    def _finish_batch(self, batch: Batch) -> None:
        with self.settling:
            batch.done = True
            callbacks, batch.callbacks = batch.callbacks, []
        owners, self._confirmed = self._confirmed, {}
        listeners = [call for owner in owners.values() for call in owner.on_confirmed]
        if callbacks or listeners:
            # First for those who wait for a receipt, then for those who want entries.
            self._delivery.put([*callbacks, *listeners])

    def _seconds_to_sync(self) -> float | None:
        if not self._unsynced:
            return None
        return max(0.0, self._unsynced_since_s + self._interval_ms / 1000 - time.monotonic())

    def _sync(self) -> None:
        """In interval mode: sync what was acknowledged without. Ledgers are fenced on failure."""
        owners, self._unsynced = self._unsynced, {}
        try:
            self._writer.sync()
        except Exception as error:  # noqa: BLE001 - whatever it is, the thread must go on
            _log.error("acknowledged entries of the last interval may be lost: %s", error)
            self._settle(Outcome(error=error), owners.values())

    def _commit(self, groups: list[Group]) -> None:
        empty = [group for group in groups if not group.entries]  # its append was interrupted
        outcome = self._writer.write(
            [group for group in groups if group.entries], sync=not self._interval_ms
        )
        if self._interval_ms and outcome.good:
            if not self._unsynced:
                self._unsynced_since_s = time.monotonic()
            self._unsynced.update((id(group.owner), group.owner) for group in outcome.good)
            self._bell.put(None)  # this may be another thread: the committer's keeps the time
        self._settle(outcome, empty=empty)
        if self._writer.broken:
            broken, self._writer.broken = self._writer.broken, []
            self._settle(Outcome(error=OSError("a file could not be synced")), broken)

    def _settle(
        self, outcome: Outcome, fenced: Collection[Owner] = (), empty: Collection[Group] = ()
    ) -> None:
        """End a batch: show what is durable, fence where something is not, tell who waits."""
        good, failed = outcome.good, outcome.failed
        with self.lock:
            self.finish_append()
            owners = {id(group.owner): group.owner for group in failed}
            owners.update((id(owner), owner) for owner in fenced)
            for batch in self._batches if owners else ():
                for segment, group in list(batch.groups.items()):
                    if id(group.owner) in owners:
                        failed.append(batch.groups.pop(segment))
                        batch.is_cut_short = True
            for group in good:
                show(group.segment, group.entries[-1])
            for owner in owners.values():
                owner.fence()
            for group in (*good, *failed):
                self.pending_bytes -= group.size_bytes
                self.pending_entries -= len(group.entries)
        self._room.wake()
        self._finish([*good, *empty], failed, outcome.error)
        self._writer.shown(good)

    def _finish(
        self, good: Collection[Group], failed: Collection[Group], error: Exception | None
    ) -> None:
        calls: list[Callable[[], None]] = []
        with self.settling:
            for group in good:
                calls += _finished(group.commit, None)
            for group in failed:
                calls += _finished(group.commit, FencedError(group.owner.name, str(error)))
        self._confirmed.update((id(group.owner), group.owner) for group in good)
        if calls:
            self._delivery.put(calls)

    def _fail(self, error: BaseException) -> None:
        """Something failed that has no repair here: stop the store, and tell all who wait."""
        _log.critical("the store stops", exc_info=error)
        self.state.fail(error)
        with self.lock:
            self.adding = None
            batches, self._batches = self._batches, deque([Batch(self)])
            groups = [*self._on_its_way, *(g for b in batches for g in b.groups.values())]
            self.pending_bytes = self.pending_entries = 0
        self.refuse(groups, self.state.error())
        for batch in batches:
            self._finish_batch(batch)

    def refuse(self, groups: Collection[Group], error: LedgerError) -> None:
        """Tell all who wait for these groups that nothing more is known of them."""
        calls: list[Callable[[], None]] = []
        with self.settling:
            for group in groups:
                if not group.commit.done:
                    calls += _finished(group.commit, error)
        self._settled.wake()
        self._room.wake()
        self._delivery.put(calls)


def _finished(commit: Commit, error: BaseException | None) -> list[Callable[[], None]]:
    """While settling: settle a commit, and hand over the calls that are to be made."""
    commit.error = error
    commit.done = True
    callbacks, commit.callbacks = commit.callbacks, []
    return [partial(callback, error) for callback in callbacks]
