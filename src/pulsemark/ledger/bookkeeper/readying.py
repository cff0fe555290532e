"""Making runs ready to be written to: their ledgers are created, and are in their topics' lists."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import CatalogError
from .client.errors import NotEnoughBookiesError
from .failures import FAILURES

if TYPE_CHECKING:
    from .client import BookKeeperClient, LedgerWriter
    from .ledgers import LedgerOptions
    from .logs import Logs
    from .run import BookKeeperRun

Errors = dict["BookKeeperRun", Exception]
"""The runs that cannot be written to, and why."""


class Readying:
    """Creates ledgers, each once, for those who prepare runs and for those who write to them."""

    def __init__(self, client: BookKeeperClient, logs: Logs, options: LedgerOptions) -> None:
        self._client = client
        self._logs = logs
        self._options = options
        self._tasks: dict[BookKeeperRun, asyncio.Task[Errors]] = {}
        """Of runs that are being made ready, or that failed and are not void yet."""
        self.writers: dict[int, LedgerWriter] = {}
        """What adds entries to the ledgers that were created and not closed."""

    async def make_ready(self, runs: Sequence[BookKeeperRun]) -> Errors:
        """Create the ledgers of runs that have none yet, and list them; the errors of those
        that cannot be written to. Raises OwnershipLostError.
        """
        new = [run for run in runs if not self._logs.has(run.header.topic_id, run)]
        fresh = [run for run in new if run not in self._tasks]
        if fresh:
            task = asyncio.ensure_future(self._make_all(fresh))
            self._tasks.update((run, task) for run in fresh)
        errors: Errors = {}
        for each in {self._tasks[run] for run in new}:
            errors |= await asyncio.shield(each)
        for run in new:
            if run not in errors:
                self._tasks.pop(run, None)
        return {run: errors[run] for run in new if run in errors}

    async def forget(self, run: BookKeeperRun) -> None:
        """The run is void: what became of it does not matter any more, once it is decided."""
        task = self._tasks.pop(run, None)
        if task is not None:
            await asyncio.wait([task])

    async def _make_all(self, new: Sequence[BookKeeperRun]) -> Errors:
        errors: Errors = {}
        begun = {run.ledger_id: run for run in new if run.ledger_id not in self.writers}
        try:
            await self._logs.note_new(list(begun))
            made = await asyncio.gather(*map(self._make, begun.values()), return_exceptions=True)
            for ledger_id, result in zip(begun, made, strict=True):
                if isinstance(result, FAILURES):
                    errors.update((run, result) for run in new if run.ledger_id == ledger_id)
                elif isinstance(result, BaseException):
                    raise result
            await self._logs.add([run for run in new if run not in errors])
        except CatalogError as error:
            errors.update((run, error) for run in new)
        return errors

    async def _make(self, run: BookKeeperRun) -> None:
        """Create a run's ledger; with fewer bookies if there are too few, down to the ack quorum.

        What is acknowledged is on that many bookies in any case.
        """
        options = self._options
        ensemble, quorum = options.ensemble_size, options.write_quorum_size
        while True:
            try:
                self.writers[run.ledger_id] = await self._client.create_ledger(
                    ensemble_size=ensemble,
                    write_quorum_size=quorum,
                    ack_quorum_size=options.ack_quorum_size,
                    custom_metadata=self._logs.metadata_of(run.header),
                    ledger_id=run.ledger_id,
                )
            except NotEnoughBookiesError:
                if ensemble <= options.ack_quorum_size:
                    raise
                ensemble -= 1
                quorum = min(quorum, ensemble)
            else:
                return
