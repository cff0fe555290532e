"""The messages of a batch, which stand one after another in its entry's decompressed payload.

Source: Pulsar's binary protocol::

    [size u32 big-endian][SingleMessageMetadata][payload]  ...

The payload's size stands in that metadata, so a batch can only be walked from its beginning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError

from ..proto.pulsar_api_pb2 import SingleMessageMetadata
from .errors import MessageFormatError

_U32 = struct.Struct(">I")


class BatchMember(NamedTuple):
    """One message of a batch, and where it stands in the batch's payload."""

    place: int
    """Its number in the batch, from 0: the batch index."""
    header: SingleMessageMetadata
    start: int
    """Where its size begins."""
    payload_start: int
    end: int
    """Where its payload ends, and the next message begins."""


def batch_members(payload: bytes, count: int) -> Iterator[BatchMember]:
    """Walk through a batch's messages. What follows after the last one is the caller's to judge.

    Args:
        payload: the batch, decompressed.
        count: how many messages its entry's header counts (``num_messages_in_batch``).

    Raises:
        MessageFormatError: at the first message that is not whole; its offset is in `payload`.
    """
    end = 0
    for place in range(count):
        start = end
        try:
            (size,) = _U32.unpack_from(payload, start)
            payload_start = start + _U32.size + size
            header = SingleMessageMetadata.FromString(payload[start + _U32.size : payload_start])
        except (struct.error, DecodeError) as error:
            raise MessageFormatError(f"message {place} of {count}: no metadata", start) from error
        end = payload_start + header.payload_size
        if not header.HasField("payload_size") or not payload_start <= end <= len(payload):
            reason = f"message {place} of {count}: its payload is cut off"
            raise MessageFormatError(reason, payload_start)
        yield BatchMember(place, header, start, payload_start, end)


def check_batch_end(payload: bytes, count: int, end: int) -> None:
    """Raise MessageFormatError if bytes follow after the last message, which ends at `end`."""
    if end != len(payload):
        raise MessageFormatError(f"{len(payload) - end} bytes after its {count} messages", end)


def pack_batch_member(header: SingleMessageMetadata, payload: bytes) -> bytes:
    """One message as it stands in a batch. Sets the header's payload size."""
    header.payload_size = len(payload)
    encoded = header.SerializeToString()
    return b"".join((_U32.pack(len(encoded)), encoded, payload))
