"""One row of an index, and what it costs to find one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class IoCount:
    """What a search cost: system calls that read, and the bytes they brought."""

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
    """Messages of the segment up to and with this entry."""
    offset: int
    end_offset: int
