"""A run: entries of one ledger that follow one another, as their engine keeps them.

A topic's log is a list of runs, oldest first. Each engine decides what a run is: a segment file in
the local engine, a list in the memory engine, a whole ledger in BookKeeper. Rows count a run's
entries from 0: row = entry id - first entry id. Readers may see the first ``entry_count`` entries;
an entry is shown once it is durable, and never before.

Reading takes no lock. While entries are removed, a read either succeeds or raises
DamagedRecordError or FileNotFoundError. The caller then asks ``is_gone``: a removed entry is not
damage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..metadata import Buffer
from .entry import Entry, EntryKind, RecordHead
from .own_times import OwnTimes
from .position import Position
from .prefix_sample import PrefixSample
from .rows import DamagedRecordError, IoCount, Probe, Row, Rows


@dataclass(frozen=True, slots=True)
class RunHeader:
    """The facts about a run. Durable with the run's first entry, or before it.

    The headers alone say which runs make a topic's log: each ledger names the previous one, and how
    many of its entries count.
    """

    topic: str
    topic_id: int
    ledger_id: int
    segment_no: int
    """The number of the run in its ledger, from 0."""
    first_entry_id: int
    first_index: int
    entry_time_floor_ms: int
    """The highest entry time (PIP-70) of the topic before this run."""
    stamp_floor_ms: int
    """The last append time of the topic before this run."""
    previous_ledger_id: int
    """The ledger before this run's; -1: this is the topic's first one."""
    previous_entry_count: int
    epoch: int = 0
    """The leader epoch of all entries of the run."""


class Run(ABC):
    """A run of entries. An engine implements the abstract methods."""

    entry_overhead_bytes: ClassVar[int] = 0
    """What the engine stores with each entry, beside its prefix and body."""
    may_wait: ClassVar[bool] = False
    """Whether reading rows and entries can take long: they are not on this machine."""

    def __init__(self, header: RunHeader) -> None:
        self.header = header
        """The header with which the run was begun."""
        self.ledger_id = header.ledger_id
        self.first_entry_id = header.first_entry_id
        self.first_index = header.first_index
        self.append_time_max_ms = header.stamp_floor_ms
        """The last append time of the entries that are shown."""
        self.entry_count = 0
        self.cut_rows = 0
        """How many of the first entries were removed; readers do not see them."""
        self.is_ready = True
        """Whether it can be written to without waiting for more than its bytes (`Beginning`)."""
        self._removed = False
        self.assigned_count = 0
        """Set when the run ends: how many entries have an entry id assigned. Those from
        ``entry_count`` on are not yet durable."""
        self._next_message = 0
        self._sample: PrefixSample | None = None
        self._own_times: OwnTimes | None = None

    # What the engine implements

    @property
    @abstractmethod
    def time_max_ms(self) -> int:
        """The highest entry time up to the last written entry, also of the topic's earlier
        entries. May include entries that are not yet shown.
        """

    @property
    @abstractmethod
    def written_count(self) -> int:
        """How many entries are written, shown or not."""

    @abstractmethod
    def row(self, row: int, io: IoCount | None = None) -> Row:
        """One entry's row; ``io`` counts the reads that it took."""

    @abstractmethod
    def chunk(self, row: int, io: IoCount | None = None) -> Rows:
        """The block of rows, as the engine keeps them, that has ``row``."""

    @abstractmethod
    def find_time(self, time_ms: int, limit: int, io: IoCount | None = None) -> int:
        """The first row whose running maximum of times is >= ``time_ms``; ``limit`` if none is."""

    @abstractmethod
    def find_message(self, message: int, limit: int, io: IoCount | None = None) -> int:
        """The row with the run's message number ``message``; ``limit`` if none has it."""

    @abstractmethod
    def read(self, row: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from ``row`` on, at least one: up to ``max_entries`` in up to ``max_bytes``.

        Ends before a damaged entry; raises DamagedRecordError when ``row`` itself is damaged.
        """

    @abstractmethod
    def read_stored(self, row: int, max_entries: int, max_bytes: int) -> list[memoryview]:
        """As ``read``, but only the stored bytes of each entry: prefix and body."""

    @abstractmethod
    def probes(self, row: int, offset: int, count: int, io: IoCount) -> Iterator[Probe]:
        """The facts of up to ``count`` entries from ``row`` on, without their payload.

        ``offset`` is where the first one begins. Damaged entries are left out.
        """

    @abstractmethod
    def head(self, row: int, io: IoCount | None = None) -> RecordHead:
        """All of an entry except its payload. Raises DamagedRecordError."""

    @abstractmethod
    def is_gone(self, row: int) -> bool:
        """Whether the entry of ``row`` was removed: asked when it could not be read."""

    @abstractmethod
    def truncate(self, entry_count: int) -> None:
        """Drop all entries from ``entry_count`` on: they no longer count, or never did.

        A later run's header says so durably. Raises OSError before anything has changed, never
        after that.
        """

    @abstractmethod
    def cut_head(self, rows: int) -> None:
        """Remove the first ``rows`` entries: durable before they disappear. Raises OSError."""

    # What appending needs

    overhead_bytes: tuple[int, int]
    """How many bytes an entry takes in the run beside its own: with BODY_CRC_OURS, and with
    BODY_CRC_PRODUCER."""

    @abstractmethod
    def first_bytes(self) -> bytes:
        """The bytes written before the first entry; may be b""."""

    @abstractmethod
    def pack(
        self,
        entry_id: int,
        kind: EntryKind,
        message_count: int,
        append_time_ms: int,
        index: int,
        prefix: bytes,
        body: Buffer,
        body_check: int,
    ) -> tuple[Buffer, ...]:
        """The bytes written for one entry: prefix and body, and what the engine adds so that it
        can read the entry again, ``overhead_bytes`` in all. ``body_check`` says which checksum
        guards the body.
        """

    def pack_run(
        self,
        first_entry_id: int,
        kind: EntryKind,
        message_counts: Sequence[int],
        append_time_ms: int,
        next_index: int,
        prefixes: Sequence[bytes],
        bodies: Sequence[Buffer],
        body_check: int,
        offset: int,
    ) -> tuple[list[Buffer], list[int]]:
        """As ``pack``, for consecutive entries from ``offset`` on; and where each of them ends.

        ``next_index`` is the index of the first entry's first message.
        """
        parts: list[Buffer] = []
        ends = []
        entry_id, index = first_entry_id, next_index - 1
        for prefix, body, count in zip(prefixes, bodies, message_counts, strict=True):
            index += count
            packed = self.pack(
                entry_id, kind, count, append_time_ms, index, prefix, body, body_check
            )
            parts += packed
            offset += sum(map(len, packed))
            ends.append(offset)
            entry_id += 1
        return parts, ends

    @abstractmethod
    def unpacker(self) -> Callable[[bytes], list[Entry]]:
        """A function that turns packed bytes of this run's ledger into entries, which are views on
        those bytes. For the tail cache, which keeps bytes but no run.
        """

    # The same for all engines

    def position(self, row: int) -> Position:
        """Position of the entry of ``row``."""
        return Position(self.ledger_id, self.first_entry_id + row)

    @property
    def first_position(self) -> Position:
        """Position of the first entry."""
        return Position(self.ledger_id, self.first_entry_id)

    @property
    def end_entry_id(self) -> int:
        """One past the last visible entry's id."""
        return self.first_entry_id + self.entry_count

    @property
    def next_index(self) -> int:
        """The index of the next message after the last visible entry."""
        return self.first_index + self._next_message

    def show_group(self, entry_count: int, next_message: int, append_time_ms: int) -> None:
        """Let readers see the first ``entry_count`` entries: they are durable now."""
        self._next_message = next_message
        self.append_time_max_ms = append_time_ms
        self.entry_count = entry_count

    def has_row(self, row: int) -> bool:
        """Whether a row is answered without waiting for a network."""
        return True

    @property
    def removed(self) -> bool:
        """All of it was removed: the entries were trimmed, or the topic deleted."""
        return self._removed

    def mark_removed(self) -> None:
        """Mark the run as removed, so that readers do not take it for damaged."""
        self._removed = True

    def index_before(self, row: int) -> int:
        """Index of the first message at or after ``row``."""
        return self.first_index + (self.row(row - 1).next_message if row else 0)

    def prefix_sample(self) -> PrefixSample:
        """The sample for searching by prefixes, up to date."""
        sample = self._sample
        if sample is None:
            # Of two first searches the second may replace this one: each goes on with its own.
            sample = self._sample = PrefixSample(self)
        sample.extend()
        return sample

    def own_times(self, time_ms: int) -> OwnTimes:
        """Running maxima over the entries that are still there, filled for finding ``time_ms``."""
        own = self._own_times
        if own is None or own.max_before(self.cut_rows) >= time_ms:
            own = self._own_times = OwnTimes(self)
        return own

    def entry_or_none(self, row: int) -> Entry | None:
        """One entry; None if it is damaged."""
        try:
            return self.read(row, 1, 0)[0]
        except DamagedRecordError:
            return None

    def own_time_ms(self, row: int, append_time_ms: int, io: IoCount) -> int | None:
        """The time of an entry without a stamp of time: reads the entry; None: it is damaged."""
        entry = self.entry_or_none(row)
        if entry is None:
            return None
        io.add(len(entry.stored))
        return entry.time_ms


def run_after(runs: Sequence[Run], number: int, row: int) -> tuple[int, int]:
    """Run number and row where reading goes on after a run that had no entry at ``row``.

    The committer shows entries meanwhile, those of older runs first. So once a later run is seen
    to have entries, the runs before it show all of theirs, and are looked at once more: else the
    entries that were shown between the two reads would be skipped.
    """
    following = number + 1
    while following < len(runs) and not runs[following].entry_count:
        following += 1
    if following == len(runs):
        return following, 0
    if row < runs[number].entry_count:
        return number, row
    return next((n for n in range(number + 1, following) if runs[n].entry_count), following), 0
