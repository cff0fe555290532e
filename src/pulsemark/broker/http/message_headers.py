"""A stored message over HTTP: the payload as the body, all else in headers named X-Pulsar-..."""

from __future__ import annotations

import json

from ...ledger import Entry
from ...metadata import payload_of, prefix_fields, read_message_metadata
from ...proto.pulsar_api_pb2 import MessageMetadata
from ..statistics.stats import iso_time
from .messages import JSON_TYPE, Response

__all__ = ["message_response"]

Headers = list[tuple[str, str]]


def message_response(entry: Entry) -> Response:
    """The answer with one message; a batch is one, with its messages packed in the body.

    Raises `MessageFormatError`, `PrefixError` if the entry cannot be read.
    """
    found = read_message_metadata(entry.body)
    headers = _headers(entry, found)
    safe = tuple((name, _header_value(value)) for name, value in headers)
    return Response(200, bytes(payload_of(entry.body)), JSON_TYPE, safe)


def _headers(entry: Entry, message: MessageMetadata) -> Headers:
    headers: Headers = [("X-Pulsar-Message-ID", f"{entry.position[0]}:{entry.position[1]}")]
    texts = {pair.key: pair.value for pair in message.properties}
    headers.append(("X-Pulsar-PROPERTY", json.dumps(texts, separators=(",", ":"))))
    fields = prefix_fields(entry.prefix)
    if "broker_timestamp" in fields:
        stamp = _time(int(str(fields["broker_timestamp"])))
        headers.append(("X-Pulsar-Broker-Entry-METADATA-timestamp", stamp))
    if "index" in fields:
        headers.append(("X-Pulsar-Broker-Entry-METADATA-index", str(fields["index"])))
    headers.append(("X-Pulsar-publish-time", _time(message.publish_time)))
    if message.HasField("event_time"):
        headers.append(("X-Pulsar-event-time", _time(message.event_time)))
    if message.HasField("num_messages_in_batch"):
        headers.append(("X-Pulsar-num-batch-message", str(message.num_messages_in_batch)))
        headers.append(("X-Pulsar-batch-size", str(_batch_bytes(entry, message))))
    encrypted = bool(message.encryption_keys)
    headers.append(("X-Pulsar-Is-Encrypted", str(encrypted).lower()))
    headers.append(("X-Pulsar-producer-name", message.producer_name))
    headers.append(("X-Pulsar-sequence-id", str(message.sequence_id)))
    headers += [
        (f"X-Pulsar-{name}", str(getattr(message, field)))
        for name, field in (
            ("replicated-from", "replicated_from"),
            ("partition-key", "partition_key"),
            ("uuid", "uuid"),
            ("chunk-id", "chunk_id"),
            ("num-chunks-from-msg", "num_chunks_from_msg"),
            ("total-chunk-msg-size", "total_chunk_msg_size"),
        )
        if message.HasField(field)
    ]
    if message.HasField("deliver_at_time"):
        headers.append(("X-Pulsar-deliver-at-time", _time(message.deliver_at_time)))
    if message.HasField("null_value"):
        headers.append(("X-Pulsar-null-value", str(message.null_value).lower()))
    headers.append(("X-Pulsar-txn-uncommitted", "false"))
    return headers


def _time(time_ms: int) -> str:
    """A time as text; a producer can send one that no calendar has."""
    try:
        return iso_time(time_ms)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)


def _batch_bytes(entry: Entry, message: MessageMetadata) -> int:
    return len(payload_of(entry.body)) + message.ByteSize()


def _header_value(text: str) -> str:
    """A text that a header can hold: a client's line break must not make another header."""
    return "".join(char if char.isprintable() and char.isascii() else "?" for char in text).strip()
