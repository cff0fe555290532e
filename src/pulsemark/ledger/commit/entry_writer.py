"""The engine as a `GroupCommit` sees it: it makes batches durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from ..run import Run
from .commit import Batch, Group, Owner


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

    Engines derive their own from it: what it does by itself is right for all whose runs are ready
    from the beginning.
    """

    broken: list[Owner]
    """Owners whose entries were written, and cannot become durable any more. After the batch the
    committer takes out their pending entries and fences them."""

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a disk or a network just now, so that readers may run."""

    def write(self, batch: Batch, groups: Sequence[Group], *, sync: bool = True) -> Outcome:
        """Append the groups' entries to their runs and make them durable, but do not show them.

        Either all entries of a group are good, or the group has failed; then no later entry of its
        run may be written. Entries of a failed group that cannot be taken back are shown here
        (``Group.show``): their callers learn it (`Appended.error`). With ``sync`` False, entries
        are durable only after the next ``sync``. An exception stops the store: it is for what
        cannot be repaired, such as a lost ownership.
        """

    def prepare(self, runs: Sequence[Run], prepared: Callable[[], None]) -> None:
        """Make runs that are not ready (`Run.is_ready`) ready in the background, or find out why
        they cannot be; then call ``prepared`` once, in any thread. ``write`` says what failed.
        """
        prepared()

    def plain_write(self, groups: Sequence[Group]) -> PlainWrite | None:
        """What writes these in a thread that a signal handler may interrupt; None: nothing can."""
        return None

    def sync(self) -> None:
        """Make durable what was written without a sync. After an OSError it may be lost."""

    def shown(self, groups: Sequence[Group]) -> None:
        """These groups are visible now, and their receipts are on the way: do the upkeep now."""
