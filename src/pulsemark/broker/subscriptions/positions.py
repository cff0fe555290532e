"""Pulsar's message ids, batches and acknowledgement sets, as the broker reads them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from ...ledger import Position
from ...metadata import Buffer, MessageFormatError, read_message_metadata
from ...proto.pulsar_api_pb2 import MessageIdData, MessageMetadata
from ...wire import to_signed

__all__ = ["batch_size_of", "count_open", "messages_in", "position_of"]

#: Headers are a few hundred bytes: where the batch's size stands.
HEADER_PEEK_BYTES = 1024
WORD_MASK = (1 << 64) - 1


def position_of(message_id: MessageIdData) -> Position:
    """The position that a message id names; its batch index is another matter."""
    return Position(to_signed(message_id.ledgerId), to_signed(message_id.entryId))


def count_open(ack_set: Iterable[int]) -> int:
    """Messages of a batch that are not acknowledged: the bits set in its words (PIP-54)."""
    return sum((word & WORD_MASK).bit_count() for word in ack_set)


def batch_size_of(headers_and_payload: Buffer) -> int | None:
    """How many messages an entry's batch says it has; None: the entry is no batch."""
    try:
        metadata = read_message_metadata(headers_and_payload)
    except MessageFormatError:
        # A body without Pulsar's header was accepted as it is; it has no batch to speak of.
        return None
    return metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else None


def messages_in(headers_and_payload: Buffer, said: int) -> int:
    """How many messages an entry has whose sender said so many, more than one.

    The number is in the batch's own header, too: where its bytes are there, that is not parsed.
    Where they are not, it counts what the header says, and no more than was said.
    """
    if _batch_size_field(said) in bytes(headers_and_payload[:HEADER_PEEK_BYTES]):
        return said
    return min(said, max(1, batch_size_of(headers_and_payload) or 1))


@lru_cache(maxsize=1024)
def _batch_size_field(size: int) -> bytes:
    """MessageMetadata.num_messages_in_batch as it is encoded: the field's tag, a varint."""
    return MessageMetadata(num_messages_in_batch=size).SerializePartialToString()
