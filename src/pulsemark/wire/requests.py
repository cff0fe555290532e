"""Builders of the commands of clients, and of both sides. Each returns one whole frame.

Names and defaults are PulsarApi's. If a missing optional field has a meaning of its own, the
argument's default leaves it out. `encoding.send_header` builds SEND, and the entry's bytes are not
copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..proto import pulsar_api_pb2 as pb
from .connection import Buffer
from .encoding import frame, send_header
from .message_id import MessageId
from .responses import NO_REQUEST_ID, PROTOCOL_VERSION

_T = pb.BaseCommand.Type


def _key_values(properties: Mapping[str, str] | None) -> list[pb.KeyValue]:
    return [pb.KeyValue(key=key, value=value) for key, value in (properties or {}).items()]


# ---- connection ------------------------------------------------------------------------------


def connect(
    client_version: str,
    *,
    protocol_version: int = PROTOCOL_VERSION,
    feature_flags: pb.FeatureFlags | None = None,
    auth_method_name: str | None = None,
    auth_data: bytes | None = None,
    proxy_to_broker_url: str | None = None,
    original_principal: str | None = None,
    original_auth_data: str | None = None,
    original_auth_method: str | None = None,
) -> bytes:
    """CONNECT: the first command of a client. A proxy sends the `original_*` of its client."""
    body = pb.CommandConnect(
        client_version=client_version,
        protocol_version=protocol_version,
        feature_flags=feature_flags,
        auth_method_name=auth_method_name,
        auth_data=auth_data,
        proxy_to_broker_url=proxy_to_broker_url,
        original_principal=original_principal,
        original_auth_data=original_auth_data,
        original_auth_method=original_auth_method,
    )
    return frame(_T.CONNECT, body)


def auth_response(
    client_version: str, protocol_version: int, auth_method_name: str, auth_data: bytes
) -> bytes:
    """AUTH_RESPONSE: the answer to AUTH_CHALLENGE."""
    body = pb.CommandAuthResponse(
        client_version=client_version,
        protocol_version=protocol_version,
        response=pb.AuthData(auth_method_name=auth_method_name, auth_data=auth_data),
    )
    return frame(_T.AUTH_RESPONSE, body)


# ---- topic discovery -------------------------------------------------------------------------


def lookup(
    topic: str,
    request_id: int,
    *,
    authoritative: bool = False,
    advertised_listener_name: str | None = None,
) -> bytes:
    """LOOKUP: ask which broker serves this topic."""
    body = pb.CommandLookupTopic(
        topic=topic,
        request_id=request_id,
        authoritative=authoritative,
        advertised_listener_name=advertised_listener_name,
    )
    return frame(_T.LOOKUP, body)


def partitioned_metadata(
    topic: str, request_id: int, *, metadata_auto_creation_enabled: bool = True
) -> bytes:
    """PARTITIONED_METADATA: ask how many partitions this topic has."""
    body = pb.CommandPartitionedTopicMetadata(
        topic=topic,
        request_id=request_id,
        metadata_auto_creation_enabled=metadata_auto_creation_enabled,
    )
    return frame(_T.PARTITIONED_METADATA, body)


def get_topics_of_namespace(
    namespace: str,
    request_id: int,
    mode: pb.CommandGetTopicsOfNamespace.Mode = pb.CommandGetTopicsOfNamespace.PERSISTENT,
    *,
    topics_pattern: str | None = None,
    topics_hash: str | None = None,
) -> bytes:
    """GET_TOPICS_OF_NAMESPACE."""
    body = pb.CommandGetTopicsOfNamespace(
        request_id=request_id,
        namespace=namespace,
        mode=mode,
        topics_pattern=topics_pattern,
        topics_hash=topics_hash,
    )
    return frame(_T.GET_TOPICS_OF_NAMESPACE, body)


def watch_topic_list(
    namespace: str,
    request_id: int,
    watcher_id: int,
    topics_pattern: str,
    topics_hash: str | None = None,
) -> bytes:
    """WATCH_TOPIC_LIST: ask for updates when topics are created or deleted."""
    body = pb.CommandWatchTopicList(
        request_id=request_id,
        watcher_id=watcher_id,
        namespace=namespace,
        topics_pattern=topics_pattern,
        topics_hash=topics_hash,
    )
    return frame(_T.WATCH_TOPIC_LIST, body)


def watch_topic_list_close(request_id: int, watcher_id: int) -> bytes:
    """WATCH_TOPIC_LIST_CLOSE."""
    body = pb.CommandWatchTopicListClose(request_id=request_id, watcher_id=watcher_id)
    return frame(_T.WATCH_TOPIC_LIST_CLOSE, body)


# ---- producers -------------------------------------------------------------------------------


def producer(
    topic: str,
    producer_id: int,
    request_id: int,
    *,
    producer_name: str | None = None,
    properties: Mapping[str, str] | None = None,
    schema: pb.Schema | None = None,
    epoch: int = 0,
    access_mode: pb.ProducerAccessMode = pb.Shared,
    topic_epoch: int | None = None,
    initial_subscription_name: str | None = None,
    encrypted: bool = False,
) -> bytes:
    """PRODUCER: open a producer. epoch counts its reconnections."""
    body = pb.CommandProducer(
        topic=topic,
        producer_id=producer_id,
        request_id=request_id,
        producer_name=producer_name,
        encrypted=encrypted,
        metadata=_key_values(properties),
        schema=schema,
        epoch=epoch,
        user_provided_producer_name=producer_name is not None,
        producer_access_mode=access_mode,
        topic_epoch=topic_epoch,
        initial_subscription_name=initial_subscription_name,
    )
    return frame(_T.PRODUCER, body)


def send(
    producer_id: int,
    sequence_id: int,
    headers_and_payload: Buffer,
    *,
    num_messages: int = 1,
    highest_sequence_id: int | None = None,
    is_chunk: bool = False,
    marker: bool = False,
) -> list[Buffer]:
    """SEND as a gather list; headers_and_payload (a buffer of bytes) is not copied."""
    header = send_header(
        producer_id,
        sequence_id,
        len(headers_and_payload),
        num_messages=num_messages,
        highest_sequence_id=highest_sequence_id,
        is_chunk=is_chunk,
        marker=marker,
    )
    return [header, headers_and_payload]


def close_producer(
    producer_id: int, request_id: int = NO_REQUEST_ID, broker_service_url: str | None = None
) -> bytes:
    """CLOSE_PRODUCER, from either side. A broker's has no request id.

    broker_service_url: the broker to which the topic has moved, if it is known.
    """
    body = pb.CommandCloseProducer(
        producer_id=producer_id,
        request_id=request_id,
        assignedBrokerServiceUrl=broker_service_url,
    )
    return frame(_T.CLOSE_PRODUCER, body)


# ---- consumers -------------------------------------------------------------------------------


def subscribe(
    topic: str,
    subscription: str,
    consumer_id: int,
    request_id: int,
    sub_type: pb.CommandSubscribe.SubType = pb.CommandSubscribe.Exclusive,
    *,
    consumer_name: str | None = None,
    priority_level: int | None = None,
    durable: bool = True,
    start_message_id: MessageId | None = None,
    properties: Mapping[str, str] | None = None,
    read_compacted: bool = False,
    schema: pb.Schema | None = None,
    initial_position: pb.CommandSubscribe.InitialPosition = pb.CommandSubscribe.Latest,
    start_message_rollback_duration_s: int = 0,
    key_shared_meta: pb.KeySharedMeta | None = None,
    subscription_properties: Mapping[str, str] | None = None,
    consumer_epoch: int | None = None,
) -> bytes:
    """SUBSCRIBE. durable=False is a reader's subscription: it begins at start_message_id."""
    start = None if start_message_id is None else start_message_id.to_data()
    body = pb.CommandSubscribe(
        topic=topic,
        subscription=subscription,
        subType=sub_type,
        consumer_id=consumer_id,
        request_id=request_id,
        consumer_name=consumer_name,
        priority_level=priority_level,
        durable=durable,
        start_message_id=start,
        metadata=_key_values(properties),
        read_compacted=read_compacted,
        schema=schema,
        initialPosition=initial_position,
        start_message_rollback_duration_sec=start_message_rollback_duration_s,
        keySharedMeta=key_shared_meta,
        subscription_properties=_key_values(subscription_properties),
        consumer_epoch=consumer_epoch,
    )
    return frame(_T.SUBSCRIBE, body)


def flow(consumer_id: int, permits: int) -> bytes:
    """FLOW: allow the broker to send `permits` more messages."""
    return frame(_T.FLOW, pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits))


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
    return frame(_T.ACK, body)


def redeliver_unacknowledged_messages(
    consumer_id: int,
    message_ids: Iterable[MessageId] = (),
    consumer_epoch: int | None = None,
) -> bytes:
    """REDELIVER_UNACKNOWLEDGED_MESSAGES: these messages, or all if the list is empty."""
    body = pb.CommandRedeliverUnacknowledgedMessages(
        consumer_id=consumer_id,
        message_ids=[message_id.to_data() for message_id in message_ids],
        consumer_epoch=consumer_epoch,
    )
    return frame(_T.REDELIVER_UNACKNOWLEDGED_MESSAGES, body)


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
    return frame(_T.SEEK, body)


def get_last_message_id(consumer_id: int, request_id: int) -> bytes:
    """GET_LAST_MESSAGE_ID."""
    body = pb.CommandGetLastMessageId(consumer_id=consumer_id, request_id=request_id)
    return frame(_T.GET_LAST_MESSAGE_ID, body)


def unsubscribe(consumer_id: int, request_id: int, *, force: bool = False) -> bytes:
    """UNSUBSCRIBE: delete the subscription, not only the consumer."""
    body = pb.CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id, force=force)
    return frame(_T.UNSUBSCRIBE, body)


def close_consumer(
    consumer_id: int, request_id: int = NO_REQUEST_ID, broker_service_url: str | None = None
) -> bytes:
    """CLOSE_CONSUMER, from either side. A broker's has no request id.

    broker_service_url: the broker to which the topic has moved, if it is known.
    """
    body = pb.CommandCloseConsumer(
        consumer_id=consumer_id,
        request_id=request_id,
        assignedBrokerServiceUrl=broker_service_url,
    )
    return frame(_T.CLOSE_CONSUMER, body)


def consumer_stats(consumer_id: int, request_id: int) -> bytes:
    """CONSUMER_STATS."""
    body = pb.CommandConsumerStats(request_id=request_id, consumer_id=consumer_id)
    return frame(_T.CONSUMER_STATS, body)


# ---- schemas ---------------------------------------------------------------------------------


def get_schema(topic: str, request_id: int, schema_version: bytes | None = None) -> bytes:
    """GET_SCHEMA: ask for a version (8 bytes big-endian), or for the newest."""
    body = pb.CommandGetSchema(request_id=request_id, topic=topic, schema_version=schema_version)
    return frame(_T.GET_SCHEMA, body)


def get_or_create_schema(topic: str, request_id: int, schema: pb.Schema) -> bytes:
    """GET_OR_CREATE_SCHEMA."""
    body = pb.CommandGetOrCreateSchema(request_id=request_id, topic=topic, schema=schema)
    return frame(_T.GET_OR_CREATE_SCHEMA, body)
