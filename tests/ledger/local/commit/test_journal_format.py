from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.ledger import UnsupportedVersionError
from pulsemark.ledger.local.commit.journal import (
    BLOCK_HEADER_SIZE,
    GROUP_SIZE,
    JOURNAL_HEADER_SIZE,
    BlockKey,
    GroupRef,
    JournalHeader,
    pack_block_head,
    unpack_block,
    unpack_block_sizes,
    unpack_journal_header,
)
from pulsemark.metadata import crc32c
from pulsemark.testing.faulty_files import flipped

PATH = Path("x.journal")
SECRET = bytes.fromhex("c1d2e3f40a1b2c3d")
HEADER = JournalHeader(journal_id=3, previous_id=2, previous_end=4096, secret=SECRET)
VERSION_1 = JournalHeader(journal_id=3, previous_id=2, previous_end=4096)
# As version 1 wrote it.
HEADER_HEX = (
    2
    * """
    504d4b4a524e4c0a 0100 0000 00000000 0300000000000000 0200000000000000
    0010000000000000 00000000 3e6770c4 00000000000000000000000000000000
"""
)
GROUPS = [GroupRef(7, 0, 5, 136), GroupRef(9, 2, 3, 1_000_000)]
CONTENT = [b"he", b"llo", b"you"]
BLOCK_HEX = """
    504d4b42 f2d5fb24 02000000 08000000
    0700000000000000 00000000 05000000 8800000000000000
    0900000000000000 02000000 03000000 40420f0000000000
    68656c6c6f 796f75
"""


def test_version_1_header_and_block_keep_their_bytes():
    """Journals of version 1 are read as they were written, byte by byte."""
    header = bytes.fromhex(HEADER_HEX)
    assert unpack_journal_header(header, PATH) == VERSION_1
    assert VERSION_1.pack() == header
    key = VERSION_1.block_key
    head = pack_block_head(key, JOURNAL_HEADER_SIZE, GROUPS, CONTENT)
    block = head + b"".join(CONTENT)
    assert block == bytes.fromhex(BLOCK_HEX)
    assert unpack_block_sizes(block, key) == (2, 8)
    assert unpack_block(block, key, JOURNAL_HEADER_SIZE) is not None


def test_block_of_another_secret_does_not_match():
    """Marker and checksum both need the journal's own secret, which no message shows."""
    head = pack_block_head(HEADER.block_key, JOURNAL_HEADER_SIZE, GROUPS, CONTENT)
    block = head + b"".join(CONTENT)
    for other in (SECRET[:4] + b"else", b"else" + SECRET[4:], b""):
        key = JournalHeader(3, 2, 4096, secret=other).block_key
        sizes = unpack_block_sizes(block, key)
        assert sizes is None or unpack_block(block, key, JOURNAL_HEADER_SIZE) is None
    assert "secret" not in repr(HEADER)


@given(*[st.integers(0, 2**64 - 1)] * 3)
def test_header_round_trip(journal_id, previous_id, previous_end):
    """Every header comes back as it was written; a free file has no header."""
    header = JournalHeader(journal_id, previous_id, previous_end, secret=SECRET)
    assert unpack_journal_header(header.pack(), PATH) == header
    assert unpack_journal_header(bytes(JOURNAL_HEADER_SIZE), PATH) is None


def test_header_is_whole_as_long_as_one_copy_is():
    """A flipped bit in one copy does no harm; with one in both, there is no header."""
    good = HEADER.pack()
    for bit in range(8 * 52):
        bad = bytearray(good)
        for copy in (0, 64):
            bad[copy + bit // 8] ^= 1 << bit % 8
            assert unpack_journal_header(bytes(bad), PATH) == (None if copy else HEADER)
        bad[bit // 8] ^= 1 << bit % 8
        assert unpack_journal_header(bytes(bad), PATH) == HEADER
    for size in range(64):
        assert unpack_journal_header(good[:size], PATH) is None


@pytest.mark.parametrize("offset", [8, 10])
def test_newer_journal_is_unsupported(offset):
    """A version or feature from the future stops the opening: entries would be lost."""
    data = bytearray(HEADER.pack())
    data[offset] = 9
    data[48:52] = crc32c(bytes(data[:48])).to_bytes(4, "little")
    with pytest.raises(UnsupportedVersionError):
        unpack_journal_header(bytes(data), PATH)


parts = st.lists(
    st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=50),
              st.integers(0, 2**64 - 1)), min_size=1, max_size=6,
)  # fmt: skip


@given(parts, st.integers(1, 2**63), st.integers(64, 2**40))
def test_block_round_trip(parts, journal_id, offset):
    """Every group comes back with its bytes; blocks of other journals or places do not match."""
    groups = [GroupRef(ledger, number, len(data), at) for ledger, number, data, at in parts]
    content = [data for _, _, data, _ in parts]
    key = BlockKey(b"PMKB", journal_id, b"")
    block = pack_block_head(key, offset, groups, content) + b"".join(content)
    assert unpack_block_sizes(block, key) == (len(groups), sum(map(len, content)))
    assert len(block) == BLOCK_HEADER_SIZE + GROUP_SIZE * len(groups) + sum(map(len, content))
    unpacked = unpack_block(block, key, offset)
    assert unpacked is not None
    assert [(ref, bytes(data)) for ref, data in unpacked] == list(zip(groups, content, strict=True))
    assert unpack_block(block, key._replace(journal_id=journal_id + 1), offset) is None
    assert unpack_block(block, key, offset + 1) is None


def test_every_flipped_bit_of_a_block_is_found():
    """One wrong bit anywhere in a block is found, be it in the sizes."""
    good, key = bytes.fromhex(BLOCK_HEX), VERSION_1.block_key
    for bit in range(8 * len(good)):
        bad = flipped(good, bit)
        sizes = unpack_block_sizes(bytes(bad), key)
        if sizes is None:
            continue
        length = BLOCK_HEADER_SIZE + sizes[0] * GROUP_SIZE + sizes[1]
        assert length != len(good) or unpack_block(bytes(bad), key, JOURNAL_HEADER_SIZE) is None
