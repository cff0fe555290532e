"""The codecs: what clients send, what they get, and how much comes out at most."""

from __future__ import annotations

import gzip
import random
import struct
import sys
import tracemalloc

import cramjam
import pytest

from pulsemark.kafka.records import (
    Codec,
    CodecError,
    InvalidRecordSetError,
    RecordSetTooLargeError,
    Work,
)
from pulsemark.kafka.records.compression import (
    check_frame,
    compress,
    decompress,
    header_for_cramjam,
    header_for_magic_0,
    xxh32,
)

CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
LIMIT = 1 << 20
TEXT = b"a line of text, then another one. " * 3000


def lz4_frame(data: bytes, **options: bool) -> bytes:
    """A frame as another library would write it."""
    stream = cramjam.lz4.Compressor(content_checksum=False, **options)
    stream.compress(data)
    return bytes(stream.finish())


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize(
    "data", [b"", b"x", TEXT, random.Random(3).randbytes(100_000), bytes(LIMIT)]
)
def test_there_and_back(codec: Codec, magic: int, data: bytes) -> None:
    """What is compressed comes back, however large it was beside what came of it; both count."""
    work = Work()
    compressed = compress(codec, data, magic, work)
    assert decompress(codec, memoryview(compressed), magic, LIMIT, work) == data
    assert work == Work(decompressions=1, compressions=1)


@pytest.mark.parametrize("codec", CODECS)
def test_one_byte_too_many(codec: Codec) -> None:
    """Exactly the limit comes out; one byte more is refused with Kafka's code for too large."""
    compressed = compress(codec, TEXT, 2, Work())
    assert decompress(codec, compressed, 2, len(TEXT), Work()) == TEXT
    for limit in (len(TEXT) - 1, 100, 1):
        with pytest.raises(RecordSetTooLargeError) as refused:
            decompress(codec, compressed, 2, limit, Work())
        assert refused.value.code == 10


def bombs() -> dict[Codec, bytes]:
    """For each codec, few bytes that decompress to 100 MB or say so."""
    zeros = bytes(10_000_000)
    return {
        Codec.GZIP: gzip.compress(zeros) * 10,
        Codec.SNAPPY: b"\x80\x84\xaf\x5f" + b"\xfe\x01\x00" * 1000,
        Codec.LZ4: lz4_frame(zeros * 10, block_linked=False),
        Codec.ZSTD: bytes(cramjam.zstd.compress(zeros * 10)),
    }


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_takes_no_memory(codec: Codec) -> None:
    """Of a bomb no more than the limit is ever in memory."""
    bomb = bombs()[codec]
    tracemalloc.start()
    try:
        with pytest.raises((RecordSetTooLargeError, InvalidRecordSetError)):
            decompress(codec, bomb, 2, LIMIT, Work())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * LIMIT + len(bomb)


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_bytes(codec: Codec) -> None:
    """Cut, changed, doubled or foreign bytes never raise anything but our own errors."""
    compressed = compress(codec, TEXT, 2, Work())
    rng = random.Random(int(codec))
    damaged = [compressed[:cut] for cut in range(0, len(compressed), 7)]
    for _ in range(200):
        change = bytearray(compressed)
        change[rng.randrange(len(change))] ^= 1 << rng.randrange(8)
        damaged.append(bytes(change))
    damaged += [b"", b"\0" * 40, TEXT[:100], compressed + b"junk", compressed + compressed]
    for data in damaged:
        try:
            decompress(codec, data, 2, LIMIT, Work())
        except (InvalidRecordSetError, RecordSetTooLargeError):
            continue


@pytest.mark.parametrize("codec", [0, 5, 6, 7])
def test_unknown_codecs(codec: int) -> None:
    """The numbers without a codec are refused."""
    with pytest.raises(InvalidRecordSetError, match=f"unknown codec {codec}"):
        decompress(codec, b"abc", 2, LIMIT, Work())


def test_both_forms_of_snappy() -> None:
    """One raw block (librdkafka) and xerial's blocks (Java, Python) are read; ours are xerial's."""
    raw = bytes(cramjam.snappy.compress_raw(TEXT))
    assert decompress(Codec.SNAPPY, raw, 1, LIMIT, Work()) == TEXT
    ours = compress(Codec.SNAPPY, TEXT, 1, Work())
    assert ours[:8] == b"\x82SNAPPY\x00"
    assert struct.unpack_from(">ii", ours, 8) == (1, 1)
    assert len(ours) > len(raw)


@pytest.mark.parametrize("size", [0, -1, 1 << 30])
def test_wrong_sizes_of_snappy_blocks(size: int) -> None:
    """A block's size that is nothing, negative or beyond the end is refused."""
    data = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, size) + b"abc"
    with pytest.raises(InvalidRecordSetError):
        decompress(Codec.SNAPPY, data, 1, LIMIT, Work())


def test_several_gzip_members() -> None:
    """A gzip of several members is one set, and one limit holds for all of them."""
    double = gzip.compress(TEXT) + gzip.compress(b"end")
    assert decompress(Codec.GZIP, double, 1, LIMIT, Work()) == TEXT + b"end"
    with pytest.raises(RecordSetTooLargeError):
        decompress(Codec.GZIP, double, 1, len(TEXT), Work())


def test_too_many_gzip_members() -> None:
    """A hundred members are read; more would take a time that grows with the square of the size."""
    member = gzip.compress(b"x")
    assert decompress(Codec.GZIP, member * 100, 1, LIMIT, Work()) == b"x" * 100
    with pytest.raises(InvalidRecordSetError, match="more than 100 members"):
        decompress(Codec.GZIP, member * 101, 1, LIMIT, Work())


def test_lz4_of_magic_0() -> None:
    """Magic 0 gets the header checksum of old clients and is read with either; 1 and 2 are not."""
    right = lz4_frame(TEXT, block_linked=False)
    wrong = compress(Codec.LZ4, TEXT, 0, Work())
    assert [at for at in range(len(right)) if right[at] != wrong[at]] == [6]
    assert compress(Codec.LZ4, TEXT, 1, Work()) == right
    for frame in (right, wrong):
        assert decompress(Codec.LZ4, frame, 0, LIMIT, Work()) == TEXT
    for magic in (1, 2):
        assert decompress(Codec.LZ4, right, magic, LIMIT, Work()) == TEXT
        with pytest.raises(InvalidRecordSetError):
            decompress(Codec.LZ4, wrong, magic, LIMIT, Work())


def test_lz4_that_java_cannot_read() -> None:
    """Blocks that refer to one another are refused: a Java consumer could never read them."""
    linked = lz4_frame(TEXT, block_linked=True)
    for magic in (0, 1, 2):
        with pytest.raises(InvalidRecordSetError, match="cannot read"):
            decompress(Codec.LZ4, linked, magic, LIMIT, Work())


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cramjam, gzip works, and the others say what to install, with Kafka's code."""
    monkeypatch.setitem(sys.modules, "cramjam", None)
    assert decompress(Codec.GZIP, compress(Codec.GZIP, TEXT, 2, Work()), 2, LIMIT, Work()) == TEXT
    for codec in (Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        with pytest.raises(
            CodecError, match=r"pip install '/path/to/checkout\[kafka\]'"
        ) as missing:
            compress(codec, TEXT, 2, Work())
        assert missing.value.code == 76


# -- The header of lz4 frames: its checksum, right and as old Kafka clients compute it


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
