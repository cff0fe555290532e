"""Arrow arrays from arrays of numbers and of spans, and the columns that are made of them.

The arrays are made without a Python object per value. Tags are the exception: they are all fields
of the stamp except time and index (`metadata.tags_of`), read from the prefix alone, so the column
needs no byte of the producer's. A message id is Pulsar's serialized MessageIdData, which clients'
``deserialize`` reads, and the same as a consumer gets: ledger, entry, the partition at the end of
the topic's name, and, for entries of more than one message, the place in the batch.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...audit.counts import shown
from ...audit.rows import MAX_TIME_MS
from ...metadata import PrefixError, tags_of
from ...metadata.partition_names import partition_of
from ...proto.pulsar_api_pb2 import MessageIdData
from .entries import EntryTable
from .octets import Bools, Ints, items_at, once, once_if_alike, spread, step_of, u32_at
from .protoscan import ABSENT

_INT32_MAX = 2**31 - 1
_US_IN_MS = 1000
_FEW_PROPERTIES = 8


def gather(data: bytes, starts: Ints, ends: Ints) -> pa.Array:
    """The spans of ``data`` as binary values; null if the start is ABSENT.

    The spans must be in rising order and not overlap. Values and the gaps between them then form
    one binary Arrow array over ``data`` itself. Every second element of it is a value.
    """
    count = len(starts)
    present = once(starts) != ABSENT
    if not bool(present.any()):
        return pa.nulls(count, pa.binary())
    if len(data) > _INT32_MAX:
        raise ValueError(f"{len(data)} bytes are too many for Arrow's binary offsets")
    if not bool(present.all()):
        slots = (2 * (np.cumsum(present) - 1)).astype(np.int32)
        return _taken(data, starts[present], ends[present], slots, ~present)
    sizes = once_if_alike(ends - starts)
    if len(sizes) == 1 and step_of(starts) is not None:
        return _of_one_size(data, starts, int(sizes[0]))
    return _taken(data, starts, ends, np.arange(0, 2 * count, 2, dtype=np.int32))


def _of_one_size(data: bytes, starts: Ints, size: int) -> pa.Array:
    """Values of one size that follow each other evenly: a copy without their places."""
    # Arrow's memory is used again for the next values; the system's costs its pages each time.
    values = pa.allocate_buffer(size * len(starts))
    if size:
        made = np.frombuffer(values, f"V{size}")
        made[:] = items_at(np.frombuffer(data, np.uint8), f"V{size}", starts)
    offsets = np.arange(len(starts) + 1, dtype=np.int32) * np.int32(size)
    buffers = [None, pa.py_buffer(offsets), values]
    return pa.Array.from_buffers(pa.binary(), len(starts), buffers)


def _taken(
    data: bytes, starts: Ints, ends: Ints, slots: NDArray[np.int32], absent: Bools | None = None
) -> pa.Array:
    offsets = np.empty(2 * len(starts), np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    values = pa.Array.from_buffers(pa.binary(), 2 * len(starts) - 1, buffers)
    return values.take(pa.array(slots, mask=absent))


def text(values: pa.Array) -> pa.Array:
    """Binary values as strings; bytes that are not UTF-8 become U+FFFD."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [None if v is None else v.decode(errors="replace") for v in values.to_pylist()]
        return pa.array(decoded, pa.string())


def without_base64(values: pa.Array, encoded: Bools) -> pa.Array:
    """Decode base64 if ``encoded``; a value that is not base64 is left unchanged."""
    if not encoded.any():
        return values
    plain: list[bytes | None] = values.to_pylist()
    for row in np.flatnonzero(encoded).tolist():
        value = plain[row]
        if value is not None:
            try:
                plain[row] = base64.b64decode(value, validate=True)
            except binascii.Error:
                continue
    return pa.array(plain, pa.binary())


def timestamps(times_ms: Ints) -> pa.Array:
    """Milliseconds since the epoch as Spark's timestamps.

    Null if ABSENT or after the year 9999, which Spark cannot show. Such times come from producers
    that put other values into the field.
    """
    if len(times_ms) and times_ms.min() >= 0 and times_ms.max() < MAX_TIME_MS:
        return pa.array(times_ms * _US_IN_MS, pa.int64()).view(pa.timestamp("us", tz="UTC"))
    shown = (times_ms >= 0) & (times_ms < MAX_TIME_MS)
    times_us = np.where(shown, times_ms, 0) * _US_IN_MS
    return pa.array(times_us, pa.timestamp("us", tz="UTC"), mask=~shown)


def small_integers(values: Ints) -> pa.Array:
    """32-bit numbers; null if ABSENT or out of range."""
    inside = (values >= 0) & (values <= _INT32_MAX)
    return pa.array(np.where(inside, values, 0).astype(np.int32), mask=~inside)


REGISTRY_HEADER_BYTES = 5
"""What a schema registry's clients put in front of a value: a zero, and the id, big-endian."""


def registry_ids(values: pa.Array) -> tuple[Ints, Ints, Ints]:
    """The ids of schemas in front of values, and where in their buffer the rest begins and ends.

    The id is -1, and the beginning ABSENT, for a value that has none.
    """
    inside = slice(values.offset, values.offset + len(values) + 1)
    offsets: Ints = np.frombuffer(values.buffers()[1], np.int32)[inside].astype(np.int64)
    octets = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    ids, starts = np.full(len(values), -1, np.int64), np.full(len(values), ABSENT, np.int64)
    large = values.is_valid().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero((np.diff(offsets) >= REGISTRY_HEADER_BYTES) & large)
    rows = rows[octets[offsets[rows]] == 0]
    found = u32_at(octets, offsets[rows] + 1, "big")
    rows, found = rows[found <= _INT32_MAX], found[found <= _INT32_MAX]
    ids[rows], starts[rows] = found, offsets[rows] + REGISTRY_HEADER_BYTES
    return ids, starts, offsets[1:]


def maps(rows: Ints, keys: pa.Array, values: pa.Array, count: int, type_: Any) -> pa.Array:
    """Maps of strings for ``count`` rows. ``rows`` (in rising order) is each pair's row.

    If a row has several pairs with the same key, the last one counts, as in Pulsar's clients. In a
    map with the same key twice, the value would depend on the way of reading it.
    """
    keys = text(keys)
    kept = _last_of_each(rows, keys)
    if kept is not None:
        rows, keys, values = rows[kept], keys.take(pa.array(kept)), values.take(pa.array(kept))
    if len(rows):
        offsets = np.searchsorted(rows, np.arange(count + 1)).astype(np.int32)
    else:
        offsets = np.zeros(count + 1, np.int32)
    return pa.MapArray.from_arrays(pa.array(offsets), keys, text(values), type=type_)


def _last_of_each(rows: Ints, keys: pa.Array) -> Ints | None:
    """Which pairs are the last with their key in their row; None if all are."""
    apart = 1
    if not bool((rows[apart:] == rows[:-apart]).any()):
        return None
    encoded = keys.dictionary_encode()
    pairs = rows * len(encoded.dictionary) + encoded.indices.to_numpy().astype(np.int64)
    replaced = np.zeros(len(rows), np.bool_)
    # Rows have few properties, so comparing each with the next ones is faster than sorting.
    while apart <= _FEW_PROPERTIES and bool((rows[apart:] == rows[:-apart]).any()):
        replaced[:-apart] |= pairs[apart:] == pairs[:-apart]
        apart += 1
    if apart > _FEW_PROPERTIES:
        _, lasts = np.unique(pairs[::-1], return_index=True)
        replaced[:] = True
        replaced[len(pairs) - 1 - lasts] = False
    return np.flatnonzero(~replaced) if bool(replaced.any()) else None


def tag_maps(table: EntryTable, type_: Any) -> pa.Array:
    """A map of strings, of the Arrow type ``type_``, for each entry; empty if it has no tags."""
    by_entry = [list(_tags(table, row).items()) for row in range(len(table))]
    return pa.array(by_entry, type_)


def _tags(table: EntryTable, row: int) -> dict[str, str]:
    start = int(table.starts[row])
    try:
        tags = tags_of(memoryview(table.data)[start : start + int(table.prefix_sizes[row])])
    except PrefixError:
        # The record's checksum was right, so another program wrote these bytes.
        return {}
    return {name: shown(value) for name, value in tags.items()}


_LEDGER_ID_TAG = MessageIdData.LEDGERID_FIELD_NUMBER << 3
_ENTRY_ID_TAG = MessageIdData.ENTRYID_FIELD_NUMBER << 3
_PARTITION_TAG = MessageIdData.PARTITION_FIELD_NUMBER << 3
_BATCH_INDEX_TAG = MessageIdData.BATCH_INDEX_FIELD_NUMBER << 3
_BATCH_SIZE_TAG = MessageIdData.BATCH_SIZE_FIELD_NUMBER << 3


def message_ids(
    topic: str, ledger_ids: Ints, entry_ids: Ints, counts: Ints, places: Ints
) -> pa.Array:
    """Ids of messages, each with the messages of its entry, and its place among them, from 0."""
    octets = [*_field(_LEDGER_ID_TAG, ledger_ids), *_field(_ENTRY_ID_TAG, entry_ids)]
    _, partition = partition_of(topic)
    if partition >= 0:
        octets += _field(_PARTITION_TAG, spread(np.array([partition]), len(entry_ids)))
    # The id of a message that is alone in its entry has no batch index.
    in_batch = once_if_alike(counts > 1)
    if bool(in_batch.any()):
        present = in_batch if len(in_batch) > 1 else True
        octets += _field(_BATCH_INDEX_TAG, places, present)
        octets += _field(_BATCH_SIZE_TAG, counts, present)
    return _joined(octets, len(entry_ids))


Octet = tuple[Ints | int, Bools | bool]
"""A byte of each id, and which ids have it."""


def _joined(octets: list[Octet], count: int) -> pa.Array:
    values = np.empty((count, len(octets)), np.uint8)
    for place, (value, _) in enumerate(octets):
        values[:, place] = value
    if all(used is True for _, used in octets):
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(octets))
    else:
        used = np.empty((count, len(octets)), np.bool_)
        for place, (_, is_used) in enumerate(octets):
            used[:, place] = is_used
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(np.count_nonzero(used, axis=1), out=offsets[1:])
        values = values[used]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _field(tag: int, numbers: Ints, present: Bools | bool = True) -> list[Octet]:
    """A field with its tag, byte by byte for all rows: its value, and which rows have it."""
    octets: list[Octet] = [(tag, present)]
    rest, is_used = once(numbers), present
    while True:
        goes_on = once_if_alike(rest >= 0x80)
        if not bool(goes_on.any()):
            return [*octets, (rest, is_used)]
        octets.append((rest & 0x7F | goes_on.astype(np.int64) << 7, is_used))
        rest = rest >> 7
        if len(goes_on) > 1:
            is_used = goes_on & is_used
