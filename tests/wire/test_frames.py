"""Frames out of a stream: cuts, limits, memory."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.wire import FrameBuffer, ProtocolError

LIMIT = 1 << 20


def pack(command: bytes, payload: bytes = b"") -> bytes:
    """A frame."""
    return struct.pack(">II", 4 + len(command) + len(payload), len(command)) + command + payload


def new_buffer(frame_limit: int = LIMIT, command_limit: int = LIMIT) -> FrameBuffer:
    """An empty FrameBuffer."""
    return FrameBuffer(frame_limit, command_limit)


def feed(buffer: FrameBuffer, data: bytes, cuts: list[int]) -> list[tuple[bytes, memoryview]]:
    """All frames of `data`, received in pieces of the given sizes over and over again.

    Each piece is received as asyncio does it, into the memory that the buffer offers.
    """
    frames = []
    at = 0
    turn = 0
    while at < len(data):
        room = buffer.get_buffer()
        size = min(len(room), len(data) - at, cuts[turn % len(cuts)])
        turn += 1
        room[:size] = data[at : at + size]
        buffer.buffer_updated(size)
        at += size
        while (frame := buffer.next_frame()) is not None:
            frames.append((bytes(frame[0]), frame[1]))
    return frames


contents = st.tuples(st.binary(min_size=1, max_size=40), st.binary(max_size=60))


@settings(deadline=None)
@given(st.lists(contents, max_size=30), st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_every_cut_gives_the_same_frames(
    frames: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    """However the stream is cut, the frames that were written come out, in order."""
    stream = b"".join(pack(*frame) for frame in frames)

    found = feed(new_buffer(), stream, cuts)

    assert [(command, bytes(payload)) for command, payload in found] == frames


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 150_000), min_size=1, max_size=12),
    st.lists(st.integers(500, 300_000), min_size=1, max_size=6),
)
def test_payloads_stay_valid_for_as_long_as_they_are_held(
    sizes: list[int], cuts: list[int]
) -> None:
    """No later byte overwrites a payload that was handed out, small or large, old or new."""
    payloads = [bytes([place + 1]) * size for place, size in enumerate(sizes)]
    stream = b"".join(pack(b"c", payload) for payload in payloads)

    held = feed(new_buffer(), stream, cuts)

    assert [bytes(view) for _, view in held] == payloads


def test_received_data_may_be_any_buffer() -> None:
    """receive_data takes bytes, bytearray and views of larger items alike, and copies them."""
    buffer = new_buffer()
    frame = bytearray(pack(b"command!", b"payload!"))

    buffer.receive_data(frame[:4])
    buffer.receive_data(memoryview(bytes(frame[4:12])).cast("I"))
    buffer.receive_data(bytes(frame[12:]))
    frame[:] = bytes(len(frame))
    found = buffer.next_frame()

    assert found is not None
    assert (bytes(found[0]), bytes(found[1])) == (b"command!", b"payload!")
    assert buffer.next_frame() is None


def test_payload_is_read_only() -> None:
    """A payload's holder cannot change the memory that others look at."""
    buffer = new_buffer()
    buffer.receive_data(pack(b"c", b"payload"))
    frame = buffer.next_frame()

    assert frame is not None
    assert frame[1].readonly


def test_a_frame_without_payload_has_an_empty_view() -> None:
    """The payload of a simple command is empty, not None."""
    buffer = new_buffer()
    buffer.receive_data(pack(b"c"))

    frame = buffer.next_frame()

    assert frame is not None
    assert len(frame[1]) == 0


def test_a_large_frame_is_read_into_memory_of_its_own() -> None:
    """The last part of a frame that does not fit is offered as one piece that ends with it."""
    buffer = new_buffer()
    frame = pack(b"c", bytes(range(256)) * 2000)
    at = 0
    while at < len(frame):
        room = buffer.get_buffer()
        size = min(len(room), len(frame) - at)
        room[:size] = frame[at : at + size]
        buffer.buffer_updated(size)
        at += size

    found = buffer.next_frame()

    assert size == len(room), "nothing but the frame is read into its memory"
    assert found is not None
    assert found[1].obj is room.obj, "the payload must be the memory it was received into"
    assert bytes(found[1]) == frame[9:]


@pytest.mark.parametrize("arrived", [6, 100, 20_000, 100_000, 400_000])
def test_an_announced_size_takes_no_memory(arrived: int) -> None:
    """A frame of which a part came holds a block, or about four times that part."""
    buffer = new_buffer(5 << 20)
    frame = pack(b"c", bytes(5_000_000))

    most = 0
    for byte in range(0, arrived, 1000):
        part = frame[byte : min(byte + 1000, arrived)]
        buffer.receive_data(part)
        buffer.get_buffer()
        most = max(most, buffer.allocated_bytes)

    assert most <= 16 * 1024 + max(16 * 1024, 6 * arrived)


def test_a_growing_frame_is_moved_about_once_its_size() -> None:
    """Taking a frame of 5 MB in by small reads asks for few pieces of memory."""
    buffer = new_buffer(6 << 20)
    frame = pack(b"c", bytes(5_000_000))
    memories: list[Any] = []

    for at in range(0, len(frame), 10_000):
        buffer.receive_data(frame[at : at + 10_000])
        if not memories or memories[-1] is not buffer._block:
            memories.append(buffer._block)

    assert buffer.next_frame() is not None
    assert len(memories) <= 6
    assert sum(len(memory) for memory in memories[:-1]) < 1.5 * len(frame)


def test_released_memory_comes_back_with_the_next_byte() -> None:
    """Between two frames a buffer can hold nothing; inside one it keeps what came."""
    buffer = new_buffer()
    frame = pack(b"c", b"payload")
    feed(buffer, frame * 3, [5])
    buffer.release()
    assert buffer.allocated_bytes == 0

    buffer.receive_data(frame[:7])
    buffer.release()
    buffer.receive_data(frame[7:])

    found = buffer.next_frame()
    assert found is not None
    assert bytes(found[1]) == b"payload"


def test_small_frames_after_a_large_one_share_blocks_again() -> None:
    """After a large frame, the ordinary block goes on where it was."""
    buffer = new_buffer()
    small = pack(b"c", b"small")
    large = pack(b"c", bytes(300_000))

    found = feed(buffer, small + large + small + small, [1000])

    blocks = [view.obj for _, view in found]
    assert blocks[0] is blocks[2] is blocks[3]
    assert blocks[1] is not blocks[0]


def test_memory_without_references_is_used_again() -> None:
    """A connection that only carries commands needs one block only."""
    buffer = new_buffer()
    blocks = set()

    for _ in range(1000):
        room = buffer.get_buffer()
        blocks.add(id(room.obj))
        frame = pack(b"c" * 60)
        room[: len(frame)] = frame
        buffer.buffer_updated(len(frame))
        assert buffer.next_frame() is not None

    assert len(blocks) == 1


def block_size(view: memoryview) -> int:
    """Bytes of the memory that a view lies in."""
    return memoryview(view.obj).nbytes


def test_blocks_grow_with_large_reads_and_shrink_with_small_ones() -> None:
    """The room that is offered follows the traffic between 16 and 256 KiB."""
    buffer = new_buffer()
    first = len(buffer.get_buffer())
    frame = pack(b"c", bytes(1000))
    feed(buffer, frame * 3000, [1 << 20])
    grown = max(block_size(view) for _, view in feed(buffer, frame * 1000, [1 << 20]))
    feed(buffer, frame * 3000, [200])
    shrunk = {block_size(view) for _, view in feed(buffer, frame * 20, [200])}

    assert first == 16 * 1024
    assert grown == 256 * 1024
    assert shrunk == {16 * 1024}


def test_room_is_never_empty_even_if_frames_are_not_taken() -> None:
    """A caller that stops taking frames can still receive; nothing is lost."""
    buffer = new_buffer()
    frame = pack(b"c", bytes(5000))

    for _ in range(100):
        at = 0
        while at < len(frame):
            room = buffer.get_buffer()
            assert len(room) > 0
            size = min(len(room), len(frame) - at)
            room[:size] = frame[at : at + size]
            buffer.buffer_updated(size)
            at += size

    assert buffer.pending_bytes == 100 * len(frame)
    assert sum(1 for _ in iter(buffer.next_frame, None)) == 100
    assert buffer.pending_bytes == 0


def test_a_frame_at_the_limit_passes() -> None:
    """The limit counts the whole frame, its first field included, and is allowed itself."""
    frame = pack(b"c", b"x" * 91)
    assert len(frame) == 100

    assert len(feed(new_buffer(frame_limit=100), frame, [100])) == 1


@pytest.mark.parametrize("available", [4, 5, 8, 9])
def test_a_frame_above_the_limit_is_refused_at_its_fourth_byte(available: int) -> None:
    """Four bytes are enough to refuse a frame; nothing is reserved for it."""
    frame = pack(b"c", b"x" * 92)
    buffer = new_buffer(frame_limit=100)
    buffer.receive_data(frame[:available])

    with pytest.raises(ProtocolError, match="frame of 101 bytes is above the limit of 100"):
        buffer.next_frame()

    assert len(buffer.get_buffer()) <= 256 * 1024


def test_a_command_above_the_limit_is_refused_at_its_eighth_byte() -> None:
    """The command's size is judged before the command is there."""
    buffer = new_buffer(command_limit=20)
    buffer.receive_data(pack(b"c" * 21)[:8])

    with pytest.raises(ProtocolError, match="command of 21 bytes is above the limit of 20"):
        buffer.next_frame()


@pytest.mark.parametrize(
    ("total", "command", "shown"),
    [
        (0, 0, None),
        (3, 0, None),
        (4, 0, None),
        (5, 0, 0),
        (5, 2, 2),
        (100, 97, 97),
        (100, 2**32 - 1, 2**32 - 1),
    ],
)
def test_sizes_that_describe_no_frame(total: int, command: int, shown: int | None) -> None:
    """An empty command, or one that is longer than its frame, is a violation with both sizes."""
    buffer = new_buffer()
    buffer.receive_data(struct.pack(">II", total, command))

    sizes = f"totalSize {total}" + ("" if shown is None else f" and commandSize {shown}")
    with pytest.raises(ProtocolError, match=f"^{sizes} cannot be a frame's sizes$"):
        buffer.next_frame()


def test_the_limit_may_change_between_frames() -> None:
    """A new limit counts from the next size on."""
    buffer = new_buffer(frame_limit=50)
    frame = pack(b"c", bytes(60))
    buffer.max_frame_size_bytes = 100

    assert len(feed(buffer, frame, [7])) == 1


@settings(deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_garbage_is_frames_or_a_frame_error_and_cuts_do_not_matter(
    data: bytes, cuts: list[int]
) -> None:
    """Any bytes are frames up to the first violation, the same ones however they are cut."""

    def outcome(pieces: list[int]) -> tuple[list[tuple[bytes, bytes]], str]:
        buffer = new_buffer(frame_limit=150, command_limit=100)
        found: list[tuple[bytes, bytes]] = []
        at = turn = 0
        try:
            while at < len(data):
                piece = data[at : at + pieces[turn % len(pieces)]]
                at += len(piece)
                turn += 1
                buffer.receive_data(piece)
                while (frame := buffer.next_frame()) is not None:
                    found.append((bytes(frame[0]), bytes(frame[1])))
        except ProtocolError as error:
            return found, repr(error)
        return found, f"{buffer.pending_bytes} left"

    assert outcome(cuts) == outcome([len(data) or 1])
