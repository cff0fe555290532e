"""Compressed payloads open exactly, within limits, or not at all."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.metadata import payload_of, read_message_metadata, strip
from pulsemark.pipeline.decode.compression import DecompressionError, decompress

GOLDEN = Path(__file__).parents[2] / "data" / "pulsar-4.0.8-entries.json"
LIMIT = 1 << 20

COMPRESS = {
    1: lambda data: pa.compress(data, codec="lz4_raw", asbytes=True),
    2: zlib.compress,
    3: lambda data: pa.compress(data, codec="zstd", asbytes=True),
    4: lambda data: pa.compress(data, codec="snappy", asbytes=True),
}


def test_what_pulsar_stored_opens() -> None:
    """LZ4, ZLIB, ZSTD and SNAPPY as the official client wrote them: the same three messages."""
    opened = {}
    for group in json.loads(GOLDEN.read_text())["groups"]:
        for entry in group["entries"]:
            body = strip(bytes.fromhex(entry["entry_hex"]))
            header = read_message_metadata(body)
            if header.compression and not header.encryption_keys:
                opened[header.compression] = decompress(
                    header.compression, payload_of(body), header.uncompressed_size, LIMIT
                )
    assert sorted(opened) == [1, 2, 3, 4]
    for data in opened.values():
        assert all(b"m%d-zzzz" % n in data for n in range(3))
        assert len(data) == len(opened[1])


@pytest.mark.parametrize("compression", COMPRESS)
@given(data=st.binary(max_size=400) | st.integers(0, 100_000).map(bytes))
def test_everything_compressed_opens(compression: int, data: bytes) -> None:
    """Any payload, from empty to long runs, through a memoryview as from a buffer."""
    packed = memoryview(COMPRESS[compression](data))
    assert decompress(compression, packed, len(data), LIMIT) == data


@pytest.mark.parametrize("compression", COMPRESS)
@given(data=st.binary(min_size=1, max_size=300), off=st.integers(-300, 3000))
def test_a_wrong_stated_size_is_refused(compression: int, data: bytes, off: int) -> None:
    """Neither less nor more than is in it: no byte comes out that was not put in."""
    stated = len(data) + off
    if off and stated > 0:
        with pytest.raises(DecompressionError, match=f"open to {stated} bytes"):
            decompress(compression, COMPRESS[compression](data), stated, LIMIT)


def lz4_by_the_book(block: bytes) -> bytes | None:
    """What an LZ4 block holds, step by step as its format says; None if it is none."""
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


@given(noise=st.binary(max_size=60), stated=st.integers(1, 300))
def test_lz4_noise_never_yields_memory(noise: bytes, stated: int) -> None:
    """What opens is what the block says, never what lay in the buffer before."""
    try:
        opened = decompress(1, noise, stated, LIMIT)
    except DecompressionError:
        return
    assert opened == lz4_by_the_book(noise)


@given(noise=st.binary(max_size=40))
def test_lz4_by_the_book_of_short_blocks(noise: bytes) -> None:
    """The same for blocks of one run of bytes, which noise seldom is: right and one too large."""
    block = COMPRESS[1](noise)
    assert lz4_by_the_book(block) == noise
    for stated in range(len(noise) + 1, len(noise) + 4):
        with pytest.raises(DecompressionError):
            decompress(1, block, stated, LIMIT)


@pytest.mark.parametrize("compression", COMPRESS)
def test_a_bomb_is_refused_before_it_is_opened(compression: int) -> None:
    """The limit is on the stated size, and what states less than it holds does not open."""
    bomb = COMPRESS[compression](bytes(50 * LIMIT))
    with pytest.raises(DecompressionError, match=f"limit is {LIMIT}"):
        decompress(compression, bomb, 50 * LIMIT, LIMIT)
    with pytest.raises(DecompressionError, match="do not open"):
        decompress(compression, bomb, LIMIT, LIMIT)


def test_an_empty_payload_needs_no_opening() -> None:
    """A size of 0 is an empty payload, whatever stands there: some clients compress nothing."""
    assert [decompress(c, b"", 0, LIMIT) for c in COMPRESS] == [b""] * 4


def test_an_lz4_block_of_at_most_a_byte() -> None:
    """The sizes that pyarrow cannot tell apart, 0 and 1: every block of one and two bytes."""
    for block in (bytes([token, *rest]) for token in range(256) for rest in ((), (7,))):
        expected = lz4_by_the_book(block)
        if expected == b"\7":
            assert decompress(1, block, 1, LIMIT) == expected
        else:
            with pytest.raises(DecompressionError):
                decompress(1, block, 1, LIMIT)


def test_an_unknown_method_is_named() -> None:
    """A number that Pulsar may give out later."""
    with pytest.raises(DecompressionError, match="type 5"):
        decompress(5, b"x", 1, LIMIT)
