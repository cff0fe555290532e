from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.ledger.local.segment.index_file import (
    CHUNK_HEADER_SIZE,
    CHUNK_ROWS,
    INDEX_HEADER_SIZE,
    ROW_SIZE,
    TRAILER_SIZE,
    BadIndexError,
    Chunk,
    Trailer,
    chunk_offset,
    index_seed,
    pack_index_header,
    unpack_chunk,
    unpack_trailer,
)
from pulsemark.testing.faulty_files import flipped

SEED = index_seed(7, 0)
CHUNK = Chunk(
    first_row=0,
    time_before_ms=1_700_000_000_000,
    next_before=0,
    end_offset=222,
    times=array("Q", [1_700_000_000_123, 1_700_000_000_124]),
    nexts=array("I", [1, 3]),
    offsets=array("I", [136, 179]),
    content_crc=0x01020304,
)
TRAILER = Trailer(
    row_count=2,
    message_count=3,
    end_offset=222,
    entry_time_max_ms=1_700_000_000_124,
    append_time_max_ms=1_700_000_000_125,
)
# The header is that of the worked example in docs/formats.md; chunk and trailer are not.
HEADER_HEX = "504d4b494e44580a 0100 0000 00000000 0700000000000000 00000000 2c0bb874"
CHUNK_HEX = """
    504d4b43 0fd58173 00000000 02000000 0068e5cf8b010000 00000000 de000000 04030201 01000000
    7b68e5cf8b010000 7c68e5cf8b010000
    01000000 03000000
    88000000 b3000000
"""
TRAILER_HEX = """
    504d4b45 87fe2ebd 02000000 03000000 de000000 00000000 7c68e5cf8b010000 7d68e5cf8b010000
"""
uint64s = st.integers(0, 2**64 - 1)
uint32s = st.integers(0, 2**32 - 1)


def same(one: Chunk, other: Chunk) -> bool:
    """Whether two chunks hold the same, in whatever kind of column."""
    return all(
        getattr(one, name) == getattr(other, name)
        for name in ("first_row", "time_before_ms", "next_before", "end_offset", "content_crc",
                     "content_known")
    ) and all(
        list(getattr(one, name)) == list(getattr(other, name))
        for name in ("times", "nexts", "offsets")
    )  # fmt: skip


def test_index_has_the_documented_bytes():
    """An index file, byte by byte: header, a chunk of two rows, trailer."""
    assert pack_index_header(7, 0) == bytes.fromhex(HEADER_HEX)
    assert CHUNK.pack(SEED) == bytes.fromhex(CHUNK_HEX)
    assert TRAILER.pack(SEED) == bytes.fromhex(TRAILER_HEX)


def test_chunks_stand_where_the_arithmetic_says():
    """A chunk's place follows from its number alone: 16 bytes a row and one header each."""
    assert chunk_offset(0) == INDEX_HEADER_SIZE == len(pack_index_header(7, 0))
    assert chunk_offset(3) - chunk_offset(2) == CHUNK_HEADER_SIZE + CHUNK_ROWS * ROW_SIZE
    columns = [array(t, [0]) * CHUNK_ROWS for t in "QII"]
    full = Chunk(0, 0, 0, 0, columns[0], columns[1], columns[2])
    assert len(full.pack(SEED)) == chunk_offset(1) - chunk_offset(0)


rows = st.lists(st.tuples(uint64s, uint32s, uint32s), min_size=1, max_size=40)


@given(rows, uint64s, uint32s, uint32s, uint32s, uint32s, st.booleans())
def test_chunk_round_trip(rows, time_before, next_before, end, first_row, crc, known):
    """Every chunk comes back as it was written, also from the middle of more bytes."""
    times, nexts, places = (
        array(t, c) for t, c in zip("QII", zip(*rows, strict=True), strict=True)
    )
    chunk = Chunk(first_row, time_before, next_before, end, times, nexts, places, crc, known)
    data = chunk.pack(SEED)
    assert len(data) == CHUNK_HEADER_SIZE + len(rows) * ROW_SIZE
    assert same(unpack_chunk(data + b"what follows", SEED, first_row), chunk)


@given(uint32s, uint32s, uint32s, uint64s, uint64s)
def test_trailer_round_trip(row_count, message_count, end, entry_max, append_max):
    """Every trailer comes back as it was written."""
    trailer = Trailer(row_count, message_count, end, entry_max, append_max)
    data = trailer.pack(SEED)
    assert len(data) == TRAILER_SIZE
    assert unpack_trailer(data, SEED) == trailer


def test_every_flipped_bit_is_found():
    """One wrong bit anywhere in a chunk or a trailer is found."""
    chunk, trailer = CHUNK.pack(SEED), TRAILER.pack(SEED)
    for bit in range(8 * len(chunk)):
        with pytest.raises(BadIndexError):
            unpack_chunk(flipped(chunk, bit), SEED, 0)
    for bit in range(8 * len(trailer)):
        assert unpack_trailer(flipped(trailer, bit), SEED) is None


def test_every_cut_is_found():
    """A chunk or trailer that ends early is not accepted."""
    good = CHUNK.pack(SEED)
    for size in range(len(good)):
        with pytest.raises(BadIndexError):
            unpack_chunk(good[:size], SEED, 0)
    for size in range(TRAILER_SIZE):
        assert unpack_trailer(TRAILER.pack(SEED)[:size], SEED) is None


@pytest.mark.parametrize("seed", [index_seed(8, 0), index_seed(7, 1)])
def test_index_of_another_segment_does_not_match(seed):
    """Ledger id and segment number are part of the checksums."""
    with pytest.raises(BadIndexError):
        unpack_chunk(CHUNK.pack(seed), SEED, 0)
    assert unpack_trailer(TRAILER.pack(seed), SEED) is None
    with pytest.raises(BadIndexError):
        unpack_chunk(CHUNK.pack(SEED), SEED, CHUNK_ROWS)
