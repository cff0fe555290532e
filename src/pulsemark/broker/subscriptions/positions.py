"""Pulsar's message ids and acknowledgement sets, as the broker reads them."""

from __future__ import annotations

from collections.abc import Iterable

from ...ledger import Position
from ...proto.pulsar_api_pb2 import MessageIdData
from ...wire import to_signed

__all__ = ["count_open", "position_of"]

WORD_MASK = (1 << 64) - 1


def position_of(message_id: MessageIdData) -> Position:
    """The position that a message id names; its batch index is another matter."""
    return Position(to_signed(message_id.ledgerId), to_signed(message_id.entryId))


def count_open(ack_set: Iterable[int]) -> int:
    """Messages of a batch that are not acknowledged: the bits set in its words (PIP-54)."""
    return sum((word & WORD_MASK).bit_count() for word in ack_set)
