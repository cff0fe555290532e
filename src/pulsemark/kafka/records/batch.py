"""Batches of magic 2: reading their header and records, and building them (KIP-98).

A record, all its numbers zigzag varints, a size of -1 meaning null::

    size, attributes i8, time delta, offset delta, key size, key, value size, value,
    count of headers, and of each: name size, name, value size, value

The functions take one batch, whose bytes are whole (`layout.spans`). Bytes that are not records
raise `InvalidRecordSetError`; no size or count is believed before it was compared with the bytes.

**Control batches** (KIP-98, KIP-595) let Kafka's consumers get past the offset of a control entry:
they skip them. Magic 0 and 1 have nothing like it: their clients get no bytes, and go on with the
next entry of the same answer.

The one record's key is version and type, two i16. The types are Kafka's where it has one, with
Kafka's values: commit and abort (version 0, coordinator epoch 0) and leader change (version 0, no
voters). Ours without a counterpart have the type -1, unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...metadata import Buffer, crc32c
from ...proto.broker_entry_pb2 import ControlType
from . import layout
from .compression import compress, decompress
from .layout import (
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    LOG_APPEND_TIME,
    NO_TIME_MS,
    BatchHeader,
    Codec,
    CorruptRecordSetError,
    Headers,
    InvalidRecordSetError,
    Record,
    Work,
    int64,
    read_varint,
    read_varlong,
    varint,
)

LEAST_RECORD_BYTES = 7
_NULL = varint(-1)
_KEY = struct.Struct(">hh")
_END_TRANSACTION = struct.pack(">hi", 0, 0)
# version i16, leader id i32, two empty compact arrays, no tagged fields
_LEADER_CHANGE = struct.pack(">hiBBB", 0, -1, 1, 1, 0)
_UNKNOWN = -1


def read_header(batch: Buffer) -> BatchHeader:
    """Parse the header, but not check its CRC. Raises CorruptRecordSetError if it is cut off."""
    if len(batch) < BATCH_HEADER_BYTES:
        raise CorruptRecordSetError(f"a batch of {len(batch)} bytes has no whole header")
    return BatchHeader._make(BATCH_HEADER.unpack_from(batch))


def read_whole_header(batch: Buffer) -> BatchHeader:
    """Parse the header of a stored batch. Raises CorruptRecordSetError if the batch is cut off."""
    header = read_header(batch)
    if header.size + layout.LOG_OVERHEAD_BYTES != len(batch):
        raise CorruptRecordSetError(f"{len(batch)} bytes of a batch whose size is {header.size}")
    return header


def check_crc(batch: Buffer, header: BatchHeader) -> None:
    """Raise CorruptRecordSetError if the checksum (CRC-32C) does not match."""
    actual = crc32c(memoryview(batch)[layout.BATCH_COVERED_AT :])
    if actual != header.crc:
        raise CorruptRecordSetError(
            f"CRC-32C of a batch: header says {header.crc:#010x}, bytes give {actual:#010x}"
        )


def check_count(header: BatchHeader, raw_bytes: int) -> None:
    """Raise InvalidRecordSetError if so many bytes cannot hold so many records."""
    if not 0 <= header.record_count <= raw_bytes // LEAST_RECORD_BYTES:
        raise InvalidRecordSetError(f"{header.record_count} records in {raw_bytes} bytes")


def raw_records(batch: Buffer, header: BatchHeader, max_bytes: int, work: Work) -> bytes:
    """The bytes of the records, decompressed. Raises as `decompress`."""
    codec = header.attributes & CODEC_MASK
    records = memoryview(batch)[BATCH_HEADER_BYTES:]
    if codec == Codec.NONE:
        return bytes(records)
    return decompress(codec, records, header.magic, max_bytes, work)


def read_records(header: BatchHeader, raw: bytes, base_offset: int = 0) -> Iterator[Record]:
    """The records of a batch, from ``base_offset`` on. Raises InvalidRecordSetError."""
    check_count(header, len(raw))
    time_ms = header.max_time_ms if header.attributes & LOG_APPEND_TIME else None
    at = 0
    for number in range(header.record_count):
        try:
            record, at = _read_record(raw, at, header.base_time_ms, base_offset)
        except (IndexError, ValueError) as error:
            raise InvalidRecordSetError(
                f"record {number} of {header.record_count}: {error}"
            ) from error
        yield record if time_ms is None else record._replace(time_ms=time_ms)
    if at != len(raw):
        raise InvalidRecordSetError(f"{len(raw) - at} bytes after {header.record_count} records")


def _read_record(raw: bytes, at: int, base_time_ms: int, base: int) -> tuple[Record, int]:
    size, at = read_varint(raw, at)
    end = at + size
    if size < 0 or end > len(raw):
        raise ValueError(f"a size of {size} bytes, and {len(raw) - at} are left")
    attributes = raw[at]
    time_delta, at = read_varlong(raw, at + 1)
    offset_delta, at = read_varint(raw, at)
    key, at = _read_bytes(raw, at, end)
    value, at = _read_bytes(raw, at, end)
    headers: Headers = ()
    if raw[at] or at + 1 != end:
        headers, at = read_headers(raw, at, end)
        if at != end:
            raise ValueError(f"it ends {end - at} bytes before its size")
    offset, time_ms = base + offset_delta, int64(base_time_ms + time_delta)
    return Record(offset, time_ms, key, value, headers, attributes), end


def _read_bytes(raw: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = read_varint(raw, at)
    if size < 0:
        return None, at
    stop = at + size
    if stop > end:
        raise ValueError(f"{size} bytes of a record that has {end - at} left")
    return raw[at:stop], stop


def read_headers(raw: bytes, at: int, end: int) -> tuple[Headers, int]:
    """Parse a record's headers. Return them and their end. Raises ValueError, IndexError."""
    count, at = read_varint(raw, at)
    if not 0 <= count <= (end - at) // 2:
        raise ValueError(f"{count} headers in {end - at} bytes")
    headers = []
    for _ in range(count):
        name, at = _read_bytes(raw, at, end)
        if name is None:
            raise ValueError("a header without name")
        value, at = _read_bytes(raw, at, end)
        headers.append((name, value))
    return tuple(headers), at


class BatchFields(NamedTuple):
    """The header fields of a new batch, besides its records."""

    codec: int = Codec.NONE
    attributes: int = 0
    """The attributes without the codec: `LOG_APPEND_TIME`, `layout.CONTROL`."""
    base_offset: int = 0
    last_offset_delta: int | None = None
    """The last offset delta; None: the last record's. Larger where the end is a hole."""
    leader_epoch: int = layout.NO_LEADER_EPOCH
    base_time_ms: int | None = None
    """The base time; None: the first record's."""
    producer_id: int = layout.NO_PRODUCER_ID
    producer_epoch: int = -1
    base_sequence: int = -1

    @classmethod
    def of(cls, header: BatchHeader) -> BatchFields:
        """The fields of a batch that is rebuilt: codec, attributes, time and producer."""
        return cls(
            codec=header.attributes & CODEC_MASK,
            attributes=header.attributes & ~CODEC_MASK,
            base_time_ms=header.base_time_ms,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )


def build(records: Iterable[Record], fields: BatchFields, work: Work) -> bytes:
    """A batch of these records, whose offsets count from the batch's base on.

    With `LOG_APPEND_TIME` all records must have the same time. Without records it is what
    compaction leaves of a batch: consumers' offsets jump over it. Records are taken one by one:
    only their encoded bytes are in memory. Raises CodecError.
    """
    raw = bytearray()
    count, last_offset, max_time = 0, 0, NO_TIME_MS
    base_time = fields.base_time_ms
    for record in records:
        if base_time is None:
            base_time = record.time_ms
        max_time = max(max_time, record.time_ms)
        last_offset = record.offset
        count += 1
        raw += encode_record(record, base_time)
    # Clients do not decompress an empty batch.
    codec = fields.codec if count else Codec.NONE
    body: Buffer = raw if codec == Codec.NONE else compress(codec, raw, 2, work)
    last_delta = fields.last_offset_delta
    header = BatchHeader(
        base_offset=fields.base_offset,
        size=BATCH_HEADER_BYTES - layout.LOG_OVERHEAD_BYTES + len(body),
        leader_epoch=fields.leader_epoch,
        magic=2,
        crc=0,
        attributes=fields.attributes | codec,
        last_offset_delta=last_offset if last_delta is None else last_delta,
        base_time_ms=NO_TIME_MS if base_time is None else base_time,
        max_time_ms=max_time,
        producer_id=fields.producer_id,
        producer_epoch=fields.producer_epoch,
        base_sequence=fields.base_sequence,
        record_count=count,
    )
    return b"".join((sealed_header(header, body), body))


def sealed_header(header: BatchHeader, records: Buffer) -> bytes:
    """Pack the header, with the checksum over it and ``records``."""
    packed = bytearray(BATCH_HEADER.pack(*header))
    crc = crc32c(records, crc32c(memoryview(packed)[layout.BATCH_COVERED_AT :]))
    layout.CRC.pack_into(packed, layout.BATCH_CRC_AT, crc)
    return bytes(packed)


def encode_record(record: Record, base_time_ms: int) -> bytes:
    """Encode a record; its offset is the offset delta."""
    parts = [
        bytes((record.attributes,)),
        varint(int64(record.time_ms - base_time_ms)),
        varint(record.offset),
    ]
    for field in (record.key, record.value):
        parts += (_NULL,) if field is None else (varint(len(field)), field)
    parts.append(varint(len(record.headers)))
    for name, value in record.headers:
        parts += varint(len(name)), name
        parts += (_NULL,) if value is None else (varint(len(value)), value)
    body = b"".join(parts)
    return varint(len(body)) + body


_KAFKA: dict[int, tuple[int, bytes]] = {
    ControlType.CONTROL_TXN_ABORT: (0, _END_TRANSACTION),
    ControlType.CONTROL_TXN_COMMIT: (1, _END_TRANSACTION),
    ControlType.CONTROL_LEADER_CHANGE: (2, _LEADER_CHANGE),
}


class Producer(NamedTuple):
    """The producer id and epoch of a Kafka client, which name its transactions."""

    producer_id: int
    epoch: int

    def transaction(self, number: int) -> str:
        """The id, in stamps, of its transaction with this number; -1: of version 1.0.0."""
        return f"{self.producer_id}:{self.epoch}" + (f":{number}" if number >= 0 else "")


NO_PRODUCER = Producer(-1, -1)
#: After the last sequence number comes 0.
SEQUENCE_END = 2**31
_SENT = struct.Struct(">qhii")
_SENT_AT = BATCH_HEADER_BYTES - _SENT.size


class SentBatch(NamedTuple):
    """The producer, epoch and sequence numbers of an idempotent producer's batch (KIP-98)."""

    producer: Producer
    first_sequence: int
    records: int

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record."""
        return (self.first_sequence + self.records - 1) % SEQUENCE_END


def sent_batch(records: Buffer | None) -> SentBatch | None:
    """The producer in the header of a set's first batch; None: it is not idempotent."""
    if records is None or len(records) < BATCH_HEADER_BYTES or records[layout.MAGIC_AT] != 2:
        return None
    producer_id, epoch, sequence, count = _SENT.unpack_from(records, _SENT_AT)
    return SentBatch(Producer(producer_id, epoch), sequence, count) if producer_id >= 0 else None


def producer_of(transaction: str) -> Producer | None:
    """The producer of a transaction; None if the id is not one of a Kafka client."""
    parts = transaction.split(":")
    if len(parts) not in (2, 3) or not all(each.isascii() and each.isdecimal() for each in parts):
        return None
    found = Producer(int(parts[0]), int(parts[1]))
    return found if found.producer_id < 1 << 63 and found.epoch < 1 << 15 else None


def control_batch(
    offset: int,
    control_type: int,
    time_ms: int,
    max_magic: int,
    leader_epoch: int = 0,
    name: str = "",
) -> bytes:
    """The batch of magic 2 for a control entry; nothing for clients of magic 0 and 1.

    Args:
        offset: the entry's index.
        control_type: of its prefix.
        time_ms: its broker time.
        max_magic: the newest magic that the client understands (`max_magic_of`).
        leader_epoch: of its prefix.
        name: of its prefix. The end of a Kafka client's transaction names its producer.
    """
    if max_magic < 2:
        return b""
    kafka_type, value = _KAFKA.get(control_type, (_UNKNOWN, b""))
    record = Record(0, time_ms, _KEY.pack(0, kafka_type), value)
    fields = BatchFields(attributes=layout.CONTROL, base_offset=offset, leader_epoch=leader_epoch)
    if value is _END_TRANSACTION and (producer := producer_of(name)) is not None:
        fields = fields._replace(
            attributes=layout.CONTROL | layout.TRANSACTIONAL,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
        )
    return build([record], fields, Work())


def empty_batch(
    base_offset: int, message_count: int, max_magic: int, leader_epoch: int = 0
) -> bytes:
    """A batch without records, over which consumers go; nothing for clients of magic 0 and 1."""
    if max_magic < 2:
        return b""
    fields = BatchFields(
        base_offset=base_offset, last_offset_delta=message_count - 1, leader_epoch=leader_epoch
    )
    return build((), fields, Work())
