"""What a topic asks of the sets that are produced to it, and what the check of a set finds out."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...metadata import Buffer
from ...proto.broker_entry_pb2 import SourceFormat
from .record import Work
from .tombstones import TombstoneStage

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
_MAGICS: dict[int, int] = {number: magic for magic, number in enumerate(SOURCE_FORMATS)}


def magic_of(source_format: int) -> int | None:
    """The magic in which an entry is stored; None: it is no record set but Pulsar's."""
    return _MAGICS.get(source_format)


@dataclass(frozen=True, slots=True)
class EntryRules:
    """A topic's entry format, and the limits that go with it."""

    magic: int = 2
    """message.format.version: in which magic sets are stored."""
    compacted: bool = False
    """Whether every record must have a key."""
    tombstone_stage: TombstoneStage = TombstoneStage.FLAG_OR_NULL
    log_append_time: bool = False
    """message.timestamp.type: whether consumers see the broker's time (`fetch`)."""
    max_batch_bytes: int = MAX_BATCH_BYTES
    """max.message.bytes: of a batch, or of each message of magic 0 and 1; as sent and as stored."""
    max_raw_bytes: int = MAX_RAW_BYTES
    """Of a compressed set, decompressed."""

    def __post_init__(self) -> None:
        if self.magic not in (0, 1, 2):
            raise ValueError(f"no entry format has the magic {self.magic}")


@dataclass(frozen=True, slots=True)
class ProducerState:
    """Which batch of which idempotent producer it is (KIP-98)."""

    producer_id: int
    epoch: int
    base_sequence: int


@dataclass(frozen=True, slots=True)
class Produced:
    """A set that passed the check."""

    stored: Buffer
    """The bytes to store; ``relative_offset_honoured`` holds for them."""
    magic: int
    """Of the body: the topic's."""
    message_count: int
    max_time_ms: int
    """The latest time of a record, by its producer; -1: none has one."""
    has_keys: bool
    """Whether at least one record has a key."""
    raw_size_bytes: int
    """Of the records, decompressed, as sent."""
    tombstone: bool
    """Whether every record deletes its key."""
    in_place: bool
    """Whether the records' bytes are the producer's."""
    producer: ProducerState | None = None
    work: Work = field(default_factory=Work)

    @property
    def body(self) -> bytes:
        """A copy of the bytes to store, unless they are bytes of their own."""
        return bytes(self.stored)

    @property
    def source_format(self) -> SourceFormat:
        """The prefix's ``source_format``."""
        return SOURCE_FORMATS[self.magic]
