"""Frames written by hand, byte for byte against protobuf."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from google.protobuf.message import EncodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.metadata.protobuf_fields import varint
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import commands

T = pb.BaseCommand.Type
U64 = 2**64
uint64s = st.integers(0, 2**64 - 1) | st.integers(0, 2**22)
int64s = st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 2**22)


def encoded(payload_size_bytes: int = 0, **command: Any) -> bytes:
    """A frame's bytes up to its payload, as protobuf makes them."""
    data = pb.BaseCommand(**command).SerializeToString()
    return struct.pack(">II", len(data) + 4 + payload_size_bytes, len(data)) + data


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16383, "ff7f"),
        (16384, "808001"),
        (2**21 - 1, "ffff7f"),
        (2**21, "80808001"),
        (2**63, "80808080808080808001"),
        (2**64 - 2, "feffffffffffffffff01"),
        (2**64 - 1, "ffffffffffffffffff01"),
    ],
)
def test_varints_at_the_edges(value: int, expected: str) -> None:
    """Each length of varint begins and ends where it should."""
    assert varint(value).hex() == expected


@given(uint64s)
@settings(deadline=None)
def test_varints_are_protobufs(value: int) -> None:
    """Any uint64 is written as protobuf writes it."""
    assert b"\x08" + varint(value) == pb.CommandSuccess(request_id=value).SerializeToString()


@given(uint64s, uint64s, int64s, int64s, int64s)
@settings(deadline=None)
def test_send_receipt_is_protobufs(
    producer_id: int, sequence_id: int, ledger_id: int, entry_id: int, highest: int
) -> None:
    """A receipt by hand has the bytes of a receipt by protobuf, for every number."""
    receipt = pb.CommandSendReceipt(
        producer_id=producer_id,
        sequence_id=sequence_id,
        message_id=pb.MessageIdData(ledgerId=ledger_id % U64, entryId=entry_id % U64),
        highest_sequence_id=highest % U64,
    )

    assert commands.send_receipt(producer_id, sequence_id, ledger_id, entry_id, highest) == encoded(
        type=T.SEND_RECEIPT, send_receipt=receipt
    )


@given(
    uint64s,
    int64s,
    st.lists(st.tuples(uint64s | st.integers(0, 200), int64s, st.integers(0, 2**63 - 1))),
)
@settings(deadline=None)
def test_many_receipts_are_those_of_each(
    producer_id: int, ledger_id: int, publishes: list[tuple[int, int, int]]
) -> None:
    """A producer's receipts made together are the receipts made one by one, in order."""
    assert commands.send_receipts(producer_id, ledger_id, publishes) == b"".join(
        commands.send_receipt(producer_id, sequence_id, ledger_id, entry_id, highest)
        for sequence_id, highest, entry_id in publishes
    )


def test_a_receipt_without_highest_id_says_minus_one() -> None:
    """Pulsar's receipt of a SEND that named no highest id carries 2^64-1."""
    frame = commands.send_receipt(1, 2, 3, 4)

    assert pb.BaseCommand.FromString(frame[8:]).send_receipt.highest_sequence_id == 2**64 - 1


@given(
    uint64s,
    int64s,
    int64s,
    st.integers(0, 2**32 - 1),
    st.lists(int64s, max_size=20),
    st.integers(-1, 2**31 - 1),
    st.none() | uint64s,
    st.lists(st.binary(max_size=20), max_size=3),
)
@settings(deadline=None)
def test_message_frame_is_protobufs(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    redelivery_count: int,
    ack_set: list[int],
    partition: int,
    consumer_epoch: int | None,
    parts: list[bytes],
) -> None:
    """A MESSAGE by hand has the bytes of one by protobuf; its parts follow uncopied."""
    place = pb.MessageIdData(ledgerId=ledger_id % U64, entryId=entry_id % U64, partition=partition)
    message = pb.CommandMessage(
        consumer_id=consumer_id,
        message_id=place,
        redelivery_count=redelivery_count or None,
        ack_set=ack_set,
        consumer_epoch=consumer_epoch,
    )

    header, *rest = commands.message_frame(
        consumer_id,
        ledger_id,
        entry_id,
        redelivery_count,
        ack_set,
        parts,
        partition=partition,
        consumer_epoch=consumer_epoch,
    )

    size = sum(len(part) for part in parts)
    assert header == encoded(size, type=T.MESSAGE, message=message)
    assert all(mine is given for mine, given in zip(rest, parts, strict=True))


@given(
    uint64s,
    int64s,
    st.lists(
        st.tuples(st.integers(0, 2**63 - 1) | st.integers(0, 300), st.binary(max_size=9)),
        max_size=9,
    ),
    st.integers(0, 300),
    st.integers(-1, 2**31 - 1),
    st.none() | uint64s,
)
@settings(deadline=None)
def test_a_run_of_messages_is_each_message(
    consumer_id: int,
    ledger_id: int,
    entries: list[tuple[int, bytes]],
    first: int,
    partition: int,
    consumer_epoch: int | None,
) -> None:
    """MESSAGEs made together have the bytes of those made alone, whatever their ids and sizes."""
    entries += [(first + number, bytes(100)) for number in range(200)]
    entries.append((first, bytes(3_000)))
    together = commands.message_frames(
        consumer_id, ledger_id, entries, partition=partition, consumer_epoch=consumer_epoch
    )

    assert b"".join(together) == b"".join(
        part
        for entry_id, body in entries
        for part in commands.message_frame(
            consumer_id,
            ledger_id,
            entry_id,
            0,
            (),
            [body],
            partition=partition,
            consumer_epoch=consumer_epoch,
        )
    )


@given(
    uint64s,
    uint64s,
    st.integers(-(2**31), 2**31 - 1),
    st.none() | uint64s,
    st.booleans(),
    st.booleans(),
    st.binary(max_size=20),
)
@settings(deadline=None)
def test_send_is_protobufs(
    producer_id: int,
    sequence_id: int,
    num_messages: int,
    highest: int | None,
    is_chunk: bool,
    marker: bool,
    payload: bytes,
) -> None:
    """A SEND by hand has the bytes of one by protobuf; its payload follows uncopied."""
    send = pb.CommandSend(
        producer_id=producer_id,
        sequence_id=sequence_id,
        num_messages=None if num_messages == 1 else num_messages,
        highest_sequence_id=highest,
    )
    if is_chunk:
        send.is_chunk = True
    if marker:
        send.marker = True

    header, body = commands.send(
        producer_id,
        sequence_id,
        payload,
        num_messages=num_messages,
        highest_sequence_id=highest,
        is_chunk=is_chunk,
        marker=marker,
    )

    assert header == encoded(len(payload), type=T.SEND, send=send)
    assert body is payload


def test_every_type_with_a_body_has_protobufs_envelope() -> None:
    """frame() puts every body into the envelope that BaseCommand would be."""
    for field in pb.BaseCommand.DESCRIPTOR.fields:
        if field.number == 1:
            continue
        assert field.message_type is not None
        body = getattr(pb, field.message_type.name)()
        for name in body.FindInitializationErrors():
            kind = body.DESCRIPTOR.fields_by_name[name]
            if kind.message_type is None:
                setattr(body, name, {9: "t", 12: b"b"}.get(kind.type, 1))
            else:
                getattr(body, name).MergeFrom(_a_required(kind.message_type.name))
        number: Any = field.number
        expected = pb.BaseCommand(type=number)
        getattr(expected, field.name).CopyFrom(body)

        data = expected.SerializeToString()
        assert commands.frame(body) == (struct.pack(">II", len(data) + 4, len(data)) + data)


def _a_required(name: str) -> Any:
    """The nested messages that are required somewhere."""
    return {
        "MessageIdData": pb.MessageIdData(ledgerId=1, entryId=2),
        "Schema": pb.Schema(name="n", schema_data=b"", type=pb.Schema.String),
    }[name]


def test_an_incomplete_body_cannot_be_framed() -> None:
    """A missing required field is this side's own mistake and raises at once."""
    with pytest.raises(EncodeError):
        commands.frame(pb.CommandSuccess())


def test_ping_and_pong_are_constant() -> None:
    """The keep-alive commands have Pulsar's bytes."""
    assert commands.PING.hex() == "00000009000000050812920100"
    assert commands.PONG.hex() == "000000090000000508139a0100"


def test_protocol_constants_are_pulsars() -> None:
    """The newest protocol is 21; what a broker starts has the request id 2^64-1."""
    assert commands.PROTOCOL_VERSION == 21
    assert commands.NO_REQUEST_ID == 2**64 - 1
