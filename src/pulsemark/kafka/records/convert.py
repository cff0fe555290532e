"""Stored sets that are written again: records of another magic, or with holes (`keep`).

What each direction loses, and what it makes of the rest:

- Up, 0 or 1 to 2: the time of magic 0 is -1; a null value gets the tombstone flag (KIP-87).
- 0 to 1: the time is -1.
- Down, 2 to 0 or 1: headers and producer id are lost, the tombstone flag becomes a null value;
  down to 0 the times too. The codec stays, but zstd, which old clients do not know, cannot.

Records go through one by one. What is in memory is the source, decompressed, and the result.

**After compaction** the records that are left keep their offsets (KIP-31); those of removed ones
are holes. What stays of a set:

- magic 2: the batch with fewer records, or none; last offset delta, producer and sequence stay.
- magic 1 and 0, plain: the messages that stay, byte for byte.
- wrapper: a wrapper of those that stay, the offsets inside as they were; its own offset is the last
  one of them. Consumers count back from it, so holes do no harm.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator

from ...metadata import Buffer
from . import batch as batches
from . import legacy
from .batch import BatchFields, build
from .layout import (
    LOG_APPEND_TIME,
    Codec,
    CodecError,
    CorruptRecordSetError,
    Record,
    Work,
    stored_magic,
    whole_spans,
)
from .legacy import pack_wrapper, plain_message
from .rules import MAX_RAW_BYTES, to_new, to_old


def to_magic_2(records: Iterable[Record], fields: BatchFields, work: Work) -> bytes:
    """One batch of records that were of magic 0 or 1. Raises CodecError."""
    return build(map(to_new, counted(records, work)), fields, work)


def to_legacy(
    records: Iterable[Record],
    magic: int,
    codec: int,
    work: Work,
    base: int = 0,
    bits: int = 0,
    inner_base: int | None = None,
) -> bytes:
    """A set of magic 0 or 1, compressed as the source was; empty without records.

    Args:
        records: of any magic; offsets count from ``base`` on.
        magic: 0 or 1.
        codec: of the source.
        work: counts the cost.
        base: the offset of the entry's first message; 0 for the stored form.
        bits: further attributes of the messages: `LOG_APPEND_TIME`.
        inner_base: as in `pack_wrapper`.

    Raises CodecError: zstd, or the codec's library is not installed.
    """
    if codec == Codec.ZSTD:
        raise CodecError(f"zstd cannot be sent as magic {magic}")
    old = map(to_old, counted(records, work))
    if codec != Codec.NONE:
        return pack_wrapper(old, magic, codec, work, base, bits, inner_base)
    raw = bytearray()
    for record in old:
        raw += plain_message(record, magic, bits, base)
    return bytes(raw)


def counted(records: Iterable[Record], work: Work) -> Iterator[Record]:
    """Yield the records, and count each as written again."""
    for record in records:
        work.converted_records += 1
        yield record


def renumbered(records: Iterable[Record]) -> Iterator[Record]:
    """The records with the offsets 0, 1, 2 ... (KIP-31: reassigned, not refused)."""
    for offset, record in enumerate(records):
        yield record._replace(offset=offset)


def keep(
    body: Buffer, kept: Container[int], work: Work, max_raw_bytes: int = MAX_RAW_BYTES
) -> bytes:
    """A stored set with the records at the ``kept`` offsets, and holes for the others.

    Offsets count from the set's first message. Empty if a set of magic 0 or 1 keeps nothing.
    Raises RecordSetError: the stored bytes are not a record set.
    """
    view = memoryview(body)
    try:
        if stored_magic(view) == 2:
            return _keep_of_batch(view, kept, work, max_raw_bytes)
        return _keep_of_messages(view, kept, work, max_raw_bytes)
    except struct.error as error:
        raise CorruptRecordSetError(f"a stored set with an impossible offset: {error}") from error


def _keep_of_messages(
    view: memoryview, kept: Container[int], work: Work, max_raw_bytes: int
) -> bytes:
    parts: list[Buffer] = []
    for span in whole_spans(view):
        message = legacy.read_message(view, span)
        if not message.codec:
            if message.offset in kept:
                parts.append(view[span.start : span.end])
            continue
        raw = legacy.open_wrapper(message, max_raw_bytes, work)
        records = (r for r in legacy.wrapped_records(message, raw) if r.offset in kept)
        parts.append(
            legacy.pack_wrapper(
                counted(records, work),
                message.magic,
                message.codec,
                work,
                bits=message.attributes & LOG_APPEND_TIME,
                inner_base=legacy.last_inner_offset(raw) - message.offset,
            )
        )
    return b"".join(parts)


def _keep_of_batch(view: memoryview, kept: Container[int], work: Work, max_raw_bytes: int) -> bytes:
    header = batches.read_whole_header(view)
    raw = batches.raw_records(view, header, max_raw_bytes, work)
    records = (record for record in batches.read_records(header, raw) if record.offset in kept)
    fields = BatchFields.of(header)._replace(last_offset_delta=header.last_offset_delta)
    return build(counted(records, work), fields, work)
