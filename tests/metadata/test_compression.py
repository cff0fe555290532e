"""Compressed payloads: the formats, the exact size, the hard limit."""

from __future__ import annotations

import json
import pickle
import random
import sys
import tracemalloc
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsemark.metadata import payload_of, read_message_metadata, strip
from pulsemark.metadata.compression import (
    CompressionUnavailableError,
    DecompressionError,
    compress,
    decompress,
)
from pulsemark.proto.pulsar_api_pb2 import CompressionType

LIMIT_BYTES = 1 << 20
GOLDEN = Path(__file__).parents[1] / "data" / "pulsar-4.0.8-entries.json"
NONE, LZ4, ZLIB, ZSTD, SNAPPY = range(5)
COMPRESSED = [LZ4, ZLIB, ZSTD, SNAPPY]
ALL = [NONE, *COMPRESSED]
BY_CRAMJAM = [LZ4, ZSTD, SNAPPY]
ORACLES = {
    LZ4: lambda data: pa.compress(data, codec="lz4_raw", asbytes=True),
    ZLIB: lambda data: zlib.compress(data, 9),
    ZSTD: lambda data: pa.compress(data, codec="zstd", asbytes=True),
    SNAPPY: lambda data: pa.compress(data, codec="snappy", asbytes=True),
}
ARROW_NAMES = {LZ4: "lz4_raw", ZSTD: "zstd", SNAPPY: "snappy"}

texts = st.one_of(
    st.binary(max_size=2000),
    st.builds(lambda part, times: part * times, st.binary(max_size=20), st.integers(0, 300)),
)


@pytest.mark.parametrize("compression", ALL)
@given(data=texts)
def test_both_ways(compression, data):
    """What is compressed opens to the same bytes, from any kind of buffer."""
    packed = compress(compression, data)
    for buffer in (packed, bytearray(packed), memoryview(packed)):
        assert decompress(compression, buffer, len(data), LIMIT_BYTES) == data


@pytest.mark.parametrize("compression", COMPRESSED)
@given(data=texts)
def test_another_library_agrees(compression, data):
    """Payloads made by another library open, and that library opens ours."""
    assert decompress(compression, ORACLES[compression](data), len(data), LIMIT_BYTES) == data
    if not data:
        return
    ours = compress(compression, data)
    if compression == ZLIB:
        assert zlib.decompress(ours) == data
        return
    name = ARROW_NAMES[compression]
    assert pa.decompress(ours, decompressed_size=len(data), codec=name, asbytes=True) == data


@pytest.mark.parametrize("compression", COMPRESSED)
@given(data=texts.filter(bool), off_by=st.integers(-3, 3).filter(bool))
def test_the_stated_size_must_be_exact(compression, data, off_by):
    """A payload that holds more or fewer bytes than its header states does not open."""
    stated = len(data) + off_by
    if stated <= 0:
        return
    with pytest.raises(DecompressionError, match=f"stated {stated}") as caught:
        decompress(compression, compress(compression, data), stated, LIMIT_BYTES)
    assert caught.value.compression == compression


@pytest.mark.parametrize("compression", COMPRESSED)
@given(damage=st.binary(max_size=60), packed=st.booleans())
@example(damage=bytes(40), packed=True)
def test_any_bytes_open_or_are_refused(compression, damage, packed):
    """Arbitrary bytes give a payload of the stated size or the one typed error."""
    is_whole = packed and len(damage) == 40
    try:
        sent = compress(compression, damage) if packed else damage
        opened = decompress(compression, sent, 40, LIMIT_BYTES)
    except DecompressionError:
        assert not is_whole
        return
    assert len(opened) == 40


@pytest.mark.parametrize("compression", COMPRESSED)
def test_a_bomb_is_not_opened(compression):
    """However small the compressed bytes, no more memory is taken than the header states."""
    bomb = compress(compression, bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionError, match="the limit is 1048576"):
            decompress(compression, bomb, 64 << 20, LIMIT_BYTES)
        with pytest.raises(DecompressionError, match="do not decompress"):
            decompress(compression, bomb, 1000, LIMIT_BYTES)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compression", COMPRESSED)
def test_no_size_means_empty(compression):
    """A stated size of 0 is an empty payload, whatever the compressed bytes are."""
    assert decompress(compression, b"", 0, LIMIT_BYTES) == b""
    assert decompress(compression, compress(compression, b""), 0, LIMIT_BYTES) == b""


def test_not_compressed():
    """Without compression the payload is as it is; the stated size means nothing, as in Pulsar."""
    assert decompress(NONE, b"abc", 99, 1) == b"abc"


def test_unknown_compression():
    """A number that Pulsar has not given out is refused both ways."""
    with pytest.raises(DecompressionError, match="compression 9: unknown") as caught:
        decompress(9, b"", 0, LIMIT_BYTES)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(ValueError, match="unknown compression 9"):
        compress(9, b"")


@pytest.mark.parametrize("compression", BY_CRAMJAM)
def test_missing_library(compression, monkeypatch):
    """Without the library the error says which extra brings it; ZLIB goes on working."""
    monkeypatch.setitem(sys.modules, "cramjam", None)
    for call in (
        lambda: decompress(compression, b"x", 1, LIMIT_BYTES),
        lambda: compress(compression, b"x"),
    ):
        with pytest.raises(CompressionUnavailableError, match=r"checkout\[compression\]") as caught:
            call()
        assert caught.value.compression == compression
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (type(copy), str(copy)) == (type(caught.value), str(caught.value))
    assert decompress(ZLIB, compress(ZLIB, b"x"), 1, LIMIT_BYTES) == b"x"


def test_what_pulsar_stored_opens() -> None:
    """LZ4, ZLIB, ZSTD and SNAPPY as the official client wrote them: the same three messages."""
    opened = {}
    for group in json.loads(GOLDEN.read_text())["groups"]:
        for entry in group["entries"]:
            body = strip(bytes.fromhex(entry["entry_hex"]))
            header = read_message_metadata(body)
            if header.compression and not header.encryption_keys:
                opened[header.compression] = decompress(
                    header.compression, payload_of(body), header.uncompressed_size, LIMIT_BYTES
                )
    assert sorted(opened) == [1, 2, 3, 4]
    for data in opened.values():
        assert all(b"m%d-zzzz" % n in data for n in range(3))
        assert len(data) == len(opened[CompressionType.LZ4])


def lz4_by_the_book(block: bytes) -> bytes | None:
    """What an LZ4 block holds, step by step as its format says; None if it is not one."""
    out, at = bytearray(), 0

    def length(nibble: int) -> int:
        nonlocal at
        total, more = nibble, 255 if nibble == 15 else 0
        while more == 255:
            more, at = block[at], at + 1
            total += more
        return total

    try:
        while True:
            token, at = block[at], at + 1
            literals = length(token >> 4)
            if at + literals > len(block):
                return None
            out += block[at : at + literals]
            at += literals
            if at == len(block):
                return bytes(out)
            offset, at = int.from_bytes(block[at : at + 2], "little"), at + 2
            matched = length(token & 15) + 4
            if not 0 < offset <= len(out):
                return None
            for _ in range(matched):
                out.append(out[-offset])
    except IndexError:
        return None


def random_block(chance):
    """A block, by the format's grammar, that closes with fewer literals than encoders leave."""
    block, held = bytearray(), bytearray()

    def literals(count):
        run = chance.randbytes(count)
        held.extend(run)
        return run

    for _ in range(chance.randrange(3)):
        count, matched = chance.randrange(1, 12), chance.randrange(4, 12)
        block.append(count << 4 | matched - 4)
        block += literals(count)
        distance = chance.randrange(1, len(held) + 1)
        block += distance.to_bytes(2, "little")
        for _ in range(matched):
            held.append(held[-distance])
    count = chance.randrange(8)
    block.append(count << 4)
    block += literals(count)
    return bytes(block), bytes(held)


def test_lz4_hands_out_what_the_block_says_and_nothing_else():
    """5,000 random blocks open to what they hold, or not at all: no byte of old memory.

    Each is opened with its own size and with those that are a little too big: by that much a
    decoder stays clear of its buffer's end, and looks at the block differently.
    """
    chance = random.Random(13)
    for _ in range(5_000):
        block, held = random_block(chance)
        assert lz4_by_the_book(block) == held
        for stated in range(max(1, len(held)), len(held) + 15):
            try:
                opened = decompress(LZ4, block, stated, LIMIT_BYTES)
            except DecompressionError:
                continue
            assert opened == held, block.hex()


def test_lz4_noise_opens_to_what_it_says_or_not_at_all():
    """10,000 blocks of noise, each of a random size: nothing but what the format makes of them."""
    chance = random.Random(14)
    likely = (0, 1, 2, 3, 0x10, 0x20, 0x30, 0x50, 0x80, 0xF0)
    for _ in range(10_000):
        block = bytes(
            chance.randrange(256) if chance.random() < 0.5 else chance.choice(likely)
            for _ in range(chance.randrange(1, 40))
        )
        try:
            opened = decompress(LZ4, block, chance.randrange(1, 60), LIMIT_BYTES)
        except DecompressionError:
            continue
        assert opened == lz4_by_the_book(block), block.hex()


@given(data=st.binary(min_size=1, max_size=80), more=st.integers(1, 8))
def test_a_block_of_closing_literals_is_as_long_as_it_is(data, more):
    """A block of literals alone, stated a little too big, does not open with bytes after them."""
    block = ORACLES[LZ4](data)
    assert lz4_by_the_book(block) == data
    assert decompress(LZ4, block, len(data), LIMIT_BYTES) == data
    with pytest.raises(DecompressionError):
        decompress(LZ4, block, len(data) + more, LIMIT_BYTES)
