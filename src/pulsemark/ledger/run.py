"""A run: entries of one ledger that follow one another, as their engine keeps them.

A topic's log is a list of runs, oldest first. Each engine decides what a run is: a segment file in
the local engine, a list in the memory engine, a whole ledger in BookKeeper. Rows count a run's
entries from 0: row = entry id - first entry id. Readers may see the first ``entry_count`` entries;
an entry is shown once it is durable, and never before.

Reading takes no lock. While entries are removed, a read either succeeds or raises
DamagedRecordError or FileNotFoundError. The caller then asks ``is_gone``: a removed entry is not
damage.

**Which runs count.**
Which runs make a topic's log, and how many of their entries count, follows from their headers, for
all engines and every reader: docs/formats.md, "The chain".

**Own times.**
Running maxima of the entry times of one run, without those of removed entries.

The index has running maxima over all entries ever appended. If a producer's clock was wrong by
years, and its entry is trimmed by now, that one time stays the maximum of all rows after it. Then
the index does not help, and a search has to read entries. The times that it reads are kept here,
one maximum for MAXIMA_STRIDE_ROWS entries, so that no entry is read twice for this. It is filled
only as far as searches need it.

**The sample.**
A sparse sample of one run, for searching by prefixes: one row in thirteen, in memory.

A search first bisects the sample without any read. Then it reads record headers with their prefixes
from the sampled record on: at most fourteen small reads, whatever the size of the run, and no
payload. A sample costs 16 bytes per thirteen entries. It is built when first used, and extended as
the run grows.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

from ..metadata import Buffer
from ..records import FactsError, record
from .entry import Entry, EntryKind, RecordHead, pack, unpack_all
from .position import Position


@record(frozen=True)
class RunHeader:
    """The facts about a run, durable with its first entry. They alone say which runs count."""

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
    """The bytes that the engine stores with each entry, beside its prefix and body."""
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
        """Whether a write to it waits for nothing but its own bytes (`PendingLedgers`)."""
        self._removed = False
        self.assigned_count = 0
        """Set when the run ends: how many entries have an entry id assigned. Those from
        ``entry_count`` on are not yet durable."""
        self._next_message = 0
        self._sample: PrefixSample | None = None
        self._own_times: OwnTimes | None = None

    # Implemented by the engine

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
        """The first row whose running maximum of times is >= ``time_ms``; else ``limit``."""

    @abstractmethod
    def find_message(self, message: int, limit: int, io: IoCount | None = None) -> int:
        """The row with the run's message number ``message``; else ``limit``."""

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
        """Whether the entry of ``row`` was removed; called when it could not be read."""

    @abstractmethod
    def truncate(self, entry_count: int) -> None:
        """Drop all entries from ``entry_count`` on: they no longer count, or never did.

        A later run's header says so durably. Raises OSError before anything has changed, never
        after that.
        """

    @abstractmethod
    def cut_head(self, rows: int) -> None:
        """Remove the first ``rows`` entries: durable before they disappear. Raises OSError."""

    # For appending

    overhead_bytes: tuple[int, int]
    """How many bytes an entry takes in the run beside its own: with BODY_CRC_OURS, and with
    BODY_CRC_PRODUCER."""

    def first_bytes(self) -> bytes:
        """The bytes written before the first entry: none where the header is kept elsewhere."""
        return b""

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
        """The bytes written for one entry: head, prefix and body, or another form of an engine's.

        It has ``overhead_bytes`` beside prefix and body. ``body_check`` says which checksum guards
        the body; this form needs none of its own.
        """
        return pack(entry_id, kind, message_count, append_time_ms, index, prefix, body)

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
        """Pack consecutive entries, the first at ``offset``. Also returns their ends."""
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

    def unpacker(self) -> Callable[[bytes], list[Entry]]:
        """A function that makes entries of packed bytes, for the tail cache."""
        return partial(unpack_all, self.ledger_id)

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
            # Two first searches may each make a sample; each goes on with its own.
            sample = self._sample = PrefixSample(self)
        sample.extend()
        return sample

    def own_times(self, time_ms: int) -> OwnTimes:
        """Running maxima over the entries not removed, filled far enough to find ``time_ms``."""
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

    Entries of older runs are shown first. So once a later run has entries, the runs before it are
    looked at once more, or entries shown between the two reads would be skipped.
    """
    following = number + 1
    while following < len(runs) and not runs[following].entry_count:
        following += 1
    if following == len(runs):
        return following, 0
    if row < runs[number].entry_count:
        return number, row
    return next((n for n in range(number + 1, following) if runs[n].entry_count), following), 0


class DamagedRecordError(FactsError, text="{reason}"):
    """The row's entry cannot be read; the log raises a CorruptEntryError for it."""

    row: int
    reason: str


@dataclass(slots=True)  # made for each search
class IoCount:
    """The cost of a search: number of reads, and bytes read."""

    reads: int = 0
    bytes_read: int = 0

    def add(self, size_bytes: int) -> None:
        """Count one read."""
        self.reads += 1
        self.bytes_read += size_bytes


class Row(NamedTuple):
    """One entry's row."""

    time_ms: int
    """Running maximum of entry times."""
    next_message: int
    """Messages of the run up to and with this entry."""
    offset: int
    end_offset: int
    """The entry's place in the run, in bytes: for sizes, and for ``probes``."""


class Rows(Protocol):
    """Some consecutive rows, as columns; the run decides how many at once."""

    @property
    def first_row(self) -> int:
        """Number of the first row."""

    @property
    def next_before(self) -> int:
        """Messages of the run before these rows."""

    @property
    def times(self) -> Sequence[int]:
        """Running maxima of entry times."""

    @property
    def nexts(self) -> Sequence[int]:
        """Messages of the run up to and with each row."""

    @property
    def offsets(self) -> Sequence[int]:
        """The offset of each entry in the run."""


ROW_FIELDS = 4
"""The numbers of each entry: its append time, the highest entry time up to it, the run's
messages up to it (both including the entry), and where its record ends in the run."""


class Columns:
    """Rows that an engine keeps in memory. One thread adds to them; readers take no lock."""

    def __init__(self, first_row: int = 0, next_before: int = 0, start: int = 0) -> None:
        """``start`` is where the first entry begins."""
        self.first_row = first_row
        self.next_before = next_before
        self._start = start
        self.times: array[int] = array("Q")
        self.nexts: array[int] = array("I")
        self.offsets: array[int] = array("I")
        self.ends: array[int] = array("I")
        self.append_times: array[int] = array("Q")

    def add(self, rows: Sequence[int]) -> None:
        """Add rows, each of `ROW_FIELDS` numbers."""
        ends = rows[3::ROW_FIELDS]
        self.append_times.extend(rows[0::ROW_FIELDS])
        self.nexts.extend(rows[2::ROW_FIELDS])
        self.offsets.extend([self.ends[-1] if self.ends else self._start, *ends[:-1]])
        self.ends.extend(ends)
        self.times.extend(rows[1::ROW_FIELDS])  # last: its length says how many rows there are

    def keep_first(self, columns: Columns, count: int) -> None:
        """Take the first rows of others."""
        for name in ("append_times", "nexts", "offsets", "ends", "times"):
            setattr(self, name, getattr(columns, name)[:count])

    def __len__(self) -> int:
        return len(self.times)

    def row(self, row: int) -> Row:
        """One row, by its number in the run."""
        at = row - self.first_row
        return Row(self.times[at], self.nexts[at], self.offsets[at], self.ends[at])

    def find_time(self, time_ms: int, limit: int) -> int:
        """As `Run.find_time`, where these are all rows of a run."""
        return bisect_left(self.times, time_ms, 0, limit)

    def find_message(self, message: int, limit: int) -> int:
        """As `Run.find_message`, where these are all rows of a run."""
        return bisect_right(self.nexts, message, 0, limit)


@dataclass(slots=True)
class Probe:
    """The facts about one entry that a search needs."""

    row: int
    stamp_ms: int
    """Its broker time; -1 if it was stored without one."""
    append_time_ms: int
    index: int
    message_count: int


SAMPLE_STRIDE_ROWS = 13


class PrefixSample:
    """Running maximum of times, messages before, and offset of every thirteenth row."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._extending = threading.Lock()
        self.times: array[int] = array("Q")
        """Running maximum of entry times up to and with the sampled row."""
        self.nexts: array[int] = array("I")
        """Messages of the run up to and with the sampled row."""
        self.offsets: array[int] = array("I")

    def extend(self) -> None:
        """Add the rows that became visible since. Several threads may search at once."""
        with self._extending:
            self._extend()

    def _extend(self) -> None:
        row = len(self.times) * SAMPLE_STRIDE_ROWS
        count = self._run.entry_count
        while row < count:
            chunk = self._run.chunk(row)
            first = row - chunk.first_row
            last = min(len(chunk.times), count - chunk.first_row)
            # Offsets first: a running search bisects the other two, then reads the offset.
            self.offsets.extend(chunk.offsets[first:last:SAMPLE_STRIDE_ROWS])
            self.nexts.extend(chunk.nexts[first:last:SAMPLE_STRIDE_ROWS])
            self.times.extend(chunk.times[first:last:SAMPLE_STRIDE_ROWS])
            row = len(self.times) * SAMPLE_STRIDE_ROWS


MAXIMA_STRIDE_ROWS = 64


class OwnTimes:
    """Times of the entries from row ``run.cut_rows`` on, as of the making of this object."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._first_row = run.cut_rows
        self._maxima: array[int] = array("Q")
        self._filling = threading.Lock()

    def max_before(self, row: int) -> int:
        """An upper bound of the times counted here before ``row``; 0: no entry is counted there."""
        strides = -(-(row - self._first_row) // MAXIMA_STRIDE_ROWS)
        known = min(strides, len(self._maxima))
        return self._maxima[known - 1] if known > 0 else 0

    def find(
        self, time_ms: int, entry_count: int, check: Callable[[], None], io: IoCount
    ) -> tuple[int, int] | None:
        """The first row below ``entry_count`` whose entry's time is >= ``time_ms``, with that time.

        None: there is none. ``check`` is called for each entry that is read; what it raises ends
        the search.
        """
        with self._filling:
            self._fill(time_ms, check, io)
        strides = bisect_left(self._maxima, time_ms)
        first = max(self._first_row + strides * MAXIMA_STRIDE_ROWS, self._run.cut_rows)
        for row, own_ms in self._times(first, entry_count, io):
            check()
            if own_ms >= time_ms:
                return row, own_ms
        return None

    def _fill(self, time_ms: int, check: Callable[[], None], io: IoCount) -> None:
        """Read on up to the stride that reaches ``time_ms``, or to the last full one."""
        maximum = self._maxima[-1] if self._maxima else 0
        row = self._first_row + len(self._maxima) * MAXIMA_STRIDE_ROWS
        while maximum < time_ms and row + MAXIMA_STRIDE_ROWS <= self._run.entry_count:
            for _, own_ms in self._times(row, row + MAXIMA_STRIDE_ROWS, io):
                check()
                maximum = max(maximum, own_ms)
            self._maxima.append(maximum)
            row += MAXIMA_STRIDE_ROWS

    def _times(self, row: int, end: int, io: IoCount) -> Iterator[tuple[int, int]]:
        """Rows with their entries' own times; damaged ones are left out."""
        run = self._run
        if row >= end:
            return
        for probe in run.probes(row, run.row(row, io).offset, end - row, io):
            own_ms: int | None = probe.stamp_ms
            if probe.stamp_ms < 0:
                own_ms = run.own_time_ms(probe.row, probe.append_time_ms, io)
            if own_ms is not None:
                yield probe.row, own_ms


H = TypeVar("H", bound=RunHeader)


class Link(NamedTuple, Generic[H]):
    """A run of the chain."""

    header: H
    end_entry_id: int | None
    """The end of its entries, by the next header; None: no header says it."""
    end_index: int | None
    """Index of the first message after them; None: no header says it."""


def chain_of(headers: Iterable[H], lost: Collection[int] = ()) -> list[Link[H]]:
    """The runs of a topic's log, oldest first. ``lost`` are ledgers without a usable header."""
    ledgers: dict[int, list[H]] = {}
    for header in sorted(headers, key=lambda h: (h.ledger_id, h.first_entry_id, h.segment_no)):
        ledgers.setdefault(header.ledger_id, []).append(header)
    newest_first: list[list[Link[H]]] = []
    ledger_id = max(ledgers, default=-1)
    count = end_index = None
    while ledger_id in ledgers:
        members = ledgers.pop(ledger_id)
        newest_first.append(_ledger(members, count, end_index))
        first = members[0]
        ledger_id, count, end_index = first.previous_ledger_id, first.previous_entry_count, None
        if first.first_entry_id == 0:
            end_index = first.first_index
        if ledger_id not in ledgers and ledger_id in lost:
            ledger_id = max((other for other in ledgers if other < ledger_id), default=-1)
            count = end_index = None
    return [link for links in reversed(newest_first) for link in links]


def _ledger(members: Sequence[H], count: int | None, end_index: int | None) -> list[Link[H]]:
    """The runs of one ledger of which ``count`` entries count (None: as many as there are)."""
    links = []
    for number, header in enumerate(members):
        end, index = count, end_index
        if number + 1 < len(members):
            following = members[number + 1]
            if count is None or following.first_entry_id <= count:
                end, index = following.first_entry_id, following.first_index
        if end is None or end > header.first_entry_id:
            links.append(Link(header, end, index))
    return links
