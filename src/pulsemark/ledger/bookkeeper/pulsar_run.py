"""A ledger of Apache Pulsar's, as a run of entries.

Pulsar's entries say their index and time in their stamp (PIP-70), if its interceptors are on. An
entry without has its producer's publish time, and the log counts the messages in entries' headers:
for that the whole ledger is read once.
"""

from __future__ import annotations

from ...metadata import PrefixError, peek
from ..entry import EntryKind
from ..rows import DamagedRecordError
from ..run import RunHeader
from .client.entries import LedgerEntry
from .rows import WrittenRows, end_offset
from .run import BookKeeperRun, RunOwner
from .stored_entry import Facts, own_facts

_READ_BYTES = 8 << 20


class PulsarRun(BookKeeperRun):
    """One of Pulsar's ledgers. Nothing here writes, recovers or fences."""

    def __init__(self, header: RunHeader, owner: RunOwner) -> None:
        super().__init__(header, owner)
        self._table: WrittenRows | None = None

    def count_messages(self, entry_count: int) -> None:
        """Read a ledger without stamps, and count its messages. Raises OSError."""
        table, time_ms, messages = WrittenRows(), self.header.entry_time_floor_ms, 0
        self.entry_count = entry_count
        while len(table) < entry_count:
            for entry in self._fetch(len(table), entry_count - 1, _READ_BYTES):
                own_ms, count = own_facts(entry.payload)
                time_ms, messages = max(time_ms, own_ms), messages + count
                table.add((own_ms, time_ms, messages, end_offset(entry.length, entry.entry_id)))
        self._table = self._written = table
        last = table.append_times[-1] if table else self.header.stamp_floor_ms
        self.show_group(entry_count, messages, last)

    def _facts(self, row: int, entry: LedgerEntry) -> Facts:
        table = self._table
        if table is not None:
            before = table.nexts[row - 1] if row else 0
            index = self.first_index + table.nexts[row] - 1
            count = table.nexts[row] - before
            times = table.append_times[row], table.times[row]
            return Facts(EntryKind.DATA, count, *times, index)
        stamp = stamp_of(entry)
        if stamp is None:
            raise DamagedRecordError(row, "it has no stamp of time and index, as others have")
        time_ms, index = stamp
        return Facts(EntryKind.DATA, -1, time_ms, time_ms, index)


def stamp_of(entry: LedgerEntry) -> tuple[int, int] | None:
    """Broker time and index of an entry; None unless it has both."""
    try:
        stamp = peek(entry.payload)
    except PrefixError:
        return None
    if stamp is None or not (stamp.HasField("broker_timestamp") and stamp.HasField("index")):
        return None
    return stamp.broker_timestamp, stamp.index
