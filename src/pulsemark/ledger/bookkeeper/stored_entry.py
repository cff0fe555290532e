"""An entry's bytes: as a batch has them, and as a bookie stores them.

In memory an entry is *packed* (`ledger.entry.unpack`), with a head of its facts. A bookie stores no
head. An ordinary entry is stored as Pulsar stores it, since its facts can be derived: append time
and index are in its stamp, and its count is the difference to the index before it. Any other entry
gets one more field at the end of its prefix, number 121, with all facts (docs/formats.md).

So each entry has its own time and index, and a search needs no index of the ledger.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...metadata import (
    Buffer,
    MessageFormatError,
    MessageHeader,
    PrefixError,
    pack_stamp,
    peek,
    strip,
)
from ..commit.batch import Group
from ..entry import HEAD, KINDS, LAST_KIND, EntryKind
from ..run import ROW_FIELDS

_FACTS = struct.Struct(">BIQQq")
_FACTS_TAG = b"\xca\x07" + bytes([_FACTS.size])
_FACTS_SIZE = len(_FACTS_TAG) + _FACTS.size
_PREFIX = struct.Struct(">HI")
_MAGIC = 0x0E02
_NO_PREFIX = 0x80


class BadEntryError(Exception):
    """The bytes of an entry are not what this engine writes."""


@dataclass(slots=True)
class Facts:
    """The kind, time, index and count of a stored entry."""

    kind: EntryKind
    message_count: int
    """-1: to be derived from the index before."""
    append_time_ms: int
    time_max_ms: int
    """The topic's highest entry time so far, including this entry."""
    index: int


# Packed


def payloads(group: Group) -> Iterator[tuple[Buffer, ...]]:
    """The bytes that bookies store for each entry of a group, in order; views on its buffers."""
    group.join_small_buffers()
    times_max_ms = group.rows[1::ROW_FIELDS]
    if len(group.buffers) > 1:
        yield from map(_large_payload, group.records(), times_max_ms)
        return
    data = bytes(group.buffers[0])  # they are bytes: nothing is copied
    view, end = memoryview(data), 0
    for time_max_ms in times_max_ms:
        start, begin = end, end + HEAD.size
        kind, count, append_time_ms, index, prefix_size, _, size = HEAD.unpack_from(data, start)
        end = begin + size
        # Most entries have a stamp of time and index, and nothing else.
        if not kind and count and append_time_ms == time_max_ms:
            stamp = pack_stamp(append_time_ms, index)
            if prefix_size == len(stamp) and data.startswith(stamp, begin):
                yield (view[begin:end],)
                continue
        yield payload_of(view[start:end], time_max_ms)


def _large_payload(parts: Sequence[Buffer], time_max_ms: int) -> tuple[Buffer, ...]:
    """The payload of a large packed entry, made without copying its body."""
    if len(parts) == 3:
        head, prefix, body = parts
        kind, count, append_time_ms, index, *_ = HEAD.unpack(head)
        is_plain = not kind and count and append_time_ms == time_max_ms
        if is_plain and prefix == pack_stamp(append_time_ms, index):
            return prefix, body
    return payload_of(memoryview(b"".join(parts)), time_max_ms)


def payload_of(packed: memoryview, time_max_ms: int) -> tuple[Buffer, ...]:
    """The bytes that a bookie stores for a packed entry."""
    kind, count, append_time_ms, index, prefix_size, _, _ = HEAD.unpack_from(packed)
    start = HEAD.size
    prefix = packed[start : start + prefix_size]
    if (
        not kind
        and count
        and time_max_ms == append_time_ms
        and prefix_size
        and _begins_with_stamp(prefix, append_time_ms, index)
        and prefix[-_FACTS_SIZE : -_FACTS.size] != _FACTS_TAG
    ):
        return (packed[start:],)
    flags = kind if prefix_size else kind | _NO_PREFIX
    facts = _FACTS.pack(flags, count, append_time_ms, time_max_ms, index)
    fields = prefix[_PREFIX.size :]
    begin = _PREFIX.pack(_MAGIC, len(fields) + _FACTS_SIZE)
    return begin + bytes(fields) + _FACTS_TAG + facts, packed[start + prefix_size :]


def _begins_with_stamp(prefix: memoryview, time_ms: int, index: int) -> bool:
    stamp = pack_stamp(time_ms, index)
    size = len(stamp)
    return bytes(prefix[_PREFIX.size : size]) == stamp[_PREFIX.size :]


# Stored


def read_facts(payload: Buffer) -> Facts:
    """Read a stored entry's facts. Raises BadEntryError."""
    fields_end = _fields_end(payload)
    facts = _facts(payload, fields_end)
    if facts is not None:
        return facts[0]
    try:
        stamp = peek(payload)
    except PrefixError as error:
        raise BadEntryError(str(error)) from error
    if stamp is None or not (stamp.HasField("broker_timestamp") and stamp.HasField("index")):
        raise BadEntryError("it has neither a stamp nor the engine's own facts")
    time_ms = stamp.broker_timestamp
    return Facts(EntryKind.DATA, -1, time_ms, time_ms, stamp.index)


def own_facts(payload: bytes) -> tuple[int, int]:
    """Publish time and number of messages in the producer's header; (0, 1) if it is invalid."""
    try:
        metadata = MessageHeader(strip(payload)).metadata()
    except (MessageFormatError, PrefixError):
        return 0, 1
    return metadata.publish_time, max(1, metadata.num_messages_in_batch)


def as_given(payload: bytes) -> tuple[memoryview, int]:
    """Prefix and body as they were appended, and the prefix' size. Raises BadEntryError."""
    fields_end = _fields_end(payload)
    view = memoryview(payload)
    facts = _facts(payload, fields_end)
    if facts is None:
        return view, fields_end
    if not facts[1]:
        return view[fields_end:], 0
    fields = view[_PREFIX.size : fields_end - _FACTS_SIZE]
    begin = _PREFIX.pack(_MAGIC, len(fields))
    return memoryview(b"".join((begin, fields, view[fields_end:]))), len(begin) + len(fields)


def _fields_end(payload: Buffer) -> int:
    """The end of the prefix; 0 without one. Raises BadEntryError."""
    if len(payload) < _PREFIX.size:
        return 0
    magic, size = _PREFIX.unpack_from(payload)
    if magic != _MAGIC:
        return 0
    end: int = _PREFIX.size + size
    if end > len(payload):
        raise BadEntryError(f"a prefix of {size} bytes in an entry of {len(payload)}")
    return end


def _facts(payload: Buffer, fields_end: int) -> tuple[Facts, bool] | None:
    """The engine's facts, and whether the entry has a prefix of its own; None without them."""
    start = fields_end - _FACTS_SIZE
    if start < _PREFIX.size or bytes(payload[start : start + len(_FACTS_TAG)]) != _FACTS_TAG:
        return None
    flags, count, append_ms, max_ms, index = _FACTS.unpack_from(payload, start + len(_FACTS_TAG))
    kind = flags & ~_NO_PREFIX
    if kind > LAST_KIND:
        raise BadEntryError(f"its kind, {kind}, is not known")
    return Facts(KINDS[kind], count, append_ms, max_ms, index), not flags & _NO_PREFIX
