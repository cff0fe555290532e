"""Topics, ledger ids and values in ZooKeeper, as a `MetadataStore`.

BookKeeper takes a ledger's id from the number of an ephemeral sequential node below ``idgen``. So
no id is given twice, neither to this package nor to another application with ledgers at the same
root, unless ZooKeeper is restored from an older copy. Then bookies still have entries of the
ledgers that had the next ids: a bookie keeps the old entry, acknowledges a new one with the same
id, and later serves the old one. So bookies are asked whether they know an id before it is used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...coordination import (
    Coordination,
    CoordinationError,
    Create,
    Delete,
    NodeExistsError,
    NodeMissingError,
    Operation,
    Set,
)
from ..errors import CatalogError
from ..store import MetadataStore
from .client.ledger_nodes import retried
from .client.options import ClientOptions
from .loop_thread import LoopThread
from .nodes import text_of
from .owned_tree import OwnedTree

_log = logging.getLogger(__name__)

_TOPICS_AT_ONCE = 2000
"""So many topics are created in one change: more might be above ZooKeeper's limit."""
MAX_ID = 2**31 - 2
"""Above this BookKeeper's clients take ids from another generator, which is not used here."""
WAIT_S = 2.0
"""So long may a topic that needs an id hold up others, once, while ZooKeeper does not answer. A
silent bookie takes a quarter of it.
"""
_LOOKS = 20
"""The loop looks so often at the time within `WAIT_S`."""


class LedgerIds:
    """Reserves ledger ids. ``has_any`` says whether bookies have entries of ids."""

    def __init__(
        self,
        coordination: Coordination,
        ledgers_root: str,
        has_any: Callable[[Sequence[int]], Awaitable[bool]],
    ) -> None:
        self._coordination = coordination
        self._root = ledgers_root
        self._has_any = has_any

    async def reserve(self, count: int) -> int:
        """Take ``count`` consecutive ids and return the first. Raises CatalogError."""
        while True:
            try:
                # At worst some ids stay unused.
                first = await retried(lambda: self._take(count), ClientOptions())
                if not await self._has_any(range(first, first + count)):
                    return first
            except CoordinationError as error:
                raise self._error(f"no ledger ids: {error}") from error
            _log.warning(
                "ledger ids from %d to %d are left out: bookies have entries of such ledgers, and "
                "ZooKeeper has none. Was it restored from an older copy?",
                first,
                first + count - 1,
            )

    async def _take(self, count: int) -> int:
        folder = f"{self._root}/idgen"
        create = Create(f"{folder}/ID-", b"", True, True)
        try:
            made = await self._coordination.transaction([create] * count)
        except NodeMissingError:
            with suppress(NodeExistsError):
                await self._coordination.create(folder, make_parents=True)
            return await self._take(count)
        paths = [str(path) for path in made]
        ids = [int(path.rpartition("-")[2]) for path in paths]
        if ids != list(range(ids[0], ids[0] + count)) or ids[-1] > MAX_ID:
            raise self._error(f"ledger ids {ids[0]} to {ids[-1]} cannot be used")
        with suppress(CoordinationError):  # they are ephemeral, and go with the session
            await self._coordination.transaction([Delete(path) for path in paths])
        return ids[0]

    def _error(self, reason: str) -> CatalogError:
        return CatalogError(Path(self._root), reason)


class IdsAhead:
    """Reserves ids beforehand, since callers hold locks and must not wait for ZooKeeper."""

    def __init__(self, thread: LoopThread, ids: LedgerIds, root: Path) -> None:
        self._thread = thread
        self._ids = ids
        self._root = root
        self._count = 0
        self._ahead: Future[int] | None = None
        self._late: Future[None] = Future()
        """Done when the ids that were asked for may not be waited for any longer."""

    def reserve(self, count: int) -> int:
        """Return the first of ``count`` ids, for one thread at a time. Raises CatalogError."""
        ahead = self._ahead
        # An error of some earlier time says nothing about now.
        if ahead is None or self._count != count or (ahead.done() and ahead.exception()):
            ahead = self._ask(count)
        either: list[Future[Any]] = [ahead, self._late]
        wait(either, return_when=FIRST_COMPLETED)
        if not ahead.done():
            raise CatalogError(self._root, "no new ledger ids yet: ZooKeeper does not answer")
        first = ahead.result()
        self._ask(count)
        return first

    def _ask(self, count: int) -> Future[int]:
        self._count, self._late = count, Future()
        self._ahead = self._thread.begin(self._reserve(count, self._late))
        return self._ahead

    async def _reserve(self, count: int, late: Future[None]) -> int:
        counting = asyncio.create_task(_count_looks(late))
        try:
            return await self._ids.reserve(count)
        finally:
            counting.cancel()


async def _count_looks(late: Future[None]) -> None:
    """Count looks, not time, so that an answer that came while the process was paused is read."""
    for _ in range(_LOOKS):
        await asyncio.sleep(WAIT_S / _LOOKS)
    late.set_result(None)


class ZooKeeperMetadata(MetadataStore):
    """The metadata of one store. Changes raise OwnershipLostError once another owner has it."""

    def __init__(self, thread: LoopThread, tree: OwnedTree, ids: LedgerIds) -> None:
        self._thread = thread
        self._tree = tree
        self._ids = IdsAhead(thread, ids, tree.paths.as_path())
        self._topics: dict[str, int] = {}
        self._next_topic_id = 0

    async def load(self) -> None:
        """Read the topics, which only this owner changes from now on. Raises CatalogError."""
        tree = self._tree
        content = await tree.content(tree.paths.topics)
        self._topics = {value.decode(): int(name) for name, value in content.items()}
        self._next_topic_id = int(await tree.get(tree.paths.next_topic_id) or b"1")

    # Topics

    def topics(self) -> dict[str, int]:
        return dict(self._topics)

    def create_topics(self, names: Sequence[str]) -> dict[str, int]:
        """As `MetadataStore.create_topics`; above 2,000 new topics in several changes."""
        new = [name for name in dict.fromkeys(names) if name not in self._topics]
        for start in range(0, len(new), _TOPICS_AT_ONCE):
            self._thread.run(self._create(new[start : start + _TOPICS_AT_ONCE]))
        return {name: self._topics[name] for name in names}

    async def _create(self, names: Sequence[str]) -> None:
        paths, first = self._tree.paths, self._next_topic_id
        ids = {name: first + number for number, name in enumerate(names)}
        following = str(first + len(names)).encode()
        operations: list[Operation] = [Set(paths.next_topic_id, following)]
        operations += [Create(paths.topic(ids[name]), name.encode()) for name in names]
        await self._tree.change(operations)
        self._next_topic_id = first + len(names)
        self._topics.update(ids)

    def forget(self, topic_id: int) -> None:
        """Forget a topic whose node was deleted."""
        self._topics = {name: each for name, each in self._topics.items() if each != topic_id}

    def reserve_ledger_ids(self, count: int) -> int:
        return self._ids.reserve(count)

    # Values

    def get(self, kind: str, key: str) -> bytes | None:
        return self._thread.run(self._tree.get(self._tree.paths.value(kind, key)))

    def items(self, kind: str) -> list[tuple[str, bytes]]:
        content = self._thread.run(self._tree.content(self._tree.paths.kind(kind)))
        return sorted((text_of(name), value) for name, value in content.items())

    def write(self, changes: Iterable[tuple[str, str, bytes | None]]) -> None:
        self._thread.run(self._write(list(changes)))

    async def _write(self, changes: Sequence[tuple[str, str, bytes | None]]) -> None:
        await self._tree.change(await self.operations(changes))

    async def operations(self, changes: Iterable[tuple[str, str, bytes | None]]) -> list[Operation]:
        """The operations that store these values. Raises CatalogError."""
        last = {(kind, key): value for kind, key, value in changes}
        paths, operations = self._tree.paths, list[Operation]()
        for folder in dict.fromkeys(kind for (kind, _), value in last.items() if value is not None):
            if await self._tree.get(paths.kind(folder)) is None:
                operations.append(Create(paths.kind(folder)))
        for (kind, key), value in last.items():
            path = paths.value(kind, key)
            is_there = await self._tree.get(path) is not None
            if value is None:
                operations += [Delete(path)] if is_there else []
            else:
                data = bytes(value)
                operations.append(Set(path, data) if is_there else Create(path, data))
        return operations
