"""Reads Pulsar's message ids, batch sizes and acknowledgement sets."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from ...ledger import Position
from ...metadata import Buffer, MessageFormatError, read_message_metadata
from ...proto.pulsar_api_pb2 import LZ4, SNAPPY, ZLIB, ZSTD, MessageIdData, MessageMetadata
from ...wire import to_signed

if TYPE_CHECKING:
    from .home_topic import HomeTopic

__all__ = ["batch_size_of", "count_open", "messages_in", "position_of", "shown_mark_delete"]

#: The batch size is searched in so many bytes; headers are usually a few hundred bytes.
HEADER_PEEK_BYTES = 1024
#: A batch has so many bytes for each message: its size, and a header with the payload's size.
MIN_MEMBER_BYTES = 6
#: How many times smaller than before a payload can be after compression.
MAX_RATIOS = {LZ4: 255, ZLIB: 1_032, SNAPPY: 22, ZSTD: 32_768}
WORD_MASK = (1 << 64) - 1


def position_of(message_id: MessageIdData) -> Position:
    """The position in a message id, without its batch index."""
    return Position(to_signed(message_id.ledgerId), to_signed(message_id.entryId))


def shown_mark_delete(topic: HomeTopic, mark_delete: Position) -> Position:
    """What clients see as the last acknowledged position.

    Before the topic's first entry it is the place before it in the same ledger, as in Pulsar.
    """
    first = topic.ledger.first_position
    ledger_id = (topic.ledger.end_position if first is None else first).ledger_id
    return mark_delete if mark_delete.ledger_id >= ledger_id else Position(ledger_id, -1)


def count_open(ack_set: Iterable[int]) -> int:
    """Messages of a batch that are not acknowledged: the bits set in its words (PIP-54)."""
    return sum((word & WORD_MASK).bit_count() for word in ack_set)


def batch_size_of(headers_and_payload: Buffer) -> int | None:
    """The number of messages in the header of an entry's batch; None: it is not a batch."""
    try:
        metadata = read_message_metadata(headers_and_payload)
    except MessageFormatError:
        # The body has no Pulsar header. It was stored as it is, and is not a batch.
        return None
    return metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else None


def messages_in(headers_and_payload: Buffer, said: int) -> int:
    """How many messages an entry has, if its SEND said `said` (more than one).

    The batch's own header has the number, too. If the encoded field with `said` is in the header's
    bytes, the header is not parsed. Else the number in the header counts, but at most `said`. Where
    both say more than the entry's bytes can hold, so much as they can hold.
    """
    found = said
    if _batch_size_field(said) not in bytes(headers_and_payload[:HEADER_PEEK_BYTES]):
        found = min(said, max(1, batch_size_of(headers_and_payload) or 1))
    if found * MIN_MEMBER_BYTES <= len(headers_and_payload):
        return found
    return min(found, _most_messages(headers_and_payload))


def _most_messages(headers_and_payload: Buffer) -> int:
    """The most messages that fit into an entry's payload, before it was compressed."""
    try:
        metadata = read_message_metadata(headers_and_payload)
    except MessageFormatError:
        return 1
    size_bytes = len(headers_and_payload)
    ratio = MAX_RATIOS.get(metadata.compression, 1)
    if ratio > 1:
        size_bytes = min(size_bytes * ratio, metadata.uncompressed_size)
    return max(1, size_bytes // MIN_MEMBER_BYTES)


@lru_cache(maxsize=1024)
def _batch_size_field(size: int) -> bytes:
    """The encoded field MessageMetadata.num_messages_in_batch: its tag, and a varint."""
    return MessageMetadata(num_messages_in_batch=size).SerializePartialToString()
