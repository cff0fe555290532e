"""Frames: cut at any byte, refused when too long, and read by protobuf as what they say."""

from __future__ import annotations

import struct

import pytest

from pulsemark.ledger.bookkeeper.client.errors import BookieProtocolError
from pulsemark.ledger.bookkeeper.client.frames import (
    FrameReader,
    frame_start,
    parse_response,
    read_lac_request,
    read_request,
)
from pulsemark.proto.bookkeeper_wire_pb2 import Request


def request_in(frame: bytes) -> Request:
    """The request of a frame, whose length must be right."""
    assert struct.unpack(">I", frame[:4])[0] == len(frame) - 4
    return Request.FromString(frame[4:])


def test_reads() -> None:
    """A fencing read and READ_LAC."""
    fence = read_request(5, -1, timeout_ms=1, master_key=b"k", fence=True, high_priority=True)
    read = request_in(frame_start(fence, 9) + fence.body)
    assert (read.readRequest.entryId, read.readRequest.flag) == (-1, 1)
    assert (read.readRequest.masterKey, read.header.priority) == (b"k", 100)
    lac = read_lac_request(5, timeout_ms=1)
    assert request_in(frame_start(lac, 1) + lac.body).readLacRequest.ledgerId == 5


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1000])
def test_frames_in_pieces(step: int) -> None:
    """However the bytes arrive, the same frames come out, empty ones too."""
    frames = [b"", b"a", b"bc" * 100, b"", b"d" * 17]
    data = b"".join(struct.pack(">I", len(frame)) + frame for frame in frames)
    reader = FrameReader(200)
    got = [frame for at in range(0, len(data), step) for frame in reader.feed(data[at : at + step])]
    assert got == frames


@pytest.mark.parametrize("size", [201, 1 << 31, (1 << 32) - 1])
def test_too_long_a_frame_is_refused_at_its_length(size: int) -> None:
    """Nothing of a frame above the limit is waited for."""
    reader = FrameReader(200)
    with pytest.raises(BookieProtocolError, match=str(size)):
        list(reader.feed(struct.pack(">I", size)))


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 30, b"HTTP/1.1 400 Bad Request"])
def test_garbage_is_no_answer(garbage: bytes) -> None:
    """Bytes that are no answer are refused with a typed error."""
    with pytest.raises(BookieProtocolError):
        parse_response(garbage)
