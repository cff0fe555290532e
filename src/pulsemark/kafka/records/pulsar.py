r"""Pulsar's messages as Kafka's records, and Kafka's records as Pulsar's messages.

**From Pulsar** (`read_pulsar`, `pulsar_set`):

======================  ==================================================================
record                  of the message
======================  ==================================================================
offset                  the entry's base + its place in the batch
key                     ordering key, else partition key (undone from base64, if flagged)
value                   payload; null if its null_value flag is set, or if it is empty and
                        there is a key: such a message deletes its key in compaction
headers                 properties, see below
time                    event time, else publish time
tombstone flag          a null value, the property that the topic's policy names, or the
                        ``tombstone`` field of the entry's prefix
======================  ==================================================================

Members of a batch that compaction removed are holes. Entries that cannot be records raise
`UnconvertibleEntryError`: encrypted ones, chunks (no Kafka client would put them together),
Pulsar's markers, and bytes that are not a message. Kafka's consumers get an `empty_batch` for them.

**To Pulsar** (`to_pulsar`). A stored set becomes one entry: an ordinary message if it counts one
record, else a batch. Each record keeps its place, so batch index = offset - base. Holes are members
that say ``compacted_out``, which Pulsar's clients skip. The key is the partition key, in base64
with its flag if it is not UTF-8.

Pulsar knows no tombstone with a value. Where the topic's policy names a property for it, such a
record keeps its value and has that property. Elsewhere its value is null, as for old Kafka clients.

**Headers are properties.** A property is text; a header's value is bytes or null. Null is written
as ``null:``, and what is not UTF-8, or looks like an escape, in base64: ``base64:AAECAw==``. So
every header comes back as it was, and a Pulsar producer can send binary headers, too. A property
that begins with ``base64:`` but goes on with something else is text.

**Schemas.** Kafka's serializers write a zero byte and a schema's id (u32) in front of each value;
Pulsar's clients say the schema's version once for an entry. Where the topic's versions have ids
(``schema_numbers``), a set whose values all have one of them in front loses these five bytes and
gets the version, and the values of an entry with such a version get them. A set with values of
several schemas stays as it is.

Order and repeated names are kept on the wire. Pulsar's own clients show properties as a map: the
last one of a name. A name that is not UTF-8 gets its wrong bytes as ``\xff``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

from ...metadata import (
    Buffer,
    MessageFormatError,
    MessageMetadata,
    compression_of,
    pack_message,
    payload_of,
    read_message_metadata,
)
from ...metadata.compression import CompressionUnavailableError, DecompressionError, decompress
from ...metadata.message import batch_members, pack_batch_member
from ...proto.pulsar_api_pb2 import KeyValue, SingleMessageMetadata
from .batch import BatchFields, build
from .convert import to_legacy
from .layout import LOG_APPEND_TIME, TOMBSTONE_FLAG, Codec, Headers, Record, Work
from .rules import MAX_RAW_BYTES, TOMBSTONE_VALUE, says_tombstone

_Header = MessageMetadata | SingleMessageMetadata
_BASE64 = "base64:"
_NULL = "null:"
_FRAMING, _VERSION = Struct(">BI"), Struct(">Q")


class UnconvertibleEntryError(ValueError):
    """An entry that clients of the other protocol cannot be shown."""


def read_pulsar(
    body: Buffer,
    message_count: int,
    *,
    tombstone: bool = False,
    tombstone_property: str | None = None,
    schema_numbers: Mapping[int, int] | None = None,
    max_raw_bytes: int = MAX_RAW_BYTES,
) -> list[Record]:
    """Convert a Pulsar entry to records; offsets count from its first message.

    Args:
        body: headers-and-payload, without prefix.
        message_count: the entry's messages in the topic's index.
        tombstone: the prefix's field of that name.
        tombstone_property: a message deletes its key if this property's last value is "true".
        schema_numbers: versions of the topic's schemas by their ids.
        max_raw_bytes: the most that is decompressed.

    Raises UnconvertibleEntryError.
    """
    try:
        metadata = read_message_metadata(body)
        _check(metadata)
        payload = decompress(
            compression_of(metadata), payload_of(body), metadata.uncompressed_size, max_raw_bytes
        )
    except (MessageFormatError, DecompressionError, CompressionUnavailableError) as error:
        raise UnconvertibleEntryError(str(error)) from error
    records = (
        _members(payload, metadata)
        if metadata.HasField("num_messages_in_batch")
        else [_record(0, metadata, payload, metadata.publish_time)]
    )
    flagged = []
    framing = _framing(metadata, schema_numbers)
    for record in records:
        if framing and record.value is not None:
            record = record._replace(value=framing + record.value)  # noqa: PLW2901 - the same one
        if record.offset >= message_count:
            raise UnconvertibleEntryError(f"more messages than the {message_count} it counts")
        named = tombstone_property is not None and says_tombstone(
            record.headers, tombstone_property
        )
        if record.value is None or tombstone or named:
            record = record._replace(attributes=TOMBSTONE_FLAG)  # noqa: PLW2901 - the same one
        flagged.append(record)
    return flagged


def pulsar_set(
    records: Iterable[Record],
    base_offset: int,
    message_count: int,
    max_magic: int,
    *,
    fetch_offset: int = 0,
    leader_epoch: int = 0,
    broker_time_ms: int | None = None,
) -> bytes:
    """The record set of a Pulsar entry's records, uncompressed, as a client understands it.

    Args:
        records: `read_pulsar`.
        base_offset: of the entry's first message.
        message_count: what the entry counts: offsets go on after it.
        max_magic: `max_magic_of` the request's version.
        fetch_offset: the offset asked for; magic 0 and 1 leave out the records before it.
        leader_epoch: of the entry's prefix.
        broker_time_ms: the time that consumers are to see (LogAppendTime); None: each its own.
    """
    if broker_time_ms is not None:
        records = (record._replace(time_ms=broker_time_ms) for record in records)
    bits = 0 if broker_time_ms is None or not max_magic else LOG_APPEND_TIME
    if max_magic < 2:
        wanted = (r for r in records if base_offset + r.offset >= fetch_offset)
        return to_legacy(wanted, max_magic, Codec.NONE, Work(), base_offset, bits)
    fields = BatchFields(
        attributes=bits,
        base_offset=base_offset,
        last_offset_delta=message_count - 1,
        leader_epoch=leader_epoch,
    )
    return build(records, fields, Work())


def _framing(metadata: MessageMetadata, schema_numbers: Mapping[int, int] | None) -> bytes:
    """The bytes that Kafka's serializers put before values of the message's schema; b"" if none."""
    version = metadata.schema_version
    if not schema_numbers or len(version) != _VERSION.size:
        return b""
    (number,) = _VERSION.unpack(version)
    ids = [each for each, found in tuple(schema_numbers.items()) if found == number]
    return _FRAMING.pack(0, ids[0]) if ids else b""


def _unframed(
    records: Sequence[Record], schema_numbers: Mapping[int, int]
) -> tuple[Sequence[Record], bytes]:
    """Remove the serializers' bytes before the values. Return the records and the schema version.

    If the values have not one version of the topic's, records are unchanged, and it is b"".
    """
    fronts = {r.value[: _FRAMING.size] for r in records if r.value is not None}
    front = fronts.pop() if len(fronts) == 1 else b""
    if len(front) != _FRAMING.size:
        return records, b""
    zero, number = _FRAMING.unpack(front)
    version = None if zero else schema_numbers.get(number)
    if version is None:
        return records, b""
    plain = [r if r.value is None else r._replace(value=r.value[len(front) :]) for r in records]
    return plain, _VERSION.pack(version)


def _check(metadata: MessageMetadata) -> None:
    if metadata.encryption_keys:
        raise UnconvertibleEntryError("it is encrypted")
    if metadata.num_chunks_from_msg > 1:
        raise UnconvertibleEntryError("it is a chunk of a message")
    if metadata.HasField("marker_type"):
        raise UnconvertibleEntryError("it is a marker of the broker")


def _members(payload: bytes, metadata: MessageMetadata) -> Iterator[Record]:
    try:
        for place, header, _, start, end in batch_members(payload, metadata.num_messages_in_batch):
            if not header.compacted_out:
                yield _record(place, header, payload[start:end], metadata.publish_time)
    except MessageFormatError as error:
        raise UnconvertibleEntryError(error.reason) from error


def _record(place: int, header: _Header, payload: bytes, publish_time_ms: int) -> Record:
    key = _key(header)
    return Record(
        offset=place,
        time_ms=(header.event_time or publish_time_ms) % 2**63,
        key=key,
        value=None if header.null_value or (key is not None and not payload) else payload,
        headers=headers_of(header.properties),
    )


def _key(header: _Header) -> bytes | None:
    if header.HasField("ordering_key"):
        return header.ordering_key
    if header.null_partition_key or not header.HasField("partition_key"):
        return None
    text: str | bytes = header.partition_key
    key = text.encode() if isinstance(text, str) else text
    if not header.partition_key_b64_encoded:
        return key
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error:
        return key


def headers_of(properties: Iterable[KeyValue]) -> Headers:
    """Convert properties to headers."""
    return tuple((_bytes(p.key), _unescaped(p.value)) for p in properties)


def add_properties(properties: RepeatedCompositeFieldContainer[KeyValue], headers: Headers) -> None:
    """Convert headers to properties, and add them."""
    for name, value in headers:
        properties.add(key=name.decode("utf-8", "backslashreplace"), value=_escaped(value))


def _escaped(value: bytes | None) -> str:
    if value is None:
        return _NULL
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = _BASE64
    if text.startswith(_BASE64) or text == _NULL:
        return _BASE64 + base64.b64encode(value).decode()
    return text


def _unescaped(value: str | bytes) -> bytes | None:
    text = _bytes(value)
    if text == _NULL.encode():
        return None
    if text.startswith(_BASE64.encode()):
        try:
            return base64.b64decode(text[len(_BASE64) :], validate=True)
        except binascii.Error:
            return text
    return text


def _bytes(text: str | bytes) -> bytes:
    """A string field as bytes. protobuf gives bytes for what is not UTF-8."""
    return text.encode() if isinstance(text, str) else text


def to_pulsar(
    records: Iterable[Record],
    message_count: int,
    *,
    publish_time_ms: int,
    producer_name: str,
    sequence_id: int = 0,
    tombstone_property: str | None = None,
    schema_numbers: Mapping[int, int] | None = None,
    max_bytes: int,
) -> bytes:
    """Convert a stored set's records to the headers-and-payload of an entry.

    Args:
        records: of a stored set (`read`), offsets from its first one on.
        message_count: what the entry counts, holes too.
        publish_time_ms: when the broker took the set.
        producer_name: of whom the messages say they are.
        sequence_id: of the entry's first message.
        tombstone_property: see above.
        schema_numbers: as in `read_pulsar`.
        max_bytes: the largest payload that consumers take, uncompressed.

    Raises UnconvertibleEntryError: larger than that; and RecordSetError, from ``records``.
    """
    header = MessageMetadata(
        producer_name=producer_name, sequence_id=sequence_id, publish_time=publish_time_ms
    )
    if schema_numbers:
        records, header.schema_version = _unframed(tuple(records), schema_numbers)
        if not header.schema_version:
            header.ClearField("schema_version")
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
    """Fill in the message's header. Return its payload."""
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
