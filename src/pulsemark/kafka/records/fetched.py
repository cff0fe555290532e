"""Converts a stored entry to what a consumer's version of Fetch understands.

A client says with the version of its fetch request which magic it understands. If that is the
stored one or a newer one, it gets the stored bytes, as views, with a few fields written in front of
them: never up-converted (KIP-31). An older client gets the entry converted, by the entry's own
magic, so a log may hold all of them side by side.

==============================  ===============================================================
stored, and sent as it is       written on a fetch
==============================  ===============================================================
magic 2                         base offset, leader epoch: outside the checksum
magic 1, wrapper                its offset: outside the checksum
magic 0 or 1, plain             each message's offset
magic 0, wrapper                its offset, if the offsets inside are the log's; else it is rebuilt:
                                decompressed, compressed
magic 1, 2 with LogAppendTime   also the attributes' bit, the time, the checksum; no record
==============================  ===============================================================

Down from magic 2, as Kafka's ``RecordsUtil``: the codec stays (zstd cannot: `CodecError`), headers
and a tombstone's value are lost, and of an uncompressed set the records before the offset that was
asked for are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ...metadata import Buffer
from . import batch as batches
from . import layout, legacy
from .convert import counted, to_legacy
from .layout import (
    CODEC_MASK,
    LOG_APPEND_TIME,
    MAX_MAGIC,
    Codec,
    CorruptRecordSetError,
    Record,
    Span,
    Work,
    stored_magic,
    whole_spans,
)
from .legacy import pack_wrapper, patch_message, read_message
from .rules import MAX_RAW_BYTES

_MAGIC_OF_VERSION = ((4, 2), (2, 1))


def max_magic_of(fetch_version: int) -> int:
    """The newest magic that a client with this version of Fetch understands (KIP-31, KIP-98)."""
    return next((magic for least, magic in _MAGIC_OF_VERSION if fetch_version >= least), 0)


@dataclass(frozen=True, slots=True)
class StoredSet:
    """An entry's record set, with the facts of its prefix."""

    body: Buffer
    base_offset: int
    """The offset of its first message: index - message count + 1, holes counted."""
    leader_epoch: int = 0
    broker_time_ms: int | None = None
    """The time of all its records for consumers (LogAppendTime); None: each has its own."""
    inner_base_offset: int | None = None
    """The first inner offset of a wrapper of magic 0; None: not known."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The buffers to be sent for a set."""

    parts: tuple[Buffer, ...]
    """Views on the stored body where it is unchanged; empty: the client can see nothing of it."""
    size_bytes: int
    work: Work


def fetch(
    stored: StoredSet, max_magic: int, fetch_offset: int = 0, max_raw_bytes: int = MAX_RAW_BYTES
) -> Fetched:
    """Convert a stored set to a magic that the client understands.

    Args:
        stored: an entry of source format Kafka. Its body must not change before the parts are sent.
        max_magic: `max_magic_of` the request's version.
        fetch_offset: the offset asked for.
        max_raw_bytes: the most that is decompressed at once.

    Raises CodecError: zstd for a client of magic 0 or 1, or a missing library. Raises
    RecordSetError: the stored bytes are not a record set.
    """
    work = Work()
    body = memoryview(stored.body)
    try:
        parts = _parts(stored, body, max_magic, fetch_offset, max_raw_bytes, work)
    except struct.error as error:
        raise CorruptRecordSetError(f"a stored set with an impossible offset: {error}") from error
    return Fetched(parts, sum(map(len, parts)), work)


def _parts(
    stored: StoredSet,
    body: memoryview,
    max_magic: int,
    fetch_offset: int,
    max_raw_bytes: int,
    work: Work,
) -> tuple[Buffer, ...]:
    magic = stored_magic(body)
    if magic <= max_magic:
        if magic == 2:
            return _batch(stored, body)
        return _messages(stored, body, fetch_offset, max_raw_bytes, work)
    records = read(body, max_raw_bytes=max_raw_bytes, work=work)
    if (time_ms := stored.broker_time_ms) is not None:
        records = (record._replace(time_ms=time_ms) for record in records)
    codec = codec_of(body, magic)
    if codec == Codec.NONE:
        first = fetch_offset - stored.base_offset
        records = (record for record in records if record.offset >= first)
    bits = LOG_APPEND_TIME if max_magic and _has_broker_time(stored, body, magic) else 0
    converted = to_legacy(records, max_magic, codec, work, stored.base_offset, bits)
    return (converted,) if converted else ()


def batch_as_stored(
    body: memoryview, base_offset: int, leader_epoch: int
) -> tuple[Buffer, ...] | None:
    """A batch of magic 2 as `fetch` sends it, at a third of the cost; None for other sets."""
    if len(body) < layout.BATCH_HEADER_BYTES or body[layout.MAGIC_AT] != MAX_MAGIC:
        return None
    (size,) = layout.SIZE.unpack_from(body, layout.SIZE_AT)
    if size + layout.LOG_OVERHEAD_BYTES != len(body):
        return None
    head = layout.BATCH_OFFSET_SIZE_EPOCH.pack(base_offset, size, leader_epoch)
    return head, body[layout.MAGIC_AT :]


def _batch(stored: StoredSet, body: memoryview) -> tuple[Buffer, ...]:
    """A batch of magic 2 with base offset and leader epoch; perhaps with the broker's time."""
    header = batches.read_whole_header(body)
    if stored.broker_time_ms is None:
        head = layout.BATCH_OFFSET_SIZE_EPOCH.pack(
            stored.base_offset, header.size, stored.leader_epoch
        )
        return head, body[len(head) :]
    records = body[layout.BATCH_HEADER_BYTES :]
    header = header._replace(
        base_offset=stored.base_offset,
        leader_epoch=stored.leader_epoch,
        attributes=header.attributes | LOG_APPEND_TIME,
        max_time_ms=stored.broker_time_ms,
    )
    return batches.sealed_header(header, records), records


def ends_before(parts: tuple[Buffer, ...], fetch_offset: int) -> bool:
    """Whether a wrapper of magic 0 or 1 has no message from an offset on, after compaction.

    A client that got it would drop all of it, and ask for the same offset again.
    """
    return bool(parts) and int(layout.OFFSET.unpack_from(parts[0])[0]) < fetch_offset


def _messages(
    stored: StoredSet, body: memoryview, fetch_offset: int, max_raw_bytes: int, work: Work
) -> tuple[Buffer, ...]:
    """Messages of magic 0 or 1 with absolute offsets; perhaps with the broker's time.

    Uncompressed ones begin at the fetch offset, as in Kafka.
    """
    parts: list[Buffer] = []
    for span in whole_spans(body):
        (relative,) = layout.OFFSET.unpack_from(body, span.start)
        if stored.base_offset + relative < fetch_offset and not codec_of(body, 0):
            continue
        is_foreign = stored.inner_base_offset != stored.base_offset
        if span.magic == 0 and codec_of(body, 0) and is_foreign:
            wrapper = read_message(body, span)
            raw = legacy.open_wrapper(wrapper, max_raw_bytes, work)
            records = counted(legacy.wrapped_records(wrapper, raw), work)
            parts.append(pack_wrapper(records, 0, wrapper.codec, work, stored.base_offset))
            continue
        parts += _message(stored, body, span)
    return tuple(parts)


def _message(stored: StoredSet, body: memoryview, span: Span) -> tuple[Buffer, ...]:
    (relative,) = layout.OFFSET.unpack_from(body, span.start)
    offset = stored.base_offset + relative
    if span.magic == 0 or stored.broker_time_ms is None:
        return layout.OFFSET.pack(offset), body[span.start + layout.OFFSET.size : span.end]
    message = bytearray(body[span.start : span.end])
    patch_message(message, offset, stored.broker_time_ms, log_append=True)
    return (message,)


def is_hole(body: Buffer) -> bool:
    """Whether a stored set has no records. Raises RecordSetError."""
    return stored_magic(body) == MAX_MAGIC and not batches.read_whole_header(body).record_count


def codec_of(body: Buffer, magic: int) -> int:
    """The codec of a stored set."""
    if magic == 2:
        return batches.read_header(memoryview(body)).attributes & CODEC_MASK
    return body[layout.MESSAGE_ATTRIBUTES_AT] & CODEC_MASK


def _has_broker_time(stored: StoredSet, body: memoryview, magic: int) -> bool:
    if stored.broker_time_ms is not None:
        return True
    # The lower byte of a batch's attributes.
    at = layout.BATCH_COVERED_AT + 1 if magic == 2 else layout.MESSAGE_ATTRIBUTES_AT
    return bool(body[at] & LOG_APPEND_TIME)


def read(
    body: Buffer, base_offset: int = 0, max_raw_bytes: int = MAX_RAW_BYTES, work: Work | None = None
) -> Iterator[Record]:
    """The records of a stored set, with absolute offsets, without holes. Raises RecordSetError."""
    work = work or Work()
    view = memoryview(body)
    if stored_magic(view) == 2:
        header = batches.read_whole_header(view)
        raw = batches.raw_records(view, header, max_raw_bytes, work)
        return batches.read_records(header, raw, base_offset)
    records = legacy.read_records(view, max_raw_bytes, work)
    if not base_offset:
        return records
    return (record._replace(offset=base_offset + record.offset) for record in records)
