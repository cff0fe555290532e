"""A message's own header: the bytes that the producer wrote in front of its payload; batches.

docs/entry-format.md has it byte by byte, also without magic and checksum, as very old clients send.

Rules:

- The functions here take headers-and-payload, that is, an entry after `prefix.strip`.
- Bytes come from producers and from disk, so they are not trusted. A size is checked against the
  buffer before it is used, and against a limit before the bytes are parsed. Malformed bytes raise
  `MessageFormatError`. Complete bytes with a wrong checksum raise `ChecksumError`. Nothing else is
  raised.
- protobuf's C parser accepts more than Pulsar allows. Required fields may be missing:
  `read_message_metadata` checks them. An unknown enum value reads as the default:
  `compression_of` checks it, because decompressing with the wrong method is worse than refusing. A
  string that is not UTF-8 reads as bytes: `partition_key_of` returns bytes for every key.

**Batches.** The messages of a batch stand one after another in its entry's decompressed payload::

    [size u32 big-endian][SingleMessageMetadata][payload]  ...

The payload's size stands in that metadata, so a batch can only be walked from its beginning.

**Splitting an entry** into the messages that its producer sent::

    for message in messages_of(entry.body):
        print(message.key, message.value, message.properties)

An entry is one message, or a batch of them; the payload may be compressed. What the broker stores
in front of the entry, its time and index, is in the entry's prefix (`peek`), not in here: the index
of the message with `batch_index` n is the entry's first index + n.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError, EncodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from ..proto.broker_entry_pb2 import BrokerEntryMetadata
from ..proto.pulsar_api_pb2 import CompressionType, MessageMetadata, SingleMessageMetadata
from .compression import decompress
from .crc import Buffer, crc32c
from .errors import ChecksumError, MessageFormatError
from .prefix import has_prefix

MESSAGE_MAGIC = 0x0E01
# A megabyte of the smallest properties takes some 40 ms to parse and 10 MB of memory. One entry
# must not block a broker for longer. Producers use a few hundred bytes.
MESSAGE_METADATA_SIZE_MAX_BYTES = 1024 * 1024
#: An entry that is larger than this after decompression is not opened.
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
_UINT32 = struct.Struct(">I")
_MAGIC_AND_CHECKSUM = struct.Struct(">HI")
_CHECKSUM_END = 6
_HEADER_SIZE_WITH_CHECKSUM = 10
_HEADER_SIZE_WITHOUT_CHECKSUM = 4
# Copying a few bytes is cheaper than making a view of them.
_VIEW_FROM_BYTES = 2048
_headers_parsed = 0


def has_checksum(headers_and_payload: Buffer) -> bool:
    """Whether these bytes begin with the magic 0x0e01, which a CRC32C follows."""
    return (
        len(headers_and_payload) >= 2
        and headers_and_payload[0] == MESSAGE_MAGIC >> 8
        and headers_and_payload[1] == MESSAGE_MAGIC & 0xFF
    )


def verify_checksum(headers_and_payload: Buffer) -> bool:
    """Whether the message has a CRC32C, which its bytes match.

    Raises ChecksumError if they do not, MessageFormatError if the header is cut off.
    """
    if len(headers_and_payload) < _HEADER_SIZE_WITH_CHECKSUM:
        if has_checksum(headers_and_payload):
            _check_header_size(headers_and_payload, _HEADER_SIZE_WITH_CHECKSUM)
        return False
    magic, expected = _MAGIC_AND_CHECKSUM.unpack_from(headers_and_payload)
    if magic != MESSAGE_MAGIC:
        return False
    actual = crc32c(memoryview(headers_and_payload)[_CHECKSUM_END:])
    if actual != expected:
        raise ChecksumError(expected, actual)
    return True


def sound_count(bodies: Sequence[Buffer]) -> int:
    """How many of the first bodies match their checksums."""
    count = 0
    for body in bodies:
        if len(body) < _HEADER_SIZE_WITH_CHECKSUM:
            break
        magic, expected = _MAGIC_AND_CHECKSUM.unpack_from(body)
        checked = body if len(body) < _VIEW_FROM_BYTES else memoryview(body)
        if magic != MESSAGE_MAGIC or crc32c(checked[_CHECKSUM_END:]) != expected:
            break
        count += 1
    return count


def read_message_metadata(
    headers_and_payload: Buffer, *, size_max_bytes: int = MESSAGE_METADATA_SIZE_MAX_BYTES
) -> MessageMetadata:
    """The producer's metadata, if it has at most `size_max_bytes`. The checksum is not verified.

    Raises:
        MessageFormatError: the metadata is cut off, too large or not protobuf; a required field
            (producer_name, sequence_id, publish_time) is missing; or the producer's name is not
            UTF-8.
    """
    return _checked(*_parse(headers_and_payload, size_max_bytes))


def _checked(start: int, metadata: MessageMetadata) -> MessageMetadata:
    """The metadata, if its required fields are there; `start` is where it begins."""
    if not metadata.IsInitialized():
        raise MessageFormatError(f"required fields are missing: {_missing(metadata)}", start)
    if not isinstance(metadata.producer_name, str):
        raise MessageFormatError("the producer's name is not UTF-8", start)
    return metadata


class MessageHeader:
    """A message's own header, as of `read_message_metadata`, parsed when it is first needed."""

    __slots__ = ("_body", "_metadata", "_parsed")

    def __init__(self, headers_and_payload: Buffer) -> None:
        self._body = headers_and_payload
        self._parsed: tuple[int, MessageMetadata] | None = None
        self._metadata: MessageMetadata | None = None
        """The parsed metadata, after its required fields were checked."""

    def metadata(self) -> MessageMetadata:
        """The producer's metadata. Raises MessageFormatError."""
        if self._metadata is None:
            self._metadata = _checked(*self._read())
        return self._metadata

    def publish_time_ms(self) -> int:
        """The publish time that the producer states. Raises MessageFormatError."""
        return _publish_time_ms(*self._read())

    def _read(self) -> tuple[int, MessageMetadata]:
        if self._parsed is None:
            self._parsed = _parse(self._body, MESSAGE_METADATA_SIZE_MAX_BYTES)
        return self._parsed


def headers_parsed() -> int:
    """How many message headers this process has parsed; exact while one thread does."""
    return _headers_parsed


def payload_of(headers_and_payload: Buffer) -> memoryview:
    """A view of the bytes after the metadata, still compressed and encrypted.

    Raises MessageFormatError: the header is cut off, or its size reaches beyond the end.
    """
    return memoryview(headers_and_payload)[_metadata_span(headers_and_payload)[1] :]


def pack_message(metadata: MessageMetadata, *payload: Buffer) -> bytes:
    """An entry as a producer makes it: magic, checksum, the metadata with its size, the payload.

    The metadata must have all required fields, and say how the payload is compressed.
    """
    encoded = metadata.SerializeToString()
    covered = b"".join((len(encoded).to_bytes(4, "big"), encoded, *payload))
    return b"".join((MESSAGE_MAGIC.to_bytes(2, "big"), crc32c(covered).to_bytes(4, "big"), covered))


def entry_time_ms(metadata: BrokerEntryMetadata | None, headers_and_payload: Buffer) -> int:
    """The time of an entry, as seek, expiry, compaction and statistics all use it (PIP-70).

    It is the broker's time if `metadata` (None without a prefix) has one, even zero, else the
    publish time that the producer states. Milliseconds since the epoch, a uint64.

    Raises MessageFormatError: there is no broker time, and the publish time cannot be read.
    """
    if metadata is not None and metadata.HasField("broker_timestamp"):
        return metadata.broker_timestamp
    return _publish_time_ms(*_parse(headers_and_payload, MESSAGE_METADATA_SIZE_MAX_BYTES))


def _publish_time_ms(start: int, message: MessageMetadata) -> int:
    if not message.HasField("publish_time"):
        raise MessageFormatError("required fields are missing: publish_time", start)
    return message.publish_time


def message_count_of(metadata: MessageMetadata) -> int:
    """How many messages the entry's header states: the batch's number, else 1; never below 0.

    A topic's index counts with the number in the SEND command, not with this one. This one is for
    readers that have only the entry.
    """
    return max(0, metadata.num_messages_in_batch)


def partition_key_of(metadata: MessageMetadata) -> bytes | None:
    """The message's key as the client sent it, maybe in base64; None if it has none."""
    if not metadata.HasField("partition_key"):
        return None
    key: str | bytes = metadata.partition_key
    return key.encode() if isinstance(key, str) else key


def compression_of(metadata: MessageMetadata) -> CompressionType:
    """How the payload is compressed. Raises MessageFormatError for an unknown method."""
    if not metadata.HasField("compression"):
        number = MessageMetadata.COMPRESSION_FIELD_NUMBER
        unknown = UnknownFieldSet(metadata)
        for place in range(len(unknown)):
            if unknown[place].field_number == number:
                raise MessageFormatError(f"unknown compression type {unknown[place].data}", 0)
    return metadata.compression


def _parse(headers_and_payload: Buffer, size_max_bytes: int) -> tuple[int, MessageMetadata]:
    """The protobuf's start, and its content. Required fields are not checked here."""
    global _headers_parsed
    start, end = _metadata_span(headers_and_payload)
    if end - start > size_max_bytes:
        raise MessageFormatError(
            f"{end - start} bytes of metadata; the limit is {size_max_bytes}", start - 4
        )
    _headers_parsed += 1
    try:
        return start, MessageMetadata.FromString(bytes(headers_and_payload[start:end]))
    except DecodeError as error:
        raise MessageFormatError("not a MessageMetadata protobuf", start) from error


def _missing(metadata: MessageMetadata) -> str:
    """The names of the missing required fields, taken from protobuf's own error."""
    try:
        metadata.SerializeToString()
    except EncodeError as error:
        return str(error).rpartition(": ")[2]
    return "unknown"


def _metadata_span(headers_and_payload: Buffer) -> tuple[int, int]:
    """The start and end of the protobuf, both inside the buffer."""
    start = (
        _HEADER_SIZE_WITH_CHECKSUM
        if has_checksum(headers_and_payload)
        else _HEADER_SIZE_WITHOUT_CHECKSUM
    )
    _check_header_size(headers_and_payload, start)
    size_bytes: int = _UINT32.unpack_from(headers_and_payload, start - 4)[0]
    if start + size_bytes > len(headers_and_payload):
        if has_prefix(headers_and_payload):
            raise MessageFormatError("begins with a broker entry prefix (0x0e02)", 0)
        raise MessageFormatError(
            f"{size_bytes} bytes of metadata do not fit into {len(headers_and_payload)} bytes",
            start - 4,
        )
    return start, start + size_bytes


def _check_header_size(headers_and_payload: Buffer, size_bytes: int) -> None:
    if len(headers_and_payload) < size_bytes:
        raise MessageFormatError(
            f"cut off after {len(headers_and_payload)} of {size_bytes} header bytes", 0
        )


def message_index(index: int, message_count: int, batch_index: int = -1) -> int:
    """The index of a message: `index - message_count + 1 + batch_index`.

    `index` is the entry's, that of its LAST message (PIP-70). `batch_index` counts from 0, and is
    -1, as in Pulsar's clients, for a message that is not in a batch.

    Raises ValueError: the entry has no such message, or no such entry can end at that index.
    """
    if message_count < 1 or index < message_count - 1:
        raise ValueError(f"no entry of {message_count} messages ends at index {index}")
    place = 0 if batch_index == -1 and message_count == 1 else batch_index
    if not 0 <= place < message_count:
        raise ValueError(f"an entry of {message_count} messages has no message {batch_index}")
    return index - message_count + 1 + place


class BatchMember(NamedTuple):
    """One message of a batch, and where it stands in the batch's payload."""

    place: int
    """Its number in the batch, from 0: the batch index."""
    header: SingleMessageMetadata
    start: int
    """The start of its size."""
    payload_start: int
    end: int
    """The end of its payload, at which the next message begins."""


def batch_members(payload: bytes, count: int) -> Iterator[BatchMember]:
    """Walk through a batch's messages. What follows after the last one is the caller's to judge.

    `payload` is decompressed; `count` is the header's `num_messages_in_batch`. Raises
    MessageFormatError at the first message that is not whole; its offset is in `payload`.
    """
    end = 0
    for place in range(count):
        start = end
        try:
            (size,) = _UINT32.unpack_from(payload, start)
            payload_start = start + _UINT32.size + size
            header = SingleMessageMetadata.FromString(payload[start + _UINT32.size : payload_start])
        except (struct.error, DecodeError) as error:
            raise MessageFormatError(f"message {place} of {count}: no metadata", start) from error
        end = payload_start + header.payload_size
        if not header.HasField("payload_size") or not payload_start <= end <= len(payload):
            reason = f"message {place} of {count}: its payload is cut off"
            raise MessageFormatError(reason, payload_start)
        yield BatchMember(place, header, start, payload_start, end)


def check_batch_end(payload: bytes, count: int, end: int) -> None:
    """Raise MessageFormatError if bytes follow after the last message, which ends at `end`."""
    if end != len(payload):
        raise MessageFormatError(f"{len(payload) - end} bytes after its {count} messages", end)


def pack_batch_member(header: SingleMessageMetadata, payload: bytes) -> bytes:
    """One message as it stands in a batch. Sets the header's payload size."""
    header.payload_size = len(payload)
    encoded = header.SerializeToString()
    return b"".join((_UINT32.pack(len(encoded)), encoded, payload))


class Message(NamedTuple):
    """One message, as its producer made it."""

    value: bytes | None
    """The payload, decompressed; None for a null value. Of an encrypted message the cipher text."""
    key: str | None
    """The partition key; None without one. A key of bytes that are not UTF-8 is in base64."""
    producer_name: str
    sequence_id: int
    publish_time_ms: int
    """By the producer's clock, in milliseconds since the epoch."""
    event_time_ms: int | None
    """None where the producer set none."""
    properties: dict[str, str]
    """If the producer set a name twice, the last value counts, as in Pulsar's clients. What is not
    UTF-8 is shown with replacement characters."""
    ordering_key: bytes | None = None
    batch_index: int = -1
    """The place in its batch; -1 if it was sent alone."""
    schema_version: bytes | None = None
    deliver_at_ms: int | None = None
    is_encrypted: bool = False
    """An encrypted batch is one `Message`, because its content cannot be read."""
    chunk_id: int | None = None
    """The number of this chunk of a message that was sent in chunks, from 0."""


def messages_of(
    headers_and_payload: Buffer, *, max_bytes: int = MAX_PAYLOAD_BYTES
) -> list[Message]:
    """The messages of an entry, in their order, without those that compaction removed.

    The payload may have up to `max_bytes` after decompression.

    Raises:
        MessageFormatError: these are not the bytes of a message, or not of such a batch.
        DecompressionError: the payload has another size than it states, or is larger.
        CompressionUnavailableError: the extra `compression` is not installed.
    """
    metadata = read_message_metadata(headers_and_payload)
    payload = payload_of(headers_and_payload)
    if metadata.encryption_keys:
        return [_alone(metadata, bytes(payload))]
    plain = bytes(
        decompress(compression_of(metadata), payload, metadata.uncompressed_size, max_bytes)
    )
    if not metadata.HasField("num_messages_in_batch"):
        return [_alone(metadata, plain)]
    return list(_members(metadata, plain))


def _alone(metadata: MessageMetadata, payload: bytes) -> Message:
    return _message(metadata, metadata, payload, metadata.sequence_id, -1)


def _members(metadata: MessageMetadata, payload: bytes) -> Iterator[Message]:
    end, count = 0, metadata.num_messages_in_batch
    removed = set(metadata.compacted_batch_indexes)
    for place, own, _, start, end in batch_members(payload, count):
        if own.compacted_out or place in removed:
            continue
        sequence_id = metadata.sequence_id + place
        if own.HasField("sequence_id"):
            sequence_id = own.sequence_id
        yield _message(metadata, own, payload[start:end], sequence_id, place)
    check_batch_end(payload, count, end)


def _message(
    metadata: MessageMetadata,
    own: MessageMetadata | SingleMessageMetadata,
    payload: bytes,
    sequence_id: int,
    batch_index: int,
) -> Message:
    """`own` is what describes this message: the entry's header, or the batch member's."""
    return Message(
        value=None if own.null_value else payload,
        key=_key(own) if own.HasField("partition_key") else None,
        producer_name=metadata.producer_name,
        sequence_id=sequence_id,
        publish_time_ms=metadata.publish_time,
        event_time_ms=own.event_time or None,
        properties={_text(pair.key): _text(pair.value) for pair in own.properties},
        ordering_key=own.ordering_key if own.HasField("ordering_key") else None,
        batch_index=batch_index,
        schema_version=metadata.schema_version if metadata.HasField("schema_version") else None,
        deliver_at_ms=metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None,
        is_encrypted=bool(metadata.encryption_keys),
        chunk_id=metadata.chunk_id if metadata.HasField("chunk_id") else None,
    )


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


def _key(own: MessageMetadata | SingleMessageMetadata) -> str:
    key: str | bytes = own.partition_key
    if isinstance(key, bytes):
        return base64.b64encode(key).decode()
    if not own.partition_key_b64_encoded:
        return key
    try:
        return base64.b64decode(key, validate=True).decode()
    except ValueError:  # not base64, or not UTF-8
        return key
