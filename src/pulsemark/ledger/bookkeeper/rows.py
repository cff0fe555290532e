"""The rows of a ledger: in memory for what this process writes, else read from the entries."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from ..commit.commit import ROW_FIELDS
from ..lru import Lru
from ..packed_entry import HEAD
from ..rows import IoCount, Row

BLOCK_ROWS = 64


class WrittenRows:
    """Rows of the entries that this process wrote. Appended by one thread; readers take no lock."""

    first_row = 0
    next_before = 0

    def __init__(self) -> None:
        self.times: array[int] = array("Q")
        self.nexts: array[int] = array("I")
        self.offsets: array[int] = array("I")
        self.ends: array[int] = array("I")
        self.append_times: array[int] = array("Q")

    def add(self, rows: Sequence[int]) -> None:
        """Add a group's rows."""
        ends = rows[3::ROW_FIELDS]
        self.append_times.extend(rows[0::ROW_FIELDS])
        self.nexts.extend(rows[2::ROW_FIELDS])
        self.offsets.extend([self.ends[-1] if self.ends else 0, *ends[:-1]])
        self.ends.extend(ends)
        self.times.extend(rows[1::ROW_FIELDS])  # last: its length says how many rows there are

    def first(self, count: int) -> WrittenRows:
        """The first rows only."""
        part = WrittenRows()
        for name in ("append_times", "nexts", "offsets", "ends", "times"):
            setattr(part, name, getattr(self, name)[:count])
        return part

    def __len__(self) -> int:
        return len(self.times)


class Block:
    """Some rows that were read from their entries, as columns."""

    def __init__(self, first_row: int, next_before: int) -> None:
        self.first_row = first_row
        self.next_before = next_before
        self.times: array[int] = array("Q")
        self.nexts: array[int] = array("I")
        self.offsets: array[int] = array("I")
        self.ends: array[int] = array("I")
        self.append_times: array[int] = array("Q")

    def add(
        self, time_ms: int, next_message: int, append_time_ms: int, end: int, size: int
    ) -> None:
        """Add the next row."""
        self.nexts.append(next_message)
        self.append_times.append(append_time_ms)
        self.offsets.append(end - size)
        self.ends.append(end)
        self.times.append(time_ms)

    def row(self, row: int) -> Row:
        """One row of the block."""
        at = row - self.first_row
        return Row(self.times[at], self.nexts[at], self.offsets[at], self.ends[at])


def end_offset(length: int, entry_id: int) -> int:
    """Where an entry ends in its ledger, as a packed entry would: with the head of each."""
    return length + HEAD.size * (entry_id + 1)


class Blocks:
    """Blocks of one ledger's rows, read when they are needed; the last used ones are kept."""

    def __init__(self, read: Callable[[int, IoCount | None], Block], kept: int = 64) -> None:
        self._read = read
        self._kept: Lru[int, Block] = Lru(kept)

    def block(self, row: int, io: IoCount | None = None) -> Block:
        """The block that has ``row``."""
        number = row // BLOCK_ROWS
        found = self._kept.get(number)
        if found is None or row >= found.first_row + len(found.times):
            found = self._read(number * BLOCK_ROWS, io)
            self._kept.put(number, found)
        return found
