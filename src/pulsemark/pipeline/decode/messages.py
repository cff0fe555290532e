"""A table of messages, from batches and from entries of a single message, in one order.

The fields of a message in a batch are in its SingleMessageMetadata. The fields of a single message
are in its entry's MessageMetadata. An encrypted batch cannot be split: its first message has the
cipher text as value and the header's key; the other messages have neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...proto.pulsar_api_pb2 import KeyValue, SingleMessageMetadata
from . import headers as message
from .headers import Headers
from .octets import Bools, Ints, once, spread
from .payloads import HEADER_FIELDS as PAYLOAD_HEADER_FIELDS
from .payloads import OnBadEntry, Opened, Walked, walk_batches
from .protoscan import ABSENT, Column, Want, scan

_PROPERTIES = SingleMessageMetadata.PROPERTIES_FIELD_NUMBER
_PARTITION_KEY = SingleMessageMetadata.PARTITION_KEY_FIELD_NUMBER
_COMPACTED_OUT = SingleMessageMetadata.COMPACTED_OUT_FIELD_NUMBER
_EVENT_TIME = SingleMessageMetadata.EVENT_TIME_FIELD_NUMBER
_PARTITION_KEY_B64_ENCODED = SingleMessageMetadata.PARTITION_KEY_B64_ENCODED_FIELD_NUMBER
_NULL_VALUE = SingleMessageMetadata.NULL_VALUE_FIELD_NUMBER
_NULL_PARTITION_KEY = SingleMessageMetadata.NULL_PARTITION_KEY_FIELD_NUMBER

_SINGLE_FIELDS = {
    _PROPERTIES: Want.SPANS,
    _PARTITION_KEY: Want.SPAN,
    _COMPACTED_OUT: Want.VARINT,
    _EVENT_TIME: Want.VARINT,
    _PARTITION_KEY_B64_ENCODED: Want.VARINT,
    _NULL_VALUE: Want.VARINT,
    _NULL_PARTITION_KEY: Want.VARINT,
}
_KEY_VALUE_FIELDS = {
    KeyValue.KEY_FIELD_NUMBER: Want.SPAN,
    KeyValue.VALUE_FIELD_NUMBER: Want.SPAN,
}

_PROPERTY_MIN_BYTES = 6
"""The smallest property in a message's metadata: tag and size, an empty key, an empty value."""
_NONE = np.empty(0, np.int64)
_Array: TypeAlias = "NDArray[Any]"

HEADER_FIELDS = PAYLOAD_HEADER_FIELDS | {
    message.PROPERTIES: Want.SPANS,
    message.PARTITION_KEY: Want.SPAN,
    message.EVENT_TIME: Want.VARINT,
    message.PARTITION_KEY_B64_ENCODED: Want.VARINT,
    message.NULL_VALUE: Want.VARINT,
    message.NULL_PARTITION_KEY: Want.VARINT,
}
"""The header fields that messages need."""


@dataclass(slots=True)
class Properties:
    """All properties of all messages, in order: each one's message, and where key and value are."""

    message_rows: Ints
    key_starts: Ints
    key_ends: Ints
    value_starts: Ints
    value_ends: Ints


@dataclass(slots=True)
class Messages:
    """A table of messages, in order. Offsets are in ``arena``; ABSENT means no value."""

    arena: bytes
    entry_rows: Ints
    """Each message's entry in the table."""
    places: Ints
    """Its place in that entry, from 0."""
    value_starts: Ints
    value_ends: Ints
    key_starts: Ints
    key_ends: Ints
    key_is_base64: Bools
    event_times_ms: Ints
    properties: Properties
    one_each: bool
    """Whether each entry has one message, so that a message's row is its entry's."""
    holes: Ints
    """The messages that compaction has removed, which have no value."""


def open_messages(
    headers: Headers,
    *,
    max_bytes: int,
    max_properties: int,
    values_only: bool,
    on_bad_entry: OnBadEntry,
) -> Messages:
    """Decode the messages of all entries whose header is good.

    Args:
        headers: with (at least) ``HEADER_FIELDS``.
        max_bytes: refuse entries that are larger after decompression.
        max_properties: refuse entries whose messages together have more properties.
        values_only: leave out keys, event times and properties, which saves reading them.
        on_bad_entry: called for each entry that cannot be decoded; the entry is then left out.
    """
    opened = Opened(headers, max_bytes, on_bad_entry)
    walked = walk_batches(opened, on_bad_entry)
    assembled = _Assembly(headers, opened, walked)
    bad, reason = _NONE, "the metadata of one of its messages is malformed"
    if not values_only:
        bad = assembled.crowded(max_properties)
        if len(bad):
            reason = f"its messages have more than {max_properties} properties"
    if not len(bad):
        bad = assembled.add_singles(values_only=values_only)
    if not values_only and not len(bad):
        assembled.add_wholes()
        bad = assembled.read_properties()
    if not len(bad):
        return assembled.messages
    # Rare: all batches could be split, but some message's metadata is bad. Decode again without
    # these entries.
    for row in bad.tolist():
        headers.good[row] = False
        on_bad_entry(row, reason)
    return open_messages(
        headers,
        max_bytes=max_bytes,
        max_properties=max_properties,
        values_only=values_only,
        on_bad_entry=on_bad_entry,
    )


class _Assembly:
    """Puts messages of batches and single messages into one order."""

    def __init__(self, headers: Headers, opened: Opened, walked: Walked) -> None:
        self._headers, self._opened, self._walked = headers, opened, walked
        self._property_spans: list[tuple[Ints, Ints, Ints]] = []
        self._walked_rows = _NONE
        self._wholes: Ints | slice = slice(None)
        self._whole_rows = entry_rows = np.arange(len(headers.good))
        places = spread(np.zeros(1, np.int64), len(entry_rows))
        one_each = headers.table.one_each and bool((headers.good & ~opened.is_batch).all())
        if not one_each:
            counts = np.where(headers.good, headers.table.counts, 0)
            first_rows = np.cumsum(counts) - counts
            entry_rows = np.repeat(entry_rows, counts)
            places = np.arange(len(entry_rows)) - first_rows[entry_rows]
            self._walked_rows = np.flatnonzero(opened.is_batch[entry_rows])
            self._wholes = np.flatnonzero(headers.good & ~opened.is_batch)
            self._whole_rows = first_rows[self._wholes]
        absent = spread(np.array([ABSENT]), len(entry_rows))
        self.messages = Messages(
            arena=opened.arena,
            entry_rows=entry_rows,
            places=places,
            value_starts=absent,
            value_ends=absent,
            key_starts=absent,
            key_ends=absent,
            key_is_base64=spread(np.zeros(1, np.bool_), len(entry_rows)),
            event_times_ms=absent,
            properties=Properties(_NONE, _NONE, _NONE, _NONE, _NONE),
            one_each=one_each,
            holes=_NONE,
        )
        self._add_values()

    def _put(self, column: str, rows: Ints, values: _Array) -> None:
        """Set a column of some messages; all of them if each entry has one."""
        if self.messages.one_each:
            setattr(self.messages, column, values)
            return
        made = getattr(self.messages, column)
        if made.strides == (0,):
            made = made.copy()
            setattr(self.messages, column, made)
        made[rows] = values

    def _add_values(self) -> None:
        opened, wholes = self._opened, self._wholes
        if len(self._walked_rows):
            self._put("value_starts", self._walked_rows, self._walked.metadata_ends)
            self._put("value_ends", self._walked_rows, self._walked.payload_ends)
        null = self._headers.value(message.NULL_VALUE)[wholes] != 0
        starts, ends = opened.payload_starts[wholes], opened.payload_ends[wholes]
        self._put("value_starts", self._whole_rows, _unless(null, starts))
        self._put("value_ends", self._whole_rows, _unless(null, ends))

    def crowded(self, max_properties: int) -> Ints:
        """The entries with more properties; counted only if an entry is large enough for them."""
        headers, walked = self._headers, self._walked
        lanes = headers.columns[message.PROPERTIES].lanes
        counts = np.bincount(lanes[headers.good[lanes]], minlength=len(headers.good))
        entry_rows = self.messages.entry_rows[self._walked_rows]
        sizes = np.bincount(
            entry_rows, walked.metadata_ends - walked.metadata_starts, len(headers.good)
        )
        can_be = sizes > max_properties * _PROPERTY_MIN_BYTES
        if bool(can_be.any()):
            at = np.flatnonzero(can_be[entry_rows])
            octets = np.frombuffer(self._opened.arena, np.uint8)
            starts, ends = walked.metadata_starts[at], walked.metadata_ends[at]
            columns, _ = scan(octets, starts, ends, {_PROPERTIES: Want.COUNT})
            np.add.at(counts, entry_rows[at], columns[_PROPERTIES].values)
        return np.flatnonzero(counts > max_properties)

    def add_singles(self, *, values_only: bool) -> Ints:
        """Read the metadata of batches' messages; returns the entries in which one is malformed."""
        walked, rows = self._walked, self._walked_rows
        starts, ends = walked.metadata_starts, walked.metadata_ends
        if values_only:
            # Null messages, and messages that compaction has removed, have no payload.
            empty = np.flatnonzero(walked.payload_ends == ends)
            rows, starts, ends = rows[empty], starts[empty], ends[empty]
        if not len(rows):
            return rows
        octets = np.frombuffer(self._opened.arena, np.uint8)
        columns, bad = scan(octets, starts, ends, _SINGLE_FIELDS)
        no_value = columns[_NULL_VALUE].values > 0
        is_hole = columns[_COMPACTED_OUT].values > 0
        self.messages.holes = rows[is_hole]
        no_value |= is_hole
        for column in ("value_starts", "value_ends"):
            self._put(column, rows[no_value], np.array(ABSENT))
        if not values_only:
            self._add_keys(
                rows,
                columns[_PARTITION_KEY],
                columns[_PARTITION_KEY_B64_ENCODED].values,
                columns[_NULL_PARTITION_KEY].values,
            )
            self._put("event_times_ms", rows, columns[_EVENT_TIME].values)
            spans = columns[_PROPERTIES]
            self._property_spans.append((rows[spans.lanes], spans.starts, spans.ends))
        return np.unique(self.messages.entry_rows[rows[bad]])

    def add_wholes(self) -> None:
        """Read keys, event times and properties of single messages from their entries' headers."""
        wholes, rows, shifts = self._wholes, self._whole_rows, self._opened.shifts
        columns = self._headers.columns
        key = columns[message.PARTITION_KEY]
        moved = Column(
            key.values,
            _moved(key.starts, shifts)[wholes],
            _moved(key.ends, shifts)[wholes],
            key.lanes,
        )
        self._add_keys(
            rows,
            moved,
            columns[message.PARTITION_KEY_B64_ENCODED].values[wholes],
            columns[message.NULL_PARTITION_KEY].values[wholes],
        )
        self._put("event_times_ms", rows, columns[message.EVENT_TIME].values[wholes])
        row_of_entry = np.full(len(shifts), ABSENT, np.int64)
        row_of_entry[wholes] = rows
        spans = columns[message.PROPERTIES]
        mine = np.flatnonzero(row_of_entry[spans.lanes] != ABSENT)
        lanes = spans.lanes[mine]
        self._property_spans.append(
            (
                row_of_entry[lanes],
                spans.starts[mine] + shifts[lanes],
                spans.ends[mine] + shifts[lanes],
            )
        )

    def _add_keys(self, rows: Ints, key: Column, is_base64: Ints, is_null: Ints) -> None:
        null = once(is_null) > 0
        self._put("key_starts", rows, _unless(null, key.starts))
        self._put("key_ends", rows, _unless(null, key.ends))
        self._put("key_is_base64", rows, spread(once(is_base64) > 0, len(rows)))

    def read_properties(self) -> Ints:
        """Find keys and values of all properties; returns the entries in which one is malformed."""
        rows, starts, ends = (
            np.concatenate([part[column] for part in self._property_spans]) for column in range(3)
        )
        order = np.argsort(rows, kind="stable")
        rows, starts, ends = rows[order], starts[order], ends[order]
        octets = np.frombuffer(self._opened.arena, np.uint8)
        columns, bad = scan(octets, starts, ends, _KEY_VALUE_FIELDS)
        key, value = columns[KeyValue.KEY_FIELD_NUMBER], columns[KeyValue.VALUE_FIELD_NUMBER]
        bad |= (key.starts == ABSENT) | (value.starts == ABSENT)
        self.messages.properties = Properties(rows, key.starts, key.ends, value.starts, value.ends)
        return np.unique(self.messages.entry_rows[rows[bad]])


def _unless(without: Bools, places: Ints) -> Ints:
    """The places, ABSENT where there is nothing at them."""
    return np.where(without, ABSENT, places) if bool(without.any()) else places


def _moved(places: Ints, shifts: Ints) -> Ints:
    if not len(places) or not bool(once(shifts).any()):
        return places
    return np.where(places == ABSENT, ABSENT, places + shifts)
