"""A run of entries in memory.

An entry is kept as one piece of bytes (`ledger.entry.unpack`): a head, then the entry as Pulsar
would store it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..entry import HEAD, KINDS, Entry, RecordHead, stamp_ms_of, unpack
from ..position import Position
from ..run import DamagedRecordError, IoCount, Probe, Row, Run
from .folder import Content


class MemoryRun(Run):
    """A run of entries in memory."""

    overhead_bytes = (HEAD.size, HEAD.size)

    def __init__(self, content: Content, replace: Callable[[Content, Content], None]) -> None:
        """``replace`` is called to put another content in the place of this one in the folder."""
        super().__init__(content.header)
        self.content = content
        self._replace = replace

    def show_all(self) -> None:
        """Let readers see all entries: the run was opened again."""
        content = self.content
        count = len(content)
        self.cut_rows = content.cut_rows
        self.show_group(count, content.nexts[-1], content.append_times[-1])

    @property
    def time_max_ms(self) -> int:
        times = self.content.times
        return times[-1] if times else self.content.header.entry_time_floor_ms

    @property
    def written_count(self) -> int:
        return len(self.content.times)

    # Rows

    def row(self, row: int, io: IoCount | None = None) -> Row:
        return self.content.row(row)

    def chunk(self, row: int, io: IoCount | None = None) -> Content:
        """All rows, since all are in memory."""
        return self.content

    def find_time(self, time_ms: int, limit: int, io: IoCount | None = None) -> int:
        return self.content.find_time(time_ms, limit)

    def find_message(self, message: int, limit: int, io: IoCount | None = None) -> int:
        return self.content.find_message(message, limit)

    # Entries

    def _data(self, row: int) -> bytes:
        try:
            data = self.content.entries[row]
        except IndexError:
            data = b""
        if data:
            return data
        if self.removed:
            raise FileNotFoundError(f"ledger {self.ledger_id} was removed")
        raise DamagedRecordError(row, "the entry was removed")

    def read(self, row: int, max_entries: int, max_bytes: int) -> list[Entry]:
        entries = self._entries(row, max_entries, max_bytes)
        return [unpack(self.ledger_id, memoryview(data)) for data in entries]

    def read_stored(self, row: int, max_entries: int, max_bytes: int) -> list[memoryview]:
        entries = self._entries(row, max_entries, max_bytes)
        return [memoryview(data)[HEAD.size :] for data in entries]

    def _entries(self, row: int, max_entries: int, max_bytes: int) -> list[bytes]:
        found: list[bytes] = []
        size = 0
        for number in range(row, min(row + max_entries, self.entry_count)):
            try:
                data = self._data(number)
            except (DamagedRecordError, FileNotFoundError):
                if found:
                    break
                raise
            size += len(data)
            if found and size > max_bytes:
                break
            found.append(data)
        return found

    def probes(self, row: int, offset: int, count: int, io: IoCount) -> Iterator[Probe]:
        for number in range(row, row + count):
            try:
                head = self.head(number, io)
            except DamagedRecordError:
                continue
            stamp_ms = stamp_ms_of(head.prefix)
            yield Probe(number, stamp_ms, head.append_time_ms, head.index, head.message_count)

    def head(self, row: int, io: IoCount | None = None) -> RecordHead:
        data = self._data(row)
        kind, message_count, append_time_ms, index, prefix_size, _, _ = HEAD.unpack_from(data)
        if io is not None:
            io.add(HEAD.size + prefix_size)
        return RecordHead(
            Position(self.ledger_id, self.first_entry_id + row),
            KINDS[kind],
            message_count,
            index,
            append_time_ms,
            memoryview(data)[HEAD.size : HEAD.size + prefix_size],
            len(data) - HEAD.size - prefix_size,
            len(data),
        )

    # Removing

    def is_gone(self, row: int) -> bool:
        """As `Run.is_gone`; another owner may have removed it."""
        if not (self.removed or self.content.entries):
            self.mark_removed()
        self.cut_rows = max(self.cut_rows, self.content.cut_rows)
        return self.removed or row < self.cut_rows

    def truncate(self, entry_count: int) -> None:
        content = self.content.first(entry_count)
        self._replace(self.content, content)
        self._sample = self._own_times = None
        self.entry_count = min(self.entry_count, entry_count)
        self.content = content
        if entry_count:
            self.show_group(entry_count, content.nexts[-1], content.append_times[-1])
        else:
            self.show_group(0, 0, content.header.stamp_floor_ms)

    def cut_head(self, rows: int) -> None:
        self.content.cut_rows = rows
        self.cut_rows = rows
        self.content.entries[:rows] = [b""] * rows

    def drop(self) -> None:
        """Give the memory back: the run was removed."""
        self.content.entries = []
