"""The batches of runs that cannot be written to yet, because their ledgers are still being made.

An engine whose ledgers are elsewhere makes a ledger by asking other services, which may take long.
So what is appended to such a run gathers in a batch of its own. It joins the others once its
ledgers are ready, or cannot be had. Meanwhile the batches of all other runs are committed.

A run is in one batch here at a time: so its entries keep their order.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from .commit import Batch, Committer, Group, Owner

if TYPE_CHECKING:
    from ..run import Run
    from .bell import Bell
    from .entry_writer import EntryWriter


class Beginning:
    """What is appended to runs before these are ready.

    Args:
        committer: commits it later.
        writer: makes runs ready.
        bell: wakes the committer's thread once some are.
    """

    def __init__(self, committer: Committer, writer: EntryWriter, bell: Bell) -> None:
        self._committer = committer
        self._writer = writer
        self._bell = bell
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
        """All of them that have something to commit, the oldest first."""
        batches = [self._gathering] if self._preparing is None else [
            self._preparing, self._gathering
        ]  # fmt: skip
        return [batch for batch in batches if batch.is_due]

    def prepare(self) -> None:
        """Have the runs of the next batch made ready, unless others are just now."""
        if self._preparing is None and self._gathering.is_due:
            batch, self._gathering = self._gathering, Batch(self._committer)
            self._preparing = batch
            self._writer.prepare([*batch.groups], partial(self._prepared, batch))

    def take(self, *, at_once: bool) -> list[Batch]:
        """Take out what is ready; with ``at_once`` everything: writing it waits for the ledgers."""
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
            self._bell.ring()
