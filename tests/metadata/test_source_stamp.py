"""The source's facts of a mirrored entry: written, read, packed into a number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.metadata import BrokerEntryMetadata, PrefixError, field_numbers, pack, peek
from pulsemark.metadata.source_stamp import (
    SourceStamp,
    position_of_sequence_id,
    sequence_id_of,
    source_stamp_of,
    split_mirrored,
)

numbers = st.integers(0, 2**63 - 1)
stamps = st.builds(
    SourceStamp,
    st.text(min_size=1, max_size=50),
    st.integers(0, 2**35 - 1),
    st.integers(0, 2**28 - 1),
    st.none() | numbers,
    st.none() | numbers,
)


@given(stamps, st.binary(max_size=100))
def test_what_a_mirror_sends_is_read_again(stamp: SourceStamp, body: bytes) -> None:
    """Facts and bytes come out as they went in, a missing number stays missing."""
    found, rest = split_mirrored(stamp.prefix() + body)
    assert (found, bytes(rest)) == (stamp, body)
    assert source_stamp_of(peek(pack(stamp.metadata()))) == stamp
    assert field_numbers(stamp.metadata().SerializeToString()) <= {113, 114, 115, 116, 117}


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(sent: bytes) -> None:
    """Bytes from a client raise PrefixError, and nothing else."""
    for prefixed in (sent, b"\x0e\x02\x00\x00\x00" + bytes([len(sent)]) + sent):
        try:
            split_mirrored(prefixed)
        except PrefixError:
            continue


@given(st.integers(0, 2**35 - 1), st.integers(0, 2**28 - 1))
def test_a_position_is_one_number_in_the_same_order(ledger_id: int, entry_id: int) -> None:
    """The number gives the position back, and a later position a higher number."""
    number = sequence_id_of((ledger_id, entry_id))
    assert position_of_sequence_id(number) == (ledger_id, entry_id)
    assert 0 <= number < 2**63
    if entry_id:
        assert sequence_id_of((ledger_id, entry_id - 1)) < number
    if ledger_id:
        assert sequence_id_of((ledger_id - 1, 2**28 - 1)) < number


@pytest.mark.parametrize("place", [(2**35, 0), (0, 2**28), (-1, 0), (0, -1)])
def test_positions_that_do_not_fit(place: tuple[int, int]) -> None:
    """A position beyond the bits of its number is an error."""
    with pytest.raises(PrefixError, match="out of range"):
        sequence_id_of(place)


def test_no_position_is_minus_one() -> None:
    """-1 means that there is no entry, as in PRODUCER_SUCCESS; ordinary entries have no facts."""
    assert position_of_sequence_id(-1) is None
    assert source_stamp_of(None) is None
    assert source_stamp_of(BrokerEntryMetadata(index=1)) is None
