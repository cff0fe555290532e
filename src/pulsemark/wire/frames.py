"""Frames: from a stream of bytes to whole commands, without I/O.

    [totalSize u32][commandSize u32][BaseCommand][headersAndPayload, only in SEND and MESSAGE]

All integers are big-endian; totalSize does not count itself (PulsarApi's simple and payload
commands). Bytes after a command that has no payload are tolerated and dropped, as Pulsar does.

Rules:

1. Sizes are judged as soon as they are there: totalSize with its fourth byte, commandSize with
   its eighth. A frame that is refused is never buffered.
2. What next_frame() hands out stays valid for as long as somebody holds it: memory that was
   handed out is never written again. Bytes are received into a block (a bytearray) and payloads
   are views into it; the block goes when the last view goes. A block of which nothing was handed
   out is used again from its beginning.
3. A byte is copied at most once on its way, and only if its frame did not fit behind the frames
   before it: the part that came is moved to the next block. A frame too large for that gets
   memory of its own, into which the rest is received directly.
4. Blocks follow the traffic: large reads double them, small ones halve them, so that thousands
   of quiet connections cost little and a busy one few system calls.
5. What a frame announces costs nothing: memory of its own is about four times what has arrived of
   it, or an ordinary block, or as much as the large frame before it filled, and grows to the
   frame's size with the bytes that come. So the first large frame's bytes are moved some times
   more, all moves together about once its size.
6. `allocated_bytes` is what a connection's buffers hold now; `release()` gives the memory of a
   connection between two frames back, until its next byte.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from .errors import CommandTooLargeError, FrameSizeError, FrameTooLargeError

Buffer: TypeAlias = bytes | bytearray | memoryview

# Room that Pulsar grants a frame above the largest message: commands and headers come on top.
FRAME_PADDING_BYTES = 10 * 1024

_SIZES = struct.Struct(">II")
_TOTAL = struct.Struct(">I")

_BLOCK_MIN_BYTES = 16 * 1024
_BLOCK_MAX_BYTES = 256 * 1024
# With less room than this a read is not worth its system call: take a new block.
_READ_MIN_BYTES = 2 * 1024
# Memory for a large frame, as a multiple of what has arrived of it.
_GROWTH = 4
_NO_PAYLOAD = memoryview(b"")


class FrameBuffer:
    """Receives bytes, yields frames.

    Either `receive_data(data)`, which copies, or, as asyncio.BufferedProtocol does it,
    `get_buffer()`, fill a part of it, `buffer_updated(size_bytes)`. Then `next_frame()` until it
    returns None.

    max_frame_size_bytes: the largest frame, its totalSize field included; may be set anew at any
    time and counts from the next size on.
    max_command_size_bytes: the largest command in it.
    """

    __slots__ = (
        "_block",
        "_capacity",
        "_end",
        "_largest_read",
        "_lent",
        "_parked",
        "_proven_bytes",
        "_readable",
        "_start",
        "_writable",
        "max_command_size_bytes",
        "max_frame_size_bytes",
    )

    def __init__(self, max_frame_size_bytes: int, max_command_size_bytes: int) -> None:
        self.max_frame_size_bytes = max_frame_size_bytes
        self.max_command_size_bytes = max_command_size_bytes
        self._largest_read = 0
        # The size of the latest whole frame with memory of its own: so much is given at once again.
        self._proven_bytes = 0
        # The ordinary block, while a large frame has memory of its own: (block, next free byte).
        self._parked: tuple[bytearray, int] | None = None
        self._start = self._end = 0
        self._use(bytearray(_BLOCK_MIN_BYTES), 0, 0)

    @property
    def pending_bytes(self) -> int:
        """How many bytes were received and not yet handed out as a frame."""
        return self._end - self._start

    @property
    def allocated_bytes(self) -> int:
        """The memory that this buffer keeps for what comes next; views handed out not counted."""
        return self._capacity + (len(self._parked[0]) if self._parked is not None else 0)

    def release(self) -> None:
        """Give the memory back if no frame has begun; the next get_buffer() takes a small block."""
        if self._start == self._end:
            self._parked = None
            self._largest_read = self._proven_bytes = 0
            self._use(bytearray(), 0, 0)

    def discard(self) -> None:
        """Drop what came and was not taken, with its memory: the connection has ended."""
        self._start = self._end
        self.release()

    def receive_data(self, data: Buffer) -> None:
        """Take `data` in, by copying it."""
        source = memoryview(data).cast("B")
        at = 0
        while at < len(source):
            room = self.get_buffer()
            size = min(len(room), len(source) - at)
            room[:size] = source[at : at + size]
            self.buffer_updated(size)
            at += size

    def get_buffer(self) -> memoryview:
        """Writable memory, never empty, for the next bytes of the stream."""
        if self._start == self._end:
            if self._parked is not None:
                self._proven_bytes = self._capacity
                block, start = self._parked
                self._parked = None
                self._use(block, start, start)
                self._lent = True
            elif not self._lent:
                self._start = self._end = 0
        elif self._parked is not None and self._end < self._capacity:
            # Memory of a large frame's own is filled before it grows.
            return self._writable[self._end :]
        need = self._room_needed()
        if self._capacity - self._start < need:
            self._move(need)
        return self._writable[self._end :]

    def buffer_updated(self, size_bytes: int) -> None:
        """The first `size_bytes` of the memory that get_buffer() returned have been filled."""
        self._end += size_bytes
        if size_bytes > self._largest_read:
            self._largest_read = size_bytes

    def next_frame(self) -> tuple[bytearray, memoryview] | None:
        """The next whole frame as (command, headers-and-payload), or None if more bytes are needed.

        The command is a copy, the rest a read-only view without a copy, empty if there is none.
        Raises FrameTooLargeError, CommandTooLargeError, FrameSizeError.
        """
        start = self._start
        available = self._end - start
        if available < 8:
            if available >= 4:
                self._judge(_TOTAL.unpack_from(self._block, start)[0], None)
            return None
        total, command_size = _SIZES.unpack_from(self._block, start)
        # One test in the ordinary case; _judge finds out what is wrong, in a fixed order.
        if (
            total + 4 > self.max_frame_size_bytes
            or not 0 < command_size <= total - 4
            or command_size > self.max_command_size_bytes
        ):
            self._judge(total, command_size)
        if available - 4 < total:
            return None
        command_at = start + 8
        payload_at = command_at + command_size
        self._start = end = start + 4 + total
        command = self._block[command_at:payload_at]
        if payload_at == end:
            return command, _NO_PAYLOAD
        self._lent = True
        return command, self._readable[payload_at:end]

    def _judge(self, total: int, command_size: int | None) -> None:
        """Raise what is wrong with the sizes, if anything is."""
        if total + 4 > self.max_frame_size_bytes:
            raise FrameTooLargeError(total + 4, self.max_frame_size_bytes)
        if total < 5:
            raise FrameSizeError(total, None)
        if command_size is None:
            return
        if not 0 < command_size <= total - 4:
            raise FrameSizeError(total, command_size)
        if command_size > self.max_command_size_bytes:
            raise CommandTooLargeError(command_size, self.max_command_size_bytes)

    def _room_needed(self) -> int:
        """How many bytes there must be room for from _start on, before the next read."""
        pending = self._end - self._start
        if pending < 4:
            return _READ_MIN_BYTES
        frame_size: int = _TOTAL.unpack_from(self._block, self._start)[0] + 4
        if pending < frame_size <= self.max_frame_size_bytes:
            trusted = max(self._next_block_size(), self._proven_bytes)
            grown = max(trusted, _GROWTH * pending)
            # What is missing of the frame then would cost another move of all of it.
            return frame_size if grown + grown // 3 >= frame_size else grown
        # Whole frames that nobody has taken yet, or one that next_frame() will refuse.
        return pending + _READ_MIN_BYTES

    def _use(self, block: bytearray, start: int, end: int) -> None:
        """Make `block` the current one, with unread bytes from `start` to `end`."""
        self._block = block
        self._writable = memoryview(block)
        self._readable = self._writable.toreadonly()
        self._capacity = len(block)
        self._start = start
        self._end = end
        self._lent = False

    def _move(self, need: int) -> None:
        """Go on in a new block with room for `need` bytes, taking the unread bytes along."""
        old = self._readable[self._start : self._end]
        size = self._next_block_size()
        self._largest_read = 0
        if need > size // 2:
            if self._parked is None:
                self._parked = (self._block, self._start)
            size = need
        else:
            self._parked = None
        block = bytearray(size)
        block[: len(old)] = old
        self._use(block, 0, len(old))

    def _next_block_size(self) -> int:
        size = self._capacity if self._parked is None else len(self._parked[0])
        if self._largest_read >= size // 2:
            size *= 2
        elif self._largest_read < size // 8:
            size //= 2
        return min(max(size, _BLOCK_MIN_BYTES), _BLOCK_MAX_BYTES)
