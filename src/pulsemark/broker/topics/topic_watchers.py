"""Watchers of a namespace's topics: clients that are notified when topics come and go.

A watcher names a pattern. It is notified of each created or deleted topic that matches, in the
order of the changes, with the digest of all matching names. The digest takes time in proportion to
the number of topics. So in a large namespace the changes are gathered, and sent when the digest has
been computed in pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from .name_patterns import matches, topics_hash

if TYPE_CHECKING:
    from ..connection.memory import Reservation
    from .topic_names import TopicNames

__all__ = ["NAMES_AT_ONCE", "TopicWatcher", "TopicWatchers"]

#: Names that are filtered in one piece.
NAMES_AT_ONCE = 200
#: Watchers of a namespace that are notified in the step in which a topic is created or deleted.
WATCHERS_AT_ONCE = 20


class TopicWatcher:
    """One watcher. `notify` gets the new names, the deleted names, and the digest of all."""

    def __init__(
        self,
        watcher_id: int,
        namespace: str,
        pattern: re.Pattern[str],
        notify: Callable[[TopicWatcher, list[str], list[str], str], None],
        run: Callable[[TopicWatcher], None],
    ) -> None:
        self.watcher_id = watcher_id
        self.namespace = namespace
        #: Counts the memory that the broker needs for it.
        self.reservation: Reservation | None = None
        self.home: TopicWatchers | None = None
        self.is_running = False
        self._pattern = pattern
        self._notify = notify
        self._run = run
        #: Names that changed and that the client does not know of: True for a new one.
        self._changes: dict[str, bool] = {}

    def names(self, names: list[str]) -> Generator[None, None, list[str]]:
        """The names that match, in pieces."""
        chosen: list[str] = []
        for at in range(0, len(names), NAMES_AT_ONCE):
            piece = names[at : at + NAMES_AT_ONCE]
            chosen += [name for name in piece if matches(self._pattern, name)]
            yield
        return chosen

    def changed(self, name: str, *, is_new: bool) -> bool:
        """Note a change. Return whether the client is to be notified."""
        if not matches(self._pattern, name):
            return False
        if self._changes.pop(name, is_new) == is_new:
            self._changes[name] = is_new
        return True

    def leave(self) -> None:
        """End: the client asked for it, or its connection has ended."""
        if self.home is not None:
            self.home.remove(self)
        self._changes.clear()

    def start(self) -> None:
        """Notify the client in pieces. One such work at a time is enough."""
        if not self.is_running:
            self.is_running = True
            self._run(self)

    def notifying(self, known: TopicNames) -> Generator[None, None, None]:
        """Notify the client of the changes so far, and of those that come meanwhile."""
        try:
            while self._changes:
                changes, self._changes = self._changes, {}
                all_names = yield from self.names(known.of(self.namespace))
                new = [name for name, is_new in changes.items() if is_new]
                deleted = [name for name, is_new in changes.items() if not is_new]
                self._notify(self, new, deleted, topics_hash(all_names))
        finally:
            self.is_running = False


class TopicWatchers:
    """The watchers of all namespaces."""

    def __init__(self, names: TopicNames) -> None:
        self._names = names
        self._by_namespace: dict[str, dict[TopicWatcher, None]] = {}

    def add(self, watcher: TopicWatcher) -> None:
        """Notify a watcher from now on, until it leaves."""
        watcher.home = self
        self._by_namespace.setdefault(watcher.namespace, {})[watcher] = None

    def remove(self, watcher: TopicWatcher) -> None:
        """Notify a watcher no more."""
        watchers = self._by_namespace.get(watcher.namespace, {})
        watchers.pop(watcher, None)
        if not watchers:
            self._by_namespace.pop(watcher.namespace, None)

    def count(self) -> int:
        """How many watchers there are."""
        return sum(map(len, self._by_namespace.values()))

    def changed(self, namespace: str, name: str, *, is_new: bool) -> None:
        """A name was added, or removed: notify the watchers whose pattern matches."""
        watchers = self._by_namespace.get(namespace)
        if not watchers:
            return
        is_small = (
            len(watchers) <= WATCHERS_AT_ONCE and self._names.count_of(namespace) <= NAMES_AT_ONCE
        )
        for watcher in tuple(watchers):
            if not watcher.changed(name, is_new=is_new):
                continue
            if is_small and not watcher.is_running:
                for _ in watcher.notifying(self._names):
                    pass
            else:
                watcher.start()
