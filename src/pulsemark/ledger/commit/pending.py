"""The appends that are not yet durable, in the batches in which they will be committed.

``lock`` orders appends: positions and indexes are assigned under it, and batches are committed in
the order in which they began to gather.

An append changes its ledger's `Tail`, one `Group` and the counters here in one run of plain
assignments, without a call in between. Python runs signal handlers, and switches threads, only
when a function begins, when a call returns and when a loop goes round. So an append is made as a
whole, or not at all. Taking a batch out is such a run of assignments, too.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from ..run import Run
from .beginning import Beginning
from .bell import Bell
from .commit import Batch, Committer, Group, Owner

MAX_PENDING_ENTRIES = 128 * 1024
"""Appends wait while more entries than this are not durable: recovery may have to read them."""

MAX_BATCH_BYTES = 16 * 1024 * 1024
"""A batch that has grown to this takes no more entries: recovery holds one batch in memory."""


class Pending:
    """Batches that gather and wait, and the one that is on its way to the disk.

    Args:
        committer: commits them.
        bell: wakes its thread.
        beginning: has what is appended to runs that are not ready.
        max_bytes: appends wait while more is not yet durable.
    """

    def __init__(
        self, committer: Committer, bell: Bell, beginning: Beginning, *, max_bytes: int
    ) -> None:
        self._committer = committer
        self._bell = bell
        self.beginning = beginning
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
        return [*(batch for batch in self._batches if batch.is_due), *self.beginning.batches]

    def is_work_there(self, *, waits: bool) -> bool:
        """Whether `take` would take a batch, or one was taken and is not finished."""
        beginning = self.beginning
        return (
            self.taken is not None
            or self.oldest.is_due
            or beginning.is_ready
            or (waits and bool(beginning.batches))
        )

    @property
    def has_room(self) -> bool:
        """Whether appends need not wait."""
        return self.size_bytes <= self.max_bytes and self.entry_count <= self.max_entries

    # Everything below is called under ``lock``

    def group(self, owner: Owner, run: Run, offset: int, wakes: bool) -> Group:
        """The group that gathers for ``run``; a new one begins at ``offset``.

        ``wakes``: a new one wakes the committer's thread, if that sleeps.
        """
        if not run.is_ready:
            return self.beginning.group(owner, run, offset)
        batch = self.gathering
        if batch.size_bytes >= MAX_BATCH_BYTES:
            batch = Batch(self._committer)
            batches = [*self._batches, batch]
            self._batches, self.gathering = batches, batch
        group = batch.groups.get(run)
        if group is None:
            group = Group(self._committer, batch, owner, run, offset)
            bell = self._bell
            # No call from here to the bell's: so no exception can come in between.
            batch.groups[run] = group
            if wakes and bell.is_asleep and not bell.is_led:
                bell.strokes.put(None)
        return group

    def take(self, *, waits: bool = False) -> Batch | None:
        """Take out the oldest batch, if it has something to commit.

        With ``waits`` also one whose runs are not ready: writing it waits until they are.
        """
        if self.beginning.is_ready or (waits and self.beginning.batches):
            self.join_beginning(at_once=waits)
        batch = self._batches[0]
        if not batch.is_due:
            return None
        rest = self._batches[1:] or [Batch(self._committer)]
        gathering = rest[-1]
        self.taken = self.last_taken = batch
        self._batches, self.gathering = rest, gathering
        return batch

    def join_beginning(self, *, at_once: bool) -> None:
        """Have what gathered for runs that were not ready committed after all other entries."""
        batches = self.beginning.take(at_once=at_once)
        before = [batch for batch in self._batches if batch.is_due]
        fresh = Batch(self._committer)
        self._batches, self.gathering = [*before, *batches, fresh], fresh

    def count_out(self, groups: Collection[Group], *, ends: bool) -> None:
        """These are no longer pending; with ``ends`` the batch that was taken is finished."""
        size_bytes, entry_count = self.size_bytes, self.entry_count
        for group in groups:
            size_bytes -= group.size_bytes
            entry_count -= group.entry_count
        taken = None if ends else self.taken
        self.size_bytes, self.entry_count, self.taken = size_bytes, entry_count, taken

    def take_out(self, owners: Collection[int]) -> list[Group]:
        """Take the groups of owners, by their ids, out of the batches that wait."""
        groups = []
        for batch in (*self._batches, *self.beginning.batches) if owners else ():
            for run, group in list(batch.groups.items()):
                if id(group.owner) in owners:
                    groups.append(batch.groups.pop(run))
                    batch.is_cut_short = True
        return groups

    def take_all(self) -> list[Batch]:
        """Take out every batch, the one on its way included: the store stops."""
        self.join_beginning(at_once=True)
        batches = self._batches if self.taken is None else [self.taken, *self._batches]
        fresh = Batch(self._committer)
        self._batches, self.gathering, self.taken = [fresh], fresh, None
        self.size_bytes = self.entry_count = 0
        return batches
