"""One topic's counts, and how far its log is counted.

A trail reads a topic's log as a cursor does, after the entries are appended, and counts each entry
once. So an append pays nothing for it. It reads heads: record header and stamp. It reads bodies
only where reading them along is cheaper, and a damaged body changes no count.

What happens to the log:

- Entries that are removed from the head (retention) stay counted. Those that are removed before
  they were counted are noted as `uncounted`: they are not missing, but no row has them.
- If the log's tail is cut off, its indexes are given again. Then the trail starts again and counts
  what the log has (`recounts`).
- A damaged entry is not counted, so its indexes are missing.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import field
from typing import Any, TypeAlias

from ..ledger import EARLIEST, EntryKind, Position, Run, TopicLog
from ..ledger.run import DamagedRecordError
from ..metadata import Buffer, crc32c
from ..records import record
from .counts import MAX_ROWS, MAX_VALUES, Counts, Grouping, Tally

# The bytes in which a trail is kept over a restart.
#
# Compressed JSON with a version and a CRC32C over the rest: the catalog's pages have no checksum of
# their own. A snapshot that cannot be used is not an error: then the log is counted again.


SNAPSHOT_VERSION = 1
MAX_UNPACKED_BYTES = 1 << 28


class SnapshotError(Exception):
    """The bytes are no usable snapshot; the text says why."""


_KEPT = (
    *("first_index", "next_index", "next_position", "last_position", "counted", "gaps"),
    "recounts",
)
"""A trail's fields that are stored under their names."""


def pack_trail(trail: Trail, topic_id: int) -> bytes:
    """The bytes of a trail."""
    counts = trail.counts
    buckets = [
        [start, [[key, [*tally.counts().values()]] for key, tally in bucket.items()]]
        for start, bucket in counts.buckets.items()
    ]
    value = {
        "topic_id": topic_id,
        "tags": trail.grouping.tags,
        "bucket_ms": counts.bucket_ms,
        **{name: getattr(trail, name) for name in _KEPT},
        "latest_ms": counts.latest_ms,
        "dropped": [counts.dropped_rows, counts.dropped_messages, counts.kept_from_ms],
        "buckets": buckets,
    }
    return pack_json(value)


def pack_json(value: Any) -> bytes:
    """Version, checksum, compressed JSON."""
    body = zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 1)
    return SNAPSHOT_VERSION.to_bytes(2, "little") + crc32c(body).to_bytes(4, "little") + body


def unpack_json(data: bytes) -> Any:
    """The value of `pack_json`. Raises SnapshotError."""
    version = int.from_bytes(data[:2], "little")
    if len(data) < 6 or version != SNAPSHOT_VERSION:
        raise SnapshotError(f"version {version}, this program reads {SNAPSHOT_VERSION}")
    if crc32c(data[6:]) != int.from_bytes(data[2:6], "little"):
        raise SnapshotError("wrong checksum")
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data[6:], MAX_UNPACKED_BYTES)
        if unpacker.unconsumed_tail:
            raise SnapshotError("it is too large")
        return json.loads(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise SnapshotError(str(error)) from error


def unpack_trail(data: bytes, topic_id: int, empty: Trail) -> Trail:
    """The trail of `pack_trail`, with the tags, width and limits of ``empty``.

    Raises SnapshotError: damaged, of another topic, or counted by other tags or buckets.
    """
    value = unpack_json(data)
    tags, bucket_ms = empty.grouping.tags, empty.counts.bucket_ms
    try:
        if value["topic_id"] != topic_id:
            raise SnapshotError("it is of an earlier topic with this name")
        if tuple(value["tags"]) != tags or value["bucket_ms"] != bucket_ms:
            raise SnapshotError("it is counted by other tags or another width of buckets")
        counts = Counts(bucket_ms, empty.counts.max_rows, empty.counts.max_values)
        for start, rows in value["buckets"]:
            for key, numbers in rows:
                counts.put(start, None if key is None else tuple(key), Tally(*numbers))
        counts.latest_ms = value["latest_ms"]
        counts.dropped_rows, counts.dropped_messages, counts.kept_from_ms = value["dropped"]
        kept = {name: value[name] for name in _KEPT}
        for name in ("next_position", "last_position"):
            kept[name] = kept[name] and Position(*kept[name])
        kept["gaps"] = [(first, end) for first, end in kept["gaps"]]
        return Trail(Grouping(tags), counts, **kept)
    except (LookupError, TypeError, ValueError) as error:
        raise SnapshotError(f"a field is missing or wrong: {error!r}") from error


BATCH_ENTRIES = 256
"""Entries that are read together, while no commit is urgent."""
URGENT_ENTRIES = 32
BATCH_BYTES = 1 << 20
HEADS_FROM_BYTES = 16 << 10
"""From this average size on, heads are read alone."""
MAX_GAPS = 64
"""Ranges of uncounted indexes that are kept apart; above it neighbours are joined."""


_Head: TypeAlias = tuple[EntryKind, int, int, int, Buffer, int]
"""What is counted of an entry: kind, messages, index, append time in milliseconds, prefix, size in
bytes."""


@record
class Trail:
    """The counts of one topic, and their end in its log. Not for several threads at a time."""

    grouping: Grouping
    counts: Counts
    #: The index at which counting began; None: not begun.
    first_index: int | None = None
    #: The index after the last entry that was walked.
    next_index: int = 0
    #: The next position to count, and the last counted entry.
    next_position: Position = EARLIEST
    last_position: Position | None = None
    #: Indexes (also of control entries) that were counted since `first_index`.
    counted: int = 0
    #: Ranges of indexes that were removed before they were counted: first, end.
    gaps: list[tuple[int, int]] = field(default_factory=list)
    recounts: int = 0

    @classmethod
    def new(
        cls,
        tags: Sequence[str],
        bucket_ms: int,
        *,
        max_rows: int = MAX_ROWS,
        max_values: int = MAX_VALUES,
    ) -> Trail:
        """A trail that has counted nothing."""
        return cls(Grouping(tags), Counts(bucket_ms, max_rows, max_values))

    @property
    def uncounted(self) -> int:
        """Indexes that were removed before they were counted."""
        return sum(end - first for first, end in self.gaps)

    @property
    def missing(self) -> int:
        """Indexes that should be in the log, and were not, since counting began."""
        return self.next_index - (self.first_index or 0) - self.counted - self.uncounted

    def left(self, log: TopicLog) -> int:
        """How many indexes of the log are not counted yet."""
        return max(0, log.next_index - max(self.next_index, log.first_index))

    def advance(
        self, log: TopicLog, max_entries: int = 1 << 62, *, until: Position | None = None
    ) -> bool:
        """Count the next entries. Return whether there are no more (before ``until``).

        An open transaction's entries, and all after them, are counted when it has ended. Raises
        OSError, LedgerError: earlier counts are right, and the next call goes on.
        """
        self._find_place(log)
        stable_end = log.stable_end  # whether later entries count as aborted is not known yet
        until = stable_end if until is None else min(until, stable_end)
        for run, first, last in log.stretches(self.next_position, until):
            row = first
            while row < last:
                if max_entries <= 0:
                    return False
                batch = URGENT_ENTRIES if log.give_way() else BATCH_ENTRIES
                end = self._count(log, run, row, min(last, row + min(batch, max_entries)))
                max_entries -= end - row
                row = end
        return True

    def _find_place(self, log: TopicLog) -> None:
        """Find removals and cuts of the log since the last call."""
        last = self.last_position
        if last is not None:
            cut = log.cut_before(last, self.next_index) is not None
            if cut or log.next_index < self.next_index:
                self._start_again()
        first_index = log.first_index
        if self.first_index is None:
            self.first_index = self.next_index = first_index
        elif first_index > self.next_index:
            self._passed_over(first_index)
        self.next_position = max(self.next_position, log.first_position or EARLIEST)

    def _start_again(self) -> None:
        counts = self.counts
        self.counts = Counts(counts.bucket_ms, counts.max_rows, counts.max_values)
        self.first_index, self.next_index = None, 0
        self.next_position, self.last_position = EARLIEST, None
        self.counted = 0
        self.gaps = []
        self.recounts += 1

    def _passed_over(self, next_index: int) -> None:
        """Note that the indexes up to this one were removed uncounted."""
        if next_index > self.next_index:
            self.gaps.append((self.next_index, next_index))
            self.next_index = next_index
        if len(self.gaps) > MAX_GAPS:
            # Messages counted between the two are no gap; but `uncounted` must stay right.
            joined = self.gaps.pop(0)
            (first, end), size = self.gaps[0], joined[1] - joined[0]
            self.gaps[0] = (first - size, end)

    def _count(self, log: TopicLog, run: Run, row: int, end: int) -> int:
        """Count entries from ``row`` on, without aborted ones. Return the next row."""
        try:
            heads = _heads(run, row, end)
        except (DamagedRecordError, FileNotFoundError):
            if run.is_gone(row):
                end = run.entry_count if run.removed else max(row + 1, run.cut_rows)
                self._passed_over(_index_after(run, end))
                self._walked(run, end)
                return end
            heads = [_head(run, row)]
        transactions = log.transactions_met(head[4] for head in heads if head is not None)
        place, add = self.grouping.place, self.counts.add
        counted = 0
        for number, head in enumerate(heads):
            if head is None:
                continue
            kind, messages, index, append_time_ms, prefix, size_bytes = head
            time_ms, group = place(prefix, append_time_ms)
            is_control = kind is EntryKind.CONTROL or (
                transactions is not None and transactions.hides(run.position(row + number))
            )
            add(
                time_ms,
                group,
                control=is_control,
                count=messages,
                index=index,
                size_bytes=size_bytes,
            )
            counted += messages
        end = row + len(heads)
        self.counted += counted
        self.next_index = max(self.next_index, _index_after(run, end))
        self._walked(run, end)
        return end

    def _walked(self, run: Run, end: int) -> None:
        self.next_position = Position(run.ledger_id, run.first_entry_id + end)
        self.last_position = Position(run.ledger_id, run.first_entry_id + end - 1)


def _index_after(run: Run, end: int) -> int:
    return run.next_index if end >= run.entry_count else run.index_before(end)


def _heads(run: Run, row: int, end: int) -> list[_Head | None]:
    """The heads from ``row`` on, at least one. Raises DamagedRecordError, FileNotFoundError."""
    size_bytes = run.row(end - 1).end_offset - run.row(row).offset
    if size_bytes >= HEADS_FROM_BYTES * (end - row):
        return [_head(run, each) for each in range(row, end)]
    return [
        (
            entry.kind,
            entry.message_count,
            entry.index,
            entry.append_time_ms,
            entry.prefix,
            len(entry.stored),
        )
        for entry in run.read(row, end - row, BATCH_BYTES)
    ]


def _head(run: Run, row: int) -> _Head | None:
    """The head of the entry at a row; None if damaged. Raises DamagedRecordError if removed."""
    try:
        head = run.head(row)
    except (DamagedRecordError, FileNotFoundError):
        if run.is_gone(row):
            raise
        return None
    size_bytes = len(head.prefix) + head.body_size_bytes
    return (head.kind, head.message_count, head.index, head.append_time_ms, head.prefix, size_bytes)


def count_log(log: TopicLog, tags: Sequence[str], bucket_ms: int) -> Trail:
    """Count a whole log as it is now, without limits. Raises OSError, LedgerError."""
    trail = unlimited_trail(tags, bucket_ms)
    trail.advance(log)
    return trail


def unlimited_trail(tags: Sequence[str], bucket_ms: int) -> Trail:
    """A trail that has counted nothing, and drops no row."""
    return Trail.new(tags, bucket_ms, max_rows=1 << 62, max_values=1 << 62)
