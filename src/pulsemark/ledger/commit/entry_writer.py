"""The engine as a `GroupCommit` sees it: it makes batches durable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .commit import Batch
from .group import Group, Owner


@dataclass(slots=True)
class Outcome:
    """What became of a batch's groups."""

    good: list[Group] = field(default_factory=list)
    failed: list[Group] = field(default_factory=list)
    error: Exception | None = None


class EntryWriter(Protocol):
    """Makes batches durable. Used by one thread at a time, between batches."""

    broken: list[Owner]
    """Owners whose entries were written, and cannot be made durable any more: the committer takes
    them out and fences them after the batch."""

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a disk or a network just now, and needs no interpreter."""
        ...

    def write(self, batch: Batch, groups: Sequence[Group], *, sync: bool = True) -> Outcome:
        """Append the groups' entries to their runs and make them durable, all but shown.

        Of a group either all entries are good, or it has failed and nothing that follows in its
        run may be written. ``sync`` False: durable after the next ``sync`` only. What it raises
        stops the store: it is for what has no repair, such as a lost ownership.
        """
        ...

    def can_be_repeated(self, groups: Sequence[Group]) -> bool:
        """Whether ``write_plainly`` may be asked to write these. False is always right."""
        ...

    def write_plainly(self, batch: Batch, groups: Sequence[Group]) -> None:
        """As ``write``, where an exception of a signal handler may end it at any step.

        ``write`` of the same batch then carries on: what is done is passed over, or done a second
        time with the same outcome. Raises OSError where it fails.
        """
        ...

    def sync(self) -> None:
        """Make durable what was written without. Raises OSError: it may be lost."""
        ...

    def shown(self, groups: Sequence[Group]) -> None:
        """These groups are visible now, and their receipts are on the way: time for upkeep."""
        ...
