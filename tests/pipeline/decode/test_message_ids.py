"""`__messageId` is what the official client takes for a message id."""

from __future__ import annotations

import numpy as np
import pulsar
import pytest

from pulsemark.pipeline.decode.message_ids import message_ids
from pulsemark.proto.pulsar_api_pb2 import MessageIdData


def test_the_official_client_reads_them() -> None:
    """Ledger, entry, partition and batch index, small and beyond a byte."""
    ids = message_ids(
        "persistent://public/default/x-partition-12",
        np.array([3, 3, 3, 70_000]),
        np.array([0, 200, 200, 2**31]),
        np.array([1, 300, 300, 2]),
        np.array([0, 0, 299, 1]),
    ).to_pylist()
    read = [pulsar.MessageId.deserialize(each) for each in ids]
    assert [(i.ledger_id(), i.entry_id(), i.batch_index()) for i in read] == [
        (3, 0, -1),
        (3, 200, 0),
        (3, 200, 299),
        (70_000, 2**31, 1),
    ]
    assert {i.partition() for i in read} == {12}


def test_they_are_what_protobuf_writes() -> None:
    """Byte-equal to MessageIdData, the batch size included."""
    (one, member) = message_ids(
        "t",
        np.array([1, 1]),
        np.array([5, 6]),
        np.array([1, 4]),
        np.array([0, 3]),
    ).to_pylist()
    assert one == MessageIdData(ledgerId=1, entryId=5).SerializeToString()
    assert (
        member
        == MessageIdData(ledgerId=1, entryId=6, batch_index=3, batch_size=4).SerializeToString()
    )


@pytest.mark.parametrize("entry_ids", [[5, 6], [127, 128], [300, 400]])
@pytest.mark.parametrize("counts", [[1, 1], [1, 9], [9, 9]])
@pytest.mark.parametrize("topic", ["t", "t-partition-3"])
def test_ids_of_one_length_and_of_several(
    topic: str, entry_ids: list[int], counts: list[int]
) -> None:
    """Whether all ids have the same length, or each its own, they are what protobuf writes."""
    places = [count - 1 for count in counts]
    made = message_ids(
        topic, np.broadcast_to(7, 2), np.array(entry_ids), np.array(counts), np.array(places)
    )
    expected = []
    for entry_id, count, place in zip(entry_ids, counts, places, strict=True):
        one = MessageIdData(ledgerId=7, entryId=entry_id)
        if topic != "t":
            one.partition = 3
        if count > 1:
            one.batch_index, one.batch_size = place, count
        expected.append(one.SerializeToString())
    assert made.to_pylist() == expected


@pytest.mark.parametrize(
    ("topic", "partition"),
    [
        ("a-partition-0", 0),
        ("a-partition-2147483647", 2147483647),
        ("a", -1),
        ("a-partition-01", -1),
    ],
)
def test_the_partition_is_the_one_that_a_consumer_gets(topic: str, partition: int) -> None:
    """A name that is no partition's for the broker is none here."""
    (made,) = message_ids(
        topic, np.array([1]), np.array([5]), np.array([1]), np.array([0])
    ).to_pylist()
    assert pulsar.MessageId.deserialize(made).partition() == partition
