"""Memory that connections receive into, so that the bytes of a large request are not copied.

Small requests are received into one piece of memory that all connections of an event loop share,
and copied from there: between two reads a connection with nothing to say has no memory. A large
request (`LARGE_BYTES`) gets a block of its own as soon as its size is known. What was received of
it is moved there, and the rest is received in its place. Its records are handed on as views of the
block, up to the call that writes them to the disk.

Blocks are used again while more large requests come: memory that was just mapped costs as much as a
copy. A bytearray says itself whether it is in use: it cannot be resized while there is a view of
it. Once `BLOCKS` are in use, or for a request that is larger than a block, a large size in a
request's head reserves no memory by itself: memory grows with what arrives, to four times as much.
"""

from __future__ import annotations

from collections import deque

from ...metadata import Buffer

__all__ = ["LARGE_BYTES", "LargeFrame", "Memory"]

#: A larger request has a block of its own.
LARGE_BYTES = 64 * 1024
#: The most that one read takes into the shared memory, and after a large request: it is likely
#: that another large one follows, of which this much is then copied.
SHARED_BYTES, SHARED_AFTER_LARGE_BYTES = 256 * 1024, 16 * 1024
#: A block's size, which Kafka's largest batch fits into, and how many blocks there may be.
BLOCK_BYTES, BLOCKS = 1024 * 1024 + LARGE_BYTES, 64
#: So many blocks, those that were given out first, are tried before another one is made.
TRIED = 3
#: The size of a request's memory that is no block, as a multiple of what has arrived.
GROWTH = 4


class Memory:
    """What the connections of one event loop share."""

    def __init__(self) -> None:
        self.shared = memoryview(bytearray(SHARED_BYTES))
        """Where small requests are received. Its content is lost at the next read."""
        self._blocks: deque[bytearray] = deque()
        """In the order in which they were given out."""
        self._taken = 0

    @property
    def block_bytes(self) -> int:
        """The size of all blocks."""
        return len(self._blocks) * BLOCK_BYTES

    def take(self, size_bytes: int, received_bytes: int) -> bytearray:
        """Memory for a request of this size, of which so much was received."""
        if size_bytes <= BLOCK_BYTES:
            block = self._block()
            if block is not None:
                return block
        grown = GROWTH * received_bytes
        return bytearray(size_bytes if grown + grown // 3 >= size_bytes else grown)

    def _block(self) -> bytearray | None:
        blocks = self._blocks
        for _ in range(min(TRIED, len(blocks))):
            blocks.rotate(-1)
            if _is_free(blocks[-1]):
                self._taken += 1
                return blocks[-1]
        if len(blocks) >= BLOCKS:
            return None
        self._taken += 1
        blocks.append(bytearray(BLOCK_BYTES))
        return blocks[-1]

    def trim(self) -> None:
        """Free half of what was not needed since the last call."""
        unneeded, self._taken = len(self._blocks) - self._taken, 0
        for _ in range((unneeded + 1) // 2):
            block = self._blocks.popleft()
            if not _is_free(block):
                self._blocks.append(block)


def _is_free(block: bytearray) -> bool:
    """Whether there is no view of a block."""
    try:
        block.append(block.pop())
    except BufferError:
        return False
    return True


class LargeFrame:
    """A request that is being received into a block of its own, its size field included."""

    def __init__(self, memory: Memory, size_bytes: int, begin: Buffer) -> None:
        self._memory = memory
        self._size_bytes = size_bytes
        self._view = memoryview(memory.take(size_bytes, len(begin)))
        self._view[: len(begin)] = begin
        self.received_bytes = len(begin)

    @property
    def is_complete(self) -> bool:
        """Whether all of it was received."""
        return self.received_bytes == self._size_bytes

    def room(self) -> memoryview:
        """Where the next bytes are to be received."""
        at = self.received_bytes
        if at == len(self._view):
            grown = memoryview(self._memory.take(self._size_bytes, at))
            grown[:at] = self._view
            self._view = grown
        return self._view[at : self._size_bytes]

    def body(self) -> memoryview:
        """The complete request, without its size field."""
        return self._view[4 : self._size_bytes]
