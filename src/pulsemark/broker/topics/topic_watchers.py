"""Watchers of a namespace's topics: clients that are notified when topics come and go.

A watcher names a pattern. It is notified of each created or deleted topic that matches, in the
order of the changes, with the digest of all matching names, which takes time in proportion to the
number of topics. So the changes of a namespace are gathered, one work in pieces tells all its
watchers, and what a pattern matches is found once for all that have it.

A client's pattern, a regular expression, runs on the event loop. So only patterns that take about
linear time are used (`compile_if_safe`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...metadata import crc32c
from ...metadata.partition_names import partition_of
from ..cooperative import at_once

if TYPE_CHECKING:
    from ..memory import Reservation
    from .topic_names import TopicNames

#: Names that are filtered in one piece.
NAMES_AT_ONCE = 200
PATTERN_SIZE_MAX_BYTES = 256
MAX_REPETITIONS = 2
#: Escapes that stand for one character, or for one of a class.
_ESCAPES = re.compile(r"\\[.dDwWsS/_:-]")
#: Constructs that make matching slow: a repeated group, or an escape with another meaning (\1).
_SLOW = re.compile(r"\)[*+?{]|\\")


class TopicWatcher:
    """One watcher. `notify` gets the new names, the deleted names, and the digest of all."""

    def __init__(
        self,
        watcher_id: int,
        namespace: str,
        pattern: re.Pattern[str],
        notify: Callable[[TopicWatcher, list[str], list[str], str], None],
    ) -> None:
        self.watcher_id = watcher_id
        self.namespace = namespace
        self.pattern = pattern
        self.notify = notify
        #: Counts the memory that the broker needs for it.
        self.reservation: Reservation | None = None
        self.home: TopicWatchers | None = None

    def leave(self) -> None:
        """End: the client asked for it, or its connection has ended."""
        if self.home is not None:
            self.home.remove(self)
            self.home = None


def matching(pattern: re.Pattern[str], names: Sequence[str]) -> Generator[None, None, list[str]]:
    """The names that match, in pieces."""
    chosen: list[str] = []
    for at in range(0, len(names), NAMES_AT_ONCE):
        piece = names[at : at + NAMES_AT_ONCE]
        chosen += [name for name in piece if matches(pattern, name)]
        yield
    return chosen


class _Watched:
    """A namespace with its watchers and unreported changes."""

    __slots__ = ("by_pattern", "changes", "is_running", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.by_pattern: dict[re.Pattern[str], dict[TopicWatcher, None]] = {}
        #: Changed names that are not reported yet: True for a new one.
        self.changes: dict[str, bool] = {}
        self.is_running = False


class TopicWatchers:
    """The watchers of all namespaces."""

    def __init__(self, names: TopicNames) -> None:
        self._names = names
        self._by_namespace: dict[str, _Watched] = {}
        #: Runs the pieces of a notification, at once or in turns.
        self.run: Callable[[Iterator[None]], None] = at_once

    def add(self, watcher: TopicWatcher) -> None:
        """Notify a watcher from now on, until it leaves."""
        watcher.home = self
        place = self._by_namespace.setdefault(watcher.namespace, _Watched(watcher.namespace))
        place.by_pattern.setdefault(watcher.pattern, {})[watcher] = None

    def remove(self, watcher: TopicWatcher) -> None:
        """Stop notifying a watcher."""
        by_pattern = self._by_namespace[watcher.namespace].by_pattern
        del by_pattern[watcher.pattern][watcher]
        if not by_pattern[watcher.pattern]:
            del by_pattern[watcher.pattern]
        if not by_pattern:
            del self._by_namespace[watcher.namespace]

    def count(self) -> int:
        """The number of watchers."""
        places = self._by_namespace.values()
        return sum(len(each) for place in places for each in place.by_pattern.values())

    def changed(self, namespace: str, name: str, *, is_new: bool) -> None:
        """A name was added, or removed: notify the watchers whose pattern matches."""
        place = self._by_namespace.get(namespace)
        if place is None:
            return
        if place.changes.pop(name, is_new) == is_new:
            place.changes[name] = is_new
        if not place.is_running:
            place.is_running = True
            self.run(self._notifying(place))

    def _notifying(self, place: _Watched) -> Iterator[None]:
        """Notify the watchers of the changes so far, and of those that come meanwhile."""
        try:
            while place.changes:
                changes, place.changes = place.changes, {}
                all_names = self._names.of(place.name)
                for pattern in tuple(place.by_pattern):
                    yield from self._tell(place, pattern, changes, all_names)
        finally:
            place.is_running = False

    def _tell(
        self,
        place: _Watched,
        pattern: re.Pattern[str],
        changes: dict[str, bool],
        all_names: list[str],
    ) -> Iterator[None]:
        changed = yield from matching(pattern, tuple(changes))
        if not changed:
            return
        digest = topics_hash((yield from matching(pattern, all_names)))
        new = [name for name in changed if changes[name]]
        deleted = [name for name in changed if not changes[name]]
        for watcher in tuple(place.by_pattern.get(pattern, ())):
            if watcher.home is self:
                watcher.notify(watcher, new, deleted, digest)
            yield


def compile_if_safe(pattern: str) -> re.Pattern[str] | None:
    """The compiled pattern; None if matching could take too long. Raises re.error."""
    compiled = re.compile(without_domain(pattern))
    if len(pattern.encode()) > PATTERN_SIZE_MAX_BYTES:
        return None
    plain = _ESCAPES.sub("", pattern)
    repetitions = sum(plain.replace("(?", "(").count(sign) for sign in "*+{?")
    if _SLOW.search(plain) or repetitions > MAX_REPETITIONS:
        return None
    return compiled


def matches(pattern: re.Pattern[str], name: str) -> bool:
    """Whether the pattern matches the whole name.

    As in Pulsar, the domain does not count, and a partition has the name of its topic: Java clients
    look for a topic's partitions with ``^persistent://tenant/namespace/topic$``.
    """
    return pattern.fullmatch(partition_of(without_domain(name))[0]) is not None


def topics_hash(names: Iterable[str]) -> str:
    """Pulsar's digest of a list of topics: CRC32C of the sorted names, little-endian hex."""
    return crc32c(",".join(sorted(names)).encode()).to_bytes(4, "little").hex()


def without_domain(name: str) -> str:
    """A name or pattern without `persistent://` or `non-persistent://`."""
    return name.partition("://")[2] or name
