"""Pulsar's messages as Kafka's records.

======================  ==================================================================
record                  of the message
======================  ==================================================================
offset                  the entry's base + its place in the batch
key                     ordering key, else partition key (undone from base64, if flagged)
value                   payload; null if its null_value flag is set
headers                 properties (`properties`)
time                    event time, else publish time
tombstone flag          null_value, the property that the topic's policy names, or the
                        ``tombstone`` field of the entry's prefix
======================  ==================================================================

Members of a batch that compaction removed are holes. Entries that cannot be records raise
`UnconvertibleEntryError`: encrypted ones, chunks (no Kafka client would put them together),
Pulsar's markers, and bytes that are not a message. Kafka's consumers get an `empty_batch` for them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator

from ...metadata import (
    Buffer,
    MessageFormatError,
    MessageMetadata,
    compression_of,
    payload_of,
    read_message_metadata,
)
from ...metadata.batch import batch_members
from ...metadata.compression import CompressionUnavailableError, DecompressionError, decompress
from ...proto.pulsar_api_pb2 import SingleMessageMetadata
from .batch import BatchFields, build
from .convert import to_legacy
from .properties import headers_of
from .record import LOG_APPEND_TIME, TOMBSTONE_FLAG, Codec, Record, Work
from .rules import MAX_RAW_BYTES
from .tombstones import says_tombstone

_Header = MessageMetadata | SingleMessageMetadata


class UnconvertibleEntryError(ValueError):
    """An entry that cannot be shown to the other protocol's clients.

    Attributes:
        reason: why, as text.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def read_pulsar(
    body: Buffer,
    message_count: int,
    *,
    tombstone: bool = False,
    tombstone_property: str | None = None,
    max_raw_bytes: int = MAX_RAW_BYTES,
) -> list[Record]:
    """The records that a Pulsar entry stands for; offsets from its first message on.

    Args:
        body: headers-and-payload, without prefix.
        message_count: what the entry counts in the topic's index.
        tombstone: the prefix's field of that name.
        tombstone_property: a message deletes its key if this property's last value is "true".
        max_raw_bytes: the most that is decompressed.

    Raises:
        UnconvertibleEntryError: see above.
    """
    try:
        metadata = read_message_metadata(body)
        _check(metadata)
        payload = decompress(
            compression_of(metadata), payload_of(body), metadata.uncompressed_size, max_raw_bytes
        )
    except (MessageFormatError, DecompressionError, CompressionUnavailableError) as error:
        raise UnconvertibleEntryError(str(error)) from error
    records = (
        _members(payload, metadata)
        if metadata.HasField("num_messages_in_batch")
        else [_record(0, metadata, payload, metadata.publish_time)]
    )
    flagged = []
    for record in records:
        if record.offset >= message_count:
            raise UnconvertibleEntryError(f"more messages than the {message_count} it counts")
        named = tombstone_property is not None and says_tombstone(
            record.headers, tombstone_property
        )
        if record.value is None or tombstone or named:
            record = record._replace(attributes=TOMBSTONE_FLAG)  # noqa: PLW2901 - the same one
        flagged.append(record)
    return flagged


def pulsar_set(
    records: Iterable[Record],
    base_offset: int,
    message_count: int,
    max_magic: int,
    *,
    fetch_offset: int = 0,
    leader_epoch: int = 0,
    broker_time_ms: int | None = None,
) -> bytes:
    """The record set of a Pulsar entry's records, uncompressed, as a client understands it.

    Args:
        records: `read_pulsar`.
        base_offset: of the entry's first message.
        message_count: what the entry counts: offsets go on after it.
        max_magic: `max_magic_of` the request's version.
        fetch_offset: the offset asked for; magic 0 and 1 leave out the records before it.
        leader_epoch: of the entry's prefix.
        broker_time_ms: the time that consumers are to see (LogAppendTime); None: each its own.
    """
    if broker_time_ms is not None:
        records = (record._replace(time_ms=broker_time_ms) for record in records)
    bits = 0 if broker_time_ms is None or not max_magic else LOG_APPEND_TIME
    if max_magic < 2:
        wanted = (r for r in records if base_offset + r.offset >= fetch_offset)
        return to_legacy(wanted, max_magic, Codec.NONE, Work(), base_offset, bits)
    fields = BatchFields(
        attributes=bits,
        base_offset=base_offset,
        last_offset_delta=message_count - 1,
        leader_epoch=leader_epoch,
    )
    return build(records, fields, Work())


def _check(metadata: MessageMetadata) -> None:
    if metadata.encryption_keys:
        raise UnconvertibleEntryError("it is encrypted")
    if metadata.num_chunks_from_msg > 1:
        raise UnconvertibleEntryError("it is a chunk of a message")
    if metadata.HasField("marker_type"):
        raise UnconvertibleEntryError("it is a marker of the broker")


def _members(payload: bytes, metadata: MessageMetadata) -> Iterator[Record]:
    try:
        for place, header, _, start, end in batch_members(payload, metadata.num_messages_in_batch):
            if not header.compacted_out:
                yield _record(place, header, payload[start:end], metadata.publish_time)
    except MessageFormatError as error:
        raise UnconvertibleEntryError(error.reason) from error


def _record(place: int, header: _Header, payload: bytes, publish_time_ms: int) -> Record:
    return Record(
        offset=place,
        time_ms=(header.event_time or publish_time_ms) % 2**63,
        key=_key(header),
        value=None if header.null_value else payload,
        headers=headers_of(header.properties),
    )


def _key(header: _Header) -> bytes | None:
    if header.HasField("ordering_key"):
        return header.ordering_key
    if header.null_partition_key or not header.HasField("partition_key"):
        return None
    text: str | bytes = header.partition_key
    key = text.encode() if isinstance(text, str) else text
    if not header.partition_key_b64_encoded:
        return key
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error:
        return key
