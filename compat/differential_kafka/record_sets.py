"""Record sets as kafka-python sends them, and batches with changed fields, for the scenarios."""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c
from kafka.record.memory_records import MemoryRecordsBuilder

#: The setting `message.format.version` of each magic.
FORMATS = {0: "0.9.0", 1: "0.10.2", 2: "2.8"}
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
#: A version of Fetch that brings each magic.
FETCH_VERSIONS = {0: 1, 1: 3, 2: 10}
TIME_MS = 1_700_000_000_000

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Time in milliseconds, key, value, headers."""
MIXED: list[Row] = [
    (TIME_MS, b"key-0", b"value", []),
    (TIME_MS + 70, None, b"no key", [("name", b"\x00\xff"), ("null", None)]),
    (TIME_MS - 5, b"deleted", None, []),
    (TIME_MS + 2, b"", b"", [("", b"")]),
    (TIME_MS + 9, b"k" * 70, b"long " * 40, [("again", b"1"), ("again", b"2")]),
]
MANY: list[Row] = [(TIME_MS + n * 3, b"%d" % (n % 7), b"v%d" % n, []) for n in range(70)]
ONE: list[Row] = [(TIME_MS, b"k", b"v", [])]


class Case(NamedTuple):
    """A set, the version of Produce that brings it, and what its topic is."""

    name: str
    version: int
    sent: bytes
    magic: int = 2
    compacted: bool = False


def set_of(magic: int, codec: str, rows: list[Row]) -> bytes:
    """The rows as kafka-python sends them."""
    builder = MemoryRecordsBuilder(magic, CODECS.index(codec), 1 << 24)
    for time_ms, key, value, headers in rows:
        builder.append(time_ms, key, value, headers if magic == 2 else None)
    builder.close()
    return bytes(builder.buffer())


def batch(sent: bytes, changes: dict[int, tuple[str, int]]) -> bytes:
    """A batch of magic 2 with the fields at some offsets changed, and its checksum made right."""
    data = bytearray(sent)
    for at, (kind, value) in changes.items():
        struct.pack_into(">" + kind, data, at, value)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)
