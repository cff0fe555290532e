r"""Checks what a producer sends, and makes the bytes that are stored.

The checks are those of Apache Kafka 3.9.2 (`LogValidator`), in its order: what the version of the
request allows, then each batch as a whole, then its records. Where the topic's entry format is the
set's own, a set is stored as it was sent, except for the offsets (KIP-31)::

    sent \ stored    0                          1                        2
    magic 0          in place                   up, no times             up, no times
    magic 1          down, times lost           in place                 up
    magic 2          down, times, headers lost  down, headers lost       in place

"In place" has conditions: the offsets in a compressed set are 0, 1, 2 ...; if not, they are
assigned, and the set is compressed again. A wrapper's or batch's latest time is corrected if it is
wrong. The records' bytes stay the producer's, except for the tombstone flag that a header sets.

The stored form of a set is the set as if its first message had offset 0: batches of magic 2 have
base offset 0, messages of magic 0 and 1 the offsets 0, 1, 2 ..., wrappers the last of them. A fetch
adds the entry's base (`fetched`). So the first two bytes of an entry are zero, which is neither a
prefix nor Pulsar's checksum, whatever offset the producer sent. Only the offsets inside a wrapper
of magic 0 are those of the log (`EntryRules.base_offset`), since a consumer takes them as they are:
the set is compressed again here, once, as in KIP-31's first phase, and not at each fetch.

One difference to Kafka: an uncompressed batch of magic 2 whose records are not numbered 0, 1, 2 ...
is refused. Kafka stores it, and its consumers then see the wrong offsets.

**Sets from another cluster's log** (`check_mirrored`) were checked when they were produced, so they
are
not decompressed again. Holes that compaction has left in their offsets stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from ...metadata import Buffer
from . import batch as batches
from . import layout, legacy
from .batch import BatchFields
from .convert import counted, renumbered, to_legacy, to_magic_2
from .layout import (
    CODEC_MASK,
    LOG_APPEND_TIME,
    MAX_RECORDS,
    TOMBSTONE_FLAG,
    BatchHeader,
    Codec,
    CodecError,
    FormatTooOldError,
    InvalidRecordSetError,
    Record,
    RecordSetTooLargeError,
    RecordTimeError,
    Work,
    spans,
    stored_magic,
    whole_spans,
)
from .legacy import (
    Message,
    open_wrapper,
    pack_wrapper,
    patch_message,
    read_message,
    read_records,
    wrapped_records,
)
from .rules import EntryRules, Produced, TombstoneStage, magic_of, says_tombstone
from .scan import Scan, scan_messages, scan_records, suits_view

ONE_BATCH_VERSION = 3
"""From this version of Produce on, a set is one batch of magic 2 (KIP-98)."""
ZSTD_VERSION = 7
"""From this version of Produce on, zstd is allowed (KIP-110)."""


def validate_produced(
    records: Buffer | None, produce_version: int, rules: EntryRules, *, is_given: bool = False
) -> Produced | None:
    """Check a record set, and make it what is stored.

    Args:
        records: the set, as the request has it for one partition; None: null. A part of a batch
            at its end is dropped.
        produce_version: of the request. Below 3 a set may be empty: nothing is to be stored (None).
        rules: the topic's.
        is_given: the caller gives ``records`` away. Where they can be written to, what is stored
            may be made in them, and be a view of them.

    Raises RecordSetError: the set is refused.
    """
    view = memoryview(records if records is not None else b"")
    first_two = list(islice(spans(view), 2))
    if produce_version >= ONE_BATCH_VERSION:
        if not first_two:
            raise InvalidRecordSetError(f"no whole batch in {len(view)} bytes")
        if first_two[0].magic != 2:
            raise InvalidRecordSetError(
                f"magic {first_two[0].magic} in version {produce_version} of Produce"
            )
    if not first_two:
        return None
    if first_two[0].magic != 2:
        return store_legacy(view, rules)
    if len(first_two) > 1:
        raise InvalidRecordSetError("more than one batch of magic 2 in a set")
    return store_batch(view[: first_two[0].end], produce_version, rules, is_given=is_given)


def store_legacy(records: memoryview, rules: EntryRules) -> Produced:
    """Check a set of magic 0 or 1; a cut message at its end is dropped. Raises RecordSetError."""
    first = next(spans(records))
    attributes = records[layout.MESSAGE_ATTRIBUTES_AT]
    if not attributes & CODEC_MASK:
        return _store_plain(records, first.magic, rules)
    _check_size(first.end, rules)
    wrapper = read_message(records, first)
    if next(spans(records[first.end :]), None) is not None:
        raise InvalidRecordSetError("a compressed message with another one after it")
    if wrapper.magic and attributes & LOG_APPEND_TIME and not rules.log_append_time:
        raise RecordTimeError("a wrapper that states the broker's time")
    return _store_wrapper(records[: first.end], wrapper, rules)


def check_stored(body: bytes, rules: EntryRules) -> bytes:
    """The body, unless a batch has grown above the limit. Raises RecordSetTooLargeError."""
    for span in spans(body):
        _check_size(span.end - span.start, rules)
    return body


def _check_size(size_bytes: int, rules: EntryRules) -> None:
    if size_bytes > rules.max_batch_bytes:
        raise RecordSetTooLargeError(
            f"a batch of {size_bytes} bytes; the limit is {rules.max_batch_bytes}"
        )


def _check_keys(scan: Scan, rules: EntryRules) -> None:
    if rules.compacted and scan.keys < scan.count:
        raise InvalidRecordSetError(
            f"{scan.count - scan.keys} messages without key on a compacted topic"
        )


def _store_plain(records: memoryview, magic: int, rules: EntryRules) -> Produced:
    work = Work()
    scan = scan_messages(records, magic)
    _check_size(scan.largest_bytes, rules)
    _check_keys(scan, rules)
    if scan.states_broker_time and not rules.log_append_time:
        raise RecordTimeError("a message that states the broker's time")
    body = bytes(records[: scan.end]) if scan.numbered else _numbered(records[: scan.end])
    in_place = rules.magic == magic
    if not in_place:
        plain = read_records(body, rules.max_raw_bytes, work)
        body = _converted(plain, 0, rules, work)
    return _produced(body, scan, scan.end, in_place, rules, work)


def _numbered(records: memoryview) -> bytes:
    """Give the messages the offsets 0, 1, 2 ..."""
    stored = bytearray(records)
    for number, span in enumerate(spans(records)):
        layout.OFFSET.pack_into(stored, span.start, number)
    return bytes(stored)


def _store_wrapper(records: memoryview, wrapper: Message, rules: EntryRules) -> Produced:
    work = Work()
    raw = open_wrapper(wrapper, rules.max_raw_bytes, work)
    scan = scan_messages(raw, wrapper.magic)
    if scan.end != len(raw) or not scan.count:
        raise InvalidRecordSetError(f"{len(raw) - scan.end} of {len(raw)} bytes are not a message")
    _check_keys(scan, rules)
    same = rules.magic == wrapper.magic
    if same and scan.numbered and not inner_base(rules):
        stored = bytearray(records)
        own_time = wrapper.magic and not wrapper.attributes & LOG_APPEND_TIME
        late = own_time and wrapper.time_ms != scan.max_time_ms
        patch_message(stored, scan.count - 1, scan.max_time_ms if late else None)
        return _produced(bytes(stored), scan, len(raw), True, rules, work)
    inner = renumbered(wrapped_records(wrapper, raw))
    if same:
        bits, base = wrapper.attributes & LOG_APPEND_TIME, inner_base(rules)
        packed = pack_wrapper(
            counted(inner, work), rules.magic, wrapper.codec, work, bits=bits, inner_base=base
        )
        body = check_stored(packed, rules)
    else:
        body = _converted(inner, wrapper.codec, rules, work)
    return _produced(body, scan, len(raw), False, rules, work)


def _converted(records: Iterable[Record], codec: int, rules: EntryRules, work: Work) -> bytes:
    if rules.magic == 2:
        body = to_magic_2(records, BatchFields(codec=codec), work)
    else:
        body = to_legacy(records, rules.magic, codec, work, inner_base=inner_base(rules))
    return check_stored(body, rules)


def inner_base(rules: EntryRules) -> int:
    """The base of the offsets inside a wrapper."""
    return 0 if rules.magic else rules.base_offset


def _produced(
    body: bytes, scan: Scan, raw_size: int, in_place: bool, rules: EntryRules, work: Work
) -> Produced:
    return Produced(
        stored=body,
        magic=rules.magic,
        message_count=scan.count,
        max_time_ms=scan.max_time_ms if rules.magic else -1,
        has_keys=scan.keys > 0,
        raw_size_bytes=raw_size,
        tombstone=scan.nulls == scan.count,
        in_place=in_place,
        inner_base_offset=None if rules.magic else _inner_base_of(body, rules),
        work=work,
    )


def _inner_base_of(body: Buffer, rules: EntryRules) -> int | None:
    """The base offset inside a compressed set of magic 0; None for an uncompressed one."""
    return rules.base_offset if body[layout.MESSAGE_ATTRIBUTES_AT] & CODEC_MASK else None


def store_batch(
    batch: memoryview, produce_version: int, rules: EntryRules, *, is_given: bool
) -> Produced:
    """Check one whole batch, and make it what is stored. Raises RecordSetError."""
    work = Work()
    header = batches.read_header(batch)
    _check_header(batch, header, produce_version, rules)
    raw, at = _raw_records(batch, header, rules.max_raw_bytes, work)
    batches.check_count(header, len(raw) - at)
    scan = scan_records(raw, header.record_count, header.base_time_ms, at)
    flagged = _flagged_by_header(header, raw, at, rules.tombstone_header)
    if flagged is not None:
        raw, at = flagged, 0
        scan = scan_records(raw, header.record_count, header.base_time_ms)
    _check_records(header, scan, rules)
    in_place = rules.magic == 2 and scan.numbered and flagged is None
    if header.attributes & LOG_APPEND_TIME:
        scan.max_time_ms = header.max_time_ms
    if in_place:
        body = _in_place(batch, header, scan, is_given=is_given)
    else:
        body = _rebuilt(header, bytes(raw[at:]), scan, rules, work)
    null_deletes = rules.tombstone_stage is TombstoneStage.FLAG_OR_NULL
    return Produced(
        stored=body,
        magic=rules.magic,
        message_count=header.record_count,
        max_time_ms=scan.max_time_ms if rules.magic else -1,
        has_keys=scan.keys > 0,
        raw_size_bytes=len(raw) - at,
        tombstone=scan.flags + (scan.nulls if null_deletes else 0) == header.record_count,
        in_place=in_place,
        sent=batches.sent_batch(batch) if header.producer_id >= 0 else None,
        is_transactional=bool(header.attributes & layout.TRANSACTIONAL),
        inner_base_offset=None if rules.magic else _inner_base_of(body, rules),
        work=work,
    )


def _flagged_by_header(
    header: BatchHeader, raw: bytes | memoryview, begin: int, name: str | None
) -> bytes | None:
    """The records with the tombstone flag where a header says so; None: no record has to get it.

    The flag is a bit of the byte after a record's size, so all sizes stay.
    """
    if name is None or name.encode() not in (data := bytes(raw[begin:])):
        return None
    changed, at = bytearray(data), 0
    for record in batches.read_records(header, data):
        size, attributes_at = layout.read_unsigned(data, at)
        if says_tombstone(record.headers, name):
            changed[attributes_at] |= TOMBSTONE_FLAG
        at = attributes_at + (size >> 1)
    return None if changed == data else bytes(changed)


def _raw_records(
    batch: memoryview, header: BatchHeader, max_bytes: int, work: Work
) -> tuple[bytes | memoryview, int]:
    """The decompressed records, at the end of a buffer, and where they begin.

    Uncompressed records are read in place, unless a copy saves more than it costs. Raises as
    `decompress`.
    """
    if not header.attributes & CODEC_MASK:
        whole = batch.obj
        if isinstance(whole, bytes) and len(whole) == len(batch):
            return whole, layout.BATCH_HEADER_BYTES
        records = batch[layout.BATCH_HEADER_BYTES :]
        if suits_view(records, header.record_count):
            return records, 0
    return batches.raw_records(batch, header, max_bytes, work), 0


def _check_header(
    batch: memoryview, header: BatchHeader, produce_version: int, rules: EntryRules
) -> None:
    attributes = header.attributes
    codec = attributes & CODEC_MASK
    if codec == Codec.ZSTD and produce_version < ZSTD_VERSION:
        raise CodecError(f"zstd in version {produce_version} of Produce")
    if attributes & layout.TRANSACTIONAL and header.producer_id < 0:
        raise InvalidRecordSetError("a transactional batch without producer id")
    if header.base_offset:
        raise InvalidRecordSetError(f"a batch with base offset {header.base_offset}")
    _check_size(len(batch), rules)
    batches.check_crc(batch, header)
    if attributes & layout.CONTROL:
        raise InvalidRecordSetError("a control batch from a producer")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecordSetError(f"producer id {header.producer_id} without sequence")
    if attributes & LOG_APPEND_TIME and not rules.log_append_time:
        raise RecordTimeError("a batch that states the broker's time")
    count, last = header.record_count, header.last_offset_delta
    if not 0 < count <= MAX_RECORDS or count != last + 1:
        raise InvalidRecordSetError(f"{count} records, and {last} as the last offset delta")
    if rules.magic < 2:
        where = f"on a topic of format {rules.magic}"
        if header.producer_id >= 0:
            raise FormatTooOldError(f"producer id {header.producer_id} {where}")
        if codec == Codec.ZSTD:
            raise CodecError(f"zstd {where}")


def _check_records(header: BatchHeader, scan: Scan, rules: EntryRules) -> None:
    if rules.compacted and scan.keys < header.record_count:
        raise InvalidRecordSetError(
            f"{header.record_count - scan.keys} records without key on a compacted topic"
        )
    if rules.tombstone_stage is TombstoneStage.FLAG_ONLY and scan.nulls:
        raise InvalidRecordSetError(f"{scan.nulls} null values without tombstone flag")
    if not scan.numbered and not header.attributes & CODEC_MASK:
        raise InvalidRecordSetError("records that are not numbered 0, 1, 2 ...")


def _in_place(batch: memoryview, header: BatchHeader, scan: Scan, *, is_given: bool) -> Buffer:
    """The batch with base offset 0, no leader epoch, and the correct latest time.

    If the caller gives the memory away, the fields are written there, and nothing is copied.
    """
    if header.max_time_ms != scan.max_time_ms:
        stored = header._replace(leader_epoch=layout.NO_LEADER_EPOCH, max_time_ms=scan.max_time_ms)
        head = batches.sealed_header(stored, batch[layout.BATCH_HEADER_BYTES :])
    else:
        head = layout.BATCH_OFFSET_SIZE_EPOCH.pack(0, header.size, layout.NO_LEADER_EPOCH)
    if batch.readonly or not is_given:
        return b"".join((head, batch[len(head) :]))
    batch[: len(head)] = head
    return batch


def _rebuilt(header: BatchHeader, raw: bytes, scan: Scan, rules: EntryRules, work: Work) -> bytes:
    """The batch with new offsets, or in an older magic."""
    codec = header.attributes & CODEC_MASK
    records: Iterator[Record] = batches.read_records(header, raw)
    if not scan.numbered:
        records = renumbered(records)
    bits = header.attributes & LOG_APPEND_TIME
    if rules.magic < 2:
        base = inner_base(rules)
        return check_stored(
            to_legacy(records, rules.magic, codec, work, bits=bits, inner_base=base), rules
        )
    fields = BatchFields.of(header)
    return check_stored(batches.build(counted(records, work), fields, work), rules)


def check_mirrored(body: Buffer, source_format: int, message_count: int) -> None:
    """Check a stored set against the prefix's ``source_format``, and the offsets that it takes.

    Raises RecordSetError: another magic, a wrong checksum, cut bytes, or offsets that do not fit.
    """
    view = memoryview(body)
    magic = stored_magic(view)
    if magic != magic_of(source_format):
        raise InvalidRecordSetError(
            f"magic {magic} in a set whose source_format is {source_format}"
        )
    if magic == 2:
        _check_batch(view, message_count)
    else:
        _check_messages(view, magic, message_count)


def _check_batch(view: memoryview, message_count: int) -> None:
    header = batches.read_whole_header(view)
    batches.check_crc(view, header)
    if header.base_offset or header.last_offset_delta + 1 != message_count:
        raise InvalidRecordSetError(
            f"offsets from {header.base_offset} with a last delta of {header.last_offset_delta} in "
            f"a set of {message_count} messages"
        )
    if header.record_count > message_count:
        raise InvalidRecordSetError(f"{header.record_count} records with {message_count} offsets")


def _check_messages(view: memoryview, magic: int, message_count: int) -> None:
    last = -1
    for span in whole_spans(view):
        if span.magic != magic:
            raise InvalidRecordSetError(
                f"a message of magic {span.magic} in a set of magic {magic}"
            )
        message = legacy.read_message(view, span)
        if not last < message.offset < message_count:
            raise InvalidRecordSetError(
                f"offset {message.offset} after {last} in a set of {message_count} messages"
            )
        last = message.offset
