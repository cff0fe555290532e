"""The engine on BookKeeper, as a `LedgerStore`.

The order of steps keeps it safe. A ledger is created, then added to its topic's list, then its
first entry is written. Only the store's owner changes a list (`owned_tree`). A new owner first
takes the store over, then recovers all ledgers that may be open, which fences them. After that the
former owner can neither write nor add a ledger.

`BookKeeperWriter` appends a batch to its ledgers: all entries in flight at once, done at the ack
quorum.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ...coordination import Delete, Operation
from ...metadata import Buffer
from ..commit.batch import Batch, EntryWriter, Group, Outcome, Owner
from ..errors import CatalogError, LedgerError, OwnershipLostError, StoreClosedError
from ..run import Run, RunHeader
from ..store import LedgerStore
from .address import disconnected
from .client.errors import FAILURES, BackPressureError, NotEnoughBookiesError
from .logs import Logs
from .metadata import ZooKeeperMetadata
from .nodes import header_metadata
from .read_ahead import LedgerAccess
from .run import BookKeeperRun
from .stored_entry import payloads

if TYPE_CHECKING:
    from .client import BookKeeperClient, LedgerWriter
    from .loop_thread import LoopThread
    from .owned_tree import OwnedTree

_log = logging.getLogger(__name__)
_PART_ENTRIES, _PART_BYTES = 1000, 1 << 20
"""So much is given to the client at once: in between it looks at its limit of what is in flight."""
_METADATA_WAIT_S = 1.0
"""So long other topics' entries wait, after a failed one, for ZooKeeper's answer about it."""


# Makes runs ready: creates their ledgers and adds them to their topics' lists.


Errors = dict["BookKeeperRun", Exception]
"""The runs that cannot be written to, and why."""


class LedgerCreation:
    """Creates each run's ledger once, for callers that prepare runs and for the writer."""

    def __init__(self, client: BookKeeperClient, logs: Logs, options: LedgerOptions) -> None:
        self._client = client
        self._logs = logs
        self._options = options
        self._tasks: dict[BookKeeperRun, asyncio.Task[Errors]] = {}
        """Of runs that are being made ready, or that failed and are not void yet."""
        self.writers: dict[int, LedgerWriter] = {}
        """What adds entries to the ledgers that were created and not closed."""

    async def make_ready(self, runs: Sequence[BookKeeperRun]) -> Errors:
        """Create and list the ledgers of runs that have none yet. Return the errors of runs
        that cannot be written to. Raises OwnershipLostError.
        """
        new = [run for run in runs if not self._logs.has(run.header.topic_id, run)]
        fresh = [run for run in new if run not in self._tasks]
        if fresh:
            task = asyncio.ensure_future(self._make_all(fresh))
            self._tasks.update((run, task) for run in fresh)
        errors: Errors = {}
        for each in dict.fromkeys(self._tasks[run] for run in new):
            errors |= await asyncio.shield(each)
        for run in new:
            if run not in errors:
                self._tasks.pop(run, None)
        return {run: errors[run] for run in new if run in errors}

    async def forget(self, run: BookKeeperRun) -> None:
        """Wait for a void run's creation, whatever its result."""
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
        """Create a run's ledger, on as few bookies as the ack quorum if there are no more."""
        options = self._options
        ensemble, quorum = options.ensemble_size, options.write_quorum_size
        while True:
            try:
                self.writers[run.ledger_id] = await self._client.create_ledger(
                    ensemble_size=ensemble,
                    write_quorum_size=quorum,
                    ack_quorum_size=options.ack_quorum_size,
                    custom_metadata=header_metadata(run.header),
                    ledger_id=run.ledger_id,
                )
            except NotEnoughBookiesError:
                if ensemble <= options.ack_quorum_size:
                    raise
                ensemble -= 1
                quorum = min(quorum, ensemble)
            else:
                return


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """The replication of ledgers. Raises ValueError unless E >= Qw >= Qa >= 1."""

    ensemble_size: int = 3
    """On how many bookies a ledger is spread."""
    write_quorum_size: int = 3
    """How many bookies get each entry."""
    ack_quorum_size: int = 2
    """How many of them must have it on disk before it is acknowledged."""

    def __post_init__(self) -> None:
        sizes = self.ensemble_size, self.write_quorum_size, self.ack_quorum_size
        if not sizes[0] >= sizes[1] >= sizes[2] >= 1:
            raise ValueError(
                "ensemble_size >= write_quorum_size >= ack_quorum_size >= 1 must hold, "
                f"not {sizes[0]}/{sizes[1]}/{sizes[2]}"
            )


class BookKeeperLedgers(LedgerStore):
    """A store's ledgers, owned once constructed. Raises CatalogError, UnsupportedVersionError."""

    metadata: ZooKeeperMetadata

    def __init__(
        self,
        thread: LoopThread,
        client: BookKeeperClient,
        tree: OwnedTree,
        metadata: ZooKeeperMetadata,
        options: LedgerOptions,
    ) -> None:
        self.thread = thread
        self.client = client
        self.tree = tree
        self.metadata = metadata
        self.options = options
        self.access = LedgerAccess(thread, client)
        self.logs = Logs(tree, client)
        self.writer = BookKeeperWriter(self)
        self.creation = LedgerCreation(client, self.logs, options)
        self._begun: dict[int, list[BookKeeperRun]] = {}
        """The runs that were begun, by ledger, until it is closed."""
        self._sealed: list[BookKeeperRun] = []
        """Sealed runs whose rows are still in memory."""
        self._work: dict[Future[Any], None] = {}
        thread.run(self._take_over())

    @property
    def name(self) -> str:
        """The store's root, which names it in errors."""
        return self.tree.paths.root

    async def _take_over(self) -> None:
        await self.tree.take_over()
        await self.metadata.load()
        await self.logs.settle_pending()

    async def is_owner(self) -> bool:
        """Whether no other owner is known to have taken over."""
        try:
            return await self.tree.is_owner()
        except CatalogError:  # unknown; each change asks again
            return True

    # Ledgers

    def create(self, header: RunHeader) -> BookKeeperRun:
        """Make a run. Its ledger is created with the first entries."""
        return BookKeeperRun(header, self.access, self._cut_run)

    def open(self, name: str, topic_id: int) -> list[Run]:
        """Open a topic's runs; the newest ledger is recovered. Raises CatalogError, OSError."""
        return list(self.thread.run(self._open(topic_id)))

    async def _open(self, topic_id: int) -> list[BookKeeperRun]:
        make = self.create
        try:
            return await self.logs.open(topic_id, make, self.access)
        except FAILURES as error:
            raise OSError(errno.EIO, str(error)) from error

    def began(self, run: Run) -> None:
        """Note a run: its ledger is not closed before the run is sealed."""
        self._begun.setdefault(run.ledger_id, []).append(cast("BookKeeperRun", run))

    def sealed(self, run: Run) -> None:
        """Close the ledger once its pending entries are written."""
        mine = cast("BookKeeperRun", run)
        mine.is_sealed = True
        self.thread.call(self.close_if_sealed, mine)

    def void(self, run: Run) -> None:
        """Remove the run from the list, and its ledger, unless nothing was written yet."""
        run.mark_removed()
        mine = cast("BookKeeperRun", run)
        mine.is_sealed = True
        mine.assigned_count = 0
        with suppress(StoreClosedError):  # the next owner finds it
            self.begin(self._void(mine))

    async def _void(self, run: BookKeeperRun) -> None:
        await self.creation.forget(run)
        self.close_if_sealed(run)
        topic_id = run.header.topic_id
        if self.logs.has(topic_id, run):
            await self.logs.remove(topic_id, [run])
            await self.logs.delete_gone(self.access)

    def close_if_sealed(self, run: BookKeeperRun) -> None:
        """Close a run's ledger in the background if nothing more is to be written."""
        if not run.is_sealed or run.written_count < run.assigned_count:
            return
        shown = [each for each in self._sealed if each.entry_count == each.written_count]
        for each in shown:
            each.forget_rows()
        self._sealed = [each for each in self._sealed if each not in shown] + [run]
        if all(
            each.is_sealed and each.written_count >= each.assigned_count
            for each in self._begun.get(run.ledger_id, ())
        ):
            self._begun.pop(run.ledger_id, None)
            self.begin(self._close(run.ledger_id))

    async def _close(self, ledger_id: int) -> None:
        writer = self.creation.writers.pop(ledger_id, None)
        if writer is None:
            return
        try:
            await writer.close()
        except FAILURES as error:
            _log.warning("ledger %d was not closed; the next owner closes it: %s", ledger_id, error)
            return
        self.logs.closed(ledger_id)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work in the background. Raises StoreClosedError."""
        try:
            future = self.thread.begin(_logged(work))
        except StoreClosedError:
            work.close()
            raise
        self._work[future] = None
        future.add_done_callback(lambda ended: self._work.pop(ended, None))

    # Removing

    def remove(self, topic_id: int, runs: Sequence[Run]) -> Callable[[], None]:
        """As `LedgerStore.remove`: one change of the topic's list."""
        mine = cast("Sequence[BookKeeperRun]", runs)
        self.thread.run(self.logs.remove(topic_id, mine))
        for run in mine:
            run.mark_removed()
        return self._delete_gone

    def remove_topic(
        self, topic_id: int, runs: Sequence[Run], note: tuple[str, str]
    ) -> Callable[[], None]:
        """As `LedgerStore.remove_topic`: the topic, its list and the note in one change."""
        self.thread.run(self._remove_topic(topic_id, note))
        self.metadata.forget(topic_id)
        for run in runs:
            run.mark_removed()
        return self._delete_gone

    async def _remove_topic(self, topic_id: int, note: tuple[str, str]) -> None:
        kind, key = note
        operations: list[Operation] = await self.metadata.operations([(kind, key, b"")])
        operations.append(Delete(self.tree.paths.topic(topic_id)))
        for ledger_id in await self.logs.remove_topic(topic_id, operations):
            await self._close(ledger_id)

    def _delete_gone(self) -> None:
        self.thread.run(self.logs.delete_gone(self.access))

    def _cut_run(self, run: BookKeeperRun, rows: int) -> None:
        self.thread.run(self.logs.cut(run, rows))

    # The whole

    def probe(self) -> None:
        """Write an entry to a ledger of its own. Raises OSError."""
        self.thread.run(self._probe())

    async def _probe(self) -> None:
        quorum = self.options.ack_quorum_size
        try:
            writer = await self.client.create_ledger(
                ensemble_size=quorum,
                write_quorum_size=quorum,
                ack_quorum_size=quorum,
                custom_metadata={"application": b"pulsemark", "pulsemark-probe": b""},
            )
            await writer.append(b"probe")
            await writer.close()
            await self.client.delete_ledger(writer.ledger_id)
        except FAILURES as error:
            raise OSError(errno.EIO, str(error)) from error

    def checkpoint(self) -> None:
        """Note durably which ledgers are closed. Raises CatalogError."""
        self.thread.run(self.logs.note_closed())

    def finish(self) -> None:
        """Wait until the ledgers are closed. Raises CatalogError."""
        self.thread.run(_nothing())  # what `sealed` left to the loop has begun
        for future in tuple(self._work):
            future.result()
        self.thread.run(self._finish())

    async def _finish(self) -> None:
        await asyncio.gather(*map(self._close, tuple(self.creation.writers)))
        try:
            await self.logs.note_closed()
        except OwnershipLostError:
            _log.warning(
                "%s: another broker owns this store now, so its ledgers are not closed here",
                self.name,
            )

    def close(self) -> None:
        """End the sessions. Ledgers that are still open are closed by the next owner."""
        if self.thread.is_over:
            return
        try:
            self.thread.run(disconnected(self.tree.coordination, self.client))
        finally:
            self.thread.stop()


async def _nothing() -> None:
    """Does nothing; to wait until the loop has run what was scheduled before."""


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    """Run background work, and log failures: the next owner repeats it."""
    try:
        await work
    except (LedgerError, *FAILURES, OSError) as error:
        _log.warning("ledgers to be deleted are left to the next owner: %s", error)


class BookKeeperWriter(EntryWriter):
    """The `EntryWriter` of a `BookKeeperLedgers`."""

    is_waiting = False  # True while entries are on their way to bookies

    def __init__(self, ledgers: BookKeeperLedgers) -> None:
        self._ledgers = ledgers
        self._later: set[asyncio.Task[Any]] = set()
        self.broken: list[Owner] = []

    def write(self, batch: Batch, groups: Sequence[Group], *, sync: bool = True) -> Outcome:
        """As `EntryWriter.write`. Entries are on the bookies' disks also without ``sync``."""
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
        """Send a group's entries, without waiting for answers."""
        run = cast("BookKeeperRun", group.run)
        adds = _Adds(run.first_entry_id + run.written_count + group.entry_count - 1)
        if run in errors:
            adds.failure = errors[run]
        elif run.is_failed:
            adds.failure = OSError(errno.EIO, f"ledger {run.ledger_id} failed before")
        else:
            try:
                writer = self._ledgers.creation.writers[run.ledger_id]
                for part in _parts(payloads(group)):
                    adds.futures.append(await _append(writer, part))
            except FAILURES as error:
                adds.failure = error
        return adds

    async def _failed(self, outcome: Outcome) -> None:
        """Store that failed groups' entries do not count. Raises OwnershipLostError."""
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
            # Entries after the visible ones do not count, even if bookies have them.
            listed = [run for run in failed if ledgers.logs.has(run.header.topic_id, run)]
            await self._soon(ledgers.logs.end(listed))
        except OwnershipLostError:
            raise
        except LedgerError as failure:
            # The header of the topic's next ledger says it, too.
            _log.warning(
                "%s: the end of the failed ledgers is not stored yet: %s", ledgers.name, failure
            )

    async def _soon(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return what ``work`` returns; None if it takes longer than other topics may wait."""
        task = asyncio.ensure_future(work)
        done, _ = await asyncio.wait([task], timeout=_METADATA_WAIT_S)
        if done:
            return task.result()
        self._later.add(task)
        task.add_done_callback(self._ended)
        return None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Log a failure of work that nobody waited for: the next owner repeats it."""
        self._later.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("%s: left to the next owner: %s", self._ledgers.name, error)

    def prepare(self, runs: Sequence[Run], prepared: Callable[[], None]) -> None:
        """Create the runs' ledgers: see `EntryWriter.prepare`."""
        try:
            self._ledgers.begin(self._prepare(cast("Sequence[BookKeeperRun]", runs), prepared))
        except StoreClosedError:
            prepared()  # what is written to them then says so

    async def _prepare(self, runs: Sequence[BookKeeperRun], prepared: Callable[[], None]) -> None:
        try:
            await self._ledgers.creation.make_ready(runs)
        finally:
            prepared()


class _Adds:
    """A group's entries that were sent."""

    __slots__ = ("failure", "futures", "last_id")

    def __init__(self, last_id: int) -> None:
        self.last_id = last_id
        """The id of the group's last entry."""
        self.futures: list[asyncio.Future[int]] = []
        self.failure: Exception | None = None
        """Why not all could be sent."""

    async def error(self) -> Exception | None:
        """Wait for the answers. Return the error if some entry is not known to be confirmed."""
        error, last_id = self.failure, -1
        for future in self.futures:
            try:
                last_id = await future
            except FAILURES as failure:
                error = error or failure
        assert error is not None or last_id == self.last_id, f"{last_id}, not {self.last_id}"
        return error


def _parts(entries: Iterable[tuple[Buffer, ...]]) -> Iterator[list[tuple[Buffer, ...]]]:
    """Split entries into parts that are sent together."""
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
