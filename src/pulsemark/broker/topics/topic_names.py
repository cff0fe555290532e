"""The full names of topics: sorted by namespace, checked, and locked one by one.

A broker can have a hundred thousand topics, and clients often ask for those of a namespace. So each
namespace has its own sorted list, which is only copied.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import chain

from ...proto.pulsar_api_pb2 import ServerError
from ...wire import InvalidTopicNameError
from ...wire.topic_name import is_entity_name
from ..errors import RefusedError
from .topic_watchers import TopicWatchers

DOMAINS = ("persistent", "non-persistent")


class TopicNames:
    """A set of full names, such as `persistent://public/default/orders`."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._by_namespace: dict[str, list[str]] = {}
        self._all: set[str] = set()
        #: Counts what was added and removed.
        self.changes = 0
        #: The clients that are notified when names are added or removed.
        self.watchers = TopicWatchers(self)
        for name in sorted(names):
            self.add(name)

    def __contains__(self, name: object) -> bool:
        return name in self._all

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[str]:
        """All names, grouped by namespace."""
        return chain.from_iterable(self._by_namespace.values())

    def add(self, name: str) -> None:
        """Add a name, if it is not in the set."""
        if name not in self._all:
            self._all.add(name)
            self.changes += 1
            namespace = _namespace_of(name)
            insort(self._by_namespace.setdefault(namespace, []), name)
            self.watchers.changed(namespace, name, is_new=True)

    def discard(self, name: str) -> None:
        """Remove a name, if it is in the set."""
        if name in self._all:
            self._all.remove(name)
            self.changes += 1
            namespace = _namespace_of(name)
            names = self._by_namespace[namespace]
            del names[bisect_left(names, name)]
            if not names:
                del self._by_namespace[namespace]
            self.watchers.changed(namespace, name, is_new=False)

    def snapshot(self) -> list[str]:
        """All names, sorted, as they are now. From any thread."""
        return sorted(self._all)

    def of(self, namespace: str) -> list[str]:
        """The names of a namespace, sorted."""
        return list(self._by_namespace.get(namespace, ()))

    def count_of(self, namespace: str) -> int:
        """How many names a namespace has."""
        return len(self._by_namespace.get(namespace, ()))

    def counts(self) -> Mapping[str, int]:
        """The number of names of each namespace that has some."""
        return {namespace: len(names) for namespace, names in self._by_namespace.items()}


def _namespace_of(name: str) -> str:
    """Its namespace: tenant/namespace, or tenant/cluster/namespace."""
    return "/".join(name.partition("://")[2].split("/", 3)[:-1])


def invalid_name(name: str, error: InvalidTopicNameError) -> RefusedError:
    """The refusal of a name that was found invalid, in Pulsar's words: clients show these texts."""
    text = f"Invalid topic name: {_reason(name) or error}"
    return RefusedError(ServerError.InvalidTopicName, text)


def _reason(name: str) -> str | None:
    domain, separator, rest = name.partition("://")
    parts = rest.split("/", 3) if separator else name.split("/")
    if not separator and (not name or len(parts) not in {1, 3}):
        return (
            f"Invalid short topic name '{name}', it should be in the format of "
            "<tenant>/<namespace>/<topic> or <topic>"
        )
    if separator and domain not in DOMAINS:
        return f"Invalid topic domain: '{domain}'"
    if separator and len(parts) < 3:
        return f"Invalid topic name: {name}"
    local, namespace = parts[-1], "/".join(parts[:-1])
    if len(parts) < 3:
        return None
    if not all(parts[:-1]):
        return f"Invalid namespace format. namespace: {namespace}"
    for part in parts[:-1]:
        if not is_entity_name(part):
            return f"Invalid named entity: {part}"
    if not local.strip():
        full = name if separator else f"persistent://{name}"
        return f"Invalid topic name: {full}. Topic local name must not be blank."
    return None


class NameLocks:
    """Locks by name. A lock exists only while it is held or waited for."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    def __len__(self) -> int:
        """The number of names whose lock is held or waited for."""
        return len(self._locks)

    def names(self) -> list[str]:
        """The names whose lock is held or waited for."""
        return list(self._locks)

    @asynccontextmanager
    async def held(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of `name`. Other callers wait, and get it in the order of their calls."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._users[name] = self._users.get(name, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._locks[name]
