"""Appended entries that are not yet durable: groups, batches, and what waits for them.

An append's bytes and one row of numbers go into its topic's `Group`, groups of all topics into a
`Batch`, and batches into `Pending`. A pending append has no object of its own, which the garbage
collector would have to follow. The caller gets an `Appended`, whose ``commit`` is the group.

``Pending.lock`` orders appends: positions and indexes are assigned under it, and batches are
committed in the order in which they began to gather.

An append changes its ledger's `Tail`, one `Group` and the counters of `Pending` in one run of plain
assignments, without a call in between. Python runs signal handlers, and switches threads, only
when a function begins, when a call returns and when a loop goes round. So an append is made as a
whole, or not at all. Taking a batch out is such a run of assignments, too.

What is appended to runs whose ledgers are still being made waits in `PendingLedgers`. An engine
whose ledgers are elsewhere makes a ledger by asking other services, which may take long. So it
gathers in a batch of its own, and joins the others once its ledgers are ready, or cannot be had.
Meanwhile the batches of all other runs are committed. A run is in one batch there at a time: so its
entries keep their order.

Once a batch is durable, `show` hands its bytes to the tail cache instead of dropping them. They are
the bytes that were written. Their checksums were computed here or checked at append, so nothing has
to be checked again when they are read from the cache.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from queue import SimpleQueue
from typing import Generic, Protocol, TypeAlias, TypeVar

from ...metadata import Buffer
from ..errors import FencedError
from ..position import Position
from ..run import ROW_FIELDS, Run
from ..store_state import StoreState
from ..tail_cache import RecentEntries


class Wakeup:
    """Wake-up signal of the committer's thread, which need not be woken while waiters commit."""

    def __init__(self) -> None:
        self.signals: SimpleQueue[None] = SimpleQueue()
        """Wakes the thread. An append adds to it, unless ``is_led`` is true (`Pending.group`)."""
        self.is_led = False
        """Those who append wait, and so commit themselves: the thread need not be woken."""
        self.is_urgent = False
        """The thread must commit what is pending and wake waiting threads, even beside others."""
        self.is_asleep = False

    def wake(self) -> None:
        """Wake waiting threads, and have the committer's thread look for work."""
        self.is_led = False
        self.is_urgent = True
        if self.is_asleep:
            self.signals.put(None)


_JOIN_BELOW_BYTES = 16 * 1024
"""Buffers smaller than this on average are joined: one copy is cheaper than a long gather."""

DoneCallback = Callable[[BaseException | None], None]
_Callback = TypeVar("_Callback")


class Committer(Protocol):
    """The part of `GroupCommit` that a commit needs to be finished."""

    state: StoreState
    settling: threading.Lock
    """Held while commits become done, and while callbacks are added to them."""

    def wake(self) -> None:
        """Have a thread commit what is pending."""

    def wait_for(self, commit: Commit, timeout_s: float | None) -> None:
        """Return when a commit is done."""


class Owner(Protocol):
    """The managed ledger that a group belongs to, as the committer sees it."""

    name: str
    on_confirmed: list[Callable[[], None]]
    """Called after each commit that added entries."""
    recent: RecentEntries
    """The tail cache of its newest entries."""

    def fence(self) -> None:
        """Under the lock: drop what is not durable; go on in a new ledger. Never raises."""


class _Awaited(Generic[_Callback]):
    """A batch or commit that a committer completes. Without a committer it is done already."""

    __slots__ = ("_committer", "callbacks", "done")

    def __init__(self, committer: Committer | None) -> None:
        self._committer = committer
        self.callbacks: list[_Callback] = []
        self.done = committer is None

    def _keep(self, callback: _Callback) -> bool:
        """Keep ``callback`` and wake a thread to complete this. Return False if it is done."""
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
    """The groups that are committed together, for callers that wait for several topics."""

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
        """Call ``callback()`` when every commit of the batch is done, as `Commit` does."""
        if not self._keep(callback):
            callback()

    def groups_with_entries(self) -> list[Group]:
        """The groups that have entries. A group has none if an exception ended its first append."""
        return [group for group in self.groups.values() if group.rows]

    @property
    def is_due(self) -> bool:
        """Whether there is something to commit."""
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

        It runs where the store's ``notify`` runs things, else in a thread of the store, where it
        may call all methods and wait. In a child process only a commit that is done answers, others
        raise ForkedStoreError.
        """
        if not self._keep(callback):
            callback(self.error)

    def settle(self, error: BaseException | None) -> list[Callable[[], None]]:
        """Mark it as done or failed, under ``settling``. Return the callbacks to call."""
        self.error = error
        self.done = True
        callbacks, self.callbacks = self.callbacks, []
        return [partial(callback, error) for callback in callbacks]

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until durable.

        Raises FencedError if it is not to be, StoreFailedError if the store stopped before that was
        known, TimeoutError, CallbackError, and ForkedStoreError in a child process. An exception of
        a signal handler ends the wait and nothing else, but without a time-out only after the
        disk's answer: the calling thread may write to it itself.
        """
        if not self.done and self._committer is not None:
            self._committer.wait_for(self, timeout_s)
        if self.error is not None:
            raise self.error


class Group(Commit):
    """The entries that one batch adds to one run."""

    __slots__ = ("buffers", "offset", "owner", "rows", "run")

    def __init__(
        self, committer: Committer | None, batch: Batch, owner: Owner, run: Run, offset: int
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
        """The group's end in the run, in bytes. The group must have an entry."""
        return self.rows[-1]

    @property
    def size_bytes(self) -> int:
        """Bytes of all records, and of the run's header where it comes first."""
        rows = self.rows
        return rows[-1] - self.offset if rows else 0

    def records(self) -> Iterator[list[Buffer]]:
        """The buffers of each record that are not empty; the run's header comes with the first."""
        ends = iter(self.rows[ROW_FIELDS - 1 :: ROW_FIELDS])
        parts: list[Buffer] = []
        offset, end = self.offset, next(ends, None)
        for buffer in self.buffers:
            if len(buffer):
                parts.append(buffer)
                offset += len(buffer)
                if offset == end:
                    yield parts
                    parts, end = [], next(ends, None)

    def join_small_buffers(self) -> None:
        """Make one buffer of many small ones."""
        buffers = self.buffers
        if len(buffers) > 1 and self.size_bytes < _JOIN_BELOW_BYTES * len(buffers):
            self.buffers = [b"".join(buffers)]

    def show(self, count: int | None = None) -> None:
        """Show readers the group, or its first ``count`` entries, whose rows are in the index."""
        end = len(self.rows) if count is None else count * ROW_FIELDS
        append_time_ms, _, next_message, _ = self.rows[end - ROW_FIELDS : end]
        self.run.show_group(self.run.written_count, next_message, append_time_ms)

    def refuse(self, reason: str) -> list[Callable[[], None]]:
        """Settle the commit as failed. The error says which entries are visible all the same."""
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
        """The reason why this entry is not stored; None if it is. Known once ``commit`` is done."""
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


@dataclass(slots=True)
class Outcome:
    """The result of writing a batch's groups."""

    good: list[Group] = field(default_factory=list)
    failed: list[Group] = field(default_factory=list)
    error: Exception | None = None


PlainWrite: TypeAlias = Callable[[Batch, Sequence[Group]], None]
"""Writes a batch's groups as `EntryWriter.write`, where an exception of a signal handler may end it
at any step. ``write`` of the same batch then carries on: steps that are done are skipped, or done a
second time with the same outcome. Raises OSError where it fails.
"""


class EntryWriter(Protocol):
    """Makes batches durable. One thread at a time uses it, between batches.

    Engines derive theirs from it. The default methods suit engines whose runs are ready at once.
    """

    broken: list[Owner]
    """Owners whose entries were written, and cannot become durable any more. After the batch the
    committer takes out their pending entries and fences them."""

    @property
    def is_waiting(self) -> bool:
        """Whether the writer is waiting for a disk or network, so that readers may run."""
        return False

    def write(self, batch: Batch, groups: Sequence[Group], *, sync: bool = True) -> Outcome:
        """Append the groups' entries to their runs and make them durable, but do not show them.

        Either all entries of a group are good, or it has failed, and no later entry of its run may
        be written. Entries of a failed group that cannot be taken back are shown here
        (``Group.show``). With ``sync`` False, entries are durable after the next ``sync``. An
        exception stops the store: it is for what cannot be repaired, such as a lost ownership.
        """

    def prepare(self, runs: Sequence[Run], prepared: Callable[[], None]) -> None:
        """Make runs that are not ready (`Run.is_ready`) ready in the background, or find out why
        they cannot be; then call ``prepared`` once, in any thread. ``write`` says what failed.
        """
        prepared()

    def plain_write(self, groups: Sequence[Group]) -> PlainWrite | None:
        """Return the steps of a write that a signal handler may interrupt; None: impossible."""
        return None

    def sync(self) -> None:
        """Make durable what was written without a sync. After an OSError it may be lost: the store
        stops.
        """
        return

    def shown(self, groups: Sequence[Group]) -> None:
        """Do the upkeep now: these groups are visible, and their receipts are on the way."""
        return


class PendingLedgers:
    """Appends to runs whose ledgers ``writer`` has still to create."""

    def __init__(self, committer: Committer, writer: EntryWriter, wakeup: Wakeup) -> None:
        self._committer = committer
        self._writer = writer
        self._wakeup = wakeup
        self._gathering = Batch(committer)
        self._preparing: Batch | None = None
        self.is_ready = False
        """The runs of a batch are ready, or cannot be: it can be taken."""

    # Called under the lock

    def group(self, owner: Owner, run: Run, offset: int) -> Group:
        """The group that gathers for a run that is not ready."""
        for batch in self.batches:
            if run in batch.groups:
                return batch.groups[run]
        group = Group(self._committer, self._gathering, owner, run, offset)
        self._gathering.groups[run] = group
        self.prepare()
        return group

    @property
    def batches(self) -> list[Batch]:
        """The batches with something to commit, oldest first."""
        batches = [self._gathering] if self._preparing is None else [
            self._preparing, self._gathering
        ]  # fmt: skip
        return [batch for batch in batches if batch.is_due]

    def prepare(self) -> None:
        """Prepare the runs of the next batch, unless others are being prepared."""
        if self._preparing is None and self._gathering.is_due:
            batch, self._gathering = self._gathering, Batch(self._committer)
            self._preparing = batch
            self._writer.prepare([*batch.groups], partial(self._prepared, batch))

    def take(self, *, at_once: bool) -> list[Batch]:
        """Take out what is ready. ``at_once``: everything; writing it waits for the ledgers."""
        taken = self.batches if at_once else self.batches[:1]
        if at_once:
            self._gathering = Batch(self._committer)
        self._preparing, self.is_ready = None, False
        for batch in taken:
            for run in batch.groups:
                run.is_ready = True
        self.prepare()
        return taken

    # Called by the engine, on a thread of its own: it must not wait for the lock

    def _prepared(self, batch: Batch) -> None:
        if batch is self._preparing:
            self.is_ready = True
            self._wakeup.wake()


MAX_PENDING_ENTRIES = 128 * 1024
"""Appends wait while more entries than this are not durable: recovery may have to read them."""

MAX_BATCH_BYTES = 16 * 1024 * 1024
"""A batch that has grown to this takes no more entries: recovery holds one batch in memory."""


class Pending:
    """Batches that gather, wait or are being committed. Appends wait above ``max_bytes``."""

    def __init__(
        self,
        committer: Committer,
        wakeup: Wakeup,
        pending_ledgers: PendingLedgers,
        *,
        max_bytes: int,
    ) -> None:
        self._committer = committer
        self._wakeup = wakeup
        self.pending_ledgers = pending_ledgers
        self.max_bytes = max_bytes
        self.max_entries = MAX_PENDING_ENTRIES
        self.lock = threading.RLock()
        self.size_bytes = 0
        self.entry_count = 0
        self.gathering = Batch(committer)
        """The batch of the next append."""
        self._batches = [self.gathering]
        """Batches that were not taken, the oldest first."""
        self.taken: Batch | None = None
        """The batch on its way to the disk; it stays here until it is committed completely."""
        self.last_taken = Batch(None)

    @property
    def oldest(self) -> Batch:
        """The batch to be taken next."""
        return self._batches[0]

    @property
    def waiting(self) -> list[Batch]:
        """The batches that have something to commit and were not taken."""
        return [*(batch for batch in self._batches if batch.is_due), *self.pending_ledgers.batches]

    def is_work_there(self, *, waits: bool) -> bool:
        """Whether `take` would take a batch, or one was taken and is not finished."""
        pending_ledgers = self.pending_ledgers
        return (
            self.taken is not None
            or self.oldest.is_due
            or pending_ledgers.is_ready
            or (waits and bool(pending_ledgers.batches))
        )

    @property
    def has_room(self) -> bool:
        """Whether appends need not wait."""
        return self.size_bytes <= self.max_bytes and self.entry_count <= self.max_entries

    # Everything below is called under ``lock``

    def group(self, owner: Owner, run: Run, offset: int, wakes: bool) -> Group:
        """The group that gathers for ``run``. ``wakes``: a new one wakes the committer's thread."""
        if not run.is_ready:
            return self.pending_ledgers.group(owner, run, offset)
        batch = self.gathering
        if batch.size_bytes >= MAX_BATCH_BYTES:
            batch = Batch(self._committer)
            batches = [*self._batches, batch]
            self._batches, self.gathering = batches, batch
        group = batch.groups.get(run)
        if group is None:
            group = Group(self._committer, batch, owner, run, offset)
            wakeup = self._wakeup
            # No call up to the signal's, so that no exception can come in between.
            batch.groups[run] = group
            if wakes and wakeup.is_asleep and not wakeup.is_led:
                wakeup.signals.put(None)
        return group

    def take(self, *, waits: bool = False) -> Batch | None:
        """Take out the oldest batch with entries; ``waits``: also one whose runs are not ready."""
        if self.pending_ledgers.is_ready or (waits and self.pending_ledgers.batches):
            self.join_pending_ledgers(at_once=waits)
        batch = self._batches[0]
        if not batch.is_due:
            return None
        rest = self._batches[1:] or [Batch(self._committer)]
        gathering = rest[-1]
        self.taken = self.last_taken = batch
        self._batches, self.gathering = rest, gathering
        return batch

    def join_pending_ledgers(self, *, at_once: bool) -> None:
        """Queue prepared groups of pending ledgers behind all other entries."""
        batches = self.pending_ledgers.take(at_once=at_once)
        before = [batch for batch in self._batches if batch.is_due]
        fresh = Batch(self._committer)
        self._batches, self.gathering = [*before, *batches, fresh], fresh

    def count_out(self, groups: Collection[Group], *, ends: bool) -> None:
        """Subtract groups from the pending counts. ``ends``: the taken batch is finished."""
        size_bytes, entry_count = self.size_bytes, self.entry_count
        for group in groups:
            size_bytes -= group.size_bytes
            entry_count -= group.entry_count
        taken = None if ends else self.taken
        self.size_bytes, self.entry_count, self.taken = size_bytes, entry_count, taken

    def take_out(self, owners: Collection[int]) -> list[Group]:
        """Take the groups of owners, by their ids, out of the batches that wait."""
        groups = []
        for batch in (*self._batches, *self.pending_ledgers.batches) if owners else ():
            for run, group in list(batch.groups.items()):
                if id(group.owner) in owners:
                    groups.append(batch.groups.pop(run))
                    batch.is_cut_short = True
        return groups

    def take_all(self) -> list[Batch]:
        """Take out every batch, also the one being committed: the store stops."""
        self.join_pending_ledgers(at_once=True)
        batches = self._batches if self.taken is None else [self.taken, *self._batches]
        fresh = Batch(self._committer)
        self._batches, self.gathering, self.taken = [fresh], fresh, None
        self.size_bytes = self.entry_count = 0
        return batches


PIECE_BYTES = 64 * 1024
"""Larger groups are kept in pieces, so that a view on one entry keeps only its piece in memory."""


def show(groups: Sequence[Group], *, keep: bool = True) -> None:
    """Show groups, which are durable, to readers, and keep their entries for those at the end.

    Called under the committer's lock: what is removed later is removed from the cache, too.
    ``keep`` is false where the main thread commits: a signal handler could end it half way.
    """
    for group in groups:
        group.show()
        if keep:
            _remember(group)


def _remember(group: Group) -> None:
    """Keep the entries of a group, if its topic is read at its end."""
    recent = group.owner.recent
    if not recent.is_wanted():
        return
    run = group.run
    unpack = run.unpacker()
    # The run's first bytes (a run's header) stand before its first entry.
    skip = len(run.first_bytes()) if group.offset == 0 else 0
    pieces = _cut(group, skip) if len(group.buffers) == 1 else _one_by_one(group, skip)
    first_entry_id = run.end_entry_id - group.entry_count
    recent.add(run.ledger_id, first_entry_id, [(count, data, unpack) for count, data in pieces])


def _cut(group: Group, skip: int) -> list[tuple[int, bytes]]:
    """The group's one buffer in pieces of whole records; as it is, without a copy, if small."""
    buffer = group.buffers[0]
    if type(buffer) is bytes and not skip and len(buffer) <= PIECE_BYTES:
        return [(group.entry_count, buffer)]
    ends, view = group.rows[ROW_FIELDS - 1 :: ROW_FIELDS], memoryview(buffer)
    pieces = []
    done, start = 0, group.offset + skip
    while done < len(ends):
        until = bisect_right(ends, start + PIECE_BYTES, done + 1)
        end = ends[until - 1]
        pieces.append((until - done, bytes(view[start - group.offset : end - group.offset])))
        done, start = until, end
    return pieces


def _one_by_one(group: Group, skip: int) -> list[tuple[int, bytes]]:
    """Large entries, each copied to a piece of its own, so that the original memory is freed."""
    pieces = []
    for parts in group.records():
        data = b"".join(parts)
        pieces.append((1, data[skip:] if skip else data))
        skip = 0
    return pieces
