"""What is known about commands from their descriptors."""

from __future__ import annotations

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire.fields import (
    BODY_FIELDS,
    TYPE_NAMES,
    TYPES_WITH_TEXT_IN_BODY,
    find_invalid_text,
    find_long_list,
    read_unknown_type,
)

T = pb.BaseCommand.Type


def test_names_and_bodies_cover_every_type() -> None:
    """Every type has a name; all but the twelve that are not served have a body."""
    assert {name: number for number, name in TYPE_NAMES.items()} == dict(T.items())
    assert set(TYPE_NAMES) - set(BODY_FIELDS) == set(range(70, 82))
    assert BODY_FIELDS[T.REDELIVER_UNACKNOWLEDGED_MESSAGES] == "redeliverUnacknowledgedMessages"


def test_bodies_that_hold_text_are_known() -> None:
    """Commands that come in great number hold no text, except for an ACK's properties."""
    assert not {T.SEND, T.SEND_RECEIPT, T.MESSAGE, T.FLOW, T.PING} & TYPES_WITH_TEXT_IN_BODY
    assert {T.ACK, T.LOOKUP, T.PRODUCER, T.SUBSCRIBE, T.SUCCESS} <= TYPES_WITH_TEXT_IN_BODY


def test_good_text_is_passed() -> None:
    """Text of every script is text, alone, repeated and nested."""
    body = pb.CommandGetTopicsOfNamespace(
        request_id=1, namespace="näme", properties=[pb.KeyValue(key="日", value="\0")]
    )
    topics = pb.CommandGetTopicsOfNamespaceResponse(request_id=1, topics=["", "é", "x"])

    assert find_invalid_text(body) is None
    assert find_invalid_text(topics) is None


def test_bad_text_is_found_at_every_depth() -> None:
    """The path leads to the first string that is not UTF-8."""
    body = pb.CommandSubscribe(
        topic="t",
        subscription="s",
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=1,
        request_id=2,
        schema=pb.Schema(name="~~", schema_data=b"\xff", type=pb.Schema.String),
    )
    damaged = pb.CommandSubscribe.FromString(body.SerializeToString().replace(b"~~", b"\xc3\x28"))

    assert find_invalid_text(damaged) == "schema.name"


def test_a_long_list_of_texts_is_found_at_every_depth() -> None:
    """Its path and length; lists without texts may be longer."""
    pair = pb.KeyValue(key="", value="")
    body = pb.CommandProducer(topic="t", producer_id=1, request_id=2)
    body.metadata.extend([pair] * 3)
    assert find_long_list(body, 3) is None
    assert find_long_list(body, 2) == ("metadata", 3)
    body.ClearField("metadata")
    body.schema.CopyFrom(pb.Schema(name="", schema_data=b"", type=pb.Schema.String))
    body.schema.properties.extend([pair] * 4)
    assert find_long_list(body, 3) == ("schema.properties", 4)
    ids = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual)
    ids.message_id.extend([pb.MessageIdData(ledgerId=1, entryId=1)] * 5)
    assert find_long_list(ids, 3) is None


def test_the_number_of_an_unknown_type_is_read() -> None:
    """A number outside the enum is found; where there is none, None is."""
    assert read_unknown_type(pb.BaseCommand.FromString(b"\x08\x63")) == 99
    assert read_unknown_type(pb.BaseCommand.FromString(b"\x08\x63\x08\x64")) == 100
    assert read_unknown_type(pb.BaseCommand.FromString(b"\x92\x01\x00")) is None
