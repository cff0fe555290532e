"""The broker entry prefix: the bytes that the broker writes in front of an entry.

The broker writes it without opening the entry. It is Pulsar's (PIP-70), in the layout of Pulsar
2.8 and later; docs/entry-format.md has it byte by byte.

Rules:

- An entry that does not begin with 0x0e02 has no prefix. That is not an error: stamps can be off,
  and one topic may hold entries of both kinds. A message's own header begins with 0x0e01 or with a
  size, so the two cannot be confused.
- The prefix has no checksum of its own; the checksum of the store's record covers it. So every
  size in it is checked against the buffer before it is used, and against a limit before the bytes
  are parsed.
- `peek`, `split` and `strip` never copy the body; the memoryviews that they return share the
  entry's memory.
- An ordinary entry's prefix has the same bytes as Pulsar's: fields at their defaults are left out.
- Bytes that break these rules raise `PrefixError` and nothing else.

`pack_stamp` writes the prefix of nearly every entry: only broker time and index. It is a faster
`pack` without protobuf, and must give the same bytes.

**Application tags** are names with bytes in the prefix, for readers that do not open the payload.
A topic's policy names properties of messages and producers. At an append,
`builtin_stampers.PropertyTagsStamper` copies their values into the prefix. Third parties' stampers
may add others. The rules are those of field 109 in broker_entry.proto: each name has at most one
tag, and tags are written in the order of their names.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

from google.protobuf.message import DecodeError, EncodeError

from ..proto.broker_entry_pb2 import BrokerEntryMetadata
from .crc import Buffer
from .errors import PrefixError
from .protobuf_fields import ONE_BYTE, varint

PREFIX_MAGIC = 0x0E02
PREFIX_HEADER_SIZE_BYTES = 6
# Pulsar's two fields need at most 22 bytes; the rest is for application tags. Without a limit, a
# damaged size could make a reader parse megabytes.
PREFIX_METADATA_SIZE_MAX_BYTES = 64 * 1024
_HEADER = struct.Struct(">HI")
_MAGIC_HIGH, _MAGIC_LOW = PREFIX_MAGIC >> 8, PREFIX_MAGIC & 0xFF
APPLICATION_TAGS_FIELD = BrokerEntryMetadata.APPLICATION_TAGS_FIELD_NUMBER
# Looked up once, because the look-up takes a third as long as the call itself. It takes any buffer,
# though its type annotation does not say so.
_decode: Callable[[Buffer], BrokerEntryMetadata] = BrokerEntryMetadata.FromString  # type: ignore[assignment]


def has_prefix(entry: Buffer) -> bool:
    """Whether these bytes begin with the magic 0x0e02. The bytes after it are not checked."""
    return len(entry) >= 2 and entry[0] == _MAGIC_HIGH and entry[1] == _MAGIC_LOW


def prefix_size_bytes(entry: Buffer) -> int:
    """The size of the prefix; 0 without one. Raises PrefixError: cut off, or too large."""
    if len(entry) < PREFIX_HEADER_SIZE_BYTES:
        if not has_prefix(entry):
            return 0
        raise PrefixError(
            f"cut off after {len(entry)} of {PREFIX_HEADER_SIZE_BYTES} header bytes", 0
        )
    magic, size_bytes = _HEADER.unpack_from(entry)
    if magic != PREFIX_MAGIC:
        return 0
    end: int = PREFIX_HEADER_SIZE_BYTES + size_bytes
    if size_bytes > PREFIX_METADATA_SIZE_MAX_BYTES:
        raise PrefixError(f"{size_bytes} bytes; the limit is {PREFIX_METADATA_SIZE_MAX_BYTES}", 2)
    if end > len(entry):
        raise PrefixError(f"{size_bytes} bytes reach beyond the entry's {len(entry)} bytes", 2)
    return end


def peek(entry: Buffer) -> BrokerEntryMetadata | None:
    """The entry's broker metadata, or None if it has no prefix. The body is not read.

    Fields that this version does not know are kept as unknown fields. A missing field is not the
    same as zero: ask with `HasField`. Application tags are checked only by `application_tags`.

    Raises PrefixError: the prefix is cut off, too large, or no protobuf.
    """
    end = prefix_size_bytes(entry)
    return _parse(entry, end) if end else None


def split(entry: Buffer) -> tuple[BrokerEntryMetadata | None, memoryview]:
    """The broker metadata or None, and a view of the headers-and-payload. Raises PrefixError."""
    end = prefix_size_bytes(entry)
    return (_parse(entry, end) if end else None), memoryview(entry)[end:]


def strip(entry: Buffer) -> memoryview:
    """A view of the producer's headers-and-payload. Raises PrefixError: cut off, or too large."""
    return memoryview(entry)[prefix_size_bytes(entry) :]


def pack(metadata: BrokerEntryMetadata) -> bytes:
    """The prefix of `metadata`. Raises PrefixError: too large, or a tag without key or value."""
    try:
        body = metadata.SerializeToString()
    except EncodeError as error:
        raise PrefixError(str(error), PREFIX_HEADER_SIZE_BYTES) from error
    return pack_encoded(body)


def pack_encoded(encoded: bytes) -> bytes:
    """The prefix of encoded metadata. Raises PrefixError if it is too large."""
    if len(encoded) > PREFIX_METADATA_SIZE_MAX_BYTES:
        raise PrefixError(f"{len(encoded)} bytes; the limit is {PREFIX_METADATA_SIZE_MAX_BYTES}", 2)
    return _HEADER.pack(PREFIX_MAGIC, len(encoded)) + encoded


def pack_for_client(metadata: BrokerEntryMetadata | None) -> bytes:
    """The prefix for clients that ask for it (PIP-90): fields 1 and 2 only; b"" without them."""
    if metadata is None:
        return b""
    shown = BrokerEntryMetadata()
    if metadata.HasField("broker_timestamp"):
        shown.broker_timestamp = metadata.broker_timestamp
    if metadata.HasField("index"):
        shown.index = metadata.index
    return pack(shown) if shown.ByteSize() else b""


def _parse(entry: Buffer, end: int) -> BrokerEntryMetadata:
    """The protobuf between the prefix's header and `end`."""
    try:
        return _decode(entry[PREFIX_HEADER_SIZE_BYTES:end])
    except DecodeError as error:
        raise PrefixError("not a BrokerEntryMetadata protobuf", PREFIX_HEADER_SIZE_BYTES) from error


# ---- the stamp without protobuf ----------------------------------------------------------------
#
# A varint holds a number in groups of seven bits, lowest group first. The eighth bit is set in all
# groups but the last. Time and index both grow slowly: the groups above the two lowest change only
# every 16 seconds, or every 16,384 messages. So their bytes are cached. The whole time field is
# cached too, because at 100,000 entries a second a hundred entries share one millisecond.

_UINT64_MAX = 2**64 - 1
_GROUP_MORE = [bytes((group | 128,)) for group in range(128)]
_LOW_GROUPS_BITS = 14
# The tags of field 1 and field 2: number << 3 | wire type 0.
_TIME_TAG, _INDEX_TAG = b"\x08", b"\x10"
_HEADERS = [_HEADER.pack(PREFIX_MAGIC, size_bytes) for size_bytes in range(23)]
_HIGH_GROUPS_MAX_COUNT = 4096
_high_groups: dict[int, bytes] = {}
# Replaced as one object, so that a thread never sees a time with the bytes of another time.
_last_time: tuple[int, bytes] = (0, _TIME_TAG + ONE_BYTE[0] + _INDEX_TAG)


def pack_stamp(broker_timestamp_ms: int, index: int) -> bytes:
    """The prefix with broker time and the last message's index, as `pack` makes it of the two.

    Raises ValueError: a number is not a uint64.
    """
    time_ms, time_field = _last_time
    if time_ms != broker_timestamp_ms:
        time_field = _cache_time(broker_timestamp_ms)
    high = index >> _LOW_GROUPS_BITS
    if not high:
        low = varint(index)
        return b"".join((_HEADERS[len(time_field) + len(low)], time_field, low))
    groups = _high_groups.get(high) or _cache_high_groups(high)
    return b"".join(
        (
            _HEADERS[len(time_field) + 2 + len(groups)],
            time_field,
            _GROUP_MORE[index & 127],
            _GROUP_MORE[index >> 7 & 127],
            groups,
        )
    )


def pack_stamps(
    broker_timestamp_ms: int, next_index: int, message_counts: Sequence[int]
) -> list[bytes]:
    """The prefixes of consecutive entries with the same time, each as `pack_stamp` makes it.

    The first entry begins at `next_index`; each has at least one message. Raises ValueError.
    """
    stamps: list[bytes] = []
    index = next_index - 1
    # The bytes before the index's lowest group, and those after it, stay the same for a while.
    head = tail = b""
    shared = -1
    for count in message_counts:
        index += count
        if index >> 7 != shared or not tail:
            if index < 1 << _LOW_GROUPS_BITS:
                stamps.append(pack_stamp(broker_timestamp_ms, index))
                continue
            shared = index >> 7
            high = index >> _LOW_GROUPS_BITS
            tail = _GROUP_MORE[shared & 127] + (_high_groups.get(high) or _cache_high_groups(high))
            time_ms, time_field = _last_time
            if time_ms != broker_timestamp_ms:
                time_field = _cache_time(broker_timestamp_ms)
            head = _HEADERS[len(time_field) + 1 + len(tail)] + time_field
        stamps.append(head + _GROUP_MORE[index & 127] + tail)
    return stamps


def _cache_time(time_ms: int) -> bytes:
    """The bytes from field 1's tag to field 2's, cached for entries of the same millisecond."""
    global _last_time
    high = time_ms >> _LOW_GROUPS_BITS
    if high:
        groups = _high_groups.get(high) or _cache_high_groups(high)
        low, middle = _GROUP_MORE[time_ms & 127], _GROUP_MORE[time_ms >> 7 & 127]
        field = b"".join((_TIME_TAG, low, middle, groups, _INDEX_TAG))
    else:
        field = b"".join((_TIME_TAG, varint(time_ms), _INDEX_TAG))
    _last_time = (time_ms, field)
    return field


def _cache_high_groups(high: int) -> bytes:
    """The varint of the groups above a number's two lowest, cached for numbers near it."""
    if not 0 < high <= _UINT64_MAX >> _LOW_GROUPS_BITS:
        raise ValueError(f"a stamp holds numbers from 0 to {_UINT64_MAX}")
    if len(_high_groups) >= _HIGH_GROUPS_MAX_COUNT:
        _high_groups.clear()
    groups = _high_groups[high] = varint(high)
    return groups


def application_tags(metadata: BrokerEntryMetadata | None) -> dict[str, bytes]:
    """The application tags by name. Raises PrefixError for incomplete or repeated ones."""
    tags: dict[str, bytes] = {}
    if metadata is None:
        return tags
    for tag in metadata.application_tags:
        if not (tag.HasField("key") and tag.HasField("value")):
            raise PrefixError("an application tag lacks key or value", PREFIX_HEADER_SIZE_BYTES)
        # protobuf's C parser returns a string that is not UTF-8 as bytes.
        if not isinstance(tag.key, str):
            raise PrefixError("an application tag's key is not UTF-8", PREFIX_HEADER_SIZE_BYTES)
        if tag.key in tags:
            raise PrefixError(f"application tag {tag.key!r} occurs twice", PREFIX_HEADER_SIZE_BYTES)
        tags[tag.key] = tag.value
    return tags


def add_application_tags(metadata: BrokerEntryMetadata, tags: Mapping[str, bytes]) -> None:
    """Add tags, or replace those of the same name. Raises PrefixError as `application_tags`."""
    merged = application_tags(metadata) | dict(tags)
    del metadata.application_tags[:]
    for name in sorted(merged):
        metadata.application_tags.add(key=name, value=merged[name])
