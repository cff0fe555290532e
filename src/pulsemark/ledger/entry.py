"""What a reader gets back: one stored entry, as views on the bytes read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from .entry_time import time_of_entry
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
