"""A topic's stored content: messages by place, id and time, stamps, leader epochs, the audit.

The body is the payload, decompressed; that of a batch is the batch. The headers `X-Pulsar-...` have
what the message's metadata says. Reading acknowledges nothing.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Generator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ...audit.report import Post, Report, of_tier
from ...audit.rows import ALL_TIERS, BROKER_TIER, MAX_TIME_MS, AuditInputError, AuditRow, parse_tags
from ...audit.rows import check_name as check_audit_name
from ...ledger import Entry, EntryKind, Position
from ...ledger.position import EARLIEST
from ...ledger.would_block import when_read
from ...metadata import (
    MessageFormatError,
    PrefixError,
    payload_of,
    prefix_fields,
    printable,
    read_message_metadata,
    tags_of,
)
from ...metadata.compression import (
    CompressionUnavailableError,
    DecompressionError,
    compression_name,
    decompress,
)
from ...proto.pulsar_api_pb2 import MessageMetadata
from ..handlers.checks import check_name
from ..security import needs
from ..subscriptions.seek import SeekTarget
from ..subscriptions.subscription import Subscription
from ..topics.topic import Topic
from .messages import JSON_TYPE, HttpError, Json, Request, Response
from .paths import int_value, long_value, open_topic, shown_id
from .route import TOPIC, Routes, TopicPath

routes = Routes()
ENTRY = f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}"

#: A payload that says it is larger is not decompressed.
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
#: Fields of the metadata that Pulsar shows as they are, with their headers, in Pulsar's order.
PLAIN = (
    ("producer_name", "producer-name"),
    ("sequence_id", "sequence-id"),
    ("replicated_from", "replicated-from"),
    ("partition_key", "partition-key"),
)
MORE = (
    ("uncompressed_size", "uncompressed-size"),
    ("encryption_algo", "encryption-algo"),
    ("encryption_param", "Base64-encryption-param"),
    ("schema_version", "Base64-schema-version"),
    ("partition_key_b64_encoded", "partition-key-b64-encoded"),
    ("ordering_key", "Base64-ordering-key"),
    ("marker_type", "marker-type"),
    ("txnid_least_bits", "txnid-least-bits"),
    ("txnid_most_bits", "txnid-most-bits"),
    ("highest_sequence_id", "highest-sequence-id"),
    ("uuid", "uuid"),
    ("num_chunks_from_msg", "num-chunks-from-msg"),
    ("total_chunk_msg_size", "total-chunk-msg-size"),
    ("chunk_id", "chunk-id"),
    ("null_partition_key", "null-partition-key"),
)
REPLICATOR_PREFIX = "pulsar.repl."
NO_MESSAGE = "Message id not found"
NOT_BY_ID = "GetMessageById is not allowed on partitioned-topic"
PARTITIONED = "on a partitioned topic is not allowed"
UNSAFE = re.compile(r"[^\x20-\x7e\xa0-\xff]")


@routes.get(
    f"{TOPIC}/subscription/{{subscription}}/position/{{number}}", needs.topic("PEEK_MESSAGES")
)
async def peek(request: Request, path: TopicPath, name: str, number: str) -> Response:
    """The nth message that a subscription has not acknowledged; the first one is 1.

    As in Pulsar a subscription that is missing is created, at the topic's first message.
    """
    wanted = int_value(number)
    opened = await open_topic(request, path, what=f"Peek messages {PARTITIONED}")
    if name.startswith(REPLICATOR_PREFIX):
        raise HttpError(404, "Replicator not found")
    subscription = opened.subscriptions.get(name)
    if subscription is None:
        check_name("subscription's name", name)
        subscription = opened.create_subscription(name, opened.clamp(EARLIEST))
        await subscription.stored()
    if wanted < 1:
        raise HttpError(412, "The first message is number 1")
    position = await when_read(_nth_unacked, subscription, wanted)
    if position is None:
        raise HttpError(404, "Message not found")
    return await _answer(request, opened, position)


def _nth_unacked(subscription: Subscription, wanted: int) -> Position | None:
    cursor = subscription.cursor
    position = cursor.nth_unacked(wanted) if subscription.backlog_entries else None
    # If there are fewer, the answer is the last one.
    is_last = wanted > 1 and position is not None and cursor.nth_unacked(wanted - 1) == position
    return None if is_last else position


@routes.get(f"{TOPIC}/examinemessage", needs.topic("PEEK_MESSAGES"))
async def examine(request: Request, path: TopicPath) -> Response:
    """The nth entry of a topic, from its first (initialPosition=earliest) or its last one."""
    what = f"Examine messages {PARTITIONED}, please try examine message on specific topic partition"
    opened = await open_topic(request, path, what=what)
    number = max(long_value(request.query.get("messagePosition") or "1"), 1)
    log = opened.read_log
    first, last = await when_read(lambda: (log.first_position, log.last_position))
    if first is None or last is None:
        raise HttpError(412, "Could not examine messages due to the total message is zero")
    count = await when_read(log.count_entries, first, log.end_position)
    if request.query.get("initialPosition") == "earliest":
        before = min(number, count) - 1
    elif number > count:
        raise HttpError(404, "Message not found")
    else:
        before = count - number
    found = await when_read(lambda: log.entry_after(first, before))
    return await _answer(request, opened, found or last)


@routes.get(ENTRY, needs.topic("PEEK_MESSAGES"))
async def by_id(request: Request, path: TopicPath, ledger: str, entry: str) -> Response:
    """The message at a position."""
    opened = await open_topic(request, path, what=NOT_BY_ID)
    wanted = Position(long_value(ledger), long_value(entry))
    return await _answer(request, opened, wanted, NO_MESSAGE)


async def _answer(
    request: Request, opened: Topic, position: Position, missing: str = "Message not found"
) -> Response:
    """The message at a position. Raises `HttpError` 404, and 422 if it cannot be read."""

    def read() -> Response:
        found = opened.read_log.read_stable(position, max_entries=1)
        if not found or found[0].position != position or found[0].kind is not EntryKind.DATA:
            raise HttpError(404, missing)
        return _shown(found[0])

    try:
        response: Response = await request.services.run_blocking(read)
    except (MessageFormatError, DecompressionError, CompressionUnavailableError) as error:
        raise HttpError(422, f"the message at {position} cannot be read: {error}") from error
    return response


def _shown(entry: Entry) -> Response:
    metadata = read_message_metadata(entry.body)
    payload: Any = payload_of(entry.body)
    is_encrypted, found = bool(metadata.encryption_keys), _headers(entry, metadata)
    if metadata.compression and not is_encrypted:
        payload = decompress(
            metadata.compression, payload, metadata.uncompressed_size, MAX_PAYLOAD_BYTES
        )
    headers = ((f"X-Pulsar-{name}", UNSAFE.sub("?", text)) for name, text in found)
    return Response(200, bytes(payload), JSON_TYPE, tuple(headers))


def _headers(entry: Entry, metadata: MessageMetadata) -> list[tuple[str, str]]:
    properties = {pair.key: pair.value for pair in metadata.properties}
    found = [
        ("Message-ID", str(entry.position)),
        ("PROPERTY", json.dumps(properties, separators=(",", ":"))),
    ]
    stamp = prefix_fields(entry.prefix)
    if (time_ms := stamp.get("broker_timestamp")) is not None:
        found.append(("Broker-Entry-METADATA-timestamp", _time(int(str(time_ms)))))
    if (index := stamp.get("index")) is not None:
        found.append(("Broker-Entry-METADATA-index", str(index)))
    found.append(("publish-time", _time(metadata.publish_time)))
    if metadata.event_time:
        found.append(("event-time", _time(metadata.event_time)))
    if metadata.HasField("deliver_at_time"):
        found.append(("deliver-at-time", _time(metadata.deliver_at_time)))
    if metadata.HasField("null_value"):
        found.append(("null-value", _text(metadata.null_value)))
    if metadata.HasField("num_messages_in_batch"):
        found.append(("num-batch-message", str(metadata.num_messages_in_batch)))
        found.append(("batch-size", str(len(entry.stored) - metadata.ByteSize())))
    if metadata.HasField("num_chunks_from_msg"):
        found.append(("PROPERTY-TOTAL-CHUNKS", str(metadata.num_chunks_from_msg)))
        found.append(("PROPERTY-CHUNK-ID", str(metadata.chunk_id)))
    found.append(("Is-Encrypted", _text(bool(metadata.encryption_keys))))
    found += _set_fields(metadata, PLAIN)
    if metadata.replicate_to:
        found.append(("replicated-to", ",".join(metadata.replicate_to)))
    if metadata.compression:
        found.append(("compression", compression_name(metadata.compression)))
    found += _set_fields(metadata, MORE)
    found.append(("txn-uncommitted", "false"))
    return found


def _set_fields(
    metadata: MessageMetadata, fields: tuple[tuple[str, str], ...]
) -> list[tuple[str, str]]:
    return [
        (header, _text(getattr(metadata, name)))
        for name, header in fields
        if metadata.HasField(name)
    ]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _time(time_ms: int) -> str:
    """A time as Java shows it: without milliseconds if they are 0."""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
    kind = "milliseconds" if time_ms % 1000 else "seconds"
    return moment.isoformat(timespec=kind).replace("+00:00", "Z")


@routes.get(f"{ENTRY}/stamp", needs.topic("PEEK_MESSAGES"))
async def stamp_of(request: Request, path: TopicPath, ledger: str, entry: str) -> Json:
    """The broker's stamp of one entry."""
    wanted = Position(long_value(ledger), long_value(entry))
    opened = await open_topic(request, path, what=NOT_BY_ID)
    read = partial(opened.read_log.read, wanted, max_entries=1)
    found: Sequence[Entry] = await request.services.run_blocking(read)
    if not found or found[0].position != wanted:
        raise HttpError(404, NO_MESSAGE)
    prefix = found[0].prefix
    try:
        time_ms, tags = prefix_fields(prefix).get("broker_timestamp"), tags_of(prefix)
    except PrefixError as error:
        raise HttpError(422, str(error)) from error
    shown = {name: printable(value) for name, value in tags.items()}
    return {**shown_place(found[0]), "brokerTimestamp": time_ms, "tags": shown}


def shown_place(entry: Entry) -> dict[str, Any]:
    """An entry's position, kind, and place in the order, as shown in answers."""
    return {
        "ledgerId": entry.position.ledger_id,
        "entryId": entry.position.entry_id,
        "kind": entry.kind.name.lower(),
        "firstIndex": entry.first_index,
        "index": entry.index,
        "messageCount": entry.message_count,
        "appendTime": entry.append_time_ms,
    }


@routes.get(f"{TOPIC}/epochs", needs.topic("GET_METADATA"))
async def epochs_of(request: Request, path: TopicPath) -> Json:
    """Where each leader epoch of a topic begins, oldest first, and where the last one ends."""
    opened = await open_topic(request, path, what="Get epochs")
    history = await request.services.run_blocking(opened.ledger.epoch_history)
    starts = [
        {
            "epoch": start.epoch,
            "firstIndex": start.first_index,
            "ledgerId": start.position.ledger_id,
            "entryId": start.position.entry_id,
            "leader": start.leader,
        }
        for start in history.starts
    ]
    return {"epochs": starts, "nextIndex": history.next_index}


@routes.get(f"{TOPIC}/messageid/{{time}}", needs.topic("PEEK_MESSAGES"))
async def message_id_at(request: Request, path: TopicPath, time: str) -> Json:
    """The first entry at or after a time; else the id of the next entry."""
    what = "Get message ID by timestamp on a partitioned topic is not allowed, please try do it on "
    what += "specific topic partition"
    opened = await open_topic(request, path, what=what)
    target = await SeekTarget.at_time(
        opened, max(long_value(time), 0), request.services.run_blocking
    )
    return shown_id(target.position, opened.partition_index)


@routes.get(f"{TOPIC}/getMessageIdByIndex", needs.topic("PEEK_MESSAGES"))
async def message_id_by_index(request: Request, path: TopicPath) -> Json:
    """The id of the message with `index`, with its place in its batch (PIP-415); 404: none has it.

    Raises `HttpError`.
    """
    from ...finder import Finder, IndexOutOfRangeError

    index = long_value(request.query.get("index", ""))
    what = "Get message ID by index on a partitioned topic is not allowed, use a partition"
    opened = await open_topic(request, path, what=what)
    try:
        found = await request.services.run_blocking(Finder(opened.ledger).by_index, index)
    except IndexOutOfRangeError as error:
        raise HttpError(404, f"Message not found for index {index}: {error}") from error
    place = (found.batch_index, found.message_count) if found.message_count > 1 else (-1, 0)
    return shown_id(found.position, opened.partition_index, *place)


@routes.get(f"{TOPIC}/lastMessageId", needs.topic("PEEK_MESSAGES"))
async def last_message_id(request: Request, path: TopicPath) -> Json:
    """The last message's id."""
    opened = await open_topic(request, path)
    last = await request.services.topics.turns.result(opened.finding_last_id())
    ledger_id = opened.ledger.end_position.ledger_id if last.entry_id < 0 else last.ledger_id
    shown = shown_id(Position(ledger_id, last.entry_id), last.partition, last.batch_index)
    batch = {"outstandingAcksInSameBatch": 0, "originalBatchSize": 0}
    return {**shown, **(batch if last.batch_index >= 0 else {})}


# -- what was counted ----------------------------------------------------------------------------


@routes.get(f"{TOPIC}/audit", needs.topic("GET_STATS"))
async def get_audit(request: Request, path: TopicPath) -> Json:
    """The rows of the broker, of another tier, or of all tiers."""
    opened = await open_topic(request, path, what="The audit")
    auditor, query = request.services.auditor, request.query
    try:
        by = None if "by" not in query else parse_tags(query["by"])
        tier = check_audit_name("tier", query.get("tier", BROKER_TIER))
        from_ms, to_ms = _time_in(query, "startingTime"), _time_in(query, "endingTime")
        made = await auditor.report(opened, by, starting_time_ms=from_ms, ending_time_ms=to_ms)
    except AuditInputError as error:
        raise HttpError(400, str(error)) from error
    rows = list(made.rows)
    if tier != BROKER_TIER:
        posted = [
            row
            for row in await auditor.received(opened)
            if (from_ms is None or row.bucket_end_ms > from_ms)
            and (to_ms is None or row.bucket_start_ms < to_ms)
        ]
        rows = [*rows, *posted] if tier == ALL_TIERS else list(of_tier(posted, tier))
    return _shown_rows(made, rows)


def _shown_rows(made: Report, rows: list[AuditRow]) -> Generator[None, None, Any]:
    shown = []
    for row in rows:
        shown.append(row.to_json())
        yield
    return {**made.facts(), "rows": shown}


@routes.post(f"{TOPIC}/audit", needs.topic("CONSUME"))
async def post_audit(request: Request, path: TopicPath) -> None:
    """Take the rows of another tier. They are on disk when this is answered."""
    opened = await open_topic(request, path, what="The audit")
    try:
        await request.services.auditor.post(opened, Post.from_json(request.json()))
    except AuditInputError as error:
        raise HttpError(400, str(error)) from error


def _time_in(query: dict[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text[:16]) <= MAX_TIME_MS):
        raise AuditInputError(name, text, "is not a time in milliseconds since 1970")
    return int(text[:16])
