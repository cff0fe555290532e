"""What a run's rows say: one row an entry, in columns, and what reading them cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class DamagedRecordError(Exception):
    """The row's entry cannot be given; the log turns this into a CorruptEntryError."""

    def __init__(self, row: int, reason: str) -> None:
        self.row = row
        self.reason = reason
        super().__init__(reason)


@dataclass(slots=True)
class IoCount:
    """What a search cost: calls that read, and the bytes they brought."""

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
    """Where the entry stands in the run, in bytes: for sizes, and for ``probes``."""


class Rows(Protocol):
    """Some rows that follow one another, as columns; a run says how many at once."""

    @property
    def first_row(self) -> int:
        """Number of the first of them."""
        ...

    @property
    def next_before(self) -> int:
        """Messages of the run before them."""
        ...

    @property
    def times(self) -> Sequence[int]:
        """Running maxima of entry times."""
        ...

    @property
    def nexts(self) -> Sequence[int]:
        """Messages of the run up to and with each row."""
        ...

    @property
    def offsets(self) -> Sequence[int]:
        """Where each entry begins in the run."""
        ...


@dataclass(slots=True)
class Probe:
    """One entry, as far as a search wants to know it."""

    row: int
    stamp_ms: int
    """Its broker time; -1 where it was stored without."""
    append_time_ms: int
    index: int
    message_count: int
