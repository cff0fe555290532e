"""Splitting a producer's batch into messages, and writing it again with holes.

Source: what Pulsar's compaction stores. How a batch is built: `metadata.message`. It may be
rewritten with fewer messages, and every message keeps its place, since its place is a part of its
id and of its index:

- A removed message becomes a hole: metadata that says ``compacted_out``, nothing else, no payload.
  Clients count it and do not deliver it.
- A message that stays is copied byte by byte.
- The header keeps all its fields; only ``uncompressed_size`` is new. The payload is
  compressed as it was, and has a new CRC32C, even if a very old client sent none.

The bytes come from producers: bytes in a wrong format raise `BatchFormatError`.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from ..metadata import (
    Buffer,
    MessageFormatError,
    MessageMetadata,
    compression_of,
    pack_message,
    payload_of,
)
from ..metadata.builtin_stampers import says_tombstone
from ..metadata.compression import DecompressionError, compress, decompress
from ..metadata.message import batch_members, check_batch_end, pack_batch_member
from ..proto.pulsar_api_pb2 import SingleMessageMetadata
from ..records import FactsError

HOLE = pack_batch_member(SingleMessageMetadata(compacted_out=True), b"")
"""The hole that replaces a removed message."""


class BatchFormatError(FactsError, ValueError, text="{reason}"):
    """A batch cannot be split into its messages: `reason`."""

    reason: str


@dataclass(slots=True)
class BatchMember:
    """One message of a batch."""

    key: bytes | None
    """The key as it came over the wire."""
    deletes: bool
    """Whether it deletes its key: by a null value, no payload, or the tombstone property."""
    hole: bool
    """Whether an earlier compaction removed it."""
    start: int
    end: int
    """Its bytes in the payload, with size and metadata."""


@dataclass(slots=True)
class Batch:
    """A batch, split into its messages."""

    payload: bytes
    """Decompressed."""
    members: list[BatchMember]


def open_batch(
    metadata: MessageMetadata,
    headers_and_payload: Buffer,
    max_bytes: int,
    tombstone_property: str | None = None,
) -> Batch:
    """Split a batch into its messages, with those that ``tombstone_property`` "true" deletes.

    Raises BatchFormatError: it does not decompress to at most ``max_bytes``, or does not hold the
    messages that its header counts; CompressionUnavailableError.
    """
    if metadata.compacted_batch_indexes:
        raise BatchFormatError("another broker has removed messages from it")
    try:
        payload = decompress(
            compression_of(metadata),
            payload_of(headers_and_payload),
            metadata.uncompressed_size,
            max_bytes,
        )
        members = _walk(payload, metadata.num_messages_in_batch, tombstone_property)
    except (DecompressionError, MessageFormatError) as error:
        raise BatchFormatError(str(error)) from error
    return Batch(payload, members)


def _walk(payload: bytes, count: int, tombstone_property: str | None) -> list[BatchMember]:
    members: list[BatchMember] = []
    end = 0
    for _, header, start, _, end in batch_members(payload, count):
        key: str | bytes | None = None
        if header.HasField("partition_key"):
            key = header.partition_key
        members.append(
            BatchMember(
                key.encode() if isinstance(key, str) else key,
                header.null_value
                or header.payload_size == 0
                or says_tombstone(header.properties, tombstone_property),
                header.compacted_out,
                start,
                end,
            )
        )
    check_batch_end(payload, count, end)
    return members


def rewrite_batch(metadata: MessageMetadata, batch: Batch, kept: Container[int]) -> bytes:
    """The batch with holes for all but ``kept``. Raises CompressionUnavailableError."""
    payload = b"".join(
        batch.payload[member.start : member.end] if place in kept else HOLE
        for place, member in enumerate(batch.members)
    )
    header = MessageMetadata()
    header.CopyFrom(metadata)
    header.uncompressed_size = len(payload)
    return pack_message(header, compress(compression_of(metadata), payload))
