"""Opening compressed payloads, with a hard limit and to the exact size.

Pulsar's header states the compression and the size before it (``uncompressed_size``). Both come
from a producer, so they are claims: a size beyond the limit is refused before anything is
allocated, output never grows beyond the stated size, and a payload that yields fewer bytes than
stated is an error. The last is not a formality: pyarrow's LZ4 and Snappy leave the rest of the
buffer as it was, and whatever this process had in that memory would go out as somebody's message.

=======  ====================  ================================================================
number   Pulsar's name         format
=======  ====================  ================================================================
0        NONE                  as it is
1        LZ4                   one raw block, no frame
2        ZLIB                  RFC 1950
3        ZSTD                  one frame
4        SNAPPY                one raw block (a size, then the data)
=======  ====================  ================================================================
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from ...metadata.buffers import Buffer
from .protoscan import MalformedError, read_varint

NONE = 0


class DecompressionError(ValueError):
    """The payload does not open to what its header states."""


def decompress(compression: int, data: Buffer, size_bytes: int, max_bytes: int) -> bytes:
    """Open a payload.

    Args:
        compression: Pulsar's number, from the table above, not 0.
        data: the compressed payload.
        size_bytes: the size that the header states.
        max_bytes: refuse a larger stated size.

    Raises:
        DecompressionError: unknown compression, too large, or not exactly ``size_bytes`` in it.
    """
    opener = _OPENERS.get(compression)
    if opener is None:
        raise DecompressionError(f"unknown compression type {compression}")
    if size_bytes > max_bytes:
        raise DecompressionError(
            f"states an uncompressed size of {size_bytes} bytes; the limit is {max_bytes}"
        )
    if size_bytes == 0:
        # An empty payload; some clients leave the size out and compress nothing.
        return b""
    opened = opener(data, size_bytes)
    if opened is None:
        raise DecompressionError(
            f"{len(data)} bytes of {_NAMES[compression]} do not open to {size_bytes} bytes"
        )
    return opened


def _open_lz4(data: Buffer, size_bytes: int) -> bytes | None:
    if size_bytes == 1:
        # One byte is one literal: a token that says so, and the byte.
        return bytes(data[1:]) if len(data) == 2 and data[0] >> 4 == 1 else None
    opened = _open_with_arrow("lz4_raw", data, size_bytes)
    # A raw block does not tell its size, and pyarrow not how much it wrote: only a block that
    # does not fit into one byte less has filled the buffer.
    if opened is None or _open_with_arrow("lz4_raw", data, size_bytes - 1) is not None:
        return None
    return opened


def _open_snappy(data: Buffer, size_bytes: int) -> bytes | None:
    try:
        stated, _ = read_varint(bytes(data[:10]), 0)
    except MalformedError:
        return None
    return _open_with_arrow("snappy", data, size_bytes) if stated == size_bytes else None


def _open_zstd(data: Buffer, size_bytes: int) -> bytes | None:
    return _open_with_arrow("zstd", data, size_bytes)


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


def _open_with_arrow(codec: str, data: Buffer, size_bytes: int) -> bytes | None:
    import pyarrow as pa

    try:
        opened: Any = pa.decompress(data, decompressed_size=size_bytes, codec=codec, asbytes=True)
    except (OSError, pa.ArrowInvalid):
        return None
    return bytes(opened)


_OPENERS: dict[int, Callable[[Buffer, int], bytes | None]] = {
    1: _open_lz4,
    2: _open_zlib,
    3: _open_zstd,
    4: _open_snappy,
}
_NAMES = {1: "LZ4", 2: "ZLIB", 3: "ZSTD", 4: "SNAPPY"}
