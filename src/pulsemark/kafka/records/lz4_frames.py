"""The header of an lz4 frame, and the fault that Kafka's magic 0 keeps.

Source: the LZ4 frame format, and KIP-57. A frame begins with a magic number (4 bytes), a
descriptor (flags, block size, a content size of 8 bytes if the flags say so) and one byte of
checksum: the second byte of XXH32 over the descriptor. Clients before Kafka 0.10 computed it over
magic number and descriptor. They write that wrong byte and refuse the right one, so it stayed for
all messages of magic 0. The library accepts only the right byte. So a frame of magic 0 gets it
before it is decompressed, whatever it has: Kafka does not check this byte there either.
"""

from __future__ import annotations

from ...metadata import Buffer
from .errors import InvalidRecordSetError

_MAGIC = bytes((0x04, 0x22, 0x4D, 0x18))
_FLAGS_AT = 4
_VERSION_MASK, _VERSION = 0xC0, 0x40
_INDEPENDENT_BLOCKS = 0x20
_HAS_CONTENT_SIZE = 0x08
_HAS_DICTIONARY = 0x01
_MASK = 0xFFFFFFFF
_PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = 2246822519, 3266489917, 668265263, 374761393
_PRIME_1 = 2654435761


def check_frame(frame: Buffer) -> None:
    """Refuse what Java clients could not read: they have no blocks that refer to one another.

    Raises InvalidRecordSetError: that, or it does not begin as a frame, or needs a dictionary.
    """
    _descriptor_end(frame)
    flags = frame[_FLAGS_AT]
    if flags & _VERSION_MASK != _VERSION or not flags & _INDEPENDENT_BLOCKS:
        raise InvalidRecordSetError(f"lz4: flags {flags:#04x} of a frame that clients cannot read")


def header_for_cramjam(frame: Buffer) -> bytes:
    """The frame with the right checksum of its header. Raises as `check_frame`."""
    end = _descriptor_end(frame)
    fixed = bytearray(frame)
    fixed[end] = _second_byte(xxh32(memoryview(fixed)[_FLAGS_AT:end]))
    return bytes(fixed)


def header_for_magic_0(frame: Buffer) -> bytes:
    """The frame with the checksum that clients before Kafka 0.10 insist on."""
    end = _descriptor_end(frame)
    fixed = bytearray(frame)
    fixed[end] = _second_byte(xxh32(memoryview(fixed)[:end]))
    return bytes(fixed)


def xxh32(data: Buffer) -> int:
    """XXH32, seed 0, of less than 16 bytes: a header has no more."""
    assert len(data) < 16
    value = (_PRIME_5 + len(data)) & _MASK
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        lane = int.from_bytes(data[at : at + 4], "little")
        value = _rotate(value + lane * _PRIME_3, 17) * _PRIME_4 & _MASK
    for byte in data[whole:]:
        value = _rotate(value + byte * _PRIME_5, 11) * _PRIME_1 & _MASK
    value = (value ^ value >> 15) * _PRIME_2 & _MASK
    value = (value ^ value >> 13) * _PRIME_3 & _MASK
    return value ^ value >> 16


def _rotate(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> 32 - bits) & _MASK


def _second_byte(value: int) -> int:
    return value >> 8 & 0xFF


def _descriptor_end(frame: Buffer) -> int:
    """Where the checksum of the header is."""
    if len(frame) < _FLAGS_AT + 3 or bytes(frame[:_FLAGS_AT]) != _MAGIC:
        raise InvalidRecordSetError(f"lz4: {len(frame)} bytes do not begin as a frame")
    flags = frame[_FLAGS_AT]
    end = _FLAGS_AT + 2 + (8 if flags & _HAS_CONTENT_SIZE else 0)
    if flags & _HAS_DICTIONARY or end >= len(frame):
        raise InvalidRecordSetError("lz4: the frame's header is cut off, or needs a dictionary")
    return end
