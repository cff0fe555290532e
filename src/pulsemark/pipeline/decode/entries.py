"""A table of stored entries: one array per field instead of one object per entry.

All later steps (headers, payloads, columns, audit) work on :class:`EntryTable`. A table's entries
are in one buffer. If an entry was read without its body, only its prefix is in the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...ledger import Entry, EntryKind, Position
from ...ledger.transactions import Stretch
from .octets import Bools, Bytes, Ints, once, spread
from .protoscan import ABSENT, Want, scan

_PREFIX_HEADER_SIZE = 6
"""Magic and size in front of the broker entry metadata (PIP-70)."""


@dataclass(slots=True)
class EntryTable:
    """Entries in the order of their positions; all arrays have one element per entry."""

    data: bytes
    ledger_ids: Ints
    entry_ids: Ints
    kinds: Ints
    counts: Ints
    """Messages, as the broker counted them."""
    indexes: Ints
    """Index of the LAST message (PIP-70)."""
    append_times_ms: Ints
    starts: Ints
    """The start of the entry (its prefix) in ``data``."""
    prefix_sizes: Ints
    ends: Ints
    """One past its last byte in ``data``."""
    sizes: Ints
    """Bytes as stored, prefix and body, whether the body is in ``data`` or not."""

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def octets(self) -> Bytes:
        """``data`` as an array."""
        return np.frombuffer(self.data, np.uint8)

    @property
    def first_indexes(self) -> Ints:
        """Index of the first message."""
        return self.indexes if self.one_each else self.indexes - self.counts + 1

    @property
    def one_each(self) -> bool:
        """Whether all entries are known to have one message, as most have without batches."""
        counts = once(self.counts)
        return len(counts) == 1 == int(counts[0])

    @property
    def body_starts(self) -> Ints:
        """The start of each entry's headers-and-payload in ``data``."""
        starts: Ints = self.starts + once(self.prefix_sizes)
        return starts

    def position(self, row: int) -> Position:
        """The position of one entry."""
        return Position(int(self.ledger_ids[row]), int(self.entry_ids[row]))

    def select(self, rows: Ints | Bools | slice) -> EntryTable:
        """Some of the entries, in the same buffer."""
        return EntryTable(
            self.data,
            self.ledger_ids[rows],
            self.entry_ids[rows],
            self.kinds[rows],
            self.counts[rows],
            self.indexes[rows],
            self.append_times_ms[rows],
            self.starts[rows],
            self.prefix_sizes[rows],
            self.ends[rows],
            self.sizes[rows],
        )

    def with_hidden(self, hidden: Sequence[Stretch]) -> EntryTable:
        """A table in which these entries are control entries, as consumers see them."""
        mine = [each for each in hidden if each.start.ledger_id == int(self.ledger_ids[0])]
        if not mine:
            return self
        starts = np.array([each.start.entry_id for each in mine], np.int64)
        ends = np.array([each.end.entry_id for each in mine], np.int64)
        at = np.searchsorted(starts, self.entry_ids, "right") - 1
        aborted = (at >= 0) & (self.entry_ids < ends[at])
        return replace(self, kinds=np.where(aborted, EntryKind.CONTROL, self.kinds))

    def with_messages(self) -> EntryTable:
        """A table of only the producers' entries that hold messages."""
        seen = (once(self.kinds) == EntryKind.DATA) & (once(self.counts) > 0)
        return self if bool(seen.all()) else self.select(spread(seen, len(self)))

    def broker_times_ms(self) -> Ints:
        """The stamp's broker time; ``ABSENT`` if the entry has no prefix or no time in it."""
        # An entry without a prefix is an empty message to the scan: it has no fields.
        starts = self.starts + np.minimum(once(self.prefix_sizes), _PREFIX_HEADER_SIZE)
        columns, bad = scan(self.octets, starts, self.body_starts, {1: Want.VARINT})
        times = columns[1].values
        return np.where(bad, ABSENT, times) if bool(bad.any()) else times


def table_of_entries(entries: Sequence[Entry]) -> EntryTable:
    """A table of entries that were read one by one."""
    sizes = _ints([len(entry.stored) for entry in entries])
    ends = np.cumsum(sizes)
    return EntryTable(
        data=b"".join([entry.stored for entry in entries]),
        ledger_ids=_ints([entry.position.ledger_id for entry in entries]),
        entry_ids=_ints([entry.position.entry_id for entry in entries]),
        kinds=_ints([entry.kind for entry in entries]),
        counts=_ints([entry.message_count for entry in entries]),
        indexes=_ints([entry.index for entry in entries]),
        append_times_ms=_ints([entry.append_time_ms for entry in entries]),
        starts=ends - sizes,
        prefix_sizes=_ints([entry.prefix_size_bytes for entry in entries]),
        ends=ends,
        sizes=sizes,
    )


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)
