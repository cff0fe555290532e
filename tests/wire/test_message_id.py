"""Message ids: signs, defaults, ack sets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.proto.pulsar_api_pb2 import MessageIdData
from pulsemark.wire import (
    EARLIEST,
    LATEST,
    MessageId,
    pack_ack_set,
    to_signed,
    to_unsigned,
    unpack_ack_set,
)

int64s = st.integers(-(2**63), 2**63 - 1)
int32s = st.integers(-1, 2**31 - 1)


def test_earliest_and_latest_are_pulsars() -> None:
    """Earliest travels as 2^64-1 twice, latest as 2^63-1 twice."""
    assert EARLIEST.to_data() == MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
    assert LATEST.to_data() == MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1)
    assert MessageId.from_data(MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)) == EARLIEST


@settings(deadline=None)
@given(int64s)
def test_signs_survive_the_wire(value: int) -> None:
    """Every signed 64-bit number has one unsigned form, and comes back from it."""
    assert 0 <= to_unsigned(value) < 2**64
    assert to_signed(to_unsigned(value)) == value


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_numbers_beyond_64_bits_are_refused(value: int) -> None:
    """A number that would lose bits raises OverflowError."""
    with pytest.raises(OverflowError, match="64 bits"):
        to_unsigned(value)


@settings(deadline=None)
@given(int64s, int64s, int32s, int32s, st.integers(0, 2**31 - 1), st.lists(int64s, max_size=4))
def test_ids_survive_the_wire_and_serialization(
    ledger: int, entry: int, partition: int, batch: int, size: int, words: list[int]
) -> None:
    """An id comes back from the wire's form and from a serialized one as it was."""
    message_id = MessageId(ledger, entry, partition, batch, size, tuple(words))

    assert MessageId.from_data(message_id.to_data()) == message_id
    assert MessageId.deserialize(message_id.serialize()) == message_id


def test_defaults_are_left_out() -> None:
    """A plain id has two fields only."""
    assert MessageId(1, 2).serialize() == bytes.fromhex("08011002")


@pytest.mark.parametrize("data", [b"", b"\x08\x01", b"\xff\xff", b"\x08"])
def test_what_is_no_serialized_id_is_refused(data: bytes) -> None:
    """Missing fields and bytes that are not a message raise ValueError."""
    with pytest.raises(ValueError, match="serialized message id"):
        MessageId.deserialize(data)


def test_ids_are_in_the_order_of_the_topic() -> None:
    """Ids compare by ledger and entry first."""
    assert EARLIEST < MessageId(0, 0) < MessageId(0, 1) < MessageId(1, 0) < LATEST


@settings(deadline=None)
@given(st.sets(st.integers(0, 300)))
def test_ack_sets_hold_what_is_not_acknowledged(unacked: set[int]) -> None:
    """The words of a set give the set back, and end with the last bit that is set."""
    words = pack_ack_set(unacked)

    assert unpack_ack_set(words, 301) == sorted(unacked)
    assert len(words) == (max(unacked) // 64 + 1 if unacked else 0)
    assert MessageId(1, 2, ack_set=words).to_data().ack_set == list(words)


def test_an_ack_set_is_read_within_the_batch_only() -> None:
    """Bits after the batch's end mean nothing; three members of which the second is acked: 5."""
    assert pack_ack_set([0, 2]) == (5,)
    assert unpack_ack_set([-1, -1], 3) == [0, 1, 2]
    assert unpack_ack_set([], 3) == []
