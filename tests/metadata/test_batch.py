"""Walking through a batch's messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.metadata import MessageFormatError
from pulsemark.metadata.batch import batch_members, check_batch_end, pack_batch_member
from pulsemark.proto.pulsar_api_pb2 import SingleMessageMetadata


def packed(*payloads: bytes) -> bytes:
    """A batch of these payloads, whose sequence ids count up."""
    return b"".join(
        pack_batch_member(SingleMessageMetadata(sequence_id=number), payload)
        for number, payload in enumerate(payloads)
    )


@given(payloads=st.lists(st.binary(max_size=40), max_size=20))
def test_members_are_where_they_were_put(payloads: list[bytes]) -> None:
    """Each member has its number, header and payload, and begins where the last one ended."""
    batch = packed(*payloads)
    end = 0
    members = list(batch_members(batch, len(payloads)))
    for place, (member, payload) in enumerate(zip(members, payloads, strict=True)):
        assert (member.place, member.header.sequence_id, member.start) == (place, place, end)
        assert batch[member.payload_start : member.end] == payload
        end = member.end
    check_batch_end(batch, len(payloads), end)


@given(
    payloads=st.lists(st.binary(max_size=40), min_size=1, max_size=5), cut=st.integers(1, 10_000)
)
def test_a_batch_that_is_cut_gives_its_whole_members(payloads: list[bytes], cut: int) -> None:
    """Members before the cut are given; the one that is not whole is an error with its number."""
    batch = packed(*payloads)
    batch = batch[: len(batch) - 1 - cut % len(batch)]
    whole: list[bytes] = []
    with pytest.raises(MessageFormatError) as raised:
        whole.extend(batch[m.payload_start : m.end] for m in batch_members(batch, len(payloads)))
    assert whole == payloads[: len(whole)]
    assert f"message {len(whole)} of {len(payloads)}:" in raised.value.reason


def test_bytes_after_the_last_member() -> None:
    """Are an error for those who ask; the walk itself does not look at them."""
    batch = packed(b"a") + b"xyz"
    (member,) = batch_members(batch, 1)
    with pytest.raises(MessageFormatError, match="3 bytes after its 1 messages"):
        check_batch_end(batch, 1, member.end)
