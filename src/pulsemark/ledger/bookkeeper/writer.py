"""Appends a batch to its ledgers: all entries in flight at once, done at the ack quorum."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ...metadata import Buffer
from ..commit.batch import Batch, Group, Owner
from ..commit.group_commit import EntryWriter, Outcome
from ..errors import LedgerError, OwnershipLostError
from ..run import Run
from .client.errors import FAILURES, BackPressureError
from .run import BookKeeperRun
from .stored_entry import payloads

if TYPE_CHECKING:
    from .client import LedgerWriter
    from .ledgers import BookKeeperLedgers

T = TypeVar("T")
_PART_ENTRIES, _PART_BYTES = 1000, 1 << 20
"""So much is given to the client at once: in between it looks at its limit of what is in flight."""
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
        errors = await ledgers.creation.make_ready([cast("BookKeeperRun", g.run) for g in groups])
        by_owner: dict[int, deque[Group]] = {}
        for group in groups:
            by_owner.setdefault(id(group.owner), deque()).append(group)
        # The groups of one topic are written in order: after a failed one there is no later one.
        waiting = [*by_owner.values()]
        while waiting:
            begun = [await self._begin(of_topic[0], errors) for of_topic in waiting]
            for of_topic, adds in zip(waiting, begun, strict=True):
                group = of_topic.popleft()
                error = await adds.error()
                if error is None:
                    cast("BookKeeperRun", group.run).add_written(group)
                    outcome.good.append(group)
                else:
                    outcome.failed += (group, *of_topic)
                    outcome.error = error
                    of_topic.clear()
            waiting = [of_topic for of_topic in waiting if of_topic]
        if outcome.failed:
            await self._failed(outcome)
        for group in outcome.good:
            ledgers.close_if_sealed(cast("BookKeeperRun", group.run))
        return outcome

    async def _begin(self, group: Group, errors: dict[BookKeeperRun, Exception]) -> _Adds:
        """Add a group's entries, without waiting for them."""
        run = cast("BookKeeperRun", group.run)
        adds = _Adds(run.first_entry_id + run.written_count + group.entry_count - 1)
        if run in errors:
            adds.failure = errors[run]
        elif run.is_failed:
            adds.failure = OSError(errno.EIO, f"ledger {run.ledger_id} failed before")
        else:
            try:
                writer = self._ledgers.writer_of(run)
                for part in _parts(payloads(group)):
                    adds.futures.append(await _append(writer, part))
            except FAILURES as error:
                adds.failure = error
        return adds

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


class _Adds:
    """A group's entries on their way."""

    __slots__ = ("failure", "futures", "last_id")

    def __init__(self, last_id: int) -> None:
        self.last_id = last_id
        """The id of the group's last entry."""
        self.futures: list[asyncio.Future[int]] = []
        self.failure: Exception | None = None
        """Why not all could be sent."""

    async def error(self) -> Exception | None:
        """Wait for what was sent; the error, if some entry is not known to be confirmed."""
        error, last_id = self.failure, -1
        for future in self.futures:
            try:
                last_id = await future
            except FAILURES as failure:
                error = error or failure
        assert error is not None or last_id == self.last_id, f"{last_id}, not {self.last_id}"
        return error


def _parts(entries: Iterable[tuple[Buffer, ...]]) -> Iterator[list[tuple[Buffer, ...]]]:
    """Entries, as many at once as are sent together."""
    part: list[tuple[Buffer, ...]] = []
    size = 0
    for entry in entries:
        part.append(entry)
        size += sum(map(len, entry))
        if size >= _PART_BYTES or len(part) >= _PART_ENTRIES:
            yield part
            part, size = [], 0
    if part:
        yield part


async def _append(
    writer: LedgerWriter, entries: Sequence[tuple[Buffer, ...]]
) -> asyncio.Future[int]:
    while True:
        try:
            return writer.append_all(entries)
        except BackPressureError:
            await writer.ready()
