"""Appends a batch to its ledgers: all entries in flight at once, done at the ack quorum."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..commit.commit import Batch, Group, Owner
from ..commit.entry_writer import EntryWriter, Outcome
from ..errors import LedgerError, OwnershipLostError
from ..run import Run
from .client.errors import BackPressureError
from .failures import FAILURES
from .run import BookKeeperRun
from .stored_entry import payloads

if TYPE_CHECKING:
    from .client import LedgerWriter
    from .ledgers import BookKeeperLedgers

T = TypeVar("T")
_log = logging.getLogger(__name__)
_METADATA_WAIT_S = 1.0
"""So long other topics' entries wait, after a failed one, for ZooKeeper's answer about it."""


class BookKeeperWriter(EntryWriter):
    """The `EntryWriter` of a `BookKeeperLedgers`."""

    is_waiting: bool = False
    """Whether entries are on their way to bookies."""

    def __init__(self, ledgers: BookKeeperLedgers) -> None:
        self._ledgers = ledgers
        self._later: set[asyncio.Task[Any]] = set()
        self.broken: list[Owner] = []

    def write(self, batch: Batch, groups: Sequence[Group], *, sync: bool = True) -> Outcome:
        """As `EntryWriter.write`; without ``sync``, too, entries are on the bookies' disks."""
        self.is_waiting = True
        try:
            return self._ledgers.thread.run(self._write(groups))
        finally:
            self.is_waiting = False

    async def _write(self, groups: Sequence[Group]) -> Outcome:
        ledgers, outcome = self._ledgers, Outcome()
        errors = await ledgers.readying.make_ready([cast("BookKeeperRun", g.run) for g in groups])
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
                added.append(await _append(writer, parts))  # noqa: PERF401 - kept if one fails
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
        is_owner = not isinstance(error, OwnershipLostError)
        if is_owner and await self._soon(ledgers.is_owner()) is False:
            is_owner = False
        if not is_owner:
            raise OwnershipLostError(ledgers.name) from error
        _log.warning(
            "%s: %d groups of entries failed: %s", ledgers.name, len(outcome.failed), error
        )
        outcome.error = OSError(errno.EIO, str(error))
        failed = [cast("BookKeeperRun", group.run) for group in outcome.failed]
        for run in failed:
            run.is_failed = True
        try:
            await self._soon(ledgers.end_failed(failed))
        except OwnershipLostError:
            raise
        except LedgerError as failure:
            # The header of the topic's next ledger says it, too.
            _log.warning(
                "%s: the end of the failed ledgers is not stored yet: %s", ledgers.name, failure
            )

    async def _soon(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What ``work`` returns; None if it takes longer than other topics' entries may wait.

        It then goes on. It asks ZooKeeper, and other topics' entries need only bookies.
        """
        task = asyncio.ensure_future(work)
        done, _ = await asyncio.wait([task], timeout=_METADATA_WAIT_S)
        if done:
            return task.result()
        self._later.add(task)
        task.add_done_callback(self._ended)
        return None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Work that nobody waited for has ended: what failed is found by the next owner."""
        self._later.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("%s: left to the next owner: %s", self._ledgers.name, error)

    def prepare(self, runs: Sequence[Run], prepared: Callable[[], None]) -> None:
        """Create the runs' ledgers: see `EntryWriter.prepare`."""
        self._ledgers.prepare([cast("BookKeeperRun", run) for run in runs], prepared)

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
