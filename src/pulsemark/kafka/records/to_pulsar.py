"""Kafka's records as Pulsar's messages: the other direction of `from_pulsar`.

A stored set becomes one entry: an ordinary message if it counts one record, else a batch. Each
record keeps its place, so batch index = offset - base. Holes are members that say
``compacted_out``, which Pulsar's clients skip. The key is the partition key, in base64 with
its flag if it is not UTF-8. What Pulsar requires and Kafka lacks comes from the caller: publish
time (the broker's), producer name, sequence id.

Pulsar knows no tombstone with a value. Where the topic's policy names a property for it, such a
record keeps its value and has that property. Elsewhere its value is null, as for old Kafka clients.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

from ...metadata import MessageMetadata, pack_message
from ...metadata.batch import pack_batch_member
from ...proto.pulsar_api_pb2 import SingleMessageMetadata
from .from_pulsar import UnconvertibleEntryError
from .properties import add_properties
from .record import Record
from .tombstones import TOMBSTONE_VALUE, says_tombstone

_Header = MessageMetadata | SingleMessageMetadata


def to_pulsar(
    records: Iterable[Record],
    message_count: int,
    *,
    publish_time_ms: int,
    producer_name: str,
    sequence_id: int = 0,
    tombstone_property: str | None = None,
    max_bytes: int,
) -> bytes:
    """The headers-and-payload of an entry with these records.

    Args:
        records: of a stored set (`read`), offsets from its first one on.
        message_count: what the entry counts, holes too.
        publish_time_ms: when the broker took the set.
        producer_name: of whom the messages say they are.
        sequence_id: of the entry's first message.
        tombstone_property: see above.
        max_bytes: the largest payload that consumers take, uncompressed.

    Raises:
        UnconvertibleEntryError: larger than that.
        RecordSetError: from ``records``.
    """
    header = MessageMetadata(
        producer_name=producer_name, sequence_id=sequence_id, publish_time=publish_time_ms
    )
    if message_count == 1:
        for record in records:
            payload = _describe(header, record, tombstone_property)
            _check_size(len(payload), max_bytes)
            return pack_message(header, payload)
    batch = bytearray()
    place = 0
    for record in records:
        batch += _HOLE * (record.offset - place)
        single = SingleMessageMetadata(sequence_id=sequence_id + record.offset)
        payload = _describe(single, record, tombstone_property)
        batch += pack_batch_member(single, payload)
        place = record.offset + 1
        _check_size(len(batch), max_bytes)
    batch += _HOLE * (message_count - place)
    _check_size(len(batch), max_bytes)
    header.num_messages_in_batch = message_count
    return pack_message(header, batch)


def _describe(header: _Header, record: Record, tombstone_property: str | None) -> bytes:
    """Fill in the message's header; returns its payload."""
    add_properties(header.properties, record.headers)
    if record.time_ms > 0:
        header.event_time = record.time_ms
    if record.key is not None:
        try:
            header.partition_key = record.key.decode()
        except UnicodeDecodeError:
            header.partition_key = base64.b64encode(record.key).decode()
            header.partition_key_b64_encoded = True
    value = record.value
    if record.flagged and value is not None:
        if tombstone_property is None:
            value = None
        elif not says_tombstone(record.headers, tombstone_property):
            header.properties.add(key=tombstone_property, value=TOMBSTONE_VALUE)
    if value is None:
        header.null_value = True
        return b""
    return value


def _check_size(size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise UnconvertibleEntryError(f"more than {max_bytes} bytes as Pulsar's messages")


_HOLE = pack_batch_member(SingleMessageMetadata(compacted_out=True), b"")
