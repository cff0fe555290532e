"""Frames: split a stream of bytes into whole commands, without I/O.

    [totalSize u32][commandSize u32][BaseCommand][headersAndPayload, only in SEND and MESSAGE]

All integers are big-endian; totalSize does not count itself (PulsarApi's simple and payload
commands). Bytes after a command that has no payload are tolerated and dropped, as Pulsar does.

Rules:

1. Sizes are checked as soon as they are received: totalSize with its fourth byte, commandSize with
   the eighth. A frame that is refused is never buffered. 2. The views that next_frame() returns
   stay valid as long as the caller keeps them: the memory under them is never written again. Bytes
   are received into a block (a bytearray), and payloads are views into it. The block is freed when
   its last view is gone. A block without views is used again from its beginning. 3. A byte is
   copied at most once, and only if its frame does not fit into the rest of the block: then the part
   that was received is moved to the next block. A frame that is too large for a block gets its own
   memory, into which the rest is received directly. 4. The size of blocks follows the traffic:
   large reads double it, small reads halve it. So thousands of idle connections use little memory,
   and a busy connection needs few system calls. 5. A large size in a frame's header does not
   reserve memory by itself. A large frame's own memory starts as the largest of three sizes: about
   four times the bytes received so far, an ordinary block, the size of the connection's last large
   frame. It grows up to the frame's size while bytes arrive. So the bytes of the first large frame
   are moved a few more times; all moves together copy about the frame's size once. 6.
   `allocated_bytes` is the size of a connection's buffers now. Between two frames, `release()`
   frees them until the next byte is received.
"""

from __future__ import annotations

import struct
from re import Pattern
from typing import Any, TypeAlias

from .errors import CommandTooLargeError, FrameSizeError, FrameTooLargeError

Buffer: TypeAlias = bytes | bytearray | memoryview

# Pulsar allows a frame to be this much larger than the largest message, for command and headers.
FRAME_PADDING_BYTES = 10 * 1024

_SIZES = struct.Struct(">II")
_TOTAL = struct.Struct(">I")

_BLOCK_MIN_BYTES = 16 * 1024
_BLOCK_MAX_BYTES = 256 * 1024
# With less free space than this, a read is not worth its system call: use a new block.
_READ_MIN_BYTES = 2 * 1024
# Memory for a large frame, as a multiple of what has arrived of it.
_GROWTH = 4
_NO_PAYLOAD = memoryview(b"")


class FrameBuffer:
    """Receives bytes, yields frames.

    Either call `receive_data(data)`, which copies. Or, as asyncio.BufferedProtocol does, call
    `get_buffer()`, fill a part of it, and call `buffer_updated(size_bytes)`. Then call
    `next_frame()` until it returns None.

    max_frame_size_bytes: the largest frame, including its totalSize field. It may be changed at any
    time; the new value is used from the next frame on.
    max_command_size_bytes: the largest command in it.
    """

    __slots__ = (
        "_block",
        "_capacity",
        "_end",
        "_has_views",
        "_largest_read",
        "_last_large_frame_bytes",
        "_ordinary_block",
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
        # The size of the last large frame that was received whole: the next starts with as much.
        self._last_large_frame_bytes = 0
        # While a large frame has its own memory, the ordinary block: (block, next free byte).
        self._ordinary_block: tuple[bytearray, int] | None = None
        self._start = self._end = 0
        self._use(bytearray(_BLOCK_MIN_BYTES), 0, 0)

    @property
    def pending_bytes(self) -> int:
        """How many bytes were received but not yet returned as a frame."""
        return self._end - self._start

    @property
    def allocated_bytes(self) -> int:
        """The size of the memory that this buffer uses, without the views that were returned."""
        return self._capacity + (
            len(self._ordinary_block[0]) if self._ordinary_block is not None else 0
        )

    def release(self) -> None:
        """Free the memory, unless a frame has begun. The next get_buffer() uses a small block."""
        if self._start == self._end:
            self._ordinary_block = None
            self._largest_read = self._last_large_frame_bytes = 0
            self._use(bytearray(), 0, 0)

    def discard(self) -> None:
        """Drop received bytes that were not read, and free their memory: the connection ended."""
        self._start = self._end
        self.release()

    def receive_data(self, data: Buffer) -> None:
        """Copy `data` into the buffer."""
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
            if self._ordinary_block is not None:
                self._last_large_frame_bytes = self._capacity
                block, start = self._ordinary_block
                self._ordinary_block = None
                self._use(block, start, start)
                self._has_views = True
            elif not self._has_views:
                self._start = self._end = 0
        elif self._ordinary_block is not None and self._end < self._capacity:
            # The own memory of a large frame is filled before it grows.
            return self._writable[self._end :]
        need = self._room_needed()
        if self._capacity - self._start < need:
            self._move(need)
        return self._writable[self._end :]

    def buffer_updated(self, size_bytes: int) -> None:
        """Note that the first `size_bytes` of get_buffer()'s memory were filled."""
        self._end += size_bytes
        if size_bytes > self._largest_read:
            self._largest_read = size_bytes

    def next_frame(self) -> tuple[bytearray, memoryview] | None:
        """The next whole frame as (command, headers-and-payload), or None if more bytes are needed.

        The command is a copy. The rest is a read-only view without a copy; it may be empty.
        Raises FrameTooLargeError, CommandTooLargeError, FrameSizeError.
        """
        start = self._start
        available = self._end - start
        if available < 8:
            if available >= 4:
                self._check_sizes(_TOTAL.unpack_from(self._block, start)[0], None)
            return None
        total, command_size = _SIZES.unpack_from(self._block, start)
        # One test for the ordinary case; _check_sizes then finds what is wrong, in a fixed order.
        if (
            total + 4 > self.max_frame_size_bytes
            or not 0 < command_size <= total - 4
            or command_size > self.max_command_size_bytes
        ):
            self._check_sizes(total, command_size)
        if available - 4 < total:
            return None
        command_at = start + 8
        payload_at = command_at + command_size
        self._start = end = start + 4 + total
        command = self._block[command_at:payload_at]
        if payload_at == end:
            return command, _NO_PAYLOAD
        self._has_views = True
        return command, self._readable[payload_at:end]

    def next_matching(
        self, pattern: Pattern[bytes], most: int
    ) -> tuple[list[tuple[bytes | Any, ...]], list[memoryview]]:
        """The next whole frames whose commands match, at most so many; there may be none.

        The commands are returned as the pattern's groups, the rest as views. Only commands in the
        usual encoding are looked at: their fourth byte says how many bytes follow it. What is not
        whole, does not match or is wrong is left to `next_frame`.
        """
        block, start, end = self._block, self._start, self._end
        match, sizes_at, readable = pattern.fullmatch, _SIZES.unpack_from, self._readable
        commands: list[tuple[bytes | Any, ...]] = []
        payloads: list[memoryview] = []
        while end - start >= 8 and len(commands) < most:
            total, command_size = sizes_at(block, start)
            command_at = start + 8
            payload_at = command_at + command_size
            start += 4 + total
            if (
                start > end
                or not 4 < command_size < 132
                or payload_at > start
                or total + 4 > self.max_frame_size_bytes
                or command_size > self.max_command_size_bytes
                or block[command_at + 3] != command_size - 4
                or (found := match(block, command_at, payload_at)) is None
            ):
                break
            commands.append(found.groups())
            payloads.append(readable[payload_at:start])
            self._start = start
        if commands:
            self._has_views = True
        return commands, payloads

    def _check_sizes(self, total: int, command_size: int | None) -> None:
        """Raise an error if the sizes are wrong."""
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
        """How many bytes the block must be able to hold from _start on, before the next read."""
        pending = self._end - self._start
        if pending < 4:
            return _READ_MIN_BYTES
        frame_size: int = _TOTAL.unpack_from(self._block, self._start)[0] + 4
        if pending < frame_size <= self.max_frame_size_bytes:
            first_bytes = max(self._next_block_size(), self._last_large_frame_bytes)
            grown = max(first_bytes, _GROWTH * pending)
            # If little of the frame would still not fit, allocate all: it saves one more move.
            return frame_size if grown + grown // 3 >= frame_size else grown
        # Whole frames that the caller has not read yet, or one that next_frame() will refuse.
        return pending + _READ_MIN_BYTES

    def _use(self, block: bytearray, start: int, end: int) -> None:
        """Make `block` the current one, with unread bytes from `start` to `end`."""
        self._block = block
        self._writable = memoryview(block)
        self._readable = self._writable.toreadonly()
        self._capacity = len(block)
        self._start = start
        self._end = end
        self._has_views = False

    def _move(self, need: int) -> None:
        """Move the unread bytes to a new block that can hold `need` bytes."""
        old = self._readable[self._start : self._end]
        size = self._next_block_size()
        self._largest_read = 0
        if need > size // 2:
            if self._ordinary_block is None:
                self._ordinary_block = (self._block, self._start)
            size = need
        else:
            self._ordinary_block = None
        block = bytearray(size)
        block[: len(old)] = old
        self._use(block, 0, len(old))

    def _next_block_size(self) -> int:
        size = self._capacity if self._ordinary_block is None else len(self._ordinary_block[0])
        if self._largest_read >= size // 2:
            size *= 2
        elif self._largest_read < size // 8:
            size //= 2
        return min(max(size, _BLOCK_MIN_BYTES), _BLOCK_MAX_BYTES)
