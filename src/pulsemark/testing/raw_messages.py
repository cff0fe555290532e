"""Builds headers-and-payload: with any publish time, any count, or with errors on purpose.

    [0x0e01][crc32c u32][metadataSize u32][MessageMetadata][payload]

The checksum covers everything after itself. In a batch the payload is one
`[size u32][SingleMessageMetadata][payload]` per message. Nothing is compressed here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..metadata import MESSAGE_MAGIC, crc32c
from ..metadata.message import pack_batch_member
from ..proto.pulsar_api_pb2 import KeyValue, MessageMetadata, SingleMessageMetadata

DEFAULT_PRODUCER_NAME = "raw"

_U32 = struct.Struct(">I")
_HEAD = struct.Struct(">HI")
# Magic and checksum, then the metadata's size.
_CHECKSUM_END = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMember:
    """One message of a batch; payload None is a null value (a tombstone)."""

    payload: bytes | None
    key: str | None = None
    properties: Mapping[str, str] | None = None
    event_time_ms: int | None = None


def seal(metadata: bytes, payload: bytes, *, checksum: bool = True) -> bytes:
    """Headers-and-payload from an encoded MessageMetadata and a payload.

    checksum False: the format of very old clients, which begins with the metadata's size.
    """
    covered = b"".join((_U32.pack(len(metadata)), metadata, payload))
    if not checksum:
        return covered
    return _HEAD.pack(MESSAGE_MAGIC, crc32c(covered)) + covered


def unbatched_message(
    payload: bytes | None,
    *,
    publish_time_ms: int,
    sequence_id: int = 0,
    producer_name: str = DEFAULT_PRODUCER_NAME,
    key: str | None = None,
    properties: Mapping[str, str] | None = None,
    event_time_ms: int | None = None,
    checksum: bool = True,
    **metadata: Any,
) -> bytes:
    """One message; payload None is a null value. `metadata`: further MessageMetadata fields."""
    header = MessageMetadata(
        producer_name=producer_name,
        sequence_id=sequence_id,
        publish_time=publish_time_ms,
        partition_key=key,
        event_time=event_time_ms,
        **metadata,
    )
    if properties:
        header.properties.extend(_key_values(properties))
    if payload is None:
        header.null_value = True
    return seal(header.SerializeToString(), payload or b"", checksum=checksum)


def batched_message(
    members: Sequence[bytes | BatchMember],
    *,
    publish_time_ms: int,
    sequence_id: int = 0,
    producer_name: str = DEFAULT_PRODUCER_NAME,
    checksum: bool = True,
    **metadata: Any,
) -> bytes:
    """A batch of `members` with sequence ids from `sequence_id` on; `metadata`: more fields."""
    parts: list[bytes] = []
    for place, given in enumerate(members):
        member = given if isinstance(given, BatchMember) else BatchMember(payload=given)
        payload = member.payload or b""
        single = SingleMessageMetadata(
            partition_key=member.key,
            event_time=member.event_time_ms,
            sequence_id=sequence_id + place,
        )
        if member.properties:
            single.properties.extend(_key_values(member.properties))
        if member.payload is None:
            single.null_value = True
        parts.append(pack_batch_member(single, payload))
    header = MessageMetadata(
        producer_name=producer_name,
        sequence_id=sequence_id,
        publish_time=publish_time_ms,
        num_messages_in_batch=len(members),
        highest_sequence_id=sequence_id + max(len(members) - 1, 0),
        **metadata,
    )
    return seal(header.SerializeToString(), b"".join(parts), checksum=checksum)


def with_wrong_checksum(message: bytes) -> bytes:
    """`message` with a wrong checksum. Raises ValueError if it has no checksum."""
    magic, checksum = _HEAD.unpack_from(message)
    if magic != MESSAGE_MAGIC:
        raise ValueError("the message has no checksum")
    return _HEAD.pack(magic, checksum ^ 1) + message[_CHECKSUM_END:]


def _key_values(properties: Mapping[str, str]) -> list[KeyValue]:
    return [KeyValue(key=key, value=value) for key, value in properties.items()]
