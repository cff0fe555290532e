"""The header of lz4 frames: its checksum, right and as old Kafka clients compute it."""

from __future__ import annotations

import struct

import pytest

from pulsemark.kafka.records import InvalidRecordSetError
from pulsemark.kafka.records.lz4_frames import (
    check_frame,
    header_for_cramjam,
    header_for_magic_0,
    xxh32,
)

MAGIC = struct.pack("<I", 0x184D2204)


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF), (b"test", 0x3E2023CF)],
)
def test_xxh32(data: bytes, expected: int) -> None:
    """Known answers of XXH32 with seed 0."""
    assert xxh32(data) == expected


def test_checksum_over_descriptor_or_over_all() -> None:
    """The right byte covers the descriptor; that of magic 0 the magic number too."""
    for descriptor in (b"\x60\x40", b"\x68\x40" + struct.pack("<Q", 1234)):
        frame = MAGIC + descriptor + b"?" + b"rest"
        right, wrong = header_for_cramjam(frame), header_for_magic_0(frame)
        at = len(MAGIC + descriptor)
        assert right[at] == xxh32(descriptor) >> 8 & 0xFF
        assert wrong[at] == xxh32(MAGIC + descriptor) >> 8 & 0xFF
        assert right[at + 1 :] == wrong[at + 1 :] == b"rest"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        MAGIC,
        MAGIC + b"\x60\x40",
        b"\x05" + MAGIC[1:] + b"\x60\x40\x82",
        MAGIC + b"\x68\x40" + bytes(7),
        MAGIC + b"\x61\x40" + bytes(9),
        MAGIC + b"\x20\x40" + bytes(9),
        MAGIC + b"\xa0\x40" + bytes(9),
        MAGIC + b"\x40\x40" + bytes(9),
    ],
)
def test_what_is_no_frame(frame: bytes) -> None:
    """Cut headers, other magics and versions, dictionaries and linked blocks are refused."""
    with pytest.raises(InvalidRecordSetError, match="lz4"):
        check_frame(frame)
