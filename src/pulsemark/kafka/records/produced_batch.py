"""The check of a batch of magic 2, and its stored form (see `produced`)."""

from __future__ import annotations

from collections.abc import Iterator

from ...metadata import Buffer
from . import batch as batches
from . import layout
from .batch import BatchFields
from .convert import counted, renumbered, to_legacy
from .errors import (
    CodecError,
    FormatTooOldError,
    InvalidRecordSetError,
    RecordSetTooLargeError,
    RecordTimeError,
    TransactionError,
)
from .layout import BatchHeader
from .produced_legacy import check_stored
from .record import CODEC_MASK, LOG_APPEND_TIME, MAX_RECORDS, Codec, Record, Work
from .rules import EntryRules, Produced, ProducerState
from .scan import Scan, scan_records, suits_view
from .tombstones import TombstoneStage

ZSTD_VERSION = 7
"""From this version of Produce on, zstd is allowed (KIP-110)."""


def check_and_store(
    batch: memoryview, produce_version: int, rules: EntryRules, *, is_given: bool
) -> Produced:
    """Check one whole batch, and make it what is stored. Raises RecordSetError."""
    work = Work()
    header = batches.read_header(batch)
    _check_header(batch, header, produce_version, rules)
    raw, at = _raw_records(batch, header, rules.max_raw_bytes, work)
    batches.check_count(header, len(raw) - at)
    scan = scan_records(raw, header.record_count, header.base_time_ms, at)
    _check_records(header, scan, rules)
    in_place = rules.magic == 2 and scan.numbered
    if header.attributes & LOG_APPEND_TIME:
        scan.max_time_ms = header.max_time_ms
    if in_place:
        body = _in_place(batch, header, scan, is_given=is_given)
    else:
        body = _rebuilt(header, bytes(raw[at:]), scan, rules, work)
    has_id = header.producer_id >= 0
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
        producer=ProducerState(header.producer_id, header.producer_epoch, header.base_sequence)
        if has_id
        else None,
        work=work,
    )


def _raw_records(
    batch: memoryview, header: BatchHeader, max_bytes: int, work: Work
) -> tuple[bytes | memoryview, int]:
    """Bytes that end with the records, decompressed, and where these begin.

    Records that are not compressed are looked at where they are, unless a copy makes up for itself:
    it would cost as much as their check. Raises as `decompress`.
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
    if attributes & layout.TRANSACTIONAL:
        raise TransactionError("a transactional batch")
    if header.base_offset:
        raise InvalidRecordSetError(f"a batch with base offset {header.base_offset}")
    if len(batch) > rules.max_batch_bytes:
        raise RecordSetTooLargeError(
            f"a batch of {len(batch)} bytes; the limit is {rules.max_batch_bytes}"
        )
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
        _check_older_format(header, rules.magic)


def _check_older_format(header: BatchHeader, magic: int) -> None:
    if header.producer_id >= 0:
        raise FormatTooOldError(f"producer id {header.producer_id} on a topic of format {magic}")
    if header.attributes & CODEC_MASK == Codec.ZSTD:
        raise CodecError(f"zstd on a topic of format {magic}")


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
    """The batch with base offset 0, no leader epoch, and the right latest time.

    In memory that the caller gives away they are written where the batch is, and nothing is copied.
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
    """The batch with other offsets, or in an older magic."""
    codec = header.attributes & CODEC_MASK
    records: Iterator[Record] = batches.read_records(header, raw)
    if not scan.numbered:
        records = renumbered(records)
    bits = header.attributes & LOG_APPEND_TIME
    if rules.magic < 2:
        return check_stored(to_legacy(records, rules.magic, codec, work, bits=bits), rules)
    fields = BatchFields(
        codec=codec,
        attributes=header.attributes & ~CODEC_MASK,
        base_time_ms=header.base_time_ms,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    return check_stored(batches.build(counted(records, work), fields, work), rules)
