"""Splits an entry into the messages that its producer sent.

    for message in messages_of(entry.body):
        print(message.key, message.value, message.properties)

An entry is one message, or a batch of them; the payload may be compressed. Source: Pulsar's binary
protocol. What the broker stores in front of the entry, its time and index, is in the entry's prefix
(`peek`), not in here: the index of the message with `batch_index` n is the entry's first index + n.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..proto.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata
from .compression import decompress
from .crc import Buffer
from .message import (
    batch_members,
    check_batch_end,
    compression_of,
    payload_of,
    read_message_metadata,
)

__all__ = ["Message", "messages_of"]

#: An entry that is larger than this after decompression is not opened.
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Message:
    """One message, as its producer made it."""

    value: bytes | None
    """The payload, decompressed; None for a null value. Of an encrypted message the cipher text."""
    key: str | None
    """The partition key; None without one. A key of bytes that are not UTF-8 is in base64."""
    producer_name: str
    sequence_id: int
    publish_time_ms: int
    """By the producer's clock, in milliseconds since the epoch."""
    event_time_ms: int | None
    """None where the producer set none."""
    properties: dict[str, str] = field(default_factory=dict)
    """If the producer set a name twice, the last value counts, as in Pulsar's clients."""
    ordering_key: bytes | None = None
    batch_index: int = -1
    """The place in its batch; -1 if it was sent alone."""
    schema_version: bytes | None = None
    deliver_at_ms: int | None = None
    is_encrypted: bool = False
    """An encrypted batch is one `Message`, because its content cannot be read."""
    chunk_id: int | None = None
    """The number of this chunk of a message that was sent in chunks, from 0."""


def messages_of(
    headers_and_payload: Buffer, *, max_bytes: int = MAX_PAYLOAD_BYTES
) -> list[Message]:
    """The messages of an entry, in their order. Messages that compaction removed are left out.

    Args:
        headers_and_payload: the producer's bytes, as they come after the stamp.
        max_bytes: the largest payload after decompression.

    Raises:
        MessageFormatError: these are not the bytes of a message, or not of such a batch.
        DecompressionError: the payload cannot be decompressed to the size it states, or is larger
            than `max_bytes`.
        CompressionUnavailableError: the library for its compression is not installed
            (the extra `compression`).
    """
    metadata = read_message_metadata(headers_and_payload)
    payload = payload_of(headers_and_payload)
    if metadata.encryption_keys:
        return [_alone(metadata, bytes(payload))]
    plain = bytes(
        decompress(compression_of(metadata), payload, metadata.uncompressed_size, max_bytes)
    )
    if not metadata.HasField("num_messages_in_batch"):
        return [_alone(metadata, plain)]
    return list(_members(metadata, plain))


def _alone(metadata: MessageMetadata, payload: bytes) -> Message:
    return _message(metadata, metadata, payload, metadata.sequence_id, -1)


def _members(metadata: MessageMetadata, payload: bytes) -> Iterator[Message]:
    end, count = 0, metadata.num_messages_in_batch
    removed = set(metadata.compacted_batch_indexes)
    for place, own, _, start, end in batch_members(payload, count):
        if own.compacted_out or place in removed:
            continue
        sequence_id = metadata.sequence_id + place
        if own.HasField("sequence_id"):
            sequence_id = own.sequence_id
        yield _message(metadata, own, payload[start:end], sequence_id, place)
    check_batch_end(payload, count, end)


def _message(
    metadata: MessageMetadata,
    own: MessageMetadata | SingleMessageMetadata,
    payload: bytes,
    sequence_id: int,
    batch_index: int,
) -> Message:
    """`own` is what describes this message: the entry's header, or the batch member's."""
    header = metadata
    return Message(
        value=None if own.null_value else payload,
        key=_key(own) if own.HasField("partition_key") else None,
        producer_name=header.producer_name,
        sequence_id=sequence_id,
        publish_time_ms=header.publish_time,
        event_time_ms=own.event_time or None,
        properties={pair.key: pair.value for pair in own.properties},
        ordering_key=own.ordering_key if own.HasField("ordering_key") else None,
        batch_index=batch_index,
        schema_version=header.schema_version if header.HasField("schema_version") else None,
        deliver_at_ms=header.deliver_at_time if header.HasField("deliver_at_time") else None,
        is_encrypted=bool(header.encryption_keys),
        chunk_id=header.chunk_id if header.HasField("chunk_id") else None,
    )


def _key(own: MessageMetadata | SingleMessageMetadata) -> str:
    if not own.partition_key_b64_encoded:
        return own.partition_key
    try:
        return base64.b64decode(own.partition_key, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return own.partition_key
