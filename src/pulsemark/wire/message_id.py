"""Message ids: (ledger id, entry id), a partition, and a place inside a batch.

The protocol's fields are uint64 but hold signed values: -1 is sent as 2^64-1. Here ids are signed
Python integers; `to_unsigned` and `to_signed` convert them. Two ids are not ids of a message:

    EARLIEST = (-1, -1)               before everything
    LATEST   = (2^63-1, 2^63-1)       after everything

An ack_set is a bit set in 64-bit words, lowest first, as Java's BitSet writes itself: bit i is
SET while message i of the batch is NOT yet acknowledged; words past the last set bit are left
out. (PIP-54)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError

from ..proto.pulsar_api_pb2 import MessageIdData

_U64_MASK = 2**64 - 1
_SIGN_BIT = 2**63


def to_unsigned(value: int) -> int:
    """A signed 64-bit number as the protocol's uint64. Raises OverflowError outside 64 bits."""
    if not -_SIGN_BIT <= value <= _U64_MASK:
        raise OverflowError(f"{value} does not fit into 64 bits")
    return value & _U64_MASK


def to_signed(value: int) -> int:
    """The signed number that the protocol's uint64 means."""
    return value - 2**64 if value >= _SIGN_BIT else value


class MessageId(NamedTuple):
    """One message's place. Ids are signed. partition and batch_index are -1 if there is none.

    batch_size is the batch's message count, 0 if it is not known. The module's docstring explains
    ack_set.
    """

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1
    batch_size: int = 0
    ack_set: tuple[int, ...] = ()

    @classmethod
    def from_data(cls, data: MessageIdData) -> MessageId:
        """The id in a protocol message."""
        return cls(
            to_signed(data.ledgerId),
            to_signed(data.entryId),
            data.partition,
            data.batch_index,
            data.batch_size,
            tuple(data.ack_set),
        )

    @classmethod
    def deserialize(cls, data: bytes) -> MessageId:
        """Read a client's serialized message id. Raises ValueError."""
        try:
            message = MessageIdData.FromString(data)
        except DecodeError:
            raise ValueError(f"{len(data)} bytes are not a serialized message id") from None
        if not message.IsInitialized():
            raise ValueError("a serialized message id must have a ledger id and an entry id")
        return cls.from_data(message)

    def to_data(self) -> MessageIdData:
        """The protocol message, without fields at their defaults."""
        data = MessageIdData(
            ledgerId=to_unsigned(self.ledger_id),
            entryId=to_unsigned(self.entry_id),
            ack_set=self.ack_set,
        )
        if self.partition != -1:
            data.partition = self.partition
        if self.batch_index != -1:
            data.batch_index = self.batch_index
        if self.batch_size > 0:
            data.batch_size = self.batch_size
        return data

    def to_full_data(self) -> MessageIdData:
        """The protocol message with partition and batch_index, also if they are -1."""
        data = self.to_data()
        data.partition, data.batch_index = self.partition, self.batch_index
        return data

    def serialize(self) -> bytes:
        """The serialized message id, as official clients write it."""
        return self.to_data().SerializeToString()


EARLIEST = MessageId(-1, -1)
LATEST = MessageId(2**63 - 1, 2**63 - 1)


def pack_ack_set(unacked: Iterable[int]) -> tuple[int, ...]:
    """The words (signed int64) whose bits are the batch indexes in `unacked`."""
    bits = 0
    for batch_index in unacked:
        bits |= 1 << batch_index
    words = []
    while bits:
        words.append(to_signed(bits & _U64_MASK))
        bits >>= 64
    return tuple(words)


def unpack_ack_set(words: Sequence[int], batch_size: int) -> list[int]:
    """The batch indexes below `batch_size` that are not yet acknowledged, ascending."""
    bits = 0
    for place, word in enumerate(words):
        bits |= (word & _U64_MASK) << (64 * place)
    return [index for index in range(batch_size) if bits >> index & 1]
