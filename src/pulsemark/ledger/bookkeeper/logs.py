"""The topics' lists of ledgers, and the ledgers that still have to be closed or deleted.

A node below ``ledgers`` stands for each ledger that is not closed yet (``new``, ``open``) or that
no topic refers to any more (``gone``). So after a crash the next owner finds them all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from ...coordination import Create, Delete, Operation, Set
from ..run import Link, RunHeader, chain_of
from .client.errors import FAILURES, LedgerMissingError
from .nodes import RunRecord, pack_log, unpack_log
from .read_ahead import UnreadableEntryError
from .stored_entry import BadEntryError, read_facts

if TYPE_CHECKING:
    from .client import BookKeeperClient
    from .owned_tree import OwnedTree
    from .read_ahead import LedgerAccess
    from .run import BookKeeperRun

_log = logging.getLogger(__name__)
NEW, OPEN, GONE = b"new", b"open", b"gone"
_AT_ONCE = 64


class Logs:
    """The lists of one store, cached by its owner. Its coroutines belong to the loop."""

    def __init__(self, tree: OwnedTree, client: BookKeeperClient) -> None:
        self._tree = tree
        self._client = client
        self._records: dict[int, list[RunRecord]] = {}
        """The lists of the topics that were opened or written to."""
        self._pending: dict[int, bytes] = {}
        """The ledgers that have a node, and its data."""
        self._closed: set[int] = set()
        """Closed ledgers that still have a node."""
        self._changing = asyncio.Lock()

    # Taking over

    async def settle_pending(self) -> None:
        """Close or delete noted ledgers. Raises CatalogError, OwnershipLostError."""
        paths = self._tree.paths
        content = await self._tree.content(paths.ledgers)
        self._pending = {int(name): value for name, value in content.items()}
        # After a pause this owner could fence or delete the next owner's ledgers.
        await self._tree.check_owner()
        slots = asyncio.Semaphore(_AT_ONCE)
        found = tuple(self._pending.items())
        await asyncio.gather(*(self._settle(each, state, slots) for each, state in found))
        await self.note_closed()

    async def _settle(self, ledger_id: int, state: bytes, slots: asyncio.Semaphore) -> None:
        async with slots:
            try:
                if state == OPEN:
                    await self._client.open_ledger(ledger_id)
                else:
                    await self._client.delete_ledger(ledger_id)
            except LedgerMissingError:
                pass
            except FAILURES as error:
                _log.warning(
                    "ledger %d was not closed or deleted; the next opening tries again: %s",
                    ledger_id,
                    error,
                )
                return
            self._closed.add(ledger_id)

    # Opening a topic

    async def open(
        self, topic_id: int, make: Callable[[RunHeader], BookKeeperRun], access: LedgerAccess
    ) -> list[BookKeeperRun]:
        """A topic's runs, the newest recovered. Raises CatalogError, OSError, FAILURES."""
        path = self._tree.paths.log(topic_id)
        data = await self._tree.get(path)
        # The list may be the next owner's already, and to recover its newest ledger would fence it.
        await self._tree.check_owner()
        records = unpack_log(path, data) if data is not None else []
        counts: dict[RunHeader, int] = {}
        kept = list(records)
        links: list[Link[RunHeader]] = []
        while kept and not links:
            links = await self._counting(kept, counts)
        by_header = {record.header: record for record in kept}
        runs = []
        for link, following in zip_longest(links, [link.header for link in links[1:]]):
            run = make(link.header)
            run.cut_rows = by_header[link.header].cut_rows
            await _show(run, link, following, counts.get(link.header), access)
            if run.cut_rows:
                await _learn_cut(run, access)
            runs.append(run)
        counting = {link.header for link in links}
        self._records[topic_id] = records
        if len(counting) < len(records):
            async with self._changing:
                await self._remove(topic_id, [r for r in records if r.header not in counting])
            await self.delete_gone(access)
        return runs

    async def _counting(
        self, kept: list[RunRecord], counts: dict[RunHeader, int]
    ) -> list[Link[RunHeader]]:
        """The chain from the newest ledger on; [] after dropping one without entries."""
        newest = max(record.header.ledger_id for record in kept)
        end = await self._end_of(newest, kept)
        links = chain_of(record.header for record in kept)
        last = [link for link in links if link.header.ledger_id == newest]
        for link in last:
            stop = end if link.end_entry_id is None else min(end, link.end_entry_id)
            counts[link.header] = max(0, stop - link.header.first_entry_id)
        if not any(counts[link.header] for link in last):
            kept[:] = [record for record in kept if record.header.ledger_id != newest]
            return []
        return [link for link in links if counts.get(link.header, 1)]

    async def _end_of(self, ledger_id: int, records: Iterable[RunRecord]) -> int:
        """Recover a ledger. Return one past the last entry that counts."""
        try:
            reader = await self._client.open_ledger(ledger_id)
        except LedgerMissingError:
            return 0
        if ledger_id in self._pending:
            self._closed.add(ledger_id)
        ends = [r.end_entry_id for r in records if r.header.ledger_id == ledger_id]
        marked = [end for end in ends if end >= 0]
        return int(min([reader.last_confirmed + 1, *marked]))

    # Changing lists

    def has(self, topic_id: int, run: BookKeeperRun) -> bool:
        """Whether the topic's list has the run."""
        return any(record.header == run.header for record in self._records.get(topic_id, ()))

    async def note_new(self, ledger_ids: Sequence[int]) -> None:
        """Note ledgers that are about to be created. Raises CatalogError, OwnershipLostError."""
        if not ledger_ids:
            return
        paths = self._tree.paths
        async with self._changing:
            await self._change([Create(paths.ledger(each), NEW) for each in ledger_ids])
            self._pending.update((each, NEW) for each in ledger_ids)

    async def add(self, runs: Sequence[BookKeeperRun]) -> None:
        """Add runs, whose ledgers exist, to the lists of their topics."""
        if not runs:
            return
        async with self._changing:
            begun = [run.ledger_id for run in runs if self._pending.get(run.ledger_id) == NEW]
            changed = {run.header.topic_id: self._known(run.header.topic_id) for run in runs}
            for run in runs:
                topic_id = run.header.topic_id
                changed[topic_id] = [*changed[topic_id], RunRecord(run.header)]
            await self._store(changed, [Set(self._tree.paths.ledger(e), OPEN) for e in begun])
            self._pending.update((each, OPEN) for each in begun)

    async def end(self, runs: Sequence[BookKeeperRun]) -> None:
        """Store that entries of these runs after the visible ones do not count."""
        ends = {run.header: run.first_entry_id + run.written_count for run in runs}
        async with self._changing:
            changed = {
                topic_id: [
                    replace(each, end_entry_id=ends.get(each.header, each.end_entry_id))
                    for each in self._known(topic_id)
                ]
                for topic_id in {run.header.topic_id for run in runs}
            }
            if changed:
                await self._store(changed, [])

    async def cut(self, run: BookKeeperRun, rows: int) -> None:
        """Remove a run's first rows. Raises CatalogError, OwnershipLostError."""
        topic_id = run.header.topic_id
        async with self._changing:
            records = self._known(topic_id)
            new = [replace(r, cut_rows=rows) if r.header == run.header else r for r in records]
            await self._store({topic_id: new}, [])

    async def remove(self, topic_id: int, runs: Sequence[BookKeeperRun]) -> None:
        """Remove runs. A ledger without a run left is noted for deletion."""
        gone = {run.header for run in runs}
        async with self._changing:
            await self._remove(topic_id, [r for r in self._known(topic_id) if r.header in gone])

    async def _remove(self, topic_id: int, records: Sequence[RunRecord]) -> None:
        if not records:
            return
        gone = {record.header for record in records}
        kept = [each for each in self._known(topic_id) if each.header not in gone]
        left = {record.header.ledger_id for record in kept}
        ledgers = {record.header.ledger_id for record in records} - left
        await self._store({topic_id: kept}, self._to_delete(ledgers))
        self._mark_gone(ledgers)

    async def remove_topic(self, topic_id: int, operations: list[Operation]) -> list[int]:
        """Remove a topic's list in the same change as ``operations``. Return its ledgers."""
        async with self._changing:
            records = self._known(topic_id)
            ledgers = {record.header.ledger_id for record in records}
            if records:
                operations.append(Delete(self._tree.paths.log(topic_id)))
            await self._change([*operations, *self._to_delete(ledgers)])
            self._mark_gone(ledgers)
            self._records.pop(topic_id, None)
            return sorted(ledgers)

    def _mark_gone(self, ledger_ids: set[int]) -> None:
        """Note ledgers for deletion, which replaces the note that they were closed."""
        self._pending.update((each, GONE) for each in ledger_ids)
        self._closed -= ledger_ids

    def _to_delete(self, ledger_ids: Iterable[int]) -> list[Operation]:
        paths = self._tree.paths
        return [
            Set(paths.ledger(each), GONE)
            if each in self._pending
            else Create(paths.ledger(each), GONE)
            for each in ledger_ids
        ]

    def _known(self, topic_id: int) -> list[RunRecord]:
        return self._records.get(topic_id, [])

    async def _store(
        self, changed: dict[int, list[RunRecord]], operations: list[Operation]
    ) -> None:
        for topic_id, records in changed.items():
            path, old = self._tree.paths.log(topic_id), self._known(topic_id)
            if not records:
                operations += [Delete(path)] if old else []
                continue
            header = records[-1].header
            data = pack_log(header.topic, topic_id, records)
            operations.append(Set(path, data) if old else Create(path, data))
        await self._change(operations)
        self._records.update(changed)

    async def _change(self, operations: Sequence[Operation]) -> None:
        """Make a change, which also removes the nodes of ledgers that were closed meanwhile."""
        named = {one.path for one in operations}
        paths = self._tree.paths
        done = [each for each in self._closed if paths.ledger(each) not in named][:1000]
        await self._tree.change([*operations, *(Delete(paths.ledger(each)) for each in done)])
        for each in done:
            self._closed.discard(each)
            self._pending.pop(each, None)

    # Ledgers that were closed, and that are to be deleted

    def closed(self, ledger_id: int) -> None:
        """Note that a ledger of this owner was closed."""
        if self._pending.get(ledger_id) == OPEN:
            self._closed.add(ledger_id)

    async def note_closed(self) -> None:
        """Remove the nodes of closed and deleted ledgers. Raises CatalogError."""
        async with self._changing:
            while self._closed:
                await self._change([])

    async def delete_gone(self, access: LedgerAccess) -> None:
        """Delete the ledgers without a topic. Raises OSError, CatalogError."""
        gone = [each for each, state in self._pending.items() if state == GONE]
        access.forget(gone)
        for ledger_id in gone:
            try:
                await self._client.delete_ledger(ledger_id)
            except LedgerMissingError:
                pass
            except FAILURES as error:
                raise OSError(f"ledger {ledger_id} cannot be deleted: {error}") from error
            self._closed.add(ledger_id)
        await self.note_closed()


async def _show(
    run: BookKeeperRun,
    link: Link[RunHeader],
    following: RunHeader | None,
    count: int | None,
    access: LedgerAccess,
) -> None:
    """Show an opened run. Its end is in the next run's header, else in its last entry."""
    header = run.header
    if count is None:
        assert link.end_entry_id is not None, "a later header says where the run ends"
        count = link.end_entry_id - header.first_entry_id
    is_told = link.end_entry_id == header.first_entry_id + count
    if following is not None and link.end_index is not None and is_told:
        run.show_opened(
            count,
            link.end_index - header.first_index,
            following.stamp_floor_ms,
            following.entry_time_floor_ms,
        )
        return
    last_id = header.first_entry_id + count - 1
    try:
        facts = read_facts((await access.entries(header.ledger_id, last_id, last_id, 1))[0].payload)
    except (BadEntryError, UnreadableEntryError) as error:
        raise OSError(f"ledger {header.ledger_id}: entry {last_id}: {error}") from error
    next_message = facts.index + 1 - header.first_index
    run.show_opened(count, next_message, facts.append_time_ms, facts.time_max_ms)


async def _learn_cut(run: BookKeeperRun, access: LedgerAccess) -> None:
    """Tell a run how many messages its removed head had. Damage is reported by reads."""
    last_id = run.first_entry_id + run.cut_rows - 1
    with suppress(OSError, UnreadableEntryError, BadEntryError):
        entry = (await access.entries(run.ledger_id, last_id, last_id, 1))[0]
        run.know_cut(run.cut_rows, read_facts(entry.payload).index + 1 - run.first_index)
