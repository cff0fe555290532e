"""The full names of topics, by namespace, in order.

A broker can have a hundred thousand topics, and clients that watch a pattern ask again and again
which a namespace has. So names are kept as they are asked for: a namespace's are copied out, not
looked for among all the others and not sorted anew.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

__all__ = ["TopicNames"]


class TopicNames:
    """A set of full names, such as `persistent://public/default/orders`."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._by_namespace: dict[str, list[str]] = {}
        self._all: set[str] = set()
        for name in sorted(names):
            self.add(name)

    def __contains__(self, name: object) -> bool:
        return name in self._all

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[str]:
        """All names, namespace by namespace."""
        return chain.from_iterable(self._by_namespace.values())

    def add(self, name: str) -> None:
        """Put a name in; twice is once."""
        if name not in self._all:
            self._all.add(name)
            insort(self._by_namespace.setdefault(_namespace_of(name), []), name)

    def discard(self, name: str) -> None:
        """Take a name out, if it is there."""
        if name in self._all:
            self._all.remove(name)
            namespace = _namespace_of(name)
            names = self._by_namespace[namespace]
            del names[bisect_left(names, name)]
            if not names:
                del self._by_namespace[namespace]

    def snapshot(self) -> list[str]:
        """All names, sorted, as they are now. From any thread."""
        return sorted(self._all)

    def of(self, namespace: str) -> list[str]:
        """The names of a namespace, sorted."""
        return list(self._by_namespace.get(namespace, ()))

    def counts(self) -> Mapping[str, int]:
        """How many names each namespace has that has any."""
        return {namespace: len(names) for namespace, names in self._by_namespace.items()}


def _namespace_of(name: str) -> str:
    return name.partition("://")[2].rpartition("/")[0]
