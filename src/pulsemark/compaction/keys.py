"""Compaction's first pass: which messages are the latest of their keys.

docs/compaction.md has the table of what becomes of which entry. As a rule an entry that cannot be
read is kept whole: better one message too many than one too few. Of chunked messages all chunks are
kept, or none; incomplete ones as long as the rest may still come (`INCOMPLETE_CHUNKS_AGE_MS`).

A tombstone deletes its key, and is left out itself (`Limits` says which ones stay for a while, as
the latest message of their keys). Of a compressed or encrypted message the header's uncompressed
size says whether it is empty, if it is there.

Memory depends on the number of keys, not of messages: some 200 bytes each. Of keys of 24 bytes and
more a 24-byte hash (BLAKE2b) is kept, so that their length does not matter. Each message kept whole
by the rules above costs 16 bytes, or nothing if it is next to another one.

**Kafka's record sets** are compacted record by record. What deletes a key depends on the record
alone: so the prefix's ``tombstone`` field does not count here. Records without key are left out, as
Pulsar's messages are; Kafka has no such records on a compacted topic.

A key counts as the same key for both protocols' messages. A key that is not UTF-8 is compared in
the form in which Pulsar's clients send it: base64.

The record formats are imported with the first such entry: most stores have none.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import merge
from itertools import groupby

from ..ledger.entry import Entry, EntryKind
from ..ledger.position import LATEST, Position
from ..metadata import (
    BrokerEntryMetadata,
    MessageFormatError,
    MessageMetadata,
    PrefixError,
    payload_of,
    peek,
)
from ..metadata.builtin_stampers import says_tombstone
from ..metadata.message import partition_key_of, read_message_metadata
from ..proto.broker_entry_pb2 import SOURCE_PULSAR, SourceFormat
from ..proto.pulsar_api_pb2 import CompressionType
from .batch_rewrite import BatchFormatError, open_batch

INCOMPLETE_CHUNKS_AGE_MS = 60 * 60 * 1000
"""Consumers give up on incomplete chunked messages after a minute."""
FLAG_OR_NULL = 1
"""The stage in which a null value deletes a key of magic 2 too."""
_HASH_BYTES = 24
_PLACE_BITS = 32
_ENTRY_BITS = 32
_PLACE_MASK = (1 << _PLACE_BITS) - 1
_ENTRY_MASK = (1 << _ENTRY_BITS) - 1


def is_batch(metadata: MessageMetadata) -> bool:
    """Whether the payload is messages with their own headers; a batch may have only one."""
    return metadata.HasField("num_messages_in_batch")


@dataclass(frozen=True, slots=True)
class Limits:
    """A compaction's rules beside the latest message of each key."""

    max_uncompressed_bytes: int
    """Batches that are larger, decompressed, are kept whole."""
    tombstone_stage: int = FLAG_OR_NULL
    """Tombstones of magic 2 (KIP-87). 1: with the flag or a null value; 2: with the flag."""
    tombstone_property: str | None = None
    """A message of Pulsar's deletes its key if this property's last value is "true"."""
    tombstones_after: Position = LATEST
    """Tombstones after this entry stay."""
    first_index: int = 0
    """Entries that end before this index are left out: they were deleted."""
    oldest_ms: int = 0
    """Entries that were appended before this time are left out: they are too old."""


@dataclass(slots=True)
class _Chunks:
    """The chunks of a message that were read so far."""

    numbers: list[int] = field(default_factory=list)
    append_time_ms: int = 0


@dataclass(slots=True)
class PassCounts:
    """Counts of the first pass, as in `CompactionReport`."""

    entries_read: int = 0
    messages_read: int = 0
    """Messages, without those that an earlier compaction removed."""
    bytes_read: int = 0
    tombstones: int = 0
    unkeyed: int = 0
    unreadable: int = 0


class LatestPerKey:
    """Takes entries in order, and decides which of them are kept."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._max_bytes = limits.max_uncompressed_bytes
        self._stage = limits.tombstone_stage
        self._property = limits.tombstone_property
        self._keeps_tombstones = False
        self.first_index = limits.first_index
        """The index after the last entry that was left out as deleted or too old."""
        self._latest: dict[bytes, int | tuple[int, ...]] = {}
        self._whole = _PositionRuns()
        self._chunks: dict[tuple[str, str], _Chunks] = {}
        self._now_ms = 0
        self.counts = PassCounts()

    @property
    def key_count(self) -> int:
        """Keys that have a latest message."""
        return len(self._latest)

    def take(self, entry: Entry) -> None:
        """Take the next entry of the log."""
        counts = self.counts
        counts.entries_read += 1
        counts.bytes_read += len(entry.stored)
        self._now_ms = entry.append_time_ms
        limits = self._limits
        if entry.index < limits.first_index or entry.append_time_ms < limits.oldest_ms:
            self.first_index = max(self.first_index, entry.index + 1)
            return
        if entry.kind is not EntryKind.DATA:
            return
        self._keeps_tombstones = entry.position > limits.tombstones_after
        try:
            prefix = peek(entry.prefix)
            if prefix is not None and is_record_set(prefix):
                self._take_record_set(entry, prefix)
                return
            if prefix is not None and prefix.source_format != SOURCE_PULSAR:
                raise MessageFormatError("not in Pulsar's format", 0)
            metadata = read_message_metadata(entry.body)
            if metadata.HasField("marker_type"):
                return
            deletes = prefix is not None and prefix.tombstone
            deletes = deletes or says_tombstone(metadata.properties, self._property)
            if is_batch(metadata):
                self._take_batch(entry, metadata, deletes)
            elif metadata.num_chunks_from_msg > 1:
                self._take_chunk(entry, metadata, deletes)
            else:
                self._take_message(entry, metadata, deletes)
        except (MessageFormatError, PrefixError, BatchFormatError):
            counts.unreadable += 1
            self._whole.add(entry.position)

    def _take_record_set(self, entry: Entry, prefix: BrokerEntryMetadata) -> None:
        first = _number(entry.position, 0)
        for place, key, deletes in keys_of(entry, prefix, self._stage, self._max_bytes):
            self._put(key, first + place, deletes)

    def _take_batch(self, entry: Entry, metadata: MessageMetadata, deletes: bool) -> None:
        if metadata.encryption_keys:
            self.counts.messages_read += entry.message_count
            self._whole.add(entry.position)
            return
        batch = open_batch(metadata, entry.body, self._max_bytes, self._property)
        first = _number(entry.position, 0)
        for place, member in enumerate(batch.members):
            if not member.hole:
                self._put(member.key, first + place, deletes or member.deletes)

    def _take_message(self, entry: Entry, metadata: MessageMetadata, deletes: bool) -> None:
        deletes = deletes or metadata.null_value or _is_empty(entry, metadata)
        self._put(partition_key_of(metadata), _number(entry.position, 0), deletes)

    def _put(self, key: bytes | None, message: int | tuple[int, ...], deletes: bool) -> None:
        self.counts.messages_read += 1
        if key is None:
            self.counts.unkeyed += 1
            return
        if len(key) >= _HASH_BYTES:
            key = blake2b(key, digest_size=_HASH_BYTES).digest()
        if deletes:
            self.counts.tombstones += 1
            if not self._keeps_tombstones:
                self._latest.pop(key, None)
                return
        self._latest[key] = message

    def _take_chunk(self, entry: Entry, metadata: MessageMetadata, deletes: bool) -> None:
        """Gather chunks as consumers do: in order, from the first; a repeated one counts once."""
        uuid = (metadata.producer_name, metadata.uuid)
        if metadata.chunk_id == 0:
            self._chunks[uuid] = _Chunks()
        chunks = self._chunks.get(uuid)
        if chunks is None or metadata.chunk_id < len(chunks.numbers):
            return
        if metadata.chunk_id > len(chunks.numbers):
            del self._chunks[uuid]
            return
        chunks.numbers.append(_number(entry.position, 0))
        chunks.append_time_ms = entry.append_time_ms
        if len(chunks.numbers) == metadata.num_chunks_from_msg:
            del self._chunks[uuid]
            self._put(partition_key_of(metadata), tuple(chunks.numbers), deletes)

    def kept(self) -> Iterator[Kept]:
        """The kept entries, in the order of the log. The object cannot be used afterwards."""
        numbers: list[int] = []
        for latest in self._latest.values():
            if isinstance(latest, tuple):
                numbers += latest
            else:
                numbers.append(latest)
        self._latest.clear()
        for chunks in self._chunks.values():
            if self._now_ms - chunks.append_time_ms <= INCOMPLETE_CHUNKS_AGE_MS:
                numbers += chunks.numbers
        self._chunks.clear()
        numbers.sort()
        return _walk(numbers, self._whole)


@dataclass(slots=True)
class Kept:
    """An entry that is kept, or a part of it."""

    position: Position
    places: list[int] | None
    """Kept places of a batch, from 0; [0] for a single message; None: the entry is kept whole."""


def _walk(numbers: list[int], whole: _PositionRuns) -> Iterator[Kept]:
    yield from merge(_by_entry(numbers), (Kept(p, None) for p in whole), key=lambda k: k.position)


def _by_entry(numbers: list[int]) -> Iterator[Kept]:
    for entry, places in groupby(numbers, key=lambda number: number >> _PLACE_BITS):
        position = Position(entry >> _ENTRY_BITS, entry & _ENTRY_MASK)
        yield Kept(position, [number & _PLACE_MASK for number in places])


def _number(position: Position, place: int) -> int:
    """A message as one number; numbers are in the order of the log."""
    return (position.ledger_id << _ENTRY_BITS | position.entry_id) << _PLACE_BITS | place


def _is_empty(entry: Entry, metadata: MessageMetadata) -> bool:
    """Whether an unbatched message has no payload."""
    if metadata.HasField("uncompressed_size") and (
        metadata.encryption_keys or metadata.compression != CompressionType.NONE
    ):
        return metadata.uncompressed_size == 0
    return not payload_of(entry.body)


class _PositionRuns:
    """Positions, added in order; consecutive ones cost no memory."""

    def __init__(self) -> None:
        self._ledgers: array[int] = array("Q")
        self._firsts: array[int] = array("I")
        self._lasts: array[int] = array("I")

    def add(self, position: Position) -> None:
        ledger_id, entry_id = position
        if self._ledgers and self._ledgers[-1] == ledger_id and self._lasts[-1] + 1 == entry_id:
            self._lasts[-1] = entry_id
            return
        self._ledgers.append(ledger_id)
        self._firsts.append(entry_id)
        self._lasts.append(entry_id)

    def __iter__(self) -> Iterator[Position]:
        for ledger_id, first, last in zip(self._ledgers, self._firsts, self._lasts, strict=True):
            for entry_id in range(first, last + 1):
                yield Position(ledger_id, entry_id)


def is_record_set(prefix: BrokerEntryMetadata | None) -> bool:
    """Whether the entry is in Kafka's format."""
    return prefix is not None and prefix.source_format in (
        SourceFormat.SOURCE_KAFKA_MAGIC_0,
        SourceFormat.SOURCE_KAFKA_MAGIC_1,
        SourceFormat.SOURCE_KAFKA_MAGIC_2,
    )


def keys_of(
    entry: Entry, prefix: BrokerEntryMetadata, stage: int, max_bytes: int
) -> list[tuple[int, bytes | None, bool]]:
    """Each record's place and key, and whether it deletes the key, by the stage of KIP-87.

    Raises BatchFormatError: not a record set of at most ``max_bytes``, or without its codec.
    """
    from ..kafka.records import RecordSetError, TombstoneStage, deletes, magic_of, read

    magic = magic_of(prefix.source_format)
    assert magic is not None
    try:
        return [
            (record.offset, _comparable(record.key), deletes(record, magic, TombstoneStage(stage)))
            for record in read(entry.body, max_raw_bytes=max_bytes)
        ]
    except RecordSetError as error:
        raise BatchFormatError(str(error)) from error


def with_holes(entry: Entry, places: list[int], max_bytes: int) -> bytes | None:
    """The set with holes for the records not in ``places``; None: it stays as it is."""
    from ..kafka.records import Work, keep, read

    kept = set(places)
    if all(record.offset in kept for record in read(entry.body, max_raw_bytes=max_bytes)):
        return None
    return keep(entry.body, kept, Work(), max_bytes)


def _comparable(key: bytes | None) -> bytes | None:
    if key is None:
        return None
    try:
        key.decode()
    except UnicodeDecodeError:
        return base64.b64encode(key)
    return key
