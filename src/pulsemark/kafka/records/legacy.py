"""Messages of magic 0 and 1: reading and building them, plain and in wrappers (KIP-31, KIP-32).

A compressed set is one message, the wrapper, whose value is the set, compressed. What its offsets
mean is where the magics differ:

- Magic 0: the inner offsets are absolute, and the wrapper has the last of them. A broker that
  assigns offsets has to decompress and compress again.
- Magic 1: the inner offsets count from the set's beginning, and the wrapper has the absolute
  offset of the last one. So absolute = wrapper's - last inner + inner, and a broker writes 8 bytes.
  With the wrapper's `LOG_APPEND_TIME` bit its time is that of all inner messages.

An entry is stored in one form for both: offsets count from the entry's first message on. Only those
inside a wrapper of magic 0 may count from another base, such as the entry's own offset (the
prefix's ``inner_base_offset``); a reader that counts back from the wrapper's offset does not need
it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...metadata import Buffer
from . import layout
from .compression import compress, decompress
from .layout import (
    CODEC_MASK,
    LOG_APPEND_TIME,
    MAX_RECORDS,
    MESSAGE_HEADER,
    MESSAGE_KEY_AT,
    NO_TIME_MS,
    SIZE,
    Codec,
    CorruptRecordSetError,
    InvalidRecordSetError,
    Record,
    Span,
    Work,
    spans,
    whole_spans,
)

_UNCOVERED = struct.Struct(">qiI")
_COVERED_0 = struct.Struct(">bBi")
_COVERED_1 = struct.Struct(">bBqi")


class Message(NamedTuple):
    """One message of a set."""

    offset: int
    magic: int
    attributes: int
    time_ms: int
    key: bytes | None
    value: bytes | None

    @property
    def codec(self) -> int:
        """Not 0: a wrapper."""
        return self.attributes & CODEC_MASK


def read_message(records: Buffer, span: Span) -> Message:
    """Parse a message of a set. Raises CorruptRecordSetError for a wrong checksum or bad sizes."""
    start, end, magic = span
    if end - start < MESSAGE_KEY_AT[magic] + 2 * SIZE.size:
        raise CorruptRecordSetError(f"a message of {end - start} bytes, of magic {magic}")
    offset, _, crc, _, attributes = MESSAGE_HEADER.unpack_from(records, start)
    actual = zlib.crc32(memoryview(records)[start + layout.MESSAGE_COVERED_AT : end])
    if actual != crc:
        raise CorruptRecordSetError(
            f"CRC-32 of a message: header says {crc:#010x}, bytes give {actual:#010x}"
        )
    time_ms = NO_TIME_MS
    if magic:
        (time_ms,) = layout.TIME.unpack_from(records, start + layout.MESSAGE_TIME_AT)
    key, at = _read_bytes(records, start + MESSAGE_KEY_AT[magic], end)
    value, at = _read_bytes(records, at, end)
    if at != end:
        raise CorruptRecordSetError(f"{end - at} bytes of a message after its value")
    return Message(offset, magic, attributes, time_ms, key, value)


def _read_bytes(records: Buffer, at: int, end: int) -> tuple[bytes | None, int]:
    if at + SIZE.size > end:
        raise CorruptRecordSetError("a message ends before the size of its key or value")
    (size,) = SIZE.unpack_from(records, at)
    at += SIZE.size
    if size == -1:
        return None, at
    if not 0 <= size <= end - at:
        raise CorruptRecordSetError(f"{size} bytes in a message that has {end - at} left")
    return bytes(records[at : at + size]), at + size


def open_wrapper(wrapper: Message, max_bytes: int, work: Work) -> bytes:
    """The set in a wrapper, decompressed; `inner_messages` reads it.

    Raises as `decompress`, and InvalidRecordSetError: no value, or zstd, which only magic 2 has.
    """
    if not wrapper.value:
        raise InvalidRecordSetError("a compressed message without value")
    if wrapper.codec == Codec.ZSTD:
        raise InvalidRecordSetError(f"zstd in a message of magic {wrapper.magic}")
    return decompress(wrapper.codec, wrapper.value, wrapper.magic, max_bytes, work)


def inner_messages(raw: bytes, magic: int) -> Iterator[Message]:
    """The messages of a wrapper's set, offsets as stored.

    Raises InvalidRecordSetError: it is empty, cut off, of another magic, has a wrapper in it, or
    more than `MAX_RECORDS` messages; and as `read_message`.
    """
    count = end = 0
    for span in spans(raw):
        if span.magic != magic:
            raise InvalidRecordSetError(
                f"a message of magic {span.magic} in a wrapper of magic {magic}"
            )
        message = read_message(raw, span)
        if message.codec:
            raise InvalidRecordSetError("a wrapper in a wrapper")
        count, end = count + 1, span.end
        if count > MAX_RECORDS:
            raise InvalidRecordSetError(f"more than {MAX_RECORDS} messages in a wrapper")
        yield message
    if end != len(raw) or not count:
        raise InvalidRecordSetError(f"{len(raw) - end} of {len(raw)} inner bytes are not a message")


def wrapped_records(wrapper: Message, raw: bytes) -> Iterator[Record]:
    """The records of a wrapper with the set ``raw``, with its base. Raises as `inner_messages`."""
    last = last_inner_offset(raw)
    own_time = not (wrapper.magic and wrapper.attributes & LOG_APPEND_TIME)
    for message in inner_messages(raw, wrapper.magic):
        yield Record(
            wrapper.offset - last + message.offset,
            message.time_ms if own_time else wrapper.time_ms,
            message.key,
            message.value,
        )


def last_inner_offset(raw: bytes) -> int:
    """The stored offset of the last message in a wrapper's set; 0 without messages."""
    last = 0
    for span in spans(raw):
        (last,) = layout.OFFSET.unpack_from(raw, span.start)
    return last


def read_records(records: Buffer, max_bytes: int, work: Work) -> Iterator[Record]:
    """The records of a stored set of magic 0 or 1. Raises as `inner_messages`, `open_wrapper`."""
    for span in whole_spans(records):
        message = read_message(records, span)
        if message.codec:
            yield from wrapped_records(message, open_wrapper(message, max_bytes, work))
        else:
            yield Record(message.offset, message.time_ms, message.key, message.value)


def plain_message(record: Record, magic: int, bits: int = 0, base: int = 0) -> bytes:
    """A record as a plain message with these attribute ``bits``, ``base`` added to its offset."""
    return pack_message(base + record.offset, magic, bits, record.time_ms, record.key, record.value)


def pack_message(
    offset: int, magic: int, attributes: int, time_ms: int, key: bytes | None, value: bytes | None
) -> bytes:
    """Pack a message, with its checksum."""
    key_size, value_size = -1 if key is None else len(key), -1 if value is None else len(value)
    if magic:
        head = _COVERED_1.pack(magic, attributes, time_ms, key_size)
    else:
        head = _COVERED_0.pack(magic, attributes, key_size)
    body = b"".join((head, key or b"", SIZE.pack(value_size), value or b""))
    return _UNCOVERED.pack(offset, layout.CRC.size + len(body), zlib.crc32(body)) + body


def pack_wrapper(
    records: Iterable[Record],
    magic: int,
    codec: int,
    work: Work,
    base: int = 0,
    bits: int = 0,
    inner_base: int | None = None,
) -> bytes:
    """A wrapper of these records, whose offsets count from ``base`` on; empty without records.

    Magic 0 has the absolute offsets inside, or those from ``inner_base`` on; magic 1 has them only
    in the wrapper. Its time is the latest inner one. ``bits`` are attributes beside the codec.
    Raises CodecError.
    """
    raw = bytearray()
    last, time_ms = -1, NO_TIME_MS
    if inner_base is None:
        inner_base = 0 if magic else base
    for record in records:
        last, time_ms = record.offset, max(time_ms, record.time_ms)
        raw += plain_message(record, magic, bits, inner_base)
    if last < 0:
        return b""
    value = compress(codec, raw, magic, work)
    return pack_message(base + last, magic, bits | codec, time_ms, None, value)


def patch_message(
    message: bytearray, offset: int, time_ms: int | None = None, *, log_append: bool = False
) -> None:
    """Write a message's offset, and a time if one is given, with a new checksum (magic 1)."""
    layout.OFFSET.pack_into(message, 0, offset)
    if time_ms is None:
        return
    if log_append:
        message[layout.MESSAGE_ATTRIBUTES_AT] |= LOG_APPEND_TIME
    layout.TIME.pack_into(message, layout.MESSAGE_TIME_AT, time_ms)
    crc = zlib.crc32(memoryview(message)[layout.MESSAGE_COVERED_AT :])
    layout.CRC.pack_into(message, layout.MESSAGE_CRC_AT, crc)
