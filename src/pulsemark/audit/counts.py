"""Counts by time bucket and tag values, bounded in memory.

Two limits keep it small, and neither makes a count wrong without a sign:

- The number of rows. Above it the oldest bucket is dropped: `dropped_rows` and `dropped_messages`
  count what was dropped; all buckets from `kept_from_ms` on are kept.
- The combinations of tag values in a bucket. Messages with further combinations are counted in the
  bucket's rest row, as are those with too long values.

A count is *out of order* if it comes after a count of a later bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, fields
from typing import TypeAlias

from ..metadata import Buffer, PrefixError, peek, tags_of
from ..metadata.prefix import application_tags
from ..proto.broker_entry_pb2 import BrokerEntryMetadata
from ..records import record
from .rows import MAX_MESSAGES_PER_ENTRY, MAX_TIME_MS, is_short

# An entry's audit time and tag values, from its stamp alone: no payload is read.
#
# The audit time is the stamp's broker time, or the ledger's append time if the entry has no stamp
# of time. Both come from the broker's clock, so a producer's clock decides nothing. A prefix that
# cannot be parsed counts as no stamp.


Group: TypeAlias = tuple[str | None, ...]
"""The values of the tags that are counted by, in their order."""

_REMEMBERED = 4096
_FIELDS = BrokerEntryMetadata.DESCRIPTOR.fields_by_name
_ENUMS = frozenset(name for name, field in _FIELDS.items() if field.enum_type is not None)
#: Fields of the registry whose value is shown as it is.
_PLAIN = frozenset(_FIELDS) - _ENUMS - {"application_tags", "broker_timestamp", "index"}


class Grouping:
    """Finds time and tag values of entries; remembers the values of encoded tags."""

    def __init__(self, tags: Sequence[str]) -> None:
        self.tags = tuple(tags)
        self._none: Group = (None,) * len(self.tags)
        # A name that is no number and no plugin's full name can only be an application tag's.
        self._is_simple = all(
            tag in _PLAIN or not (tag in _FIELDS or tag.isdigit() or "." in tag)
            for tag in self.tags
        )
        self._remembered: dict[bytes, Group] = {}

    def place(self, prefix: Buffer, append_time_ms: int) -> tuple[int, Group]:
        """The audit time and the tag values of an entry with this prefix."""
        if not len(prefix):
            return append_time_ms, self._none
        try:
            metadata = peek(prefix)
        except PrefixError:
            return append_time_ms, self._none
        time_ms = append_time_ms
        if metadata is not None and metadata.HasField("broker_timestamp"):
            stamp_ms = metadata.broker_timestamp
            time_ms = stamp_ms if stamp_ms < MAX_TIME_MS else append_time_ms
        if not self.tags or metadata is None:
            return time_ms, self._none
        return time_ms, self._group(prefix, metadata)

    def group(self, prefix: Buffer) -> Group:
        """The tag values of an entry with this prefix."""
        return self.place(prefix, 0)[1]

    def _group(self, prefix: Buffer, metadata: BrokerEntryMetadata) -> Group:
        if not self._is_simple:
            return self._slow(prefix)
        metadata.ClearField("broker_timestamp")
        metadata.ClearField("index")
        key = metadata.SerializeToString()
        found = self._remembered.get(key)
        if found is None:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            found = self._remembered[key] = self._simple(metadata)
        return found

    def _simple(self, metadata: BrokerEntryMetadata) -> Group:
        """The values of the registry's fields and of application tags."""
        try:
            own = application_tags(metadata)
        except PrefixError:
            return self._none
        values: list[str | None] = []
        for name in self.tags:
            if name in _PLAIN:
                given = metadata.HasField(name)
                values.append(shown(getattr(metadata, name)) if given else None)
            else:
                values.append(shown(own[name]) if name in own else None)
        return tuple(values)

    def _slow(self, prefix: Buffer) -> Group:
        """As `_simple`, with third parties' fields, named by plugins."""
        try:
            tags = tags_of(prefix)
        except PrefixError:
            return self._none
        return tuple(shown(tags[name]) if name in tags else None for name in self.tags)


def shown(value: object) -> str:
    """A tag's value in a row."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


MAX_ROWS = 10_000
MAX_VALUES = 100

Key: TypeAlias = Group | None
"""The tag values of a row; None for the rest row."""


@record
class Tally:
    """The counts of one row; ``min_index`` and ``max_index`` are -1 while it has no index."""

    count: int = 0
    doubtful_count: int = 0
    control_count: int = 0
    bytes: int = 0
    min_index: int = -1
    max_index: int = -1
    out_of_order: int = 0
    doubled: int = 0
    late: int = 0

    def counts(self) -> dict[str, int]:
        """All counts by name, in the order of the fields."""
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}

    def add(self, other: Tally) -> None:
        """Add the counts of another row."""
        self.count += other.count
        self.doubtful_count += other.doubtful_count
        self.control_count += other.control_count
        self.bytes += other.bytes
        self.out_of_order += other.out_of_order
        self.doubled += other.doubled
        self.late += other.late
        if other.max_index >= 0:
            self.reach(other.min_index, other.max_index)

    def reach(self, first_index: int, index: int) -> None:
        """Include these indexes."""
        if self.min_index < 0 or first_index < self.min_index:
            self.min_index = first_index
        if index > self.max_index:
            self.max_index = index


@record
class Counts:
    """The counts of one topic. Not for several threads at a time."""

    bucket_ms: int
    max_rows: int = MAX_ROWS
    max_values: int = MAX_VALUES
    buckets: dict[int, dict[Key, Tally]] = field(default_factory=dict)
    #: Start of the latest bucket so far.
    latest_ms: int = -1
    row_count: int = 0
    dropped_rows: int = 0
    dropped_messages: int = 0
    #: Start of the first bucket that is not dropped.
    kept_from_ms: int = 0
    #: Messages, bytes and messages out of order by tag values, over the buckets that are kept.
    sums: dict[Key, list[int]] = field(default_factory=dict)

    def add(
        self, time_ms: int, group: Group, *, control: bool, count: int, index: int, size_bytes: int
    ) -> Tally | None:
        """Count one entry; ``index`` is that of its last message, -1 if it is not known.

        Returns the counts that it was added to; None: its bucket was dropped before.
        """
        start_ms = time_ms - time_ms % self.bucket_ms
        if start_ms < self.kept_from_ms:
            self.dropped_messages += 0 if control else count
            return None
        key, tally = self._tally(start_ms, group)
        tally.bytes += size_bytes
        if control:
            tally.control_count += count
        else:
            tally.count += count
            if count > MAX_MESSAGES_PER_ENTRY:
                tally.doubtful_count += count
        if count and index >= 0:
            tally.reach(index - count + 1, index)
        messages = 0 if control else count
        sums = self.sums[key]
        sums[0] += messages
        sums[1] += size_bytes
        if start_ms < self.latest_ms:
            tally.out_of_order += messages
            sums[2] += messages
        else:
            self.latest_ms = start_ms
        return tally

    def put(self, start_ms: int, key: Key, tally: Tally) -> None:
        """Add a row as it is."""
        self.buckets.setdefault(start_ms, {})[key] = tally
        self.row_count += 1
        sums = self.sums.setdefault(key, [0, 0, 0])
        sums[0] += tally.count
        sums[1] += tally.bytes
        sums[2] += tally.out_of_order

    def _tally(self, start_ms: int, group: Group) -> tuple[Key, Tally]:
        bucket = self.buckets.get(start_ms)
        if bucket is None:
            bucket = self.buckets[start_ms] = {}
        tally = bucket.get(group)
        if tally is not None:
            return group, tally
        key: Key = group
        if len(bucket) >= self.max_values or not all(v is None or is_short(v) for v in group):
            key = None
        tally = bucket.get(key)
        if tally is None:
            tally = bucket[key] = Tally()
            self.row_count += 1
            self.sums.setdefault(key, [0, 0, 0])
            self._drop_oldest(start_ms)
        return key, tally

    def _drop_oldest(self, current_ms: int) -> None:
        """Drop buckets until the limit is kept; never the one that is being counted."""
        while self.row_count > self.max_rows:
            oldest_ms = min((start for start in self.buckets if start != current_ms), default=None)
            if oldest_ms is None:
                return
            for key, tally in self.buckets.pop(oldest_ms).items():
                self.row_count -= 1
                self.dropped_rows += 1
                self.dropped_messages += tally.count
                sums = self.sums[key]
                sums[0] -= tally.count
                sums[1] -= tally.bytes
                sums[2] -= tally.out_of_order
                if not any(key in rows for rows in self.buckets.values()):
                    del self.sums[key]
            # A bucket that is older than the dropped one is being counted: it stays, whole.
            self.kept_from_ms = max(self.kept_from_ms, min(oldest_ms + self.bucket_ms, current_ms))
