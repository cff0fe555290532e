"""Builders of the commands of a broker. Each returns the bytes of one whole frame.

Names and defaults are PulsarApi's. If a missing optional field has a meaning of its own, the
argument's default leaves it out. Clients write error texts to their logs, so error texts must not
contain secrets. The most frequent commands, send_receipt and message_frame, are in `encoding`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..proto import pulsar_api_pb2 as pb
from .encoding import frame
from .message_id import MessageId

# The newest protocol version of this project. CONNECTED names the smaller version of the two sides.
PROTOCOL_VERSION = 21
# The request id in commands that the broker sends without a request.
NO_REQUEST_ID = 2**64 - 1

_T = pb.BaseCommand.Type


# ---- connection ------------------------------------------------------------------------------


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
    return frame(_T.CONNECTED, body)


def auth_challenge(
    server_version: str | None, protocol_version: int, auth_method_name: str, auth_data: bytes
) -> bytes:
    """AUTH_CHALLENGE: the client must prove (again) who it is."""
    body = pb.CommandAuthChallenge(
        server_version=server_version,
        protocol_version=protocol_version,
        challenge=pb.AuthData(auth_method_name=auth_method_name, auth_data=auth_data),
    )
    return frame(_T.AUTH_CHALLENGE, body)


def success(request_id: int, schema: pb.Schema | None = None) -> bytes:
    """SUCCESS."""
    return frame(_T.SUCCESS, pb.CommandSuccess(request_id=request_id, schema=schema))


def error(request_id: int, error: pb.ServerError, message: str) -> bytes:
    """ERROR: the answer to a request that failed and has no response of its own."""
    body = pb.CommandError(request_id=request_id, error=error, message=message)
    return frame(_T.ERROR, body)


# ---- topic discovery -------------------------------------------------------------------------


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
    return frame(_T.LOOKUP_RESPONSE, body)


def lookup_error(request_id: int, error: pb.ServerError, message: str) -> bytes:
    """LOOKUP_RESPONSE of a lookup that failed."""
    body = pb.CommandLookupTopicResponse(
        response=pb.CommandLookupTopicResponse.Failed,
        request_id=request_id,
        error=error,
        message=message,
    )
    return frame(_T.LOOKUP_RESPONSE, body)


def partitioned_metadata_response(request_id: int, partitions: int) -> bytes:
    """PARTITIONED_METADATA_RESPONSE: how many partitions; 0 means not partitioned."""
    body = pb.CommandPartitionedTopicMetadataResponse(
        partitions=partitions,
        request_id=request_id,
        response=pb.CommandPartitionedTopicMetadataResponse.Success,
    )
    return frame(_T.PARTITIONED_METADATA_RESPONSE, body)


def partitioned_metadata_error(request_id: int, error: pb.ServerError, message: str) -> bytes:
    """PARTITIONED_METADATA_RESPONSE of a request that failed."""
    body = pb.CommandPartitionedTopicMetadataResponse(
        request_id=request_id,
        response=pb.CommandPartitionedTopicMetadataResponse.Failed,
        error=error,
        message=message,
    )
    return frame(_T.PARTITIONED_METADATA_RESPONSE, body)


def get_topics_of_namespace_response(
    request_id: int,
    topics: Iterable[str],
    *,
    topics_hash: str | None = None,
    filtered: bool = False,
    changed: bool = True,
) -> bytes:
    """GET_TOPICS_OF_NAMESPACE_RESPONSE.

    filtered: the broker has applied the pattern. changed=False: the client's hash is still right,
    so the list of topics is empty.
    """
    body = pb.CommandGetTopicsOfNamespaceResponse(
        request_id=request_id,
        topics=topics,
        filtered=filtered,
        topics_hash=topics_hash,
        changed=changed,
    )
    return frame(_T.GET_TOPICS_OF_NAMESPACE_RESPONSE, body)


def watch_topic_list_success(
    request_id: int, watcher_id: int, topics: Iterable[str], topics_hash: str
) -> bytes:
    """WATCH_TOPIC_LIST_SUCCESS: the topics that exist now."""
    body = pb.CommandWatchTopicListSuccess(
        request_id=request_id, watcher_id=watcher_id, topic=topics, topics_hash=topics_hash
    )
    return frame(_T.WATCH_TOPIC_LIST_SUCCESS, body)


def watch_topic_update(
    watcher_id: int, new_topics: Iterable[str], deleted_topics: Iterable[str], topics_hash: str
) -> bytes:
    """WATCH_TOPIC_UPDATE: the topics that were created or deleted since the last update."""
    body = pb.CommandWatchTopicUpdate(
        watcher_id=watcher_id,
        new_topics=new_topics,
        deleted_topics=deleted_topics,
        topics_hash=topics_hash,
    )
    return frame(_T.WATCH_TOPIC_UPDATE, body)


def topic_migrated(
    resource_id: int,
    resource_type: pb.CommandTopicMigrated.ResourceType,
    broker_service_url: str,
    broker_service_url_tls: str = "",
) -> bytes:
    """TOPIC_MIGRATED: a producer's or consumer's topic is now in another cluster."""
    body = pb.CommandTopicMigrated(
        resource_id=resource_id,
        resource_type=resource_type,
        brokerServiceUrl=broker_service_url or None,
        brokerServiceUrlTls=broker_service_url_tls or None,
    )
    return frame(_T.TOPIC_MIGRATED, body)


# ---- producers -------------------------------------------------------------------------------


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
    return frame(_T.PRODUCER_SUCCESS, body)


def send_error(producer_id: int, sequence_id: int, error: pb.ServerError, message: str) -> bytes:
    """SEND_ERROR: this message was not stored."""
    body = pb.CommandSendError(
        producer_id=producer_id, sequence_id=sequence_id, error=error, message=message
    )
    return frame(_T.SEND_ERROR, body)


# ---- consumers -------------------------------------------------------------------------------


def ack_response(
    consumer_id: int,
    request_id: int,
    error: pb.ServerError | None = None,
    message: str | None = None,
    *,
    txnid_least_bits: int | None = None,
    txnid_most_bits: int | None = None,
) -> bytes:
    """ACK_RESPONSE: the acknowledgement is durable, or failed with `error`."""
    body = pb.CommandAckResponse(
        consumer_id=consumer_id,
        txnid_least_bits=txnid_least_bits,
        txnid_most_bits=txnid_most_bits,
        error=error,
        message=message,
        request_id=request_id,
    )
    return frame(_T.ACK_RESPONSE, body)


def active_consumer_change(consumer_id: int, is_active: bool) -> bytes:
    """ACTIVE_CONSUMER_CHANGE: whether this consumer is the one that gets messages (Failover)."""
    body = pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=is_active)
    return frame(_T.ACTIVE_CONSUMER_CHANGE, body)


def reached_end_of_topic(consumer_id: int) -> bytes:
    """REACHED_END_OF_TOPIC: the topic is terminated and all its messages were read."""
    return frame(_T.REACHED_END_OF_TOPIC, pb.CommandReachedEndOfTopic(consumer_id=consumer_id))


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
    return frame(_T.GET_LAST_MESSAGE_ID_RESPONSE, body)


def consumer_stats_response(request_id: int, **stats: Any) -> bytes:
    """CONSUMER_STATS_RESPONSE; `stats` are the fields of CommandConsumerStatsResponse."""
    body = pb.CommandConsumerStatsResponse(request_id=request_id, **stats)
    return frame(_T.CONSUMER_STATS_RESPONSE, body)


# ---- schemas ---------------------------------------------------------------------------------


def get_schema_response(request_id: int, schema: pb.Schema, schema_version: bytes) -> bytes:
    """GET_SCHEMA_RESPONSE; schema_version is 8 bytes big-endian."""
    body = pb.CommandGetSchemaResponse(
        request_id=request_id, schema=schema, schema_version=schema_version
    )
    return frame(_T.GET_SCHEMA_RESPONSE, body)


def get_schema_error(request_id: int, error: pb.ServerError, message: str) -> bytes:
    """GET_SCHEMA_RESPONSE of a request that failed."""
    body = pb.CommandGetSchemaResponse(
        request_id=request_id, error_code=error, error_message=message
    )
    return frame(_T.GET_SCHEMA_RESPONSE, body)


def get_or_create_schema_response(request_id: int, schema_version: bytes) -> bytes:
    """GET_OR_CREATE_SCHEMA_RESPONSE; schema_version is 8 bytes big-endian."""
    body = pb.CommandGetOrCreateSchemaResponse(request_id=request_id, schema_version=schema_version)
    return frame(_T.GET_OR_CREATE_SCHEMA_RESPONSE, body)


def get_or_create_schema_error(request_id: int, error: pb.ServerError, message: str) -> bytes:
    """GET_OR_CREATE_SCHEMA_RESPONSE of a request that failed."""
    body = pb.CommandGetOrCreateSchemaResponse(
        request_id=request_id, error_code=error, error_message=message
    )
    return frame(_T.GET_OR_CREATE_SCHEMA_RESPONSE, body)
