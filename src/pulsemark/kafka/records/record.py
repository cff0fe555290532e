"""One record, whatever the magic it came in; the numbers that all magics share; and the errors.

========  =======================================  ==========================================
magic     one message is                           a compressed set is
========  =======================================  ==========================================
0         key, value                               one message, whose value is the set
1         the same with a time (KIP-32)            the same, its inner offsets relative (KIP-31)
2         the same with headers; part of a batch   the same batch, records compressed (KIP-98)
========  =======================================  ==========================================

Each error has the code that a Kafka client gets, as from Apache Kafka 3.9.2. But a codec number
from 5 to 7 and bytes that do not decompress are 87 here; Kafka answers -1, unknown. Programs read
`code`; the text is for people.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, NamedTuple, TypeAlias

Headers: TypeAlias = tuple[tuple[bytes, bytes | None], ...]
"""A record's headers in their order: name (UTF-8, as it came) and value."""

NO_TIME_MS = -1
"""The time of a record that has none: every record of magic 0."""

TOMBSTONE_FLAG = 0x20
"""Bit 5 of a RECORD's attributes: it deletes its key, whatever its value is (KIP-87)."""

LOG_APPEND_TIME = 0x08
"""Bit 3 of the attributes of a message (magic 1) or batch (magic 2): the time is the broker's."""

CODEC_MASK = 0x07
MAX_RECORDS = 2**20
"""The most records of a set; what an entry of a ledger can count."""


class Codec(IntEnum):
    """Kafka's numbers of the codecs, as in the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Record(NamedTuple):
    """One record."""

    offset: int
    """Absolute, or from the entry's first message on: the function that gives it says which."""
    time_ms: int
    """Milliseconds since the epoch by the producer, or the broker if the set says so; or -1."""
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    attributes: int = 0
    """The record's own attributes of magic 2: only `TOMBSTONE_FLAG` has a meaning."""

    @property
    def flagged(self) -> bool:
        """Whether its tombstone flag is set (KIP-87)."""
        return bool(self.attributes & TOMBSTONE_FLAG)


@dataclass(slots=True)
class Work:
    """What a call cost beyond looking at headers: the counters of the metrics page."""

    decompressions: int = 0
    compressions: int = 0
    """Zero wherever a set is stored or sent in place."""
    converted_records: int = 0
    """Records written again, because offsets, codec or magic could not stay."""


class RecordSetError(ValueError):
    """A record set cannot be stored, read or converted.

    Attributes:
        code: Kafka's error code.
        reason: what is wrong, with the offending value.
    """

    code: ClassVar[int] = -1

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CorruptRecordSetError(RecordSetError):
    """A checksum is wrong, or the bytes are not a message of any magic (CORRUPT_MESSAGE)."""

    code = 2


class RecordSetTooLargeError(RecordSetError):
    """Larger than the topic takes, as sent or decompressed (MESSAGE_TOO_LARGE)."""

    code = 10


class RecordTimeError(RecordSetError):
    """The producer set the bit that says the broker's time is given (INVALID_TIMESTAMP)."""

    code = 32


class FormatTooOldError(RecordSetError):
    """The topic's entry format cannot hold it (UNSUPPORTED_FOR_MESSAGE_FORMAT)."""

    code = 43


class CodecError(RecordSetError):
    """The codec cannot be used here (UNSUPPORTED_COMPRESSION_TYPE)."""

    code = 76


class InvalidRecordSetError(RecordSetError):
    """The record set breaks a rule (INVALID_RECORD)."""

    code = 87
