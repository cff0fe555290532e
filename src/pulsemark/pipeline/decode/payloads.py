"""Decoding payloads: decompress them and split batches into messages.

After decompression, a batch's payload is a sequence of messages, each
``[size u32 big-endian][SingleMessageMetadata][payload]``. The payload's size is in that metadata.
So a batch can only be read from its beginning.

All decoded bytes are in one buffer, the *arena*. If no entry is compressed, it is the table's own
buffer. Otherwise it is a new buffer with every entry's header and decompressed payload. Values,
keys and properties are spans in it, in rising order, so Arrow can gather a column in one call.

An entry is decoded as a whole or not at all. An entry is refused if its header is malformed; if its
message count differs from the broker's, because its messages' indexes would then be in doubt
(official clients always send the same count); if its payload does not decompress to its stated
size; if its batch does not end with its last message; or if a message's metadata is above the limit
for an entry's metadata.

The cost of decoding is proportional to the bytes, stored and decompressed, and to the number of
messages. The caller limits both, because a few hundred bytes can decompress to a hundred megabytes.

A Kafka client's record set becomes the batch that Pulsar's consumers get of it. A set begins with
four zero bytes, which no message of Pulsar's does, and the prefix says its format. So a table
without sets costs a look at the first bytes of its bodies.

An encrypted payload is left unchanged (it was compressed before it was encrypted): it is the value
of the entry's first message.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...kafka.records import (
    RecordSetError,
    UnconvertibleEntryError,
    magic_of,
    read,
    to_pulsar,
)
from ...metadata import MESSAGE_METADATA_SIZE_MAX_BYTES, PrefixError, peek
from ...metadata.compression import DecompressionError, decompress
from ...metadata.protobuf_fields import MalformedError, fields_of
from ...proto.pulsar_api_pb2 import SingleMessageMetadata
from . import headers as message
from .entries import EntryTable
from .headers import Headers
from .octets import Bools, Bytes, Ints, at_every_place, items_at, once, spread, u32_at
from .protoscan import ABSENT, Want, take_fields

_PAYLOAD_SIZE = SingleMessageMetadata.PAYLOAD_SIZE_FIELD_NUMBER
_PAYLOAD_SIZE_TAG = _PAYLOAD_SIZE << 3
_LEADING_TAGS = (
    SingleMessageMetadata.PROPERTIES_FIELD_NUMBER << 3 | 2,
    SingleMessageMetadata.PARTITION_KEY_FIELD_NUMBER << 3 | 2,
)

FEW_BATCHES = 128
"""With fewer batches than this, reading them one by one is faster."""

_SIZE_BYTES = 4
_MESSAGE_MIN_BYTES = 6
"""The smallest message a batch can hold: its metadata's size, and a payload size of 0 in it."""

HEADER_FIELDS = {
    message.COMPRESSION: Want.VARINT,
    message.UNCOMPRESSED_SIZE: Want.VARINT,
    message.NUM_MESSAGES_IN_BATCH: Want.VARINT,
    message.ENCRYPTION_KEYS: Want.COUNT,
}
"""The header fields that decoding needs."""

OnBadEntry = Callable[[int, str], None]
"""Called for each entry (row of the table) that cannot be decoded, with the reason; may raise."""


class Opened:
    """Decompressed entries: where their headers and payloads are in the arena."""

    def __init__(self, headers: Headers, max_bytes: int, on_bad_entry: OnBadEntry) -> None:
        self.headers = headers
        compression = headers.value(message.COMPRESSION)
        encrypted = headers.is_encrypted
        self.is_batch = headers.has(message.NUM_MESSAGES_IN_BATCH) & ~encrypted
        self.is_packed = (once(compression) != 0) & ~encrypted & headers.good
        self.sizes = headers.table.ends - headers.payload_starts
        if bool(once(compression).any()):
            stated = headers.value(message.UNCOMPRESSED_SIZE)
            self.sizes = np.where(compression != 0, stated, self.sizes)
        self._refuse_wrong_counts(on_bad_entry)
        self.arena = headers.table.data
        self.shifts = spread(np.zeros(1, np.int64), len(headers.good))
        """The difference between an entry's offset in the arena and in the table's buffer."""
        self.payload_ends = headers.table.ends
        if bool(self.is_packed.any()):
            self._unpack(compression, max_bytes, on_bad_entry)
        self.payload_starts = headers.payload_starts + once(self.shifts)

    def _refuse_wrong_counts(self, on_bad_entry: OnBadEntry) -> None:
        headers = self.headers
        broker_counts = headers.table.counts
        counts = headers.value(message.NUM_MESSAGES_IN_BATCH, 1)
        wrong = spread(once(counts) != once(broker_counts), len(counts))
        crowded = self.is_batch & (once(broker_counts) * _MESSAGE_MIN_BYTES > self.sizes)
        for row in np.flatnonzero(headers.good & (wrong | crowded)).tolist():
            headers.good[row] = False
            on_bad_entry(
                row,
                f"its header states {counts[row]} messages, the broker {broker_counts[row]}"
                if wrong[row]
                else f"{counts[row]} messages do not fit into {self.sizes[row]} bytes",
            )

    def _unpack(self, compression: Ints, max_bytes: int, on_bad_entry: OnBadEntry) -> None:
        """Make an arena of each entry's header and decompressed payload."""
        headers, view = self.headers, memoryview(self.headers.table.data)
        starts, middles = headers.metadata_starts.tolist(), headers.payload_starts.tolist()
        ends = headers.table.ends.tolist()
        shifts, payload_ends = [0] * len(starts), [0] * len(starts)
        pieces: list[bytes | memoryview] = []
        at = 0
        for row in np.flatnonzero(headers.good).tolist():
            start, middle, end = starts[row], middles[row], ends[row]
            payload: bytes | memoryview = view[middle:end]
            if self.is_packed[row]:
                try:
                    payload = decompress(
                        int(compression[row]), payload, int(self.sizes[row]), max_bytes
                    )
                except DecompressionError as error:
                    headers.good[row] = False
                    on_bad_entry(row, str(error))
                    continue
            pieces += (view[start:middle], payload)
            shifts[row] = at - start
            at += middle - start + len(payload)
            payload_ends[row] = at
        self.arena = b"".join(pieces)
        self.shifts = np.array(shifts, np.int64)
        self.payload_ends = np.array(payload_ends, np.int64)


@dataclass(slots=True)
class Walked:
    """The messages of all batches: their metadata, and the payload right after it."""

    metadata_starts: Ints
    metadata_ends: Ints
    payload_ends: Ints

    def select(self, kept: Bools) -> Walked:
        """Some of the messages."""
        return Walked(self.metadata_starts[kept], self.metadata_ends[kept], self.payload_ends[kept])


def walk_batches(opened: Opened, on_bad_entry: OnBadEntry) -> Walked:
    """Split all batches. A batch that does not end with its last message is marked as bad."""
    good, counts = opened.headers.good, opened.headers.table.counts
    rows = np.flatnonzero(good & opened.is_batch)
    starts, whole = _walk(
        opened.arena, opened.payload_starts[rows], opened.payload_ends[rows], counts[rows]
    )
    entry_rows = np.repeat(rows, counts[rows])
    kept = np.repeat(whole, counts[rows])
    walked, sound = _measured(opened, rows[whole], starts[kept])
    broken = np.union1d(rows[~whole], entry_rows[kept][~sound])
    good[broken] = False
    for row in broken.tolist():
        on_bad_entry(row, f"its batch cannot be split into its {counts[row]} messages")
    still = good[entry_rows[kept]]
    return walked if bool(still.all()) else walked.select(still)


def _measured(opened: Opened, rows: Ints, starts: Ints) -> tuple[Walked, Bools]:
    """The parts of the messages that begin at ``starts``, and whether each is inside its batch."""
    octets = np.frombuffer(opened.arena, np.uint8)
    sizes = u32_at(octets, starts, "big")
    metadata_starts = starts + _SIZE_BYTES
    payload_ends = np.append(starts[1:], 0)[: len(starts)]
    payload_ends[np.cumsum(opened.headers.table.counts[rows]) - 1] = opened.payload_ends[rows]
    # Room for the payload size, whose first byte says whether it has a second.
    sound = sizes >= 2 + (octets[metadata_starts + 1] >= 0x80)
    sound &= sizes <= MESSAGE_METADATA_SIZE_MAX_BYTES
    sound &= metadata_starts + sizes <= payload_ends
    return Walked(metadata_starts, metadata_starts + sizes, payload_ends), sound


def _walk(data: bytes, at: Ints, ends: Ints, counts: Ints) -> tuple[Ints, Bools]:
    """Find the messages of all batches; all batches in parallel while there are enough.

    Returns:
        Where the messages begin, batch after batch, and which batches end with their last message.
        For the other batches the offsets mean nothing.
    """
    firsts = np.cumsum(counts) - counts
    starts = np.zeros(int(counts.sum()), np.int64)
    whole = np.zeros(len(counts), np.bool_)
    octets = np.frombuffer(data, np.uint8)
    lanes, place = np.arange(len(counts)), 0
    at = at.copy()
    while len(lanes) >= FEW_BATCHES:
        starts[firsts[lanes] + place] = at[lanes]
        at[lanes] = _next_messages(octets, at[lanes], ends[lanes])
        place += 1
        going = (counts[lanes] > place) & (at[lanes] < ends[lanes])
        if not going.all():
            done = lanes[~going]
            whole[done] = (counts[done] == place) & (at[done] == ends[done])
            lanes = lanes[going]
    for lane in lanes.tolist():
        begins = array("q")
        try:
            _walk_one(data, int(at[lane]), int(ends[lane]), begins)
        except (MalformedError, IndexError):
            continue
        if len(begins) == counts[lane] - place:
            whole[lane] = True
            first = firsts[lane] + place
            starts[first : first + len(begins)] = begins
    return starts, whole


def _next_messages(data: Bytes, at: Ints, ends: Ints) -> Ints:
    """The starts of the messages after those at ``at``; beyond ``ends`` if one is malformed.

    Eight bytes are enough if the metadata begins with a payload size below 16 KiB: the metadata's
    size and the bytes after it.
    """
    words_at = at_every_place(data, ">u8")
    last = len(words_at) - 1
    if last < 0:
        return _after_unusual_messages(data, at, ends)
    words = words_at[np.minimum(at, last)].astype(np.int64)
    sizes = words >> 32 & 0xFFFF_FFFF
    low, high = words >> 16 & 0xFF, words >> 8 & 0xFF
    is_long = low >= 0x80
    payload_sizes = (low & 0x7F) + (high << 7) * is_long
    odd = (words >> 24 & 0xFF != _PAYLOAD_SIZE_TAG) | (is_long & (high >= 0x80)) | (at > last)
    following: Ints = at + _SIZE_BYTES + sizes + payload_sizes
    rest = np.flatnonzero(odd)
    if len(rest):
        following[rest] = _after_unusual_messages(data, at[rest], ends[rest])
    return following


def _after_unusual_messages(data: Bytes, at: Ints, ends: Ints) -> Ints:
    """The same, field by field, wherever in the metadata the payload's size is."""
    following = ends + 1
    rows = np.flatnonzero(at + _SIZE_BYTES <= ends)
    places = at[rows] + _SIZE_BYTES
    sizes = u32_at(data, at[rows], "big")
    metadata_ends = places + sizes
    inside = (metadata_ends <= ends[rows]) & (places < metadata_ends)
    inside &= sizes <= MESSAGE_METADATA_SIZE_MAX_BYTES
    while True:
        rows, places, metadata_ends = rows[inside], places[inside], metadata_ends[inside]
        if len(rows) < FEW_BATCHES:
            break
        fields = take_fields(data, places, metadata_ends)
        found = fields.tags == _PAYLOAD_SIZE_TAG
        good = found & (fields.values >= 0) & (fields.values <= ends[rows] - metadata_ends)
        following[rows[good]] = metadata_ends[good] + fields.values[good]
        places = fields.ends
        inside = ~found & ~fields.broken & (places < metadata_ends)
    for row, place, end in zip(rows.tolist(), places.tolist(), metadata_ends.tolist(), strict=True):
        try:
            size = _payload_size(data[place:end].tobytes(), 0, end - place)
        except (MalformedError, IndexError):
            continue
        if size <= ends[row] - end:
            following[row] = end + size
    return following


def _walk_one(data: bytes, at: int, end: int, begins: array[int]) -> None:
    """Note where each message of a batch begins; raises MalformedError or IndexError.

    It runs once per message in plain Python. So it reads the usual form itself, like
    ``_next_messages``.
    """
    begin, number_of = begins.append, int.from_bytes
    while at < end:
        begin(at)
        head = number_of(data[at : at + 6], "big")
        if head & 0xFF80 == _PAYLOAD_SIZE_TAG << 8:
            at += _SIZE_BYTES + (head >> 16) + (head & 0x7F)
        elif head & 0xFF00 == _PAYLOAD_SIZE_TAG << 8 and data[at + 6] < 0x80:
            at += _SIZE_BYTES + (head >> 16) + (head & 0x7F) + (data[at + 6] << 7)
        else:
            begin_metadata = at + _SIZE_BYTES
            at = begin_metadata + (head >> 16)
            at += _payload_size(data, begin_metadata, min(at, end))
    if at != end:
        raise MalformedError


def _payload_size(data: bytes, at: int, end: int) -> int:
    """The payload size in the metadata ``data[at:end]``, wherever it is in there.

    Usually it follows properties and a key, and none of them is long.
    """
    if end - at > MESSAGE_METADATA_SIZE_MAX_BYTES:
        raise MalformedError
    while at < end and data[at] in _LEADING_TAGS and data[at + 1] < 0x80:
        at += 2 + data[at + 1]
    size = ABSENT
    for number, wire_type, value, _, _ in fields_of(data[at:end]):
        if (number, wire_type) == (_PAYLOAD_SIZE, 0):
            size = value
            break
    if size < 0:
        raise MalformedError
    return size


UNNAMED_PRODUCER = "kafka"
_ZEROS = 4


def with_messages_of_sets(
    table: EntryTable, max_bytes: int, on_bad_entry: Callable[[EntryTable, int, str], None]
) -> EntryTable:
    """The table with a Pulsar batch in the place of each set.

    Args:
        table: entries with their bodies.
        max_bytes: the most that a set may have as messages.
        on_bad_entry: called with (table, row, reason) for a set that cannot be converted; the entry
            is left out then.
    """
    converted: dict[int, bytes] = {}
    left_out = []
    for row in _sets(table).tolist():
        try:
            messages = _converted(table, row, max_bytes)
        except (RecordSetError, UnconvertibleEntryError, PrefixError) as error:
            on_bad_entry(table, row, f"its record set cannot be read: {error}")
            left_out.append(row)
        else:
            if messages is not None:
                converted[row] = messages
    if not converted and not left_out:
        return table
    rows = np.setdiff1d(np.arange(len(table)), left_out)
    return _rebuilt(table, rows, converted)


def _sets(table: EntryTable) -> Ints:
    """The rows whose bodies begin as a record set does."""
    starts = table.body_starts
    large = table.ends - starts >= _ZEROS
    rows = np.arange(len(table)) if bool(large.all()) else np.flatnonzero(large)
    return rows[np.flatnonzero(items_at(table.octets, "<u4", starts[rows]) == 0)]


def _converted(table: EntryTable, row: int, max_bytes: int) -> bytes | None:
    """Convert a set to headers-and-payload; None if the prefix says it is something else."""
    view = memoryview(table.data)
    body_at = int(table.body_starts[row])
    prefix = peek(view[int(table.starts[row]) : body_at])
    if prefix is None or magic_of(prefix.source_format) is None:
        return None
    return to_pulsar(
        read(view[body_at : int(table.ends[row])]),
        int(table.counts[row]),
        publish_time_ms=int(table.append_times_ms[row]),
        producer_name=prefix.producer_name or UNNAMED_PRODUCER,
        sequence_id=int(table.first_indexes[row]),
        max_bytes=max_bytes,
    )


def _rebuilt(table: EntryTable, rows: Ints, converted: dict[int, bytes]) -> EntryTable:
    """The rows with other bodies, in a buffer of their own."""
    view = memoryview(table.data)
    starts, body_starts, ends = table.starts, table.body_starts, table.ends
    pieces: list[bytes | memoryview] = []
    sizes = []
    for row in rows.tolist():
        body = converted.get(row)
        if body is None:
            entry = [view[int(starts[row]) : int(ends[row])]]
        else:
            entry = [view[int(starts[row]) : int(body_starts[row])], memoryview(body)]
        pieces += entry
        sizes.append(sum(map(len, entry)))
    made = table.select(rows)
    made.data = b"".join(pieces)
    made.ends = np.cumsum(np.array(sizes, np.int64))
    made.starts = made.ends - np.array(sizes, np.int64)
    return made
