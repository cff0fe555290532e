"""Every field of every command in turn: left out, zero, as large as it gets, negative, odd.

A command is sent to a topic with five entries, on a connection with producer 1 and a consumer 10
that has received three of them. Each variation has a topic and a connection of its own. After it
the consumer asks for more, so that a change of its state shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as ProtobufMessage

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing.raw_messages import seal
from pulsemark.wire import commands

from ..peers import RawConnection, Recorder
from .common import PUBLISHED_MS, SCENARIOS, SUB, Scenario, batch, message, send

T = pb.BaseCommand.Type
Made = Callable[[str, pb.MessageIdData], ProtobufMessage]
INTEGERS = (0, 1, 7, (1 << 31) - 1, (1 << 63) - 1)
UNSIGNED = (*INTEGERS, 1 << 63, (1 << 64) - 1)
SIGNED = (*INTEGERS, -1, -(1 << 31))
TEXTS = ("", "odd", "ä b/c", "y" * 300)
#: What a client changes from one request to the next is no field to be swept.
LEFT_ALONE = {"request_id"}
STRING = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")


def values(field: Any) -> Iterator[Any]:
    """What a field is set to in turn."""
    kind = field.type
    if kind == FieldDescriptor.TYPE_BOOL:
        yield from (False, True)
    elif kind == FieldDescriptor.TYPE_ENUM:
        yield from (one.number for one in field.enum_type.values)
    elif kind == FieldDescriptor.TYPE_STRING:
        yield from TEXTS
    elif kind == FieldDescriptor.TYPE_BYTES:
        yield from (b"", b"x", b"\x00" * 8, b"\xff" * 9)
    elif kind in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_UINT32):
        top = (1 << 31) - 1 if kind == FieldDescriptor.TYPE_INT32 else (1 << 32) - 1
        low = (-1,) if kind == FieldDescriptor.TYPE_INT32 else ()
        yield from (0, 1, 7, top, *low)
    elif kind in (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_SINT64):
        yield from SIGNED
    elif kind == FieldDescriptor.TYPE_UINT64:
        yield from UNSIGNED


def variations(body: ProtobufMessage, prefix: str = "") -> Iterator[tuple[str, ProtobufMessage]]:
    """Copies of a command, each with one field changed, by what was changed."""
    for field in body.DESCRIPTOR.fields:
        if field.name in LEFT_ALONE:
            continue
        name = f"{prefix}{field.name}"
        if body.HasField(field.name) if not field.is_repeated else len(getattr(body, field.name)):
            changed = type(body)()
            changed.CopyFrom(body)
            changed.ClearField(field.name)
            yield f"no {name}", changed
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            yield from _nested(body, field, name)
            continue
        for value in values(field):
            changed = type(body)()
            changed.CopyFrom(body)
            if field.is_repeated:
                getattr(changed, field.name)[:] = [value]
            else:
                setattr(changed, field.name, value)
            text = repr(value)
            yield f"{name} = {text if len(text) < 30 else f'{text[:10]}...'}", changed


def _nested(body: ProtobufMessage, field: Any, name: str) -> Iterator[tuple[str, ProtobufMessage]]:
    """Variations of a message in a message, if it is set; once twice the same, if it is a list."""
    if not field.is_repeated:
        if body.HasField(field.name):
            for label, inner in variations(getattr(body, field.name), f"{name}."):
                changed = type(body)()
                changed.CopyFrom(body)
                changed.ClearField(field.name)
                getattr(changed, field.name).CopyFrom(inner)
                if not inner.ListFields():
                    getattr(changed, field.name).SetInParent()
                yield label, changed
    elif len(getattr(body, field.name)):
        first = getattr(body, field.name)[0]
        for label, inner in variations(first, f"{name}[0]."):
            changed = type(body)()
            changed.CopyFrom(body)
            del getattr(changed, field.name)[:]
            getattr(changed, field.name).add().CopyFrom(inner)
            yield label, changed
        changed = type(body)()
        changed.CopyFrom(body)
        getattr(changed, field.name).add().CopyFrom(first)
        yield f"{name} twice", changed


def prepared(broker: Recorder, topic: str) -> RawConnection:
    """A connection with producer 1 and consumer 10, that has three of five entries."""
    link = broker.connect()
    frames = [send(1, n, message(n)) for n in range(4)]
    frames.append(send(1, 4, batch(4, 3), num_messages=3, highest_sequence_id=6))
    for step in (
        (commands.partitioned_metadata(topic, link.next_request()),),
        (commands.lookup(topic, link.next_request()),),
        (commands.producer(topic, 1, link.next_request(), producer_name="p"),),
        frames,
        (
            commands.subscribe(
                topic,
                "s",
                10,
                link.next_request(),
                SUB.Shared,
                consumer_name="c",
                initial_position=SUB.Earliest,
            ),
        ),
    ):
        link.prepare(*step)
    link.prepare(commands.flow(10, 3), messages=3)
    return link


def body_of_message(metadata: ProtobufMessage) -> bytes:
    """An unbatched message with this metadata, which may lack required fields."""
    return seal(metadata.SerializePartialToString(), b"x")


def _commands() -> dict[str, tuple[int, Made]]:
    """A good command of each type, for a topic and the id of an entry in it."""
    return {
        "partitions": (
            T.PARTITIONED_METADATA,
            lambda topic, at: pb.CommandPartitionedTopicMetadata(topic=topic),
        ),
        "lookup": (T.LOOKUP, lambda topic, at: pb.CommandLookupTopic(topic=topic)),
        "producer": (
            T.PRODUCER,
            lambda topic, at: pb.CommandProducer(
                topic=topic,
                producer_id=2,
                producer_name="q",
                schema=STRING,
                metadata=[pb.KeyValue(key="a", value="b")],
            ),
        ),
        "subscribe": (
            T.SUBSCRIBE,
            lambda topic, at: pb.CommandSubscribe(
                topic=topic,
                subscription="t",
                subType=SUB.Key_Shared,
                consumer_id=11,
                consumer_name="d",
                schema=STRING,
                metadata=[pb.KeyValue(key="a", value="b")],
                keySharedMeta=pb.KeySharedMeta(
                    keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=0, end=65535)]
                ),
            ),
        ),
        "reader": (
            T.SUBSCRIBE,
            lambda topic, at: pb.CommandSubscribe(
                topic=topic,
                subscription="r",
                subType=SUB.Exclusive,
                consumer_id=11,
                durable=False,
                start_message_id=at,
            ),
        ),
        "flow": (T.FLOW, lambda topic, at: pb.CommandFlow(consumer_id=10, messagePermits=1)),
        "ack": (
            T.ACK,
            lambda topic, at: pb.CommandAck(
                consumer_id=10, ack_type=pb.CommandAck.Individual, message_id=[at]
            ),
        ),
        "cumulative ack": (
            T.ACK,
            lambda topic, at: pb.CommandAck(
                consumer_id=10, ack_type=pb.CommandAck.Cumulative, message_id=[at]
            ),
        ),
        "redeliver": (
            T.REDELIVER_UNACKNOWLEDGED_MESSAGES,
            lambda topic, at: pb.CommandRedeliverUnacknowledgedMessages(
                consumer_id=10, message_ids=[at]
            ),
        ),
        "unsubscribe": (T.UNSUBSCRIBE, lambda topic, at: pb.CommandUnsubscribe(consumer_id=10)),
        "seek": (T.SEEK, lambda topic, at: pb.CommandSeek(consumer_id=10, message_id=at)),
        "seek by time": (
            T.SEEK,
            lambda topic, at: pb.CommandSeek(consumer_id=10, message_publish_time=1),
        ),
        "last id": (
            T.GET_LAST_MESSAGE_ID,
            lambda topic, at: pb.CommandGetLastMessageId(consumer_id=10),
        ),
        "close consumer": (
            T.CLOSE_CONSUMER,
            lambda topic, at: pb.CommandCloseConsumer(consumer_id=10),
        ),
        "close producer": (
            T.CLOSE_PRODUCER,
            lambda topic, at: pb.CommandCloseProducer(producer_id=1),
        ),
        "stats": (T.CONSUMER_STATS, lambda topic, at: pb.CommandConsumerStats(consumer_id=10)),
        "get schema": (T.GET_SCHEMA, lambda topic, at: pb.CommandGetSchema(topic=topic)),
        "create schema": (
            T.GET_OR_CREATE_SCHEMA,
            lambda topic, at: pb.CommandGetOrCreateSchema(
                topic=topic,
                schema=pb.Schema(
                    name="s",
                    type=pb.Schema.String,
                    schema_data=b"",
                    properties=[pb.KeyValue(key="a", value="b")],
                ),
            ),
        ),
        "topics": (
            T.GET_TOPICS_OF_NAMESPACE,
            lambda topic, at: pb.CommandGetTopicsOfNamespace(namespace="public/absent"),
        ),
        "watch": (
            T.WATCH_TOPIC_LIST,
            lambda topic, at: pb.CommandWatchTopicList(
                namespace="public/absent", watcher_id=1, topics_pattern=".*"
            ),
        ),
    }


def sweep(kind: int, made: Made) -> Scenario:
    """A scenario with every variation of a command."""

    def run(broker: Recorder, topic: str) -> None:
        blank = made(topic, pb.MessageIdData(ledgerId=0, entryId=0, partition=-1))
        for number, (label, _) in enumerate(variations(blank)):
            here = f"{topic}-{number}"
            link = prepared(broker, here)
            first = broker.last("MESSAGE").message_id
            at = pb.MessageIdData(ledgerId=first.ledgerId, entryId=first.entryId, partition=-1)
            changed = list(variations(made(here, at)))[number][1]
            if "request_id" in changed.DESCRIPTOR.fields_by_name:
                changed.request_id = link.next_request()  # type: ignore[attr-defined]
            link.say(label, partial_frame(kind, changed), quiet_s=0.3)
            link.say(f"{label}: more", commands.flow(10, 1), quiet_s=0.3)
            link.close()

    return run


def partial_frame(kind: int, body: ProtobufMessage) -> bytes:
    """A frame of a command that may lack required fields."""
    name = next(
        field.name
        for field in pb.BaseCommand.DESCRIPTOR.fields
        if field.message_type is body.DESCRIPTOR
    )
    whole = pb.BaseCommand(type=kind)  # type: ignore[arg-type]
    getattr(whole, name).SetInParent()
    getattr(whole, name).MergeFrom(body)
    encoded = whole.SerializePartialToString()
    return (len(encoded) + 4).to_bytes(4, "big") + len(encoded).to_bytes(4, "big") + encoded


def sweep_send(broker: Recorder, topic: str) -> None:
    """SEND's own fields, and those of the message's metadata."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=9, publish_time=PUBLISHED_MS)
    command = pb.CommandSend(producer_id=1, sequence_id=9)
    good = body_of_message(metadata)
    cases = [(f"command {label}", body, good) for label, body in variations(command)]
    cases += [
        (f"metadata {label}", command, body_of_message(body))
        for label, body in variations(metadata)
    ]
    for number, (label, body, content) in enumerate(cases):
        link = prepared(broker, f"{topic}-{number}")
        head = partial_frame(T.SEND, body)
        size = int.from_bytes(head[:4], "big") + len(content)
        link.say(label, size.to_bytes(4, "big") + head[4:] + content, quiet_s=0.3)
        link.say(f"{label}: more", commands.flow(10, 9), quiet_s=0.3)
        link.close()


for _name, (_kind, _made) in _commands().items():
    SCENARIOS[f"sweep_{_name.replace(' ', '_')}"] = sweep(_kind, _made)
SCENARIOS["sweep_send"] = sweep_send
