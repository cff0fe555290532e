"""The chunked messages whose last chunk is missing, one for each producer of a topic.

A client that loses its connection sends again what was not acknowledged, also chunks that the
topic has. Pulsar stores these a second time, and its C++ client then loses the message, because it
gives up one whose chunks are not in order. Here a chunk is a duplicate if the same bytes are stored
as this chunk of the message. Bytes are compared by the producer's checksum, which covers the
publish time. So another message with the same sequence id (of a program that was started again) is
no duplicate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...metadata import Buffer, MessageFormatError, read_message_metadata

__all__ = ["Chunk", "OpenChunks", "open_chunk"]

MAGIC = b"\x0e\x01"
#: A message with more chunks is not watched: its list would be long.
MAX_CHUNKS = 10_000
NO_CHECKSUM = -1


class Chunk(NamedTuple):
    """A chunk that is not the last one of its message. Without a checksum, that is -1."""

    sequence_id: int
    number: int
    checksum: int


def open_chunk(body: Buffer) -> Chunk | None:
    """The chunk in an entry's body; None for other messages and last chunks."""
    try:
        metadata: Any = read_message_metadata(body)
    except MessageFormatError:
        return None
    if metadata.num_chunks_from_msg <= 1 or is_last(metadata):
        return None
    start = bytes(body[:6])
    checksum = int.from_bytes(start[2:], "big") if start.startswith(MAGIC) else NO_CHECKSUM
    return Chunk(metadata.sequence_id, metadata.chunk_id, checksum)


def is_last(metadata: Any) -> bool:
    """Whether a header is of a message's last chunk."""
    return bool(metadata.chunk_id == metadata.num_chunks_from_msg - 1)


class OpenChunks:
    """By producer: a message's sequence id, and the checksums of its chunks that are stored."""

    def __init__(self, stored: dict[str, tuple[int, list[int]]]) -> None:
        self.by_producer = stored

    def has(self, name: str, chunk: Chunk) -> bool:
        """Whether the chunk is stored."""
        sequence_id, checksums = self.by_producer.get(name, (-1, []))
        if sequence_id != chunk.sequence_id or chunk.checksum == NO_CHECKSUM:
            return False
        return checksums[chunk.number : chunk.number + 1] == [chunk.checksum]

    def add(self, name: str, chunk: Chunk) -> None:
        """The chunk is stored now."""
        sequence_id, checksums = self.by_producer.get(name, (-1, []))
        if chunk.number == 0:
            self.by_producer[name] = chunk.sequence_id, [chunk.checksum]
        elif sequence_id == chunk.sequence_id and chunk.number == len(checksums) < MAX_CHUNKS:
            checksums.append(chunk.checksum)
        else:
            self.by_producer.pop(name, None)

    def ended(self, name: str) -> None:
        """The producer has stored a last chunk, or a message in one piece."""
        self.by_producer.pop(name, None)

    def copy(self) -> dict[str, tuple[int, list[int]]]:
        """What a snapshot keeps."""
        return {name: (number, list(sums)) for name, (number, sums) in self.by_producer.items()}
