"""The rows of a run: one row per entry, in columns; and what reading them cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class DamagedRecordError(Exception):
    """The row's entry cannot be read; the log raises a CorruptEntryError for it."""

    def __init__(self, row: int, reason: str) -> None:
        self.row = row
        self.reason = reason
        super().__init__(reason)


@dataclass(slots=True)
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
        """Where each entry begins in the run."""


@dataclass(slots=True)
class Probe:
    """What a search needs to know about one entry."""

    row: int
    stamp_ms: int
    """Its broker time; -1 if it was stored without one."""
    append_time_ms: int
    index: int
    message_count: int
