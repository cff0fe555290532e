"""Reading many protobuf messages at once gives what protobuf's own parser gives for each."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.metadata.protobuf_fields import MalformedError, fields_of, read_varint
from pulsemark.pipeline.decode import protoscan
from pulsemark.pipeline.decode.octets import u32_at
from pulsemark.pipeline.decode.protoscan import ABSENT, Want, scan
from pulsemark.proto.pulsar_api_pb2 import MessageMetadata

WANTED = {
    1: Want.SPAN,
    3: Want.VARINT,
    4: Want.SPANS,
    6: Want.SPAN,
    12: Want.VARINT,
    13: Want.COUNT,
    27: Want.VARINT,
}

metadata = st.builds(
    MessageMetadata,
    producer_name=st.text(max_size=5),
    sequence_id=st.integers(0, 2**64 - 1),
    publish_time=st.integers(0, 2**62),
    properties=st.lists(
        st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.text(max_size=3)}),
        max_size=4,
    ),
    partition_key=st.none() | st.text(max_size=300),
    event_time=st.none() | st.integers(0, 2**40),
    encryption_keys=st.lists(
        st.fixed_dictionaries({"key": st.just("k"), "value": st.binary(max_size=2)}), max_size=2
    ),
    num_chunks_from_msg=st.none() | st.integers(0, 2**31 - 1),
)


def lay(messages: list[bytes]) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Messages in one buffer, with a byte of something else between them."""
    data = b"\xff".join(messages)
    sizes = np.array([len(message) for message in messages], np.int64)
    ends = np.cumsum(sizes + 1) - 1
    return data, ends - sizes, ends


@pytest.mark.parametrize(
    ("few", "alike"),
    [(1, 10**9), (10**9, 10**9), (1, 1), (10**9, 1)],
    ids=["at once", "one by one", "alike, at once", "alike, one by one"],
)
@settings(max_examples=30, deadline=None)
@given(given=st.lists(metadata, min_size=1, max_size=40), copies=st.integers(1, 3))
def test_fields_are_those_that_protobuf_reads(
    few: int, alike: int, given: list[MessageMetadata], copies: int
) -> None:
    """Numbers, bytes, repeated fields and counts, on all methods; nothing is bad."""
    given = given * copies
    data, starts, ends = lay([message.SerializeToString() for message in given])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protoscan, "FEW_LANES", few)
        patch.setattr(protoscan, "FEW_ALIKE", alike)
        columns, bad = scan(np.frombuffer(data, np.uint8), starts, ends, WANTED)
    assert not bad.any()
    properties = columns[4]
    for lane, message in enumerate(given):
        name, key = (data[columns[n].starts[lane] : columns[n].ends[lane]] for n in (1, 6))
        assert name == message.producer_name.encode()
        assert (columns[6].starts[lane] != ABSENT) == message.HasField("partition_key")
        assert not message.HasField("partition_key") or key == message.partition_key.encode()
        assert columns[3].values[lane] == message.publish_time
        for number, field in ((12, "event_time"), (27, "num_chunks_from_msg")):
            expected = getattr(message, field) if message.HasField(field) else ABSENT
            assert columns[number].values[lane] == expected
        assert columns[13].values[lane] == len(message.encryption_keys)
        mine = np.flatnonzero(properties.lanes == lane)
        assert [data[properties.starts[at] : properties.ends[at]] for at in mine] == [
            each.SerializeToString() for each in message.properties
        ]


@settings(max_examples=150, deadline=None)
@given(messages=st.lists(st.binary(max_size=20), min_size=1, max_size=8))
def test_all_methods_agree_on_any_bytes(messages: list[bytes]) -> None:
    """What is malformed to one is to the other, and nothing is read outside a lane."""
    data, starts, ends = lay(messages)
    results = []
    for few, alike in ((1, 10**9), (10**9, 10**9), (10**9, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(protoscan, "FEW_LANES", few)
            patch.setattr(protoscan, "FEW_ALIKE", alike)
            results.append(scan(np.frombuffer(data or b"\0", np.uint8), starts, ends, WANTED))
    (quick, bad), (slow, also_bad), (alike_columns, bad_of_alike) = results
    assert bad.tolist() == also_bad.tolist() == bad_of_alike.tolist()
    for lane, message in enumerate(messages):
        try:
            list(fields_of(message))
        except MalformedError:
            assert bad[lane]
            continue
        assert not bad[lane]
        for number, want in WANTED.items():
            if want is Want.SPANS:
                continue
            for name in ("values", "starts", "ends"):
                column = getattr(quick[number], name)
                for others in (slow, alike_columns):
                    assert not len(column) or column[lane] == getattr(others[number], name)[lane]


def test_headers_that_are_built_alike_are_read_in_one_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other numbers and names of the same size cost no step; other sizes only their own."""
    taken: list[int] = []
    take_fields = protoscan.take_fields

    def counting(data: np.ndarray, at: np.ndarray, ends: np.ndarray) -> object:
        taken.append(len(at))
        return take_fields(data, at, ends)

    monkeypatch.setattr(protoscan, "take_fields", counting)
    headers = [
        MessageMetadata(producer_name=f"p-{n % 7}", sequence_id=n, publish_time=1_700_000_000_000)
        for n in range(20_000)
    ]
    headers[5_000].producer_name = "another"
    data, starts, ends = lay([header.SerializeToString() for header in headers])
    octets = np.frombuffer(data, np.uint8)
    columns, bad = scan(octets, starts, ends, {1: Want.SPAN, 2: Want.VARINT, 3: Want.VARINT})
    assert not bad.any()
    assert columns[2].values.tolist() == list(range(20_000))
    assert set(columns[3].values.tolist()) == {1_700_000_000_000}
    names = zip(columns[1].starts.tolist(), columns[1].ends.tolist(), strict=True)
    assert [data[start:end].decode() for start, end in names] == [h.producer_name for h in headers]
    assert sum(taken) < 500  # numbers of one byte, 128 of them, are fewer than are worth comparing


def test_the_last_of_a_field_counts_and_other_wire_types_do_not() -> None:
    """A singular field given twice, once more with a wrong wire type, and fixed-size unknowns."""
    message = b"\x18\x05\x18\x07\x1a\x01x\x1d\x00\x00\x00\x00\x19" + bytes(8)
    for lanes in (1, 100):
        data, starts, ends = lay([message] * lanes)
        columns, bad = scan(np.frombuffer(data, np.uint8), starts, ends, {3: Want.VARINT})
        assert not bad.any()
        assert columns[3].values.tolist() == [7] * lanes


@pytest.mark.parametrize(
    "message",
    [b"\x18", b"\x18\xff", b"\x0a\x05ab", b"\x1d\x00", b"\x0b\x0c", b"\x00\x00", b"\x18" * 13],
    ids=["no value", "cut value", "cut bytes", "cut fixed", "group", "field 0", "odd"],
)
def test_malformed_lanes_do_not_disturb_others(message: bytes) -> None:
    """Exactly the malformed lane is bad, its neighbours are read."""
    good = b"\x18\x09"
    for lanes in (2, 100):
        data, starts, ends = lay([good] * lanes + [message] + [good] * lanes)
        columns, bad = scan(np.frombuffer(data, np.uint8), starts, ends, {3: Want.VARINT})
        assert np.flatnonzero(bad).tolist() == [lanes]
        assert set(np.delete(columns[3].values, lanes).tolist()) == {9}


def test_a_part_of_a_column_is_numbered_from_0() -> None:
    """`part` keeps the values of its lanes, and renumbers the lanes of repeated fields."""
    messages = [MessageMetadata(publish_time=n) for n in range(40)]
    for message in messages[::2]:
        message.properties.add(key="k", value="v")
    data, starts, ends = lay([message.SerializePartialToString() for message in messages])
    octets = np.frombuffer(data, np.uint8)
    columns, _ = scan(octets, starts, ends, {3: Want.VARINT, 4: Want.SPANS})
    assert columns[3].part(5, 9).values.tolist() == [5, 6, 7, 8]
    assert columns[4].part(5, 9).lanes.tolist() == [1, 3]


@given(number=st.integers(0, 2**64 - 1), before=st.binary(max_size=3))
def test_varints_are_read_where_they_stand(number: int, before: bytes) -> None:
    """Any 64-bit number, at any place."""
    octets, rest = bytearray(), number
    while rest >= 0x80:
        octets.append(rest & 0x7F | 0x80)
        rest >>= 7
    octets.append(rest)
    found, end = read_varint(before + bytes(octets) + b"\x00", len(before))
    assert (found, end) == (number, len(before) + len(octets))
    with pytest.raises(MalformedError):
        read_varint(before + bytes(octets[:-1]), len(before))


def test_u32_in_both_orders() -> None:
    """Four bytes at odd places, the highest bit set."""
    data = np.frombuffer(b"\x00\x81\x02\x03\x04", np.uint8)
    assert u32_at(data, np.array([1]), "big").tolist() == [0x81020304]
    assert u32_at(data, np.array([0, 1]), "little").tolist() == [0x03028100, 0x04030281]
