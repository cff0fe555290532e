"""Group commit: one sync makes durable whatever was appended meanwhile.

A thread does it, or whoever waits for an append. ``lock`` orders appends: positions and indexes
are assigned under it, and a batch takes its appends in that order. While one batch is synced the
next one gathers, so that the price of a sync is shared by however many appends and topics there
are.

A batch: journal block, sync, bytes into segments, entries become visible, callbacks. Where the
journal fails, every ledger in the batch is fenced with all it has pending; where only one
segment cannot be written, only its ledger is. Records that came whole into the segment before
that stay visible, though nobody is told that they are stored: a reader of the folder may have
seen them already, and what was seen is never taken back.

Ledgers are only fenced between two batches (``fence``), so that a batch on its way never shows
rows that were just dropped.

With ``interval_ms`` a batch is acknowledged once it is written, and synced within that time: a
power cut can lose that much, a crash of the process nothing. Only for those who ask for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from .commit import Batch, Commit, DoneCallback
from .errors import FencedError
from .fd_cache import FdCache
from .files import Buffer, Files, write_all
from .journal import Journal
from .journal_format import GroupRef
from .read_turns import ReadTurns
from .segment import Segment

_log = logging.getLogger(__name__)

_JOIN_BELOW_BYTES = 16 * 1024
"""Entries smaller than this on average are joined: one copy is cheaper than a long gather."""

_BATCH_BYTES = 16 * 1024 * 1024
"""What comes when a batch has grown to this waits for the next: recovery holds one in memory."""
_MAX_PENDING_ENTRIES = 128 * 1024
"""Appends wait while more are not yet durable: as many a recovery may have to read again."""

_MANY_GROUPS = 64
_ENTRIES_PER_GROUP = 8
_GATHER_RATIO = 6
_GATHER_MAX_S = 0.2
_GATHER_POLL_S = 0.002
"""See ``GroupCommit._gather``."""

_LOOK_IN_S = 0.005
"""How often the thread looks for work while those who append commit it themselves."""


class Owner(Protocol):
    """The managed ledger a group belongs to, as the committer sees it."""

    name: str

    def fence(self) -> None:
        """Under the lock: forget what is not durable, go on in a new ledger. Never raises."""

    def confirmed(self) -> None:
        """Entries became durable; called where callbacks are run."""


@dataclass(slots=True)
class Group:
    """What one batch adds to one segment."""

    owner: Owner
    segment: Segment
    offset: int
    commit: Commit
    buffers: list[Buffer] = field(default_factory=list)
    size_bytes: int = 0
    entry_count: int = 0
    row_count: int = 0
    """Rows of the segment once this group is durable, and the messages they hold."""
    next_message: int = 0
    append_time_ms: int = 0
    """Of its last entry."""

    def contiguous(self) -> list[Buffer]:
        """The buffers, joined when they are small."""
        if len(self.buffers) > 1 and self.size_bytes < _JOIN_BELOW_BYTES * len(self.buffers):
            self.buffers = [b"".join(self.buffers)]
        return self.buffers


@dataclass(frozen=True, slots=True)
class Written:
    """A segment that was written to and is not synced, its owner, and a pinned descriptor."""

    segment: Segment
    owner: Owner
    fd: int


class GroupCommit:
    """The committer's thread and the batch that gathers for it."""

    def __init__(
        self,
        files: Files,
        fds: FdCache,
        journal: Journal,
        *,
        notify: Callable[[Callable[[], None]], object] | None,
        max_pending_bytes: int,
        interval_ms: int = 0,
    ) -> None:
        self._files = files
        self._fds = fds
        self._journal = journal
        self._notify = notify
        self._interval_ms = interval_ms
        self._unsynced: dict[int, Owner] = {}
        self._unsynced_since_s = 0.0
        self._took_s = 0.0
        """How long the last commit of this thread took."""
        self._is_led = False
        """Those who append wait, and so commit themselves: the thread need not be woken."""
        self._dirty: dict[Segment, Written] = {}
        self._broken: list[Owner] = []
        """Owners of segments that could not be synced, to be fenced after the batch."""
        self.max_pending_bytes = max_pending_bytes
        self.lock = threading.RLock()
        self._leading = threading.Lock()
        self._work = threading.Condition(self.lock)
        self._room = threading.Condition(self.lock)
        self.settled = threading.Condition(threading.Lock())
        self._batches = deque([Batch(self)])
        """Those that wait; the last one gathers."""
        self.pending_bytes = 0
        self._pending_entries = 0
        self._confirmed: dict[int, Owner] = {}
        """Who has new durable entries and is to be told."""
        self.read_turns = ReadTurns(lambda: not self.pending_bytes or journal.is_syncing)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="pulsemark-commit", daemon=True)
        self._thread.start()

    # Appending, under ``lock``

    def group(self, owner: Owner, segment: Segment, offset: int) -> Group:
        """The group that gathers for ``segment``; a new one begins at ``offset``."""
        batch = self._batches[-1]
        if batch.size_bytes >= _BATCH_BYTES:
            batch = Batch(self)
            self._batches.append(batch)
        group = batch.groups.get(segment)
        if group is None:
            group = batch.groups[segment] = Group(owner, segment, offset, Commit(self, batch))
            if not self._is_led:
                self._work.notify()
        return group

    def added(self, group: Group, size_bytes: int, row_count: int) -> None:
        """An entry was added to a group. Waits while too much is pending; the lock is free then."""
        group.size_bytes += size_bytes
        group.entry_count += 1
        group.row_count = row_count
        group.commit.batch.size_bytes += size_bytes
        self.pending_bytes += size_bytes
        self._pending_entries += 1
        if not self._has_room():
            self._room.wait_for(self._has_room)

    def _has_room(self) -> bool:
        return (
            self.pending_bytes <= self.max_pending_bytes
            and self._pending_entries <= _MAX_PENDING_ENTRIES
        )

    def rotate_journal(self) -> tuple[int, list[Written]]:
        """End the journal's file between two batches. Not from a callback.

        Returns the highest journal id that ended, and every segment written since the last
        rotation. Whoever gets those releases their descriptors.
        """
        with self._leading:
            self._commit_all()
            if self._unsynced:
                self._sync()
            written, self._dirty = list(self._dirty.values()), {}
            return self._journal.rotate(), written

    def flush(self) -> None:
        """Commit what is pending, in the caller's thread. Not from a callback."""
        with self._leading:
            self._commit_all()

    def fence(self, owners: Collection[Owner], error: Exception) -> None:
        """Fail whatever these have pending; they go on in new ledgers. Not from a callback."""
        with self._leading:
            self._settle([], [], error, owners)

    def stop(self) -> None:
        """Commit what is pending and end the thread."""
        with self.lock:
            self._stopping = True
            self._work.notify_all()
        self._thread.join()

    # The thread

    def _run(self) -> None:
        while True:
            with self.lock:
                if not (self._batches[0].is_due or self._stopping):
                    self._work.wait(_LOOK_IN_S if self._is_led else self._seconds_to_sync())
                self._is_led = False
            if not self._interval_ms:
                self._gather()
            with self._leading:
                started_s = time.monotonic()
                self._commit_next()
                self._took_s = time.monotonic() - started_s
                if self._unsynced and (self._stopping or self._seconds_to_sync() == 0):
                    self._sync()
            with self.lock:
                if self._stopping and not self._batches[0].is_due:
                    return

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
            and seen < self._pending_entries < _ENTRIES_PER_GROUP * len(gathering.groups)
            and gathering is self._batches[-1]
            and time.monotonic() < until_s
        ):
            seen = self._pending_entries
            time.sleep(_GATHER_POLL_S)

    def lead(self, commit: Commit) -> None:
        """Commit in the caller's thread, which is about to wait, if no one is at it just now.

        Two changes of thread are a good part of the price of a single durable append, and waking
        one for nothing is another. In interval mode it is the committer's thread that keeps the
        time.
        """
        if not self._interval_ms and self._leading.acquire(blocking=False):
            try:
                while not commit.done and self._commit_next():
                    self._is_led = True
            finally:
                self._leading.release()
        if not commit.done:
            self.wake()

    def wake(self) -> None:
        """Have the thread commit what is pending, where it was not woken for it."""
        if self._is_led:
            with self.lock:
                self._work.notify()

    def _commit_all(self) -> None:
        """What is pending now; not what others add meanwhile."""
        for _ in range(len(self._batches)):
            self._commit_next()

    def _commit_next(self) -> bool:
        """Commit the oldest batch; whether there was one."""
        with self.lock:
            batch = self._batches[0]
            if not batch.is_due:
                return False
            self._batches.popleft()
            if not self._batches:
                self._batches.append(Batch(self))
            groups, batch.groups = list(batch.groups.values()), {}
        if groups:
            self._commit(groups)
            self.read_turns.committed()
        self._finish_batch(batch)
        return True

    def _finish_batch(self, batch: Batch) -> None:
        with self.settled:
            batch.done = True
            callbacks, batch.callbacks = batch.callbacks, []
        owners, self._confirmed = self._confirmed, {}
        self._deliver(partial(_tell, callbacks, owners.values()))

    def _seconds_to_sync(self) -> float | None:
        """In interval mode: until the oldest block not synced has to be; None: there is none."""
        if not self._unsynced:
            return None
        return max(0.0, self._unsynced_since_s + self._interval_ms / 1000 - time.monotonic())

    def _sync(self) -> None:
        """In interval mode: sync what was acknowledged without. Ledgers are fenced on failure."""
        owners, self._unsynced = self._unsynced, {}
        try:
            self._journal.sync()
        except OSError as error:
            _log.error("acknowledged entries of the last interval may be lost: %s", error)
            self._settle([], [], error, owners.values())

    def _commit(self, groups: list[Group]) -> None:
        refs = []
        content: list[Buffer] = []
        for group in groups:
            header = group.segment.header
            refs.append(
                GroupRef(header.ledger_id, header.segment_no, group.size_bytes, group.offset)
            )
            content += group.contiguous()
        # In interval mode the first block of a segment since the last rotation is synced at once:
        # so recovery knows of every segment where it ends, and cuts off what was not synced.
        sync = not self._interval_ms or any(g.segment not in self._dirty for g in groups)
        try:
            self._journal.write(refs, content, sync=sync)
        except Exception as error:  # noqa: BLE001 - whatever it is, the thread must go on
            if not isinstance(error, OSError):
                _log.exception("journal")
            self._settle([], groups, error)
            return
        good: list[Group] = []
        failed: list[Group] = []
        failed_owners: set[int] = set()
        failure: Exception | None = None
        for group in groups:
            if id(group.owner) in failed_owners:
                # What follows a gap must not come into a file where readers would find it.
                failed.append(group)
                continue
            try:
                self._apply(group)
                good.append(group)
            except Exception as error:  # noqa: BLE001 - whatever it is, the thread must go on
                if not isinstance(error, OSError):
                    _log.exception("%s", group.segment.path)
                failed.append(group)
                failed_owners.add(id(group.owner))
                failure = error
        if self._interval_ms:
            if not self._unsynced:
                self._unsynced_since_s = time.monotonic()
            self._unsynced.update((id(group.owner), group.owner) for group in good)
            with self.lock:
                self._work.notify()  # this may be another thread: the committer's keeps the time
        self._settle(good, failed, failure)
        if self._broken:
            broken, self._broken = self._broken, []
            self._settle([], [], OSError("a file could not be synced"), broken)

    def _apply(self, group: Group) -> None:
        segment = group.segment
        written = self._dirty.get(segment)
        if written is None:
            if len(self._dirty) >= self._fds.limit:
                self._sync_some()
            fd = self._fds.acquire(segment.path, create=True)
            written = self._dirty[segment] = Written(segment, group.owner, fd)
        try:
            write_all(self._files, written.fd, group.buffers, group.offset)
        except OSError:
            self._show_what_came_whole(group, written.fd)
            raise
        self._digest(group, group.offset + group.size_bytes)

    def _sync_some(self) -> None:
        """Sync the segments written first, ahead of the checkpoint: too many files are open."""
        count = 1 + self._fds.limit // 4
        for written in [w for w in self._dirty.values() if not w.segment.sync_failed][:count]:
            try:
                if not written.segment.removed:
                    self._files.fdatasync(written.fd)
            except OSError as error:
                # It stays among the written: the checkpoint keeps the journal because of it.
                _log.error("%s: sync failed, ledger fenced: %s", written.segment.path, error)
                written.segment.sync_failed = True
                self._fds.forget(written.segment.path)
                self._broken.append(written.owner)
            else:
                self._fds.release(written.fd)
                del self._dirty[written.segment]

    def _show_what_came_whole(self, group: Group, fd: int) -> None:
        try:
            size = self._files.size(fd)
        except OSError:
            return
        with self.lock:
            end = group.segment.show_within(size, group.row_count)
        self._digest(group, end)

    def _digest(self, group: Group, end: int) -> None:
        """Have the index sum up the group's bytes, up to ``end`` in the segment."""
        offset = group.offset
        for buffer in group.buffers:
            if offset >= end:
                return
            cut = offset + len(buffer) > end
            data = memoryview(buffer)[: end - offset] if cut else buffer
            group.segment.index.digest(data, offset)
            offset += len(buffer)

    def _settle(
        self,
        good: list[Group],
        failed: list[Group],
        error: Exception | None,
        fenced: Collection[Owner] = (),
    ) -> None:
        """End a batch: show what is durable, fence where something is not, tell who waits."""
        with self.lock:
            owners = {id(group.owner): group.owner for group in failed}
            owners.update((id(owner), owner) for owner in fenced)
            for batch in self._batches:
                for segment, group in list(batch.groups.items()):
                    if id(group.owner) in owners:
                        failed.append(batch.groups.pop(segment))
                        batch.is_cut_short = True
            for group in good:
                group.segment.show_group(group.row_count, group.next_message, group.append_time_ms)
            for owner in owners.values():
                owner.fence()
            for group in (*good, *failed):
                self.pending_bytes -= group.size_bytes
                self._pending_entries -= group.entry_count
            self._room.notify_all()
        self._finish(good, failed, error)
        self._flush_indexes(good)

    def _flush_indexes(self, groups: list[Group]) -> None:
        for group in groups:
            segment = group.segment
            try:
                segment.index.flush(segment.entry_count)
            except OSError as error:
                # The index file is a cache: its rows stay in memory and are written later.
                _log.warning("%s: index not written: %s", segment.path, error)

    def _finish(self, good: list[Group], failed: list[Group], error: Exception | None) -> None:
        calls: list[tuple[DoneCallback, BaseException | None]] = []
        with self.settled:
            for group in good:
                calls += [(callback, None) for callback in group.commit._finish(None)]
            for group in failed:
                fenced = FencedError(group.owner.name, str(error))
                calls += [(callback, fenced) for callback in group.commit._finish(fenced)]
            self.settled.notify_all()
        self._confirmed.update((id(group.owner), group.owner) for group in good)
        if calls:
            self._deliver(partial(_settle_all, calls))

    def _deliver(self, call: Callable[[], None]) -> None:
        if self._notify is None:
            call()
        else:
            _call(self._notify, partial(self._run_notified, call))

    def _run_notified(self, call: Callable[[], None]) -> None:
        """Run callbacks, in the thread that takes the appends: readers in it never wait."""
        self.read_turns.never_waits = threading.get_ident()
        call()


def _settle_all(calls: list[tuple[DoneCallback, BaseException | None]]) -> None:
    for callback, outcome in calls:
        _call(callback, outcome)


def _tell(callbacks: list[Callable[[], None]], owners: Collection[Owner]) -> None:
    """A batch is done: first for those who wait for a receipt, then for those who want entries."""
    for callback in callbacks:
        _call(callback)
    for owner in owners:
        _call(owner.confirmed)


def _call(function: Callable[..., object], *arguments: object) -> None:
    """Call someone else's function: its failure is theirs, commits must go on."""
    try:
        function(*arguments)
    except Exception:  # noqa: BLE001 - see above
        _log.exception("a callback failed")
