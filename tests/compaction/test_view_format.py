"""Bytes of a compacted view, compared with worked examples; and bytes that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsemark.compaction.view_format import (
    BlockPlace,
    ViewBlock,
    ViewRow,
    pack_block,
    pack_entry_header,
    pack_footer,
    unpack_entry_header,
    unpack_footer,
)
from pulsemark.ledger import Position, UnsupportedVersionError
from pulsemark.ledger.store import BadViewError, ViewSummary, unpack_property

ROW = ViewRow(Position(5, 7), 3, 12, 1000, 1001, 1002, 4, 9, Position(8, 6))
ENTRY_HEX = (
    "01 00 1200 03000000 0500000000000000 0700000000000000 0c00000000000000 e803000000000000"
    "e903000000000000 ea03000000000000 0400000000000000 0900000000000000"
)
BLOCK_HEX = (
    "02 00 0000 01000000 03000000 0500000000000000 0700000000000000 0c00000000000000"
    "e803000000000000 e903000000000000 0800000000000000 0600000000000000 ea03000000000000"
    "0900000000000000"
)
SUMMARY = ViewSummary(Position(5, 9), 20, 1005, 4, 11)
SUMMARY_HEX = (
    "0500000000000000 0900000000000000 1400000000000000 ed03000000000000 0400000000000000"
    "0b00000000000000"
)
PLACE = BlockPlace.of(ROW, Position(8, 9))
FOOTER_HEX = (
    f"03 00 0100 01000000 {SUMMARY_HEX} 0500000000000000 0700000000000000 0c00000000000000"
    "ea03000000000000 0800000000000000 0900000000000000"
)
PROPERTY_HEX = f"0100 0000 07000000 {SUMMARY_HEX}"

numbers = st.integers(0, 2**64 - 1)
places = st.builds(Position, numbers, numbers)
rows = st.builds(
    ViewRow, places, st.integers(0, 2**32 - 1), numbers, numbers, numbers, numbers,
    st.integers(0, 2**40), numbers, places,
)  # fmt: skip


def test_worked_examples():
    """Every record has the bytes that the format describes."""
    assert pack_entry_header(ROW, 18) == bytes.fromhex(ENTRY_HEX)
    assert pack_block([ROW]) == bytes.fromhex(BLOCK_HEX)
    assert pack_footer(SUMMARY, [PLACE]) == bytes.fromhex(FOOTER_HEX)
    assert SUMMARY.pack(7) == bytes.fromhex(PROPERTY_HEX)


@given(row=rows, prefix_size=st.integers(0, 2**16 - 1), stored=st.binary(max_size=20))
def test_entry_both_ways(row, prefix_size, stored):
    """An entry's header gives back its row; the ledger gives its place."""
    record = pack_entry_header(row, prefix_size) + stored
    assert unpack_entry_header(record, row.at) == (row, prefix_size)


@given(several=st.lists(rows, min_size=1, max_size=5), first=st.integers(0, 2**40))
def test_block_both_ways(several, first):
    """An index block gives back its rows, and has what is searched in columns."""
    for number, row in enumerate(several):
        row.ordinal = first + number
    block = ViewBlock(pack_block(several), first)
    assert [block.row(number) for number in range(len(block))] == several
    assert block.position == [row.position for row in several]
    assert list(block.time_max_ms) == [row.time_max_ms for row in several]
    assert list(block.next_index) == [row.next_index for row in several]


@given(
    summary=st.builds(ViewSummary, places, numbers, numbers, numbers, numbers),
    blocks=st.lists(st.builds(BlockPlace, places, numbers, numbers, places), max_size=5),
    generation=st.integers(0, 2**32 - 1),
)
def test_footer_and_property_both_ways(summary, blocks, generation):
    """Footer and property give back what they were made of."""
    assert unpack_footer(pack_footer(summary, blocks), "v") == (summary, blocks)
    assert unpack_property(summary.pack(generation), "v") == (generation, summary)


def test_cut_anywhere():
    """A record that is cut off is not accepted, wherever it is cut."""
    readers = {
        ENTRY_HEX: lambda data: unpack_entry_header(data, Position(0, 0)),
        BLOCK_HEX: lambda data: ViewBlock(data, 0),
        FOOTER_HEX: lambda data: unpack_footer(data, "v"),
        PROPERTY_HEX: lambda data: unpack_property(data, "v"),
    }
    for text, read in readers.items():
        whole = bytes.fromhex(text)
        read(whole)
        for end in range(len(whole)):
            with pytest.raises(BadViewError):
                read(whole[:end])


@given(data=st.binary(max_size=200))
@example(data=bytes.fromhex(ENTRY_HEX))
@example(data=bytes.fromhex(BLOCK_HEX))
@example(data=bytes.fromhex(FOOTER_HEX))
@example(data=bytes.fromhex(PROPERTY_HEX))
def test_any_bytes(data):
    """Arbitrary bytes are read as what they say they are, or refused with a typed error."""
    accepted = 0
    for read in (
        lambda: unpack_entry_header(data, Position(0, 0)),
        lambda: ViewBlock(data, 0),
        lambda: unpack_footer(data, "v"),
        lambda: unpack_property(data, "v"),
    ):
        try:
            read()
        except (BadViewError, UnsupportedVersionError):
            continue
        accepted += 1
    whole = {bytes.fromhex(text) for text in (ENTRY_HEX, BLOCK_HEX, FOOTER_HEX, PROPERTY_HEX)}
    # A checksum keeps everything else out.
    assert accepted == (data in whole)


@pytest.mark.parametrize("at", [2, 3])
def test_newer_footer(at):
    """A footer of a newer version is unsupported, not damaged."""
    footer = bytearray.fromhex(FOOTER_HEX)
    footer[at] += 1
    with pytest.raises(UnsupportedVersionError) as caught:
        unpack_footer(footer, "v")
    assert (caught.value.path, caught.value.supported) == (Path("v"), 1)
