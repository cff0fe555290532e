"""Compressing and decompressing payloads, with a hard limit and to the exact size.

A producer's header states how the payload is compressed, and its size before compression
(``compression``, ``uncompressed_size``). Neither value can be trusted. A size above the caller's
limit is refused before memory is allocated. The output goes into a buffer of exactly the stated
size, never beyond it. A payload that fills only a part of the buffer is an error. The libraries'
plain ``decompress`` is not used, because it trusts the size that the compressed bytes state.

LZ4 and SNAPPY are raw blocks, LZ4 without a size in front; ZSTD is one frame, ZLIB is RFC 1950.
cramjam, for all but ZLIB, is installed with the extra ``compression``, and imported when needed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import Any

from ..extras import install_command
from ..proto.pulsar_api_pb2 import CompressionType
from ..records import FactsError
from .crc import Buffer

EXTRA = "compression"
"""The extra of this package that installs the libraries."""


_payloads_opened = 0


class DecompressionError(FactsError, ValueError):
    """A payload with Pulsar's `compression` does not have the size that its header states."""

    compression: int
    reason: str

    def __str__(self) -> str:
        return f"{compression_name(self.compression)}: {self.reason}"


class CompressionUnavailableError(FactsError, ImportError):
    """The library for Pulsar's `compression` is not installed."""

    compression: int

    def __str__(self) -> str:
        name = compression_name(self.compression)
        return f"{name} needs a library that is not installed: {install_command(EXTRA)}"


def compression_name(compression: int) -> str:
    """Pulsar's name of a compression, or its number if it has no name."""
    known = CompressionType.DESCRIPTOR.values_by_number.get(compression)
    return str(known.name) if known is not None else f"compression {compression}"


def decompress(compression: int, data: Buffer, size_bytes: int, max_bytes: int) -> bytes:
    """Decompress a payload to exactly ``size_bytes``, the size that its header states.

    Raises:
        DecompressionError: the compression is unknown, the size is above ``max_bytes``, or the
            payload has another size.
        CompressionUnavailableError: the library for it is not installed.
    """
    count_opened()
    if compression == CompressionType.NONE:
        return bytes(data)
    decompressor = _DECOMPRESSORS.get(compression)
    if decompressor is None:
        raise DecompressionError(compression, "unknown compression")
    if size_bytes > max_bytes:
        raise DecompressionError(
            compression, f"states {size_bytes} bytes uncompressed; the limit is {max_bytes}"
        )
    if size_bytes == 0:
        # An empty payload: some clients leave the size out and compress nothing.
        return b""
    decompressed = decompressor(data, size_bytes)
    if decompressed is None:
        raise DecompressionError(
            compression, f"{len(data)} bytes do not decompress to the stated {size_bytes}"
        )
    return decompressed


def compress(compression: int, data: Buffer) -> bytes:
    """Compress a payload. Raises ValueError (unknown compression), CompressionUnavailableError."""
    count_opened()
    compressor = _COMPRESSORS.get(compression)
    if compressor is None:
        raise ValueError(f"unknown compression {compression}")
    return compressor(data)


def payloads_opened() -> int:
    """How many payloads were compressed or decompressed, exact while one thread works."""
    return _payloads_opened


def count_opened() -> None:
    """Count a payload that was compressed or decompressed."""
    global _payloads_opened
    _payloads_opened += 1


def _decompress_zlib(data: Buffer, size_bytes: int) -> bytes | None:
    stream = zlib.decompressobj()
    try:
        decompressed = stream.decompress(data, size_bytes)
        # zlib's end mark may follow the last byte of output. If it decompresses to one more byte,
        # the payload is larger than stated.
        surplus = b"" if stream.eof else stream.decompress(stream.unconsumed_tail, 1)
    except zlib.error:
        return None
    exact = stream.eof and not surplus and len(decompressed) == size_bytes
    return decompressed if exact else None


def _fill(
    compression: int, into: str, data: Buffer, size_bytes: int, **options: int
) -> bytes | None:
    """The output of cramjam's ``into`` in a buffer of that size; None if it does not fill it."""
    cramjam = _cramjam(compression)
    output = bytearray(size_bytes)
    error: type[Exception] = cramjam.DecompressionError
    try:
        written = attrgetter(into)(cramjam)(data, output, **options)
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


_DECOMPRESSORS: dict[int, Callable[[Buffer, int], bytes | None]] = {
    CompressionType.LZ4: lambda data, size: _fill(
        CompressionType.LZ4, "lz4.decompress_block_into", data, size, output_len=size
    ),
    CompressionType.ZLIB: _decompress_zlib,
    CompressionType.ZSTD: partial(_fill, CompressionType.ZSTD, "zstd.decompress_into"),
    CompressionType.SNAPPY: partial(_fill, CompressionType.SNAPPY, "snappy.decompress_raw_into"),
}
_COMPRESSORS: dict[int, Callable[[Buffer], bytes]] = {
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
