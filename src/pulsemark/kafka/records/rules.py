"""A topic's rules for produced record sets, the result of their check, and tombstones.

**The tombstone flag of KIP-87** deletes a key, and the record may still have a value. In magic 0
and 1
a null value deletes its key. KIP-87 gives magic 2 a flag for that, bit 5 of a record's attributes.
Kafka never shipped it: its clients neither set nor show the flag, and delete with a null value. So
a
topic is in one of two stages:

======================================  =========================  ========================
record                                  stage 1, the default       stage 2
======================================  =========================  ========================
magic 0, 1: null value                  deletes its key            deletes its key
magic 2: flag, any value                deletes its key            deletes its key
magic 2: null value without flag        deletes its key            refused when produced
======================================  =========================  ========================

Stock clients set the flag by a header: the topic's policy names it (`stampers.tombstone_property`),
as it names the property of Pulsar's producers. The flag is set when the set is produced.

Between the formats: up to magic 2 a null value sets the flag. Down to magic 0 or 1 the flag makes
the value null, for an old consumer knows no other tombstone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from ...metadata import Buffer
from ...proto.broker_entry_pb2 import SourceFormat
from .layout import TOMBSTONE_FLAG, Headers, Record, Work

if TYPE_CHECKING:
    from .batch import SentBatch

MAX_BATCH_BYTES = 1_048_588
"""Kafka's default of max.message.bytes: a megabyte, and the 12 bytes of offset and size."""
MAX_RAW_BYTES = 64 * 1024 * 1024
"""The most that a set may have decompressed: 64 times what it may have on the wire."""
SOURCE_FORMATS = (
    SourceFormat.SOURCE_KAFKA_MAGIC_0,
    SourceFormat.SOURCE_KAFKA_MAGIC_1,
    SourceFormat.SOURCE_KAFKA_MAGIC_2,
)
"""The prefix's ``source_format`` by magic."""
TOMBSTONE_VALUE = "true"
"""The value of the property that makes a message of Pulsar's a tombstone."""


class TombstoneStage(IntEnum):
    """The marks of a tombstone in magic 2."""

    FLAG_OR_NULL = 1
    FLAG_ONLY = 2


_MAGICS: dict[int, int] = {number: magic for magic, number in enumerate(SOURCE_FORMATS)}


def magic_of(source_format: int) -> int | None:
    """The magic of an entry's stored set; None for a Pulsar entry."""
    return _MAGICS.get(source_format)


@dataclass(frozen=True, slots=True)
class EntryRules:
    """A topic's entry format, and the limits that go with it."""

    magic: int = 2
    """message.format.version: the magic in which sets are stored."""
    compacted: bool = False
    """Whether every record must have a key."""
    tombstone_stage: TombstoneStage = TombstoneStage.FLAG_OR_NULL
    tombstone_header: str | None = None
    """The header whose value "true" sets the flag of a record of magic 2; None: no header."""
    log_append_time: bool = False
    """message.timestamp.type: whether consumers see the broker's time (`fetched`)."""
    max_batch_bytes: int = MAX_BATCH_BYTES
    """max.message.bytes: of a batch, or of each message of magic 0 and 1; as sent and as stored."""
    max_raw_bytes: int = MAX_RAW_BYTES
    """The largest compressed set, decompressed, in bytes."""
    base_offset: int = 0
    """The offset that the first message will have: a compressed set of magic 0 gets it inside."""

    def __post_init__(self) -> None:
        if self.magic not in (0, 1, 2):
            raise ValueError(f"no entry format has the magic {self.magic}")


@dataclass(frozen=True, slots=True)
class Produced:
    """A set that passed the check."""

    stored: Buffer
    """The bytes to store; ``relative_offset_honoured`` holds for them."""
    magic: int
    """The magic of the stored bytes: the topic's."""
    message_count: int
    max_time_ms: int
    """The latest producer time of a record; -1: none has one."""
    has_keys: bool
    """Whether at least one record has a key."""
    raw_size_bytes: int
    """The size of the records as sent, decompressed, in bytes."""
    tombstone: bool
    """Whether every record deletes its key."""
    in_place: bool
    """Whether the records' bytes are the producer's."""
    sent: SentBatch | None = None
    """The producer and sequence of an idempotent producer's batch."""
    is_transactional: bool = False
    inner_base_offset: int | None = None
    """The first inner offset of a compressed set of magic 0."""
    work: Work = field(default_factory=Work)

    @property
    def body(self) -> bytes:
        """A copy of the bytes to store, unless they are bytes of their own."""
        return bytes(self.stored)

    @property
    def source_format(self) -> SourceFormat:
        """The prefix's ``source_format``."""
        return SOURCE_FORMATS[self.magic]


def deletes(record: Record, magic: int, stage: TombstoneStage) -> bool:
    """Whether a record of a set of this magic deletes its key."""
    if magic < 2:
        return record.value is None
    if record.attributes & TOMBSTONE_FLAG:
        return True
    return record.value is None and stage is TombstoneStage.FLAG_OR_NULL


def says_tombstone(headers: Headers, property_name: str) -> bool:
    """Whether a message with these properties is a tombstone; the last value counts."""
    name, found = property_name.encode(), None
    for each, value in headers:
        if each == name:
            found = value
    return found == TOMBSTONE_VALUE.encode()


def to_old(record: Record) -> Record:
    """Convert a record to magic 0 or 1: without headers; the flag makes the value null."""
    if not record.attributes and not record.headers:
        return record
    value = None if record.attributes & TOMBSTONE_FLAG else record.value
    return record._replace(value=value, headers=(), attributes=0)


def to_new(record: Record) -> Record:
    """Convert a record of magic 0 or 1 to magic 2. A null value sets the tombstone flag."""
    return record if record.value is not None else record._replace(attributes=TOMBSTONE_FLAG)
