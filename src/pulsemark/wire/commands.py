"""One builder for every command that this project sends.

    commands.connected(...), commands.send_receipt(...), commands.message_frame(...), ...

A builder returns the bytes of one frame. The builders of frames with an entry (message_frame, send)
return a gather list, [header, *the entry's buffers], so that the entry is not copied. A command
without a builder here (transactions) is sent with `frame(type, body)`.
"""

from .encoding import (
    PING,
    PONG,
    frame,
    message_frame,
    message_frames,
    message_header,
    send_header,
    send_receipt,
    send_receipts,
)
from .requests import (
    ack,
    auth_response,
    close_consumer,
    close_producer,
    connect,
    consumer_stats,
    flow,
    get_last_message_id,
    get_or_create_schema,
    get_schema,
    get_topics_of_namespace,
    lookup,
    partitioned_metadata,
    producer,
    redeliver_unacknowledged_messages,
    seek,
    send,
    subscribe,
    unsubscribe,
    watch_topic_list,
    watch_topic_list_close,
)
from .responses import (
    NO_REQUEST_ID,
    PROTOCOL_VERSION,
    ack_response,
    active_consumer_change,
    auth_challenge,
    connected,
    consumer_stats_response,
    error,
    get_last_message_id_response,
    get_or_create_schema_error,
    get_or_create_schema_response,
    get_schema_error,
    get_schema_response,
    get_topics_of_namespace_response,
    lookup_error,
    lookup_response,
    partitioned_metadata_error,
    partitioned_metadata_response,
    producer_success,
    reached_end_of_topic,
    send_error,
    success,
    topic_migrated,
    watch_topic_list_success,
    watch_topic_update,
)


def ping() -> bytes:
    """PING: the peer must answer PONG."""
    return PING


def pong() -> bytes:
    """PONG."""
    return PONG


__all__ = [
    "NO_REQUEST_ID",
    "PING",
    "PONG",
    "PROTOCOL_VERSION",
    "ack",
    "ack_response",
    "active_consumer_change",
    "auth_challenge",
    "auth_response",
    "close_consumer",
    "close_producer",
    "connect",
    "connected",
    "consumer_stats",
    "consumer_stats_response",
    "error",
    "flow",
    "frame",
    "get_last_message_id",
    "get_last_message_id_response",
    "get_or_create_schema",
    "get_or_create_schema_error",
    "get_or_create_schema_response",
    "get_schema",
    "get_schema_error",
    "get_schema_response",
    "get_topics_of_namespace",
    "get_topics_of_namespace_response",
    "lookup",
    "lookup_error",
    "lookup_response",
    "message_frame",
    "message_frames",
    "message_header",
    "partitioned_metadata",
    "partitioned_metadata_error",
    "partitioned_metadata_response",
    "ping",
    "pong",
    "producer",
    "producer_success",
    "reached_end_of_topic",
    "redeliver_unacknowledged_messages",
    "seek",
    "send",
    "send_error",
    "send_header",
    "send_receipt",
    "send_receipts",
    "subscribe",
    "success",
    "topic_migrated",
    "unsubscribe",
    "watch_topic_list",
    "watch_topic_list_close",
    "watch_topic_list_success",
    "watch_topic_update",
]
