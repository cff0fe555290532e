"""Chunked messages on Shared subscriptions: all chunks of a message go to one consumer.

A large message comes as several entries, chunks, with a common uuid. A client can only put it
together from all of them, so (as in Pulsar) the consumer that got one chunk gets the others, too.
It stays the message's consumer until it has got the last chunk and holds none of them any more:
they are acknowledged, or given back all together, and then the message begins anew with whoever
gets its first chunk.

A chunk whose consumer cannot take it now waits for that consumer; the others go on with what comes
behind it, up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ...ledger import Position
from ...metadata import Buffer, MessageFormatError, read_message_metadata
from .consumer import Consumer
from .delayed import may_have_field
from .replay import ReplayQueue

__all__ = ["MAX_WAITING_CHUNKS", "Chunk", "ChunkedMessages", "chunk_of"]

#: The tag of MessageMetadata.num_chunks_from_msg (field 27, varint): without these bytes in the
#: header there is none, and the header need not be parsed.
NUM_CHUNKS_TAG = b"\xd8\x01"
#: Chunks of one subscription that wait for their consumers; no new entries are sent above it.
MAX_WAITING_CHUNKS = 500
#: Messages whose chunks came so far are all acknowledged, and whose last one did not come. Their
#: producer may be gone, so only the newest are remembered.
MAX_IDLE_MESSAGES = 1_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk: which message it belongs to, and whether it is the last of it."""

    #: The uuid's hash. Two messages that share it share their consumer, which does no harm.
    message: int
    is_last: bool


def chunk_of(headers_and_payload: Buffer) -> Chunk | None:
    """What chunk an entry is; None: it is none."""
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
    """Whose each chunked message is, and which chunks wait for their consumer."""

    def __init__(self) -> None:
        self._messages: dict[int, _Message] = {}
        #: The message of each chunk that a consumer holds.
        self._held: dict[Position, int] = {}
        self._idle: dict[int, None] = {}
        self._waiting: dict[Consumer, ReplayQueue] = {}
        #: How many chunks wait, at most: some may be acknowledged meanwhile.
        self.waiting_count = 0

    def consumer_of(self, chunk: Chunk) -> Consumer | None:
        """Who gets the chunk; None: whoever is next."""
        message = self._messages.get(chunk.message)
        return message.consumer if message is not None else None

    def sent(self, chunk: Chunk, position: Position, consumer: Consumer) -> None:
        """A consumer got a chunk, and holds it."""
        message = self._messages.get(chunk.message)
        if message is None:
            message = self._messages[chunk.message] = _Message(consumer)
        self._idle.pop(chunk.message, None)
        message.held += 1
        message.is_complete |= chunk.is_last
        self._held[position] = chunk.message

    def released(self, positions: Iterable[Position]) -> None:
        """Consumers hold these no longer."""
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

    def wait(self, consumer: Consumer, position: Position) -> None:
        """A chunk waits for its consumer."""
        self._waiting.setdefault(consumer, ReplayQueue()).add(position)
        self.waiting_count += 1

    def waits_for(self, consumer: Consumer) -> bool:
        """Whether chunks wait for a consumer."""
        return consumer in self._waiting

    def waiting_consumers(self) -> list[Consumer]:
        """The consumers that chunks wait for."""
        return list(self._waiting)

    def take(self, consumer: Consumer, max_entries: int) -> list[Position]:
        """Take out the first chunks that wait for a consumer, neighbours only."""
        queue = self._waiting.get(consumer)
        if queue is None:
            return []
        run = queue.pop_run(max_entries)
        self.waiting_count -= len(run)
        if not queue:
            del self._waiting[consumer]
        return run

    def left(self, consumers: AbstractSet[Consumer]) -> list[Position]:
        """Consumers that hold nothing more are gone; returns the chunks that waited for them."""
        for key in [key for key in self._idle if self._messages[key].consumer in consumers]:
            del self._idle[key], self._messages[key]
        waited = [consumer for consumer in self._waiting if consumer in consumers]
        positions = [position for consumer in waited for position in self._waiting.pop(consumer)]
        self.waiting_count -= len(positions)
        return positions

    def clear(self) -> None:
        """Forget everything."""
        self._messages.clear()
        self._held.clear()
        self._idle.clear()
        self._waiting.clear()
        self.waiting_count = 0
