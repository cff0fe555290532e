"""Chunked messages on Shared subscriptions: all chunks of a message go to one consumer.

A large message is stored as several entries, called chunks, with a common uuid. A client needs all
of them to put the message together. So, as in Pulsar, the consumer that got one chunk gets all
others. It stays the message's consumer until it was sent the last chunk and holds no chunk any
more: all are acknowledged or given back. After that any consumer can get the message's first
chunk, and then gets the whole message.

A chunk whose consumer cannot take it now waits for that consumer. Meanwhile the other consumers
get later entries, up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ...ledger import Position
from ...metadata import Buffer, MessageFormatError, read_message_metadata
from .consumer import Consumer
from .delayed import may_have_field

__all__ = ["MAX_WAITING_CHUNKS", "Chunk", "ChunkedMessages", "chunk_of"]

#: The tag of MessageMetadata.num_chunks_from_msg (field 27, varint). A header without these bytes
#: does not have the field, and need not be parsed.
NUM_CHUNKS_TAG = b"\xd8\x01"
#: Chunks of one subscription that wait for their consumers; no new entries are sent above it.
MAX_WAITING_CHUNKS = 500
#: Incomplete messages whose chunks so far are all acknowledged. Their producer may never send the
#: rest, so only the newest of these messages are remembered.
MAX_IDLE_MESSAGES = 1_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk: its message, and whether it is the message's last chunk."""

    #: The uuid's hash. Two messages with the same hash get the same consumer, which is harmless.
    message: int
    is_last: bool


def chunk_of(headers_and_payload: Buffer) -> Chunk | None:
    """The chunk that an entry is; None if it is not a chunk."""
    if not may_have_field(headers_and_payload, NUM_CHUNKS_TAG):
        return None
    try:
        metadata = read_message_metadata(headers_and_payload)
    except MessageFormatError:
        return None
    chunks = metadata.num_chunks_from_msg
    if not metadata.HasField("uuid") or not metadata.HasField("chunk_id") or chunks < 2:
        return None
    return Chunk(hash(metadata.uuid), metadata.chunk_id >= chunks - 1)


@dataclass(slots=True)
class _Message:
    consumer: Consumer
    held: int = 0
    is_complete: bool = False


class ChunkedMessages:
    """The consumer of each chunked message."""

    def __init__(self) -> None:
        self._messages: dict[int, _Message] = {}
        #: The message of each chunk that a consumer holds.
        self._held: dict[Position, int] = {}
        self._idle: dict[int, None] = {}

    def consumer_of(self, chunk: Chunk) -> Consumer | None:
        """The consumer that must get the chunk; None: any consumer may get it."""
        message = self._messages.get(chunk.message)
        return message.consumer if message is not None else None

    def sent(self, chunk: Chunk, position: Position, consumer: Consumer) -> None:
        """A chunk was sent to a consumer, which holds it now."""
        message = self._messages.get(chunk.message)
        if message is None:
            message = self._messages[chunk.message] = _Message(consumer)
        self._idle.pop(chunk.message, None)
        message.held += 1
        message.is_complete |= chunk.is_last
        self._held[position] = chunk.message

    def released(self, positions: Iterable[Position]) -> None:
        """Consumers no longer hold these entries."""
        if not self._held:
            return
        for position in positions:
            key = self._held.pop(position, None)
            if key is None:
                continue
            message = self._messages[key]
            message.held -= 1
            if message.held:
                continue
            if message.is_complete:
                del self._messages[key]
                continue
            self._idle[key] = None
            if len(self._idle) > MAX_IDLE_MESSAGES:
                oldest = next(iter(self._idle))
                del self._idle[oldest], self._messages[oldest]

    def left(self, consumers: AbstractSet[Consumer]) -> None:
        """Consumers left, and hold no entries."""
        for key in [key for key in self._idle if self._messages[key].consumer in consumers]:
            del self._idle[key], self._messages[key]

    def clear(self) -> None:
        """Forget everything."""
        self._messages.clear()
        self._held.clear()
        self._idle.clear()
