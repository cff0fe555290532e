"""Opening and making compressed payloads, with a hard limit and to the exact size.

A producer's header states how the payload is compressed and its size before that
(``compression``, ``uncompressed_size``). Both are claims: a size beyond the caller's limit is
refused before anything is allocated, output goes into a buffer of exactly the stated size and
never beyond it, and a payload that fills it only in part is an error. That is why the libraries'
plain ``decompress`` is not used: it believes what the compressed bytes say of themselves.

======  =======  ============================================  ====================
number  name     format                                        by
======  =======  ============================================  ====================
0       NONE     as it is
1       LZ4      one raw block, no frame, no size in front     cramjam
2       ZLIB     RFC 1950                                      the standard library
3       ZSTD     one frame                                     cramjam
4       SNAPPY   one raw block: its size, then the data        cramjam
======  =======  ============================================  ====================

cramjam comes with the extra ``compression`` and is imported when first needed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..proto.pulsar_api_pb2 import CompressionType
from .buffers import Buffer

EXTRA = "compression"
"""The extra of this package that brings the libraries."""


class DecompressionError(ValueError):
    """A payload does not open to what its header states.

    Attributes:
        compression: Pulsar's number of the compression.
        reason: what is wrong, in words.
    """

    def __init__(self, compression: int, reason: str) -> None:
        super().__init__(compression, reason)
        self.compression = compression
        self.reason = reason

    def __str__(self) -> str:
        return f"{compression_name(self.compression)}: {self.reason}"


class CompressionUnavailableError(ImportError):
    """The library for a compression is not installed.

    Attributes:
        compression: Pulsar's number of the compression.
    """

    def __init__(self, compression: int) -> None:
        super().__init__(compression)
        self.compression = compression

    def __str__(self) -> str:
        name = compression_name(self.compression)
        return f"{name} needs a library that is not installed: pip install 'pulsemark[{EXTRA}]'"


def compression_name(compression: int) -> str:
    """Pulsar's name of a compression; its number where there is none."""
    known = CompressionType.DESCRIPTOR.values_by_number.get(compression)
    return str(known.name) if known is not None else f"compression {compression}"


def decompress(compression: int, data: Buffer, size_bytes: int, max_bytes: int) -> bytes:
    """Open a payload.

    Args:
        compression: Pulsar's number, from the table above.
        data: the payload as stored.
        size_bytes: the size that the header states; means nothing where there is no compression.
        max_bytes: refuse a larger stated size.

    Raises:
        DecompressionError: unknown compression, too large, or not exactly ``size_bytes`` in it.
        CompressionUnavailableError: the library for it is not installed.
    """
    if compression == CompressionType.NONE:
        return bytes(data)
    opener = _OPENERS.get(compression)
    if opener is None:
        raise DecompressionError(compression, "unknown compression")
    if size_bytes > max_bytes:
        raise DecompressionError(
            compression, f"states {size_bytes} bytes uncompressed; the limit is {max_bytes}"
        )
    if size_bytes == 0:
        # An empty payload; some clients leave the size out and compress nothing.
        return b""
    opened = opener(data, size_bytes)
    if opened is None:
        raise DecompressionError(
            compression, f"{len(data)} bytes do not open to the stated {size_bytes}"
        )
    return opened


def compress(compression: int, data: Buffer) -> bytes:
    """Compress a payload.

    Args:
        compression: Pulsar's number, from the table above.
        data: the payload.

    Raises:
        ValueError: unknown compression.
        CompressionUnavailableError: the library for it is not installed.
    """
    maker = _MAKERS.get(compression)
    if maker is None:
        raise ValueError(f"unknown compression {compression}")
    return maker(data)


def _open_zlib(data: Buffer, size_bytes: int) -> bytes | None:
    opener = zlib.decompressobj()
    try:
        opened = opener.decompress(data, size_bytes)
        # The end may stand behind the last byte of output; a byte more would be one too many.
        surplus = b"" if opener.eof else opener.decompress(opener.unconsumed_tail, 1)
    except zlib.error:
        return None
    exact = opener.eof and not surplus and len(opened) == size_bytes
    return opened if exact else None


def _open_lz4(data: Buffer, size_bytes: int) -> bytes | None:
    lz4 = _cramjam(CompressionType.LZ4).lz4
    return _fill(lz4.decompress_block_into, data, size_bytes, output_len=size_bytes)


def _open_zstd(data: Buffer, size_bytes: int) -> bytes | None:
    return _fill(_cramjam(CompressionType.ZSTD).zstd.decompress_into, data, size_bytes)


def _open_snappy(data: Buffer, size_bytes: int) -> bytes | None:
    return _fill(_cramjam(CompressionType.SNAPPY).snappy.decompress_raw_into, data, size_bytes)


def _fill(into: Callable[..., int], data: Buffer, size_bytes: int, **options: int) -> bytes | None:
    """What ``into`` writes into a buffer of the stated size; None unless it fills it."""
    output = bytearray(size_bytes)
    error: type[Exception] = _cramjam(CompressionType.LZ4).DecompressionError
    try:
        written = into(data, output, **options)
    except error:
        return None
    return bytes(output) if written == size_bytes else None


def _cramjam(compression: int) -> Any:
    try:
        import cramjam
    except ImportError as error:
        raise CompressionUnavailableError(compression) from error
    module: ModuleType = cramjam
    return module


_OPENERS: dict[int, Callable[[Buffer, int], bytes | None]] = {
    CompressionType.LZ4: _open_lz4,
    CompressionType.ZLIB: _open_zlib,
    CompressionType.ZSTD: _open_zstd,
    CompressionType.SNAPPY: _open_snappy,
}
_MAKERS: dict[int, Callable[[Buffer], bytes]] = {
    CompressionType.NONE: bytes,
    CompressionType.LZ4: lambda data: bytes(
        _cramjam(CompressionType.LZ4).lz4.compress_block(data, store_size=False)
    ),
    CompressionType.ZLIB: zlib.compress,
    CompressionType.ZSTD: lambda data: bytes(_cramjam(CompressionType.ZSTD).zstd.compress(data)),
    CompressionType.SNAPPY: lambda data: bytes(
        _cramjam(CompressionType.SNAPPY).snappy.compress_raw(data)
    ),
}
