"""A topic as a seek service shows it: its indexes, where its entries are, and the entries.

The service's answers are those of a folder's own finder. It does not tell which files should be
there, so a loss at a topic's ends is not noticed; gaps in the indexes are. A lost ledger is taken
for the end of a trimmed log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...finder.client import SeekClient
from ...finder.errors import ServerUnavailableError
from ...finder.messages import RemoteEntry
from ...finder.search import IndexPlace
from ...ledger import CorruptEntryError, Position
from ..decode.entries import EntryTable
from ..decode.octets import Ints
from ..decode.runs import RUN_BYTES, RUN_ENTRIES, OnDamage
from ..plan import Slice

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
    first_index: int = field(init=False)
    next_index: int = field(init=False)
    topic_id: int = field(init=False, default=0)
    """Always 0: the service does not tell a topic's log from an earlier one of its name."""

    def __post_init__(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        """Ask for the topic's indexes again."""
        self.next_index = self.client.epochs(self.name).next_index
        self.first_index = min(self.client.by_time(self.name, 0).first_index, self.next_index)

    def entry_of(self, index: int) -> tuple[Position, int]:
        """The entry that holds the message ``index``, and the index of its first message."""
        place: IndexPlace = self.client.by_index(self.name, index)
        return place.position, place.first_index

    def index_at(self, time_ms: int) -> int:
        """The first message of the first entry at or after a time; the next index if none is."""
        found = self.client.by_time(self.name, time_ms)
        return self.next_index if found.end else min(found.first_index, self.next_index)


def remote_tables(
    client: SeekClient, part: Slice, *, bodies: bool, on_damage: OnDamage
) -> Iterator[EntryTable]:
    """The entries of a slice, in tables of up to some 8 MiB.

    A lost connection is made again, and the stream goes on where it was.

    Raises:
        ServerUnavailableError: the service stays away.
    """
    topic, place, failures = part.topic, part.start, 0
    while True:
        gathered: list[RemoteEntry] = []
        size_bytes, done = 0, False
        damage: CorruptEntryError | None = None
        try:
            entries = client.read_entries(
                topic, start=place, end=part.end, prefixes_only=not bodies
            )
            for entry in entries:
                if entry.first_index >= part.end_index:
                    break
                failures = 0
                gathered.append(entry)
                size_bytes += len(entry.prefix) + len(entry.body or b"")
                if size_bytes >= RUN_BYTES or len(gathered) >= RUN_ENTRIES:
                    yield table_of_remote(gathered)
                    place, gathered, size_bytes = _after(gathered[-1].position), [], 0
                if entry.index + 1 >= part.end_index:
                    break
            done = True
        except CorruptEntryError as error:
            damage = error
        except ServerUnavailableError as error:
            if failures >= RETRIES:
                raise
            _log.warning("%s: no answer by gRPC; reading goes on after a pause: %s", topic, error)
            time.sleep(min(LONGEST_PAUSE_S, PAUSE_S * 2**failures))
            failures += 1
        if gathered:
            yield table_of_remote(gathered)
            place = _after(gathered[-1].position)
        if damage is not None:
            on_damage(damage)
            place = damage.next_position
        elif done:
            return


def _after(position: Position) -> Position:
    return Position(position.ledger_id, position.entry_id + 1)


def table_of_remote(entries: Sequence[RemoteEntry]) -> EntryTable:
    """A table of entries from the service."""
    parts = [entry.prefix + (entry.body or b"") for entry in entries]
    ends = np.cumsum(_ints([len(part) for part in parts]))
    prefix_sizes = _ints([len(entry.prefix) for entry in entries])
    return EntryTable(
        data=b"".join(parts),
        ledger_ids=_ints([entry.position.ledger_id for entry in entries]),
        entry_ids=_ints([entry.position.entry_id for entry in entries]),
        kinds=_ints([entry.kind for entry in entries]),
        counts=_ints([entry.message_count for entry in entries]),
        indexes=_ints([entry.index for entry in entries]),
        append_times_ms=_ints([entry.append_time_ms for entry in entries]),
        starts=ends - _ints([len(part) for part in parts]),
        prefix_sizes=prefix_sizes,
        ends=ends,
        sizes=prefix_sizes + _ints([entry.body_size_bytes for entry in entries]),
    )


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)
