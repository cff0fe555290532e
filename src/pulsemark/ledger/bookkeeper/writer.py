"""Appends the entries of a batch to their ledgers: all in flight at once, done at the ack quorum."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ..commit.commit import Batch, Group, Owner
from ..commit.entry_writer import Outcome
from ..errors import LedgerError, OwnershipLostError
from .client.errors import BackPressureError
from .failures import FAILURES
from .run import BookKeeperRun
from .stored_entry import payloads

if TYPE_CHECKING:
    from .client import LedgerWriter
    from .ledgers import BookKeeperLedgers

_log = logging.getLogger(__name__)


class BookKeeperWriter:
    """The `EntryWriter` of a `BookKeeperLedgers`."""

    def __init__(self, ledgers: BookKeeperLedgers) -> None:
        self._ledgers = ledgers
        self.broken: list[Owner] = []
        self.is_waiting = False
        """Whether entries are on their way to bookies."""

    def write(self, batch: Batch, groups: Sequence[Group], *, sync: bool = True) -> Outcome:
        """As `EntryWriter.write`; without ``sync``, too, entries are on the bookies' disks."""
        self.is_waiting = True
        try:
            return self._ledgers.thread.run(self._write(groups))
        finally:
            self.is_waiting = False

    async def _write(self, groups: Sequence[Group]) -> Outcome:
        ledgers, outcome = self._ledgers, Outcome()
        errors = await ledgers.make_ready([cast("BookKeeperRun", g.run) for g in groups])
        by_owner: dict[int, list[Group]] = {}
        for group in groups:
            by_owner.setdefault(id(group.owner), []).append(group)
        await asyncio.gather(*(self._of_owner(g, errors, outcome) for g in by_owner.values()))
        if outcome.failed:
            await self._failed(outcome)
        for group in outcome.good:
            ledgers.close_if_sealed(cast("BookKeeperRun", group.run))
        return outcome

    async def _of_owner(
        self,
        groups: Sequence[Group],
        errors: dict[BookKeeperRun, Exception],
        outcome: Outcome,
    ) -> None:
        """Write the groups of one topic in order: after a failed one there is no later one."""
        error: Exception | None = None
        for group in groups:
            error = error or await self._write_group(group, errors)
            if error is None:
                cast("BookKeeperRun", group.run).add_written(group)
                outcome.good.append(group)
            else:
                outcome.failed.append(group)
                outcome.error = error

    async def _write_group(
        self, group: Group, errors: dict[BookKeeperRun, Exception]
    ) -> Exception | None:
        """Add a group's entries, and wait for them; the error, if one could not be added."""
        run = cast("BookKeeperRun", group.run)
        if run in errors:
            return errors[run]
        if run.is_failed:
            return OSError(errno.EIO, f"ledger {run.ledger_id} failed before")
        added: list[asyncio.Future[int]] = []
        try:
            writer = self._ledgers.writer_of(run)
            for parts in payloads(group):
                added.append(await _append(writer, parts))
            ids = await asyncio.gather(*added)
        except FAILURES as error:
            await asyncio.gather(*added, return_exceptions=True)
            return error
        expected = run.first_entry_id + run.written_count
        assert ids[0] == expected, f"entry {ids[0]} of ledger {run.ledger_id}, not {expected}"
        return None

    async def _failed(self, outcome: Outcome) -> None:
        """Decide durably that the entries of failed groups do not count.

        Raises OwnershipLostError if another owner has fenced their ledgers.
        """
        ledgers = self._ledgers
        error = outcome.error
        if isinstance(error, OwnershipLostError) or not await ledgers.is_owner():
            raise OwnershipLostError(ledgers.name) from error
        _log.warning(
            "%s: %d groups of entries failed: %s", ledgers.name, len(outcome.failed), error
        )
        outcome.error = OSError(errno.EIO, str(error))
        try:
            await ledgers.end_failed([cast("BookKeeperRun", g.run) for g in outcome.failed])
        except OwnershipLostError:
            raise
        except LedgerError as failure:
            # The header of the topic's next ledger says it, too.
            _log.warning("%s: their end is not noted yet: %s", ledgers.name, failure)

    def can_be_repeated(self, groups: Sequence[Group]) -> bool:
        """False: so only threads that no exception interrupts write."""
        return False

    def write_plainly(self, batch: Batch, groups: Sequence[Group]) -> None:
        """Never called, because ``can_be_repeated`` returns False."""
        raise NotImplementedError("can_be_repeated returns False")

    def sync(self) -> None:
        """Nothing to do: bookies sync before they acknowledge."""

    def shown(self, groups: Sequence[Group]) -> None:
        """Nothing to do."""


async def _append(writer: LedgerWriter, parts: tuple[object, ...]) -> asyncio.Future[int]:
    while True:
        try:
            return writer.append(*parts)  # type: ignore[arg-type]
        except BackPressureError:
            await writer.ready()
