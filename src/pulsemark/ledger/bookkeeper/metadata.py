"""Topics, ledger ids and values in ZooKeeper, as a `MetadataStore`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...coordination import Create, Delete, Operation, Set
from ..store import MetadataStore
from .ledger_ids import IdsAhead, LedgerIds
from .loop_thread import LoopThread
from .nodes import text_of
from .owned_tree import OwnedTree

_TOPICS_AT_ONCE = 2000
"""So many topics are created in one change: more might be above ZooKeeper's limit."""


class ZooKeeperMetadata(MetadataStore):
    """The metadata of one store. Every change raises OwnershipLostError once it is lost."""

    def __init__(self, thread: LoopThread, tree: OwnedTree, ids: LedgerIds) -> None:
        self._thread = thread
        self._tree = tree
        self._ids = IdsAhead(thread, ids, tree.paths.as_path())
        self._topics: dict[str, int] = {}
        self._next_topic_id = 0

    async def load(self) -> None:
        """Read the topics: from now on only this owner changes them. Raises CatalogError."""
        tree = self._tree
        names = await tree.children(tree.paths.topics)
        data = await tree.get_all([f"{tree.paths.topics}/{name}" for name in names])
        self._topics = {
            value.decode(): int(name)
            for name, value in zip(names, data, strict=True)
            if value is not None
        }
        self._next_topic_id = int(await tree.get(tree.paths.next_topic_id) or b"1")

    # Topics

    def topics(self) -> dict[str, int]:
        return dict(self._topics)

    def create_topic(self, name: str) -> int:
        return self.create_topics([name])[name]

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
        """The topic's node was deleted."""
        self._topics = {name: each for name, each in self._topics.items() if each != topic_id}

    def reserve_ledger_ids(self, count: int) -> int:
        return self._ids.reserve(count)

    # Values

    def get(self, kind: str, key: str) -> bytes | None:
        return self._thread.run(self._tree.get(self._tree.paths.value(kind, key)))

    def items(self, kind: str) -> list[tuple[str, bytes]]:
        return self._thread.run(self._items(kind))

    async def _items(self, kind: str) -> list[tuple[str, bytes]]:
        folder = self._tree.paths.kind(kind)
        names = await self._tree.children(folder)
        data = await self._tree.get_all([f"{folder}/{name}" for name in names])
        pairs = zip(map(text_of, names), data, strict=True)
        return sorted((key, value) for key, value in pairs if value is not None)

    def delete(self, kind: str, key: str) -> bool:
        return self._thread.run(self._delete(kind, key))

    async def _delete(self, kind: str, key: str) -> bool:
        path = self._tree.paths.value(kind, key)
        if await self._tree.get(path) is None:
            await self._tree.change([])
            return False
        await self._tree.change([Delete(path)])
        return True

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
