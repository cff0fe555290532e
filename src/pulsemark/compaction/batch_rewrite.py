"""Taking a producer's batch apart, and putting it together again with holes.

Source: Pulsar's binary protocol, and what its compaction stores. A batch's payload, once
decompressed, is its messages one behind the other::

    [size u32 big-endian][SingleMessageMetadata][payload]  ...

The payload's size stands in that metadata, so a batch can only be walked from its beginning. A
batch may be rewritten with fewer messages, and every message keeps its place, since its place is
a part of its id and of its index:

- A removed message becomes a hole: metadata that says ``compacted_out``, nothing else, no payload.
  Clients count it and do not deliver it.
- A message that stays is copied byte by byte.
- The header keeps all its fields; only ``uncompressed_size`` is set anew. The payload is
  compressed as it was, and the CRC32C is made new, also where very old clients sent none.

Bytes come from producers: whatever breaks the form raises `BatchFormatError`.
"""

from __future__ import annotations

import struct
from collections.abc import Container
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from ..metadata import (
    MESSAGE_MAGIC,
    Buffer,
    MessageFormatError,
    MessageMetadata,
    compression_of,
    crc32c,
    payload_of,
)
from ..metadata.compression import DecompressionError, compress, decompress
from ..proto.pulsar_api_pb2 import SingleMessageMetadata

_U32 = struct.Struct(">I")
_HEAD = struct.Struct(">HI")


def _member(metadata: SingleMessageMetadata) -> bytes:
    encoded = metadata.SerializeToString()
    return _U32.pack(len(encoded)) + encoded


HOLE = _member(SingleMessageMetadata(compacted_out=True, payload_size=0))
"""What stands in the place of a removed message."""


class BatchFormatError(ValueError):
    """A batch cannot be taken apart.

    Attributes:
        reason: what is wrong, in words.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True)
class BatchMember:
    """One message of a batch."""

    key: bytes | None
    """As it came over the wire."""
    empty: bool
    """A null value, or no payload: what deletes its key."""
    hole: bool
    """Removed by an earlier compaction."""
    start: int
    end: int
    """Its bytes in the payload, size and metadata included."""


@dataclass(slots=True)
class Batch:
    """A batch taken apart."""

    payload: bytes
    """Decompressed."""
    members: list[BatchMember]


def open_batch(metadata: MessageMetadata, headers_and_payload: Buffer, max_bytes: int) -> Batch:
    """Take a batch apart.

    Args:
        metadata: the batch's header, whose ``num_messages_in_batch`` says how many there are.
        headers_and_payload: the producer's bytes.
        max_bytes: the largest decompressed payload that is opened.

    Raises:
        BatchFormatError: it does not decompress, or does not hold that many messages exactly.
        CompressionUnavailableError: the library for its compression is not installed.
    """
    if metadata.compacted_batch_indexes:
        raise BatchFormatError("another broker has left messages out of it")
    try:
        payload = decompress(
            compression_of(metadata),
            payload_of(headers_and_payload),
            metadata.uncompressed_size,
            max_bytes,
        )
    except (DecompressionError, MessageFormatError) as error:
        raise BatchFormatError(str(error)) from error
    return Batch(payload, _walk(payload, metadata.num_messages_in_batch))


def _walk(payload: bytes, count: int) -> list[BatchMember]:
    members: list[BatchMember] = []
    end = 0
    for place in range(count):
        start = end
        try:
            (size,) = _U32.unpack_from(payload, start)
            at = start + _U32.size + size
            single = SingleMessageMetadata.FromString(payload[start + _U32.size : at])
        except (struct.error, DecodeError) as error:
            raise BatchFormatError(f"message {place} of {count}: no metadata") from error
        end = at + single.payload_size
        if not single.HasField("payload_size") or not at <= end <= len(payload):
            raise BatchFormatError(f"message {place} of {count}: its payload is cut off")
        key: str | bytes | None = None
        if single.HasField("partition_key"):
            key = single.partition_key
        members.append(
            BatchMember(
                key.encode() if isinstance(key, str) else key,
                single.null_value or single.payload_size == 0,
                single.compacted_out,
                start,
                end,
            )
        )
    if end != len(payload):
        raise BatchFormatError(f"{len(payload) - end} bytes behind its {count} messages")
    return members


def rewrite_batch(metadata: MessageMetadata, batch: Batch, kept: Container[int]) -> bytes:
    """The batch with only the messages in the places ``kept``, as headers-and-payload.

    Raises CompressionUnavailableError.
    """
    payload = b"".join(
        batch.payload[member.start : member.end] if place in kept else HOLE
        for place, member in enumerate(batch.members)
    )
    header = MessageMetadata()
    header.CopyFrom(metadata)
    header.uncompressed_size = len(payload)
    return _sealed(header.SerializeToString(), compress(compression_of(metadata), payload))


def _sealed(metadata: bytes, payload: bytes) -> bytes:
    covered = b"".join((_U32.pack(len(metadata)), metadata, payload))
    return _HEAD.pack(MESSAGE_MAGIC, crc32c(covered)) + covered
