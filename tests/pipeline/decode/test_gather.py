"""Arrow arrays from spans and numbers."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pulsar
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.metadata import BrokerEntryMetadata, Sender, StampContext, StamperChain
from pulsemark.metadata.prefix import pack_encoded
from pulsemark.pipeline.columns import DEFAULT_COLUMNS
from pulsemark.pipeline.decode.gather import (
    gather,
    maps,
    message_ids,
    small_integers,
    tag_maps,
    text,
    timestamps,
    without_base64,
)
from pulsemark.pipeline.decode.protoscan import ABSENT
from pulsemark.proto.pulsar_api_pb2 import MessageIdData
from pulsemark.testing.raw_messages import BatchMember, batched_message, unbatched_message


@given(
    parts=st.lists(st.tuples(st.binary(max_size=5), st.none() | st.binary(max_size=5)), max_size=20)
)
def test_gathered_spans_are_the_bytes_they_span(parts: list[tuple[bytes, bytes | None]]) -> None:
    """Values with anything between them, empty ones and absent ones."""
    data, starts, ends = b"", [], []
    for between, value in parts:
        data += between
        starts.append(ABSENT if value is None else len(data))
        data += value or b""
        ends.append(ABSENT if value is None else len(data))
    made = gather(data, np.array(starts, np.int64), np.array(ends, np.int64))
    assert made.type == pa.binary()
    assert made.to_pylist() == [value for _, value in parts]


def test_gathering_beyond_arrow_s_offsets_is_refused() -> None:
    """More than 2 GiB in one buffer would wrap around; it is an error instead."""

    class Huge(bytes):
        def __len__(self) -> int:
            return 2**31

    with pytest.raises(ValueError, match="2147483648 bytes"):
        gather(Huge(b"x"), np.array([0]), np.array([1]))


def test_text_replaces_what_is_not_utf8() -> None:
    """A column with one bad value keeps all others."""
    values = pa.array([b"a", None, b"\xff", "ü".encode()], pa.binary())
    assert text(values).to_pylist() == ["a", None, "�", "ü"]


def test_base64_is_undone_only_where_it_is_said() -> None:
    """And what is not base64 stays."""
    packed = base64.b64encode(b"\x00\x01")
    values = pa.array([packed, packed, b"!", None], pa.binary())
    plain = without_base64(values, np.array([True, False, True, True]))
    assert plain.to_pylist() == [b"\x00\x01", packed, b"!", None]


def test_times_that_spark_cannot_show_are_null() -> None:
    """Absent, negative (beyond 2^63 on the wire), and after the year 9999."""
    times = np.array([0, 1, 253_402_300_799_999, 253_402_300_800_000, -1, ABSENT, 2**62])
    shown = timestamps(times)
    assert shown.cast(pa.int64()).to_pylist() == [0, 1000, 253_402_300_799_999_000, *[None] * 4]


def test_integers_beyond_32_bits_are_null() -> None:
    """As are absent ones."""
    made = small_integers(np.array([0, 2**31 - 1, 2**31, ABSENT, -5]))
    assert made.type == pa.int32()
    assert made.to_pylist() == [0, 2**31 - 1, None, None, None]


def test_pairs_become_the_maps_of_their_rows() -> None:
    """Rows without pairs have an empty map."""
    keys, values = pa.array([b"a", b"b", b"c"]), pa.array([b"1", b"", b"3"])
    type_ = pa.map_(pa.string(), pa.string())
    made = maps(np.array([1, 1, 3]), keys, values, 5, type_)
    assert made.to_pylist() == [[], [("a", "1"), ("b", "")], [], [("c", "3")], []]


ALL_STAMPERS = (
    "broker-time", "index", "message-count", "has-keys", "raw-size", "producer", "send-time",
    "broker", "property-tags:region,bytes",
)  # fmt: skip


def test_every_message_has_its_entry_s_tags(folder: Any, tools: Any) -> None:
    """Numbers, flags, text and bytes are shown as text; entries without tags have an empty map."""
    topic = folder.topic("a")
    ledger = topic.ledger
    ledger.append(unbatched_message(b"plain", publish_time_ms=1))
    ledger.stampers = StamperChain.from_names(ALL_STAMPERS).at_broker("here:6650")
    sender = Sender("till", {"region": "eu"})
    body = batched_message([BatchMember(payload=b"12")] * 2, publish_time_ms=7)
    ledger.append(body, message_count=2, sender=sender)
    ledger.append(unbatched_message(b"345", publish_time_ms=8, key="k"), sender=sender)
    ledger.stampers = StamperChain()
    ledger.append(unbatched_message(b"unstamped", publish_time_ms=9)).commit.wait(10)
    rows = tools.rows_of(folder.path, topic="a", columns="__index,__tags")
    common = {"producer_name": "till", "broker_name": "here:6650", "region": "eu"}
    raw_size = rows[1]["__tags"]["raw_size_bytes"]
    batch = {"message_count": "2", "raw_size_bytes": raw_size, "send_time_ms": "7"}
    single = {"message_count": "1", "raw_size_bytes": "3", "send_time_ms": "8", "has_keys": "true"}
    tags = [{}, {**common, **batch}, {**common, **batch}, {**common, **single}, {}]
    assert rows == [{"__index": index, "__tags": told} for index, told in enumerate(tags)]


class Foreign:
    """A plugin that is not installed where the folder is read."""

    name = "foreign"
    fields = frozenset({1000, 109})

    def stamp(self, context: StampContext, metadata: BrokerEntryMetadata) -> None:
        """Field 1000 is 7; an application tag that is not text, and one that is a forgery."""
        metadata.MergeFromString(bytes.fromhex("c03e07"))
        metadata.application_tags.add(key="bytes", value=b"\xff\x00")
        metadata.application_tags.add(key="producer_name", value=b"not me")


def test_foreign_fields_and_bytes(folder: Any, tools: Any) -> None:
    """A foreign field goes by its number, bytes are hexadecimal, and no tag forges the broker's."""
    topic = folder.topic("a")
    topic.ledger.stampers = StamperChain([Foreign()])
    topic.ledger.append(unbatched_message(b"x", publish_time_ms=1)).commit.wait(10)
    (row,) = tools.rows_of(folder.path, topic="a", columns="__tags")
    assert row == {"__tags": {"1000": "7", "bytes": "ff00"}}


def test_bodies_of_large_entries_are_not_read_for_it(folder: Any, tools: Any) -> None:
    """Long tags of large entries are there although only the heads are read."""
    topic = folder.topic("a")
    topic.ledger.stampers = StamperChain.from_names(["property-tags:region"])
    for number in range(3):
        body = unbatched_message(b"x" * 50_000, publish_time_ms=1)
        topic.ledger.append(body, sender=Sender("p", {"region": f"{number}" * 300}))
    topic.ledger.append(b"end", message_count=0).commit.wait(10)
    rows = tools.rows_of(folder.path, topic="a", columns="__tags")
    assert rows == [{"__tags": {"region": f"{number}" * 300}} for number in range(3)]


def test_a_prefix_of_another_program_never_raises(folder: Any, tools: Any) -> None:
    """Bytes in the prefix that are no metadata give no tags; the rows stay."""
    from pulsemark.ledger import EARLIEST
    from pulsemark.pipeline.decode.entries import table_of_entries

    topic = folder.topic("a")
    topic.ledger.append(unbatched_message(b"x", publish_time_ms=1)).commit.wait(10)
    table = table_of_entries(topic.ledger.read(EARLIEST))
    bad = pack_encoded(b"\xff\xff")
    table.data = bad + table.data
    table.starts[:], table.prefix_sizes[:] = 0, len(bad)
    type_ = tools.arrow_schema(["__tags"]).field("__tags").type
    assert tag_maps(table, type_).to_pylist() == [[]]
    assert DEFAULT_COLUMNS.count("__tags") == 0


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
