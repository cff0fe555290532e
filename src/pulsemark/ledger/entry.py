"""One stored entry as readers get it: views on the bytes read.

**Its time.**
An entry has one time, which searching, expiry, compaction and statistics all use (PIP-70): the
broker's time if the entry's stamp has one, else the publish time that its producer set. An entry
with neither (control entries, cursors, foreign bytes) has its append time.

**Packed.**
Engines without files of their own keep an entry in memory as a head, then prefix and body. The head
has the facts that prefix and body need not have: kind, message count, append time, index.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from operator import index as as_int
from typing import Protocol, SupportsIndex, cast

from ..metadata import Buffer, MessageFormatError, MessageHeader, PrefixError, entry_time_ms, peek
from .errors import ClockError
from .limits import MAX_TIME_MS
from .position import Position


class EntryKind(IntEnum):
    """DATA came from a producer. CONTROL is the broker's own entry; consumers never see it."""

    DATA = 0
    CONTROL = 1


LAST_KIND = max(EntryKind)
"""A newer version wrote records whose kind is higher than this."""


@dataclass(slots=True)
class Entry:
    """One entry with the fields of its record header.

    ``stored`` is the entry exactly as Pulsar would store it: prefix (PIP-70), then the
    producer's headers-and-payload. ``prefix`` and ``body`` are views on it, without a copy.
    """

    position: Position
    kind: EntryKind
    message_count: int
    index: int
    """Index of the entry's LAST message (PIP-70); without messages, the index before it."""
    append_time_ms: int
    """The broker's clock at append, stamps on or off."""
    prefix_size_bytes: int
    stored: memoryview

    @property
    def first_index(self) -> int:
        """Index of the entry's first message."""
        return self.index - self.message_count + 1

    @property
    def time_ms(self) -> int:
        """The entry's own time (PIP-70): broker time, else publish time, else append time."""
        return time_of_entry(self.append_time_ms, self.stored, self.body)

    @property
    def prefix(self) -> memoryview:
        """The broker entry prefix; empty if the entry was stored without one."""
        return self.stored[: self.prefix_size_bytes]

    @property
    def body(self) -> memoryview:
        """The producer's bytes, untouched."""
        return self.stored[self.prefix_size_bytes :]


class StoredEntry(Protocol):
    """An entry of another log, as a follower takes it over: an `Entry`, or one from a network."""

    @property
    def position(self) -> Position:
        """Ledger id and entry id."""

    @property
    def kind(self) -> EntryKind:
        """Whether it is a producer's entry or a control entry."""

    @property
    def message_count(self) -> int:
        """How many messages it counts for."""

    @property
    def index(self) -> int:
        """Index of its last message."""

    @property
    def first_index(self) -> int:
        """Index of its first message."""

    @property
    def time_ms(self) -> int:
        """Its own time (PIP-70)."""

    @property
    def append_time_ms(self) -> int:
        """The broker's clock when it was appended."""

    @property
    def prefix(self) -> Buffer:
        """The stamp as stored."""

    @property
    def body(self) -> Buffer | None:
        """The producer's bytes; None if they were not asked for."""


@dataclass(slots=True)
class RecordHead:
    """A record's header and prefix, read without its body."""

    position: Position
    kind: EntryKind
    message_count: int
    index: int
    append_time_ms: int
    prefix: memoryview
    body_size_bytes: int
    record_size_bytes: int
    """From this record to the next one in the segment."""

    @property
    def first_index(self) -> int:
        """Index of the entry's first message."""
        return self.index - self.message_count + 1


def time_of_entry(append_time_ms: int, prefix: Buffer, body: Buffer) -> int:
    """The time of a stored entry. ``prefix`` may also be the whole entry."""
    try:
        return entry_time_ms(peek(prefix), body)
    except (PrefixError, MessageFormatError):
        return append_time_ms


def time_of_unstamped(header: MessageHeader, append_time_ms: int) -> int:
    """The time of an entry that is being appended without a stamp of time."""
    try:
        return header.publish_time_ms()
    except MessageFormatError:
        return append_time_ms


def checked_ms(value: object) -> int:
    """A clock's time as an exact int; before 1970 it is negative. Raises ClockError."""
    try:
        time_ms = int(as_int(cast("SupportsIndex", value)))
    except TypeError as error:
        raise ClockError(value) from error
    if not -MAX_TIME_MS <= time_ms <= MAX_TIME_MS:
        raise ClockError(value)
    return time_ms


HEAD = struct.Struct("<BIQqHII")
"""Kind, message count, append time, index, prefix size, entry id, and the size of what follows."""
KINDS = tuple(EntryKind)
"""By the number in the head."""


def pack(
    entry_id: int,
    kind: EntryKind,
    message_count: int,
    append_time_ms: int,
    index: int,
    prefix: bytes,
    body: Buffer,
) -> tuple[Buffer, ...]:
    """The packed entry: head, prefix and body."""
    size = len(prefix) + len(body)
    head = HEAD.pack(kind, message_count, append_time_ms, index, len(prefix), entry_id, size)
    return head, prefix, body


def unpack(ledger_id: int, data: memoryview, at: int = 0) -> Entry:
    """The packed entry at offset ``at`` of ``data``, as a view on it."""
    kind, count, time_ms, index, prefix_size, entry_id, size = HEAD.unpack_from(data, at)
    start = at + HEAD.size
    stored = data[start : start + size]
    return Entry(
        Position(ledger_id, entry_id), KINDS[kind], count, index, time_ms, prefix_size, stored
    )


def unpack_all(ledger_id: int, data: bytes) -> list[Entry]:
    """The packed entries in ``data``, one after another; views on it."""
    view, entries, at = memoryview(data), [], 0
    while at < len(data):
        entry = unpack(ledger_id, view, at)
        entries.append(entry)
        at += HEAD.size + len(entry.stored)
    return entries


def stamp_ms_of(prefix: Buffer) -> int:
    """The broker time in a stored prefix; -1 without one."""
    try:
        metadata = peek(prefix)
    except PrefixError:
        return -1
    has_time = metadata is not None and metadata.HasField("broker_timestamp")
    return metadata.broker_timestamp if metadata is not None and has_time else -1
