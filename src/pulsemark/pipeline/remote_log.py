"""A topic as a seek service shows it: its indexes, where its entries are, and the entries.

The service's answers are those of a folder's own finder. It also says which files are missing at a
topic's ends, so a lost head is told from a trimmed one. A service of an earlier version does not
say it. A loss between two entries shows as a gap in the indexes.

A read is planned in the same slices as for a folder. Names are tried as they are, then as
partitioned topics (``x-partition-0``, and so on until one is missing), because a service does not
list its topics.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import numpy as np

from ..finder.client import SeekClient
from ..finder.errors import ServerUnavailableError
from ..finder.messages import RemoteEntry
from ..finder.search import Found, IndexPlace
from ..ledger import LATEST, CorruptEntryError, Entry, EntryKind, Position, TopicNotFoundError
from ..maintenance.expected import LogEnds
from ..metadata.partition_names import partition_name
from .decode.entries import EntryTable, table_of_entries
from .decode.runs import RUN_BYTES, RUN_ENTRIES, OnDamage
from .slices import Slice

_log = logging.getLogger(__name__)

RETRIES = 6
"""How often a lost connection is made again, if no entry comes between."""
PAUSE_S, LONGEST_PAUSE_S = 0.25, 4.0


@dataclass(slots=True)
class RemoteLog:
    """A topic as it was when it was opened or last refreshed.

    Raises TopicNotFoundError if there is no such topic, SeekCallError if the call fails.
    """

    client: SeekClient
    name: str
    uncommitted: bool = False
    """Whether messages of open transactions are read."""
    first_index: int = field(init=False)
    next_index: int = field(init=False)
    ends: LogEnds = field(init=False)
    """The losses before and after these."""
    topic_id: int = field(init=False, default=0)
    """Always 0: the service does not tell a topic's log from an earlier one of its name."""
    end_position: ClassVar[Position] = LATEST
    transactions: ClassVar[None] = None
    """The service itself leaves out what is not to be seen."""

    def __post_init__(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        """Ask for the topic's indexes again."""
        self.ends = self.client.ends(self.name)
        stable = None if self.uncommitted else self.ends.stable_index
        self.next_index = self.ends.next_index if stable is None else stable
        self.first_index = min(self.by_time(0).first_index, self.next_index)

    @property
    def stable_index(self) -> int:
        """The next index that may be read."""
        return self.next_index

    @property
    def has_holes(self) -> bool:
        """Whether it is read in its compacted form."""
        return self.ends.has_holes

    def next_position(self, position: Position) -> Position:
        """A position after that of an entry, at or before the next one's."""
        return position.following

    def by_time(self, time_ms: int) -> Found:
        """The first entry at or after a time, or the end."""
        return self.client.by_time(self.name, time_ms)

    def by_index(self, index: int) -> IndexPlace:
        """The entry that holds a message. Raises IndexOutOfRangeError."""
        return self.client.by_index(self.name, index)


def remote_tables(
    client: SeekClient,
    part: Slice,
    *,
    bodies: bool,
    on_damage: OnDamage,
    uncommitted: bool = False,
) -> Iterator[EntryTable]:
    """The entries of a slice, in tables of up to some 8 MiB.

    A lost connection is made again, and the stream goes on where it was.

    Raises ServerUnavailableError: the service stays away.
    """
    topic, rest, failures = part.topic, part, 0
    while True:
        gathered: list[RemoteEntry] = []
        size_bytes, done = 0, False
        damage: CorruptEntryError | None = None
        try:
            for entry in _entries(client, rest, bodies=bodies, uncommitted=uncommitted):
                if entry.first_index >= part.end_index:
                    break
                failures = 0
                gathered.append(entry)
                size_bytes += len(entry.prefix) + len(entry.body or b"")
                if size_bytes >= RUN_BYTES or len(gathered) >= RUN_ENTRIES:
                    yield table_of_remote(gathered)
                    rest, gathered, size_bytes = _rest(part, gathered[-1]), [], 0
                if entry.index + 1 >= part.end_index:
                    break
            done = True
        except CorruptEntryError as error:
            damage = error
        except ServerUnavailableError as error:
            failures = _paused(topic, failures, error)
        if gathered:
            yield table_of_remote(gathered)
            rest = _rest(part, gathered[-1])
        if damage is not None:
            on_damage(damage)
            rest = replace(rest, start=damage.next_position)
        elif done:
            return


def _paused(topic: str, failures: int, error: ServerUnavailableError) -> int:
    """Wait after a failure; how many there are now. Raises the error if they are too many."""
    if failures >= RETRIES:
        raise error
    _log.warning("%s: no answer by gRPC; reading goes on after a pause: %s", topic, error)
    time.sleep(min(LONGEST_PAUSE_S, PAUSE_S * 2**failures))
    return failures + 1


def _rest(part: Slice, last: RemoteEntry) -> Slice:
    return replace(part, start=last.position.following, first_index=last.index + 1)


def _entries(
    client: SeekClient, part: Slice, *, bodies: bool, uncommitted: bool
) -> Iterator[RemoteEntry]:
    """The entries of a slice. Those that the service keeps back are of aborted transactions.

    They are asked for where indexes are missing, and count as control entries.
    """
    read = partial(client.read_entries, part.topic)
    place, index = part.start, part.first_index

    def aborted(end: Position) -> Iterator[RemoteEntry]:
        for each in read(start=place, end=end, prefixes_only=True, uncommitted=True):
            yield replace(each, kind=EntryKind.CONTROL)

    for entry in read(start=place, end=part.end, prefixes_only=not bodies, uncommitted=uncommitted):
        if entry.first_index > index and not part.has_holes:
            yield from aborted(entry.position)
        yield entry
        place, index = entry.position.following, entry.index + 1
    if index < part.end_index and not part.has_holes:
        yield from aborted(part.end)


def table_of_remote(entries: Sequence[RemoteEntry]) -> EntryTable:
    """A table of entries from the service."""
    table = table_of_entries(
        [
            Entry(
                *(each.position, each.kind, each.message_count, each.index, each.append_time_ms),
                len(each.prefix),
                memoryview(each.prefix + (each.body or b"")),
            )
            for each in entries
        ]
    )
    bodies = np.array([each.body_size_bytes for each in entries], np.int64)
    return replace(table, sizes=table.prefix_sizes + bodies)


def remote_topics(
    client: SeekClient,
    names: Sequence[str],
    *,
    missing_is_error: bool,
    uncommitted: bool,
) -> dict[str, RemoteLog]:
    """The topics of these names, sorted. Raises TopicNotFoundError."""
    found: dict[str, RemoteLog] = {}
    for name in names:
        own = _partitions(client, name, uncommitted)
        try:
            own[name] = RemoteLog(client, name, uncommitted)
        except TopicNotFoundError:
            if not own and missing_is_error:
                raise
        found |= own
    return dict(sorted(found.items()))


def _partitions(client: SeekClient, name: str, uncommitted: bool) -> dict[str, RemoteLog]:
    found: dict[str, RemoteLog] = {}
    while True:
        partition = partition_name(name, len(found))
        try:
            found[partition] = RemoteLog(client, partition, uncommitted)
        except TopicNotFoundError:
            return found
