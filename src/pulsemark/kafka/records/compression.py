"""Kafka's compression codecs, with a limit on the decompressed size.

======  ======  ============================================================  ====================
number  name    format                                                        by
======  ======  ============================================================  ====================
1       gzip    RFC 1952, one member or several                               the standard library
2       snappy  xerial's blocks (Java, Python clients) or one raw block       cramjam
3       lz4     frames of independent blocks; magic 0: a wrong header         cramjam
                checksum, which old clients insist on
4       zstd    frames; only in magic 2                                       cramjam
======  ======  ============================================================  ====================

Compressed bytes come from clients and may state any size, or none. What is decompressed goes into
a buffer that ends at the caller's limit: one byte more is an error, and memory beyond what really
came out is never touched. The libraries' plain ``decompress`` has no such limit.

cramjam is installed with the extra ``kafka``, and imported when it is first needed.

**Headers of lz4 frames** (KIP-57). A frame begins with a magic number (4 bytes), a descriptor
(flags, block size, a content size of 8 bytes if the flags say so) and one byte of checksum: the
second byte of XXH32 over the descriptor. Clients before Kafka 0.10 compute it over magic number and
descriptor, and refuse the right byte; so magic 0 has the wrong one. The library accepts only the
right one. So a frame of magic 0 gets it before it is decompressed: Kafka does not check it either.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from ...extras import install_command
from ...metadata import Buffer
from .layout import Codec, CodecError, InvalidRecordSetError, RecordSetTooLargeError, Work

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_SIZE = struct.Struct(">i")
_GZIP = 16 + zlib.MAX_WBITS
# Producers write one. For each, the library copies all that comes after it.
_GZIP_MAX_MEMBERS = 100
# The first buffer; only what does not fit in gets one of the whole limit.
_GUESS_BYTES = 64 * 1024
_GUESS_RATIO = 8
_MAGIC = bytes((0x04, 0x22, 0x4D, 0x18))
_FLAGS_AT = 4
_VERSION_MASK, _VERSION = 0xC0, 0x40
_INDEPENDENT_BLOCKS = 0x20
_HAS_CONTENT_SIZE = 0x08
_HAS_DICTIONARY = 0x01
_MASK = 0xFFFFFFFF
_PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = 2246822519, 3266489917, 668265263, 374761393
_PRIME_1 = 2654435761


def decompress(codec: int, data: Buffer, magic: int, max_bytes: int, work: Work) -> bytes:
    """Decompress the value of a wrapper (magic 0, 1) or the records of a batch (magic 2).

    Args:
        codec: the number of the attributes, not 0.
        data: the compressed bytes.
        magic: of the message or batch; lz4 differs.
        max_bytes: refuse what is larger decompressed.
        work: the decompression is counted there.

    Raises:
        InvalidRecordSetError: unknown codec, or the bytes do not decompress.
        RecordSetTooLargeError: larger than ``max_bytes``.
        CodecError: the library is not installed.
    """
    decompressor = _DECOMPRESSORS.get(codec)
    if decompressor is None:
        raise InvalidRecordSetError(f"unknown codec {codec}")
    work.decompressions += 1
    if codec == Codec.LZ4:
        check_frame(data)
        data = header_for_cramjam(data) if magic == 0 else data
    return decompressor(data, max_bytes)


def compress(codec: int, data: Buffer, magic: int, work: Work) -> bytes:
    """Compress a set: into xerial's blocks for snappy, as old clients need it for magic 0 and lz4.

    Raises CodecError: the library is not installed.
    """
    work.compressions += 1
    compressed = _COMPRESSORS[Codec(codec)](data)
    if codec == Codec.LZ4 and magic == 0:
        return header_for_magic_0(compressed)
    return compressed


def _gunzip(data: Buffer, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size, rest = 0, bytes(data)
    while rest:
        if len(parts) == _GZIP_MAX_MEMBERS:
            raise InvalidRecordSetError(f"gzip: more than {_GZIP_MAX_MEMBERS} members")
        stream = zlib.decompressobj(_GZIP)
        try:
            part = stream.decompress(rest, max_bytes - size + 1)
        except zlib.error as error:
            raise _undecompressible(Codec.GZIP, data) from error
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise _too_large(Codec.GZIP, data, max_bytes)
        if not stream.eof:
            raise _undecompressible(Codec.GZIP, data)
        # Zeros may fill a block after the last member.
        rest = stream.unused_data.lstrip(b"\0")
    if not parts:
        raise _undecompressible(Codec.GZIP, data)
    return b"".join(parts)


def _unsnappy(data: Buffer, max_bytes: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC or len(view) < len(_XERIAL_HEADER):
        return _unsnappy_block(view, max_bytes)
    blocks, left, at = [], max_bytes, len(_XERIAL_HEADER)
    while at < len(view):
        if at + _BLOCK_SIZE.size > len(view):
            raise _undecompressible(Codec.SNAPPY, data)
        (size,) = _BLOCK_SIZE.unpack_from(view, at)
        at += _BLOCK_SIZE.size
        if not 0 < size <= len(view) - at:
            raise _undecompressible(Codec.SNAPPY, data)
        try:
            blocks.append(_unsnappy_block(view[at : at + size], left))
        except RecordSetTooLargeError:
            raise _too_large(Codec.SNAPPY, data, max_bytes) from None
        left -= len(blocks[-1])
        at += size
    return b"".join(blocks)


def _unsnappy_block(block: memoryview, max_bytes: int) -> bytes:
    cramjam = _cramjam(Codec.SNAPPY)
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > max_bytes:
            raise _too_large(Codec.SNAPPY, block, max_bytes)
        output = bytearray(size)
        written = cramjam.snappy.decompress_raw_into(block, output)
    except cramjam.DecompressionError as error:
        raise _undecompressible(Codec.SNAPPY, block) from error
    return bytes(output[:written])


def _bounded(codec: Codec, data: Buffer, max_bytes: int) -> bytes:
    """Decompress lz4 or zstd into a small buffer; if that fails, into one of the whole limit.

    The large buffer is an anonymous map: its pages cost nothing until they are written.
    """
    cramjam = _cramjam(codec)
    into: Callable[..., int] = getattr(cramjam, codec.name.lower()).decompress_into
    error: type[Exception] = cramjam.DecompressionError
    guess = min(max_bytes, max(_GUESS_BYTES, _GUESS_RATIO * len(data)))
    try:
        small = bytearray(guess)
        return bytes(memoryview(small)[: into(data, small)])
    except error as failure:
        if not _is_full(failure):
            raise _undecompressible(codec, data) from failure
    if guess == max_bytes:
        raise _too_large(codec, data, max_bytes)
    with mmap.mmap(-1, max_bytes) as area:
        try:
            return area[: into(data, area)]
        except error as failure:
            if _is_full(failure):
                raise _too_large(codec, data, max_bytes) from failure
            raise _undecompressible(codec, data) from failure


def _is_full(failure: Exception) -> bool:
    """Whether decompression failed because the buffer is too small. cramjam has one error class."""
    return "whole buffer" in str(failure)


def _undecompressible(codec: Codec, data: Buffer) -> InvalidRecordSetError:
    return InvalidRecordSetError(f"{codec.name.lower()}: {len(data)} bytes do not decompress")


def _too_large(codec: Codec, data: Buffer, max_bytes: int) -> RecordSetTooLargeError:
    return RecordSetTooLargeError(
        f"{codec.name.lower()}: {len(data)} bytes decompress to more than {max_bytes}"
    )


def _cramjam(codec: Codec) -> Any:
    try:
        import cramjam
    except ImportError as error:
        needs = f"{codec.name.lower()} needs a library that is not installed"
        raise CodecError(f"{needs}: {install_command('kafka')}") from error
    return cramjam


def _snappy(data: Buffer) -> bytes:
    raw = _cramjam(Codec.SNAPPY).snappy.compress_raw
    view, parts = memoryview(data), [_XERIAL_HEADER]
    for at in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(raw(view[at : at + _XERIAL_BLOCK_BYTES]))
        parts += _BLOCK_SIZE.pack(len(block)), block
    return b"".join(parts)


def _lz4(data: Buffer) -> bytes:
    # Java clients refuse blocks that refer to one another.
    stream = _cramjam(Codec.LZ4).lz4.Compressor(content_checksum=False, block_linked=False)
    stream.compress(bytes(data))
    return bytes(stream.finish())


_DECOMPRESSORS: dict[int, Callable[[Buffer, int], bytes]] = {
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: partial(_bounded, Codec.LZ4),
    Codec.ZSTD: partial(_bounded, Codec.ZSTD),
}
_COMPRESSORS: dict[Codec, Callable[[Buffer], bytes]] = {
    Codec.GZIP: lambda data: zlib.compress(data, wbits=_GZIP),
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: lambda data: bytes(_cramjam(Codec.ZSTD).zstd.compress(data)),
}


def check_frame(frame: Buffer) -> None:
    """Refuse frames with linked blocks, which Java clients cannot read.

    Raises InvalidRecordSetError; also for bytes that are no frame, or need a dictionary.
    """
    _descriptor_end(frame)
    flags = frame[_FLAGS_AT]
    if flags & _VERSION_MASK != _VERSION or not flags & _INDEPENDENT_BLOCKS:
        raise InvalidRecordSetError(f"lz4: flags {flags:#04x} of a frame that clients cannot read")


def header_for_cramjam(frame: Buffer) -> bytes:
    """The frame with the correct header checksum. Raises as `check_frame`."""
    return _with_checksum(frame, _FLAGS_AT)


def header_for_magic_0(frame: Buffer) -> bytes:
    """The frame with the wrong header checksum that clients before Kafka 0.10 insist on."""
    return _with_checksum(frame, 0)


def _with_checksum(frame: Buffer, begin: int) -> bytes:
    """The frame with a header checksum over the bytes from ``begin`` on."""
    end = _descriptor_end(frame)
    fixed = bytearray(frame)
    fixed[end] = xxh32(memoryview(fixed)[begin:end]) >> 8 & 0xFF
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


def _descriptor_end(frame: Buffer) -> int:
    """The offset of the header's checksum."""
    if len(frame) < _FLAGS_AT + 3 or bytes(frame[:_FLAGS_AT]) != _MAGIC:
        raise InvalidRecordSetError(f"lz4: {len(frame)} bytes do not begin as a frame")
    flags = frame[_FLAGS_AT]
    end = _FLAGS_AT + 2 + (8 if flags & _HAS_CONTENT_SIZE else 0)
    if flags & _HAS_DICTIONARY or end >= len(frame):
        raise InvalidRecordSetError("lz4: the frame's header is cut off, or needs a dictionary")
    return end
