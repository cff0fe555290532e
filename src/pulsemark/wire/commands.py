"""One builder for every command that this project sends: of clients, of a broker, and of both.

    commands.connected(...), commands.send_receipt(...), commands.message_frame(...), ...

A builder returns the bytes of one frame. The builders of frames with an entry (message_frame, send)
return a gather list, [header, *the entry's buffers], so that the entry is not copied. A command
without a builder is sent with `frame(body)`.

A BaseCommand is `08 type` followed by one length-delimited field whose number is the type. So a
command is written as its body alone with these bytes in front, byte-equal to what protobuf makes
of the whole. SEND_RECEIPT, MESSAGE and SEND, of which there is one per message, are put together
from varints without a protobuf object: about a third of the time. The tests hold every one of
them equal to protobuf's own bytes.

Defaults are PulsarApi's. `**fields` are rarer fields of the body, by PulsarApi's names; another
name raises ValueError. Clients write error texts to their logs, so error texts must not contain
secrets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from google.protobuf.message import Message

from ..metadata.protobuf_fields import ONE_BYTE, varint
from ..proto import pulsar_api_pb2 as pb
from .connection import Buffer
from .fields import BODY_FIELDS
from .message_id import MessageId

# The newest protocol version of this project. CONNECTED names the smaller version of the two sides.
PROTOCOL_VERSION = 21
# The request id in commands that the broker sends without a request.
NO_REQUEST_ID = 2**64 - 1


# ---- frames, and the most frequent commands --------------------------------------------------

_SIZES = struct.Struct(">II")
_U64_MASK = 2**64 - 1
_MINUS_ONE = varint(_U64_MASK)
_NO_PARTITION = b"\x18" + _MINUS_ONE


# By the class of a command's body: no two types have the same.
_PREFIXES = {
    type(getattr(pb.BaseCommand(), name)): b"\x08" + varint(kind) + varint(kind << 3 | 2)
    for kind, name in BODY_FIELDS.items()
}


def frame(body: Message) -> bytes:
    """The frame of a command without payload, of its body (the protobuf sub-message).

    Raises google.protobuf.message.EncodeError if `body` lacks a required field.
    """
    encoded = body.SerializeToString()
    command = b"".join((_PREFIXES[type(body)], varint(len(encoded)), encoded))
    size = len(command)
    return _SIZES.pack(size + 4, size) + command


# Everything before the first number of a SEND_RECEIPT, by the size of its body.
_RECEIPT_HEADS = [
    b"".join(
        (_SIZES.pack(size + 8, size + 4), _PREFIXES[pb.CommandSendReceipt], varint(size), b"\x08")
    )
    for size in range(128)
]
# The tag and size of a SEND_RECEIPT's message id and the id's first tag, by the id's size.
_RECEIPT_IDS = [b"\x1a" + varint(size) + b"\x08" for size in range(128)]
_NO_HIGHEST = b"\x20" + _MINUS_ONE


def send_receipt(
    producer_id: int, sequence_id: int, ledger_id: int, entry_id: int, highest_sequence_id: int = -1
) -> bytes:
    """SEND_RECEIPT. Ids are signed; a duplicate's id is (-1, -1), no highest sequence id is -1."""
    publish = sequence_id, highest_sequence_id, entry_id
    return send_receipts(producer_id, ledger_id, (publish,))


def send_receipts(
    producer_id: int, ledger_id: int, publishes: Iterable[tuple[int, int, int]]
) -> bytes:
    """The SEND_RECEIPTs of one producer's entries in one ledger, one frame after the other.

    publishes: sequence id, highest sequence id (see `send_receipt`) and entry id of each. The bytes
    between these numbers are built once for all frames in which the numbers take as many bytes.
    """
    producer = varint(producer_id)
    ledger = varint(ledger_id & _U64_MASK)
    parts: list[bytes] = []
    sizes = (0, 0, 0)
    head = middle = b""
    for sequence_id, highest_sequence_id, entry_id in publishes:
        sequence = varint(sequence_id)
        entry = varint(entry_id & _U64_MASK)
        if highest_sequence_id == -1:
            highest = _NO_HIGHEST
        else:
            highest = b"\x20" + varint(highest_sequence_id & _U64_MASK)
        if sizes != (sizes := (len(sequence), len(entry), len(highest))):
            id_size = len(ledger) + len(entry) + 2
            # Five varints of at most 10 bytes and their tags: every length fits into one byte.
            size = len(producer) + len(sequence) + id_size + len(highest) + 4
            head = _RECEIPT_HEADS[size] + producer + b"\x10"
            middle = _RECEIPT_IDS[id_size] + ledger + b"\x10"
        parts += (head, sequence, middle, entry, highest)
    return b"".join(parts)


def message_frame(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    redelivery_count: int,
    ack_set: Sequence[int],
    parts: Sequence[Buffer],
    *,
    partition: int = -1,
    consumer_epoch: int | None = None,
) -> list[Buffer]:
    """A MESSAGE frame as a gather list: the header, then `parts` as they are, not copied.

    parts: the entry's bytes (headers-and-payload, after a prefix if the client asks for it). Each
    must be a buffer of single bytes, so that len() is its size. Ids are signed, and so are the
    words of ack_set.
    """
    consumer = varint(consumer_id)
    ledger = varint(ledger_id & _U64_MASK)
    entry = varint(entry_id & _U64_MASK)
    place = _NO_PARTITION if partition == -1 else b"\x18" + varint(partition & _U64_MASK)
    rest = b""
    if redelivery_count:
        rest += b"\x18" + varint(redelivery_count)
    for word in ack_set:
        rest += b"\x20" + varint(word & _U64_MASK)
    if consumer_epoch is not None:
        rest += b"\x28" + varint(consumer_epoch)
    id_size = len(ledger) + len(entry) + 2 + len(place)
    size = len(consumer) + id_size + 3 + len(rest)
    body_size = varint(size)
    command_size = 3 + len(body_size) + size
    header = b"".join((
        _SIZES.pack(command_size + 4 + sum(map(len, parts)), command_size), b"\x08\x09\x4a",
        body_size, b"\x08", consumer, b"\x12", ONE_BYTE[id_size], b"\x08", ledger, b"\x10", entry,
        place, rest,
    ))  # fmt: skip
    return [header, *parts]


#: The first byte of an entry id's varint, by its lowest seven bits, where more bytes follow.
_CONTINUED = [bytes((value | 0x80,)) for value in range(128)]
#: An entry of this size or more gets its frame's header in one piece: then nothing is joined.
_ONE_HEADER_BYTES = 2 * 1024


def message_frames(
    consumer_id: int,
    ledger_id: int,
    entries: Iterable[tuple[int, Buffer]],
    *,
    partition: int = -1,
    consumer_epoch: int | None = None,
) -> list[Buffer]:
    """The MESSAGE frames of entries of one ledger, as one gather list; as `message_frame` of each.

    entries: entry id (0 or more) and bytes of each. None of them was sent before, or is partly
    acknowledged. Of consecutive entries only the low bits of the id differ: what is around them is
    built once for 128 entries.
    """
    consumer = varint(consumer_id)
    ledger = varint(ledger_id & _U64_MASK)
    place = _NO_PARTITION if partition == -1 else b"\x18" + varint(partition & _U64_MASK)
    rest = b"" if consumer_epoch is None else b"\x28" + varint(consumer_epoch)
    parts: list[Buffer] = []
    high = size = -1
    head = tail = b""
    firsts = ONE_BYTE
    for entry_id, payload in entries:
        if entry_id >> 7 != high or len(payload) != size:
            high, size = entry_id >> 7, len(payload)
            more = varint(high) if high else b""
            firsts = _CONTINUED if high else ONE_BYTE
            id_size = len(ledger) + len(more) + 3 + len(place)
            body_size = len(consumer) + id_size + 3 + len(rest)
            body_size_field = varint(body_size)
            before_payload = 3 + len(body_size_field) + body_size
            head = b"".join((
                _SIZES.pack(before_payload + 4 + size, before_payload), b"\x08\x09\x4a",
                body_size_field, b"\x08", consumer, b"\x12", ONE_BYTE[id_size], b"\x08", ledger,
                b"\x10",
            ))  # fmt: skip
            tail = b"".join((more, place, rest))
        if size < _ONE_HEADER_BYTES:
            parts += (head, firsts[entry_id & 127], tail, payload)
        else:
            parts += (b"".join((head, firsts[entry_id & 127], tail)), payload)
    return parts


class SendFields(TypedDict, total=False):
    """Rarer fields of SEND."""

    highest_sequence_id: int | None
    is_chunk: bool
    marker: bool


def send_header(
    producer_id: int,
    sequence_id: int,
    payload_size_bytes: int,
    *,
    num_messages: int = 1,
    highest_sequence_id: int | None = None,
    is_chunk: bool = False,
    marker: bool = False,
) -> bytes:
    """The part of a SEND frame before headers-and-payload.

    num_messages is left out if it is 1 (its default), the other fields if they are not given. It
    may be negative, to test what a broker refuses.
    """
    producer = varint(producer_id)
    sequence = varint(sequence_id)
    rest = b""
    if num_messages != 1:
        rest += b"\x18" + varint(num_messages & _U64_MASK)
    if highest_sequence_id is not None:
        rest += b"\x30" + varint(highest_sequence_id & _U64_MASK)
    if is_chunk:
        rest += b"\x38\x01"
    if marker:
        rest += b"\x40\x01"
    size = len(producer) + len(sequence) + 2 + len(rest)
    return b"".join(
        (
            _SIZES.pack(size + 8 + payload_size_bytes, size + 4),
            b"\x08\x06\x32",
            ONE_BYTE[size],
            b"\x08",
            producer,
            b"\x10",
            sequence,
            rest,
        )
    )


PING: bytes = frame(pb.CommandPing())
PONG: bytes = frame(pb.CommandPong())


def _key_values(properties: Mapping[str, str] | None) -> list[pb.KeyValue]:
    return [pb.KeyValue(key=key, value=value) for key, value in (properties or {}).items()]


# ---- of clients: connection -------------------------------------------------------------------


class ConnectFields(TypedDict, total=False):
    """Fields of CONNECT. A proxy sends the `original_*` of its client."""

    protocol_version: int
    feature_flags: pb.FeatureFlags | None
    auth_method_name: str | None
    auth_data: bytes | None
    proxy_to_broker_url: str | None
    original_principal: str | None
    original_auth_data: str | None
    original_auth_method: str | None


def connect(client_version: str, **fields: Unpack[ConnectFields]) -> bytes:
    """CONNECT: the first command of a client."""
    fields = {"protocol_version": PROTOCOL_VERSION, **fields}
    return frame(pb.CommandConnect(client_version=client_version, **fields))


def auth_response(
    client_version: str, protocol_version: int, auth_method_name: str, auth_data: bytes
) -> bytes:
    """AUTH_RESPONSE: the answer to AUTH_CHALLENGE."""
    response = pb.AuthData(auth_method_name=auth_method_name, auth_data=auth_data)
    body = pb.CommandAuthResponse(
        client_version=client_version, protocol_version=protocol_version, response=response
    )
    return frame(body)


# ---- of clients: topics and schemas -----------------------------------------------------------


def lookup(topic: str, request_id: int, **fields: Any) -> bytes:
    """LOOKUP: ask which broker serves this topic."""
    return frame(pb.CommandLookupTopic(topic=topic, request_id=request_id, **fields))


def partitioned_metadata(topic: str, request_id: int, **fields: Any) -> bytes:
    """PARTITIONED_METADATA: ask how many partitions this topic has."""
    return frame(pb.CommandPartitionedTopicMetadata(topic=topic, request_id=request_id, **fields))


def get_topics_of_namespace(
    namespace: str,
    request_id: int,
    mode: pb.CommandGetTopicsOfNamespace.Mode = pb.CommandGetTopicsOfNamespace.PERSISTENT,
    **fields: Any,
) -> bytes:
    """GET_TOPICS_OF_NAMESPACE."""
    body = pb.CommandGetTopicsOfNamespace(
        namespace=namespace, request_id=request_id, mode=mode, **fields
    )
    return frame(body)


def watch_topic_list(
    namespace: str,
    request_id: int,
    watcher_id: int,
    topics_pattern: str,
    topics_hash: str | None = None,
) -> bytes:
    """WATCH_TOPIC_LIST: ask for updates when topics are created or deleted."""
    body = pb.CommandWatchTopicList(
        namespace=namespace,
        request_id=request_id,
        watcher_id=watcher_id,
        topics_pattern=topics_pattern,
        topics_hash=topics_hash,
    )
    return frame(body)


def watch_topic_list_close(request_id: int, watcher_id: int) -> bytes:
    """WATCH_TOPIC_LIST_CLOSE."""
    return frame(pb.CommandWatchTopicListClose(request_id=request_id, watcher_id=watcher_id))


def get_schema(topic: str, request_id: int, schema_version: bytes | None = None) -> bytes:
    """GET_SCHEMA: ask for a version (8 bytes big-endian), or for the newest."""
    body = pb.CommandGetSchema(topic=topic, request_id=request_id, schema_version=schema_version)
    return frame(body)


def get_or_create_schema(topic: str, request_id: int, schema: pb.Schema) -> bytes:
    """GET_OR_CREATE_SCHEMA."""
    return frame(pb.CommandGetOrCreateSchema(topic=topic, request_id=request_id, schema=schema))


# ---- of clients: producers --------------------------------------------------------------------


class ProducerFields(TypedDict, total=False):
    """Rarer fields of PRODUCER."""

    schema: pb.Schema | None
    epoch: int
    topic_epoch: int | None
    initial_subscription_name: str | None
    encrypted: bool


class ProducerOptions(ProducerFields, total=False):
    """All of PRODUCER but its ids and topic."""

    producer_name: str | None
    properties: Mapping[str, str] | None
    access_mode: pb.ProducerAccessMode


def producer(
    topic: str,
    producer_id: int,
    request_id: int,
    *,
    producer_name: str | None = None,
    properties: Mapping[str, str] | None = None,
    access_mode: pb.ProducerAccessMode = pb.Shared,
    **fields: Unpack[ProducerFields],
) -> bytes:
    """PRODUCER: open a producer. Its epoch counts its reconnections."""
    body = pb.CommandProducer(
        topic=topic,
        producer_id=producer_id,
        request_id=request_id,
        producer_name=producer_name,
        metadata=_key_values(properties),
        user_provided_producer_name=producer_name is not None,
        producer_access_mode=access_mode,
        **fields,
    )
    return frame(body)


def send(
    producer_id: int,
    sequence_id: int,
    headers_and_payload: Buffer,
    *,
    num_messages: int = 1,
    **fields: Unpack[SendFields],
) -> list[Buffer]:
    """SEND as a gather list; headers_and_payload (a buffer of bytes) is not copied."""
    size_bytes = len(headers_and_payload)
    header = send_header(producer_id, sequence_id, size_bytes, num_messages=num_messages, **fields)
    return [header, headers_and_payload]


def close_producer(producer_id: int, request_id: int = NO_REQUEST_ID, **fields: Any) -> bytes:
    """CLOSE_PRODUCER, from either side. A broker's has no request id."""
    return frame(pb.CommandCloseProducer(producer_id=producer_id, request_id=request_id, **fields))


# ---- of clients: consumers --------------------------------------------------------------------


class SubscribeFields(TypedDict, total=False):
    """Rarer fields of SUBSCRIBE."""

    consumer_name: str | None
    priority_level: int | None
    durable: bool
    read_compacted: bool
    schema: pb.Schema | None
    start_message_rollback_duration_sec: int
    keySharedMeta: pb.KeySharedMeta | None
    consumer_epoch: int | None
    force_topic_creation: bool


class SubscribeOptions(SubscribeFields, total=False):
    """All of SUBSCRIBE but its ids and names."""

    sub_type: pb.CommandSubscribe.SubType
    start_message_id: MessageId | None
    properties: Mapping[str, str] | None
    subscription_properties: Mapping[str, str] | None
    initial_position: pb.CommandSubscribe.InitialPosition


def subscribe(
    topic: str,
    subscription: str,
    consumer_id: int,
    request_id: int,
    sub_type: pb.CommandSubscribe.SubType = pb.CommandSubscribe.Exclusive,
    *,
    start_message_id: MessageId | None = None,
    properties: Mapping[str, str] | None = None,
    subscription_properties: Mapping[str, str] | None = None,
    initial_position: pb.CommandSubscribe.InitialPosition = pb.CommandSubscribe.Latest,
    **fields: Unpack[SubscribeFields],
) -> bytes:
    """SUBSCRIBE. A reader's is not durable, and begins at start_message_id."""
    body = pb.CommandSubscribe(
        topic=topic,
        subscription=subscription,
        subType=sub_type,
        consumer_id=consumer_id,
        request_id=request_id,
        start_message_id=None if start_message_id is None else start_message_id.to_data(),
        metadata=_key_values(properties),
        subscription_properties=_key_values(subscription_properties),
        initialPosition=initial_position,
        **fields,
    )
    return frame(body)


def flow(consumer_id: int, permits: int) -> bytes:
    """FLOW: allow the broker to send `permits` more messages."""
    return frame(pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits))


def ack(
    consumer_id: int,
    message_ids: Sequence[MessageId],
    ack_type: pb.CommandAck.AckType = pb.CommandAck.Individual,
    *,
    request_id: int | None = None,
    validation_error: pb.CommandAck.ValidationError | None = None,
) -> bytes:
    """ACK. With a request_id the broker answers ACK_RESPONSE after the ack is durable.

    An id's ack_set names the messages of the batch that are NOT yet acknowledged.
    """
    body = pb.CommandAck(
        consumer_id=consumer_id,
        ack_type=ack_type,
        message_id=[message_id.to_data() for message_id in message_ids],
        validation_error=validation_error,
        request_id=request_id,
    )
    return frame(body)


def redeliver_unacknowledged_messages(
    consumer_id: int, message_ids: Iterable[MessageId] = (), consumer_epoch: int | None = None
) -> bytes:
    """REDELIVER_UNACKNOWLEDGED_MESSAGES: these messages, or all if the list is empty."""
    body = pb.CommandRedeliverUnacknowledgedMessages(
        consumer_id=consumer_id,
        message_ids=[message_id.to_data() for message_id in message_ids],
        consumer_epoch=consumer_epoch,
    )
    return frame(body)


def seek(
    consumer_id: int,
    request_id: int,
    *,
    message_id: MessageId | None = None,
    publish_time_ms: int | None = None,
) -> bytes:
    """SEEK, by id or by time."""
    body = pb.CommandSeek(
        consumer_id=consumer_id,
        request_id=request_id,
        message_id=None if message_id is None else message_id.to_data(),
        message_publish_time=publish_time_ms,
    )
    return frame(body)


def get_last_message_id(consumer_id: int, request_id: int) -> bytes:
    """GET_LAST_MESSAGE_ID."""
    return frame(pb.CommandGetLastMessageId(consumer_id=consumer_id, request_id=request_id))


def unsubscribe(consumer_id: int, request_id: int, *, force: bool = False) -> bytes:
    """UNSUBSCRIBE: delete the subscription, not only the consumer."""
    body = pb.CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id, force=force)
    return frame(body)


def close_consumer(consumer_id: int, request_id: int = NO_REQUEST_ID, **fields: Any) -> bytes:
    """CLOSE_CONSUMER, from either side. A broker's has no request id."""
    return frame(pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id, **fields))


def consumer_stats(consumer_id: int, request_id: int) -> bytes:
    """CONSUMER_STATS."""
    return frame(pb.CommandConsumerStats(consumer_id=consumer_id, request_id=request_id))


# ---- of a broker: connection ------------------------------------------------------------------


def connected(
    server_version: str,
    protocol_version: int,
    max_message_size_bytes: int,
    feature_flags: pb.FeatureFlags | None = None,
) -> bytes:
    """CONNECTED: the handshake succeeded."""
    body = pb.CommandConnected(
        server_version=server_version,
        protocol_version=protocol_version,
        max_message_size=max_message_size_bytes,
        feature_flags=feature_flags,
    )
    return frame(body)


def success(request_id: int, schema: pb.Schema | None = None) -> bytes:
    """SUCCESS."""
    return frame(pb.CommandSuccess(request_id=request_id, schema=schema))


def error(request_id: int, error: pb.ServerError, message: str, answer: Any = None) -> bytes:
    """The answer to a request that failed: ERROR, or the class of the request's own response."""
    answer = answer or pb.CommandError
    names = answer.DESCRIPTOR.fields_by_name
    code, text = ("error", "message") if "error" in names else ("error_code", "error_message")
    more = {"response": answer.Failed} if "response" in names else {}
    return frame(answer(request_id=request_id, **{code: error, text: message}, **more))


# ---- of a broker: topic discovery -------------------------------------------------------------


def lookup_response(
    request_id: int,
    broker_service_url: str,
    broker_service_url_tls: str = "",
    *,
    redirect: bool = False,
    authoritative: bool = True,
    proxy_through_service_url: bool = False,
) -> bytes:
    """LOOKUP_RESPONSE: which broker serves the topic. `redirect`: look up again at that broker."""
    kind = pb.CommandLookupTopicResponse
    body = kind(
        brokerServiceUrl=broker_service_url,
        brokerServiceUrlTls=broker_service_url_tls or None,
        response=kind.Redirect if redirect else kind.Connect,
        request_id=request_id,
        authoritative=authoritative,
        proxy_through_service_url=proxy_through_service_url,
    )
    return frame(body)


def partitioned_metadata_response(request_id: int, partitions: int) -> bytes:
    """PARTITIONED_METADATA_RESPONSE: how many partitions; 0 means not partitioned."""
    body = pb.CommandPartitionedTopicMetadataResponse(
        partitions=partitions,
        request_id=request_id,
        response=pb.CommandPartitionedTopicMetadataResponse.Success,
    )
    return frame(body)


# ---- of a broker: producers -------------------------------------------------------------------


def producer_success(
    request_id: int,
    producer_name: str,
    *,
    last_sequence_id: int = -1,
    schema_version: bytes = b"",
    topic_epoch: int | None = None,
    producer_ready: bool = True,
) -> bytes:
    """PRODUCER_SUCCESS. schema_version is always set, empty without a schema, as in Pulsar.

    producer_ready=False: the producer waits for exclusive access. A second PRODUCER_SUCCESS follows
    when it has got it.
    """
    body = pb.CommandProducerSuccess(
        request_id=request_id,
        producer_name=producer_name,
        last_sequence_id=last_sequence_id,
        schema_version=schema_version,
        topic_epoch=topic_epoch,
        producer_ready=producer_ready,
    )
    return frame(body)


def send_error(producer_id: int, sequence_id: int, error: pb.ServerError, message: str) -> bytes:
    """SEND_ERROR: this message was not stored."""
    body = pb.CommandSendError(
        producer_id=producer_id, sequence_id=sequence_id, error=error, message=message
    )
    return frame(body)


# ---- of a broker: consumers -------------------------------------------------------------------


def ack_response(
    consumer_id: int,
    request_id: int,
    error: pb.ServerError | None = None,
    message: str | None = None,
) -> bytes:
    """ACK_RESPONSE: the acknowledgement is durable, or failed with `error`."""
    body = pb.CommandAckResponse(
        consumer_id=consumer_id,
        error=error,
        message=message,
        request_id=request_id,
    )
    return frame(body)


def get_last_message_id_response(
    request_id: int, last_message_id: MessageId, mark_delete: MessageId | None = None
) -> bytes:
    """GET_LAST_MESSAGE_ID_RESPONSE; an empty topic's id is (-1, -1). All its fields are set.

    mark_delete: the position of the consumer's cursor. Clients need it after a seek by time.
    """
    body = pb.CommandGetLastMessageIdResponse(
        last_message_id=last_message_id.to_full_data(),
        request_id=request_id,
        consumer_mark_delete_position=None if mark_delete is None else mark_delete.to_data(),
    )
    return frame(body)
