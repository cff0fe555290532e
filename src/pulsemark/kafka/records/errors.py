"""The errors in record sets, each with the error code that a Kafka client gets.

    RecordSetError                   base; a ValueError
      CorruptRecordSetError     2    a checksum is wrong, or it is no message at all
      RecordSetTooLargeError   10    a batch, its raw size or its count is above the limit
      RecordTimeError          32    the producer claims to state the broker's time
      FormatTooOldError        43    the topic's entry format cannot hold it
      TransactionError         53    a transactional batch
      CodecError               76    a codec that this version of the request must not use, or
                                     whose library is not installed
      InvalidRecordSetError    87    well-formed bytes that break a rule of record sets

The codes are those of Apache Kafka 3.9.2, except that a codec number from 5 to 7 and bytes that do
not decompress are 87 here; Kafka answers -1, unknown. Programs read `code`; the text is for people.
"""

from __future__ import annotations

from typing import ClassVar


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


class TransactionError(RecordSetError):
    """A transactional batch: there are no transactions (TRANSACTIONAL_ID_AUTHORIZATION_FAILED)."""

    code = 53


class CodecError(RecordSetError):
    """The codec cannot be used here (UNSUPPORTED_COMPRESSION_TYPE)."""

    code = 76


class InvalidRecordSetError(RecordSetError):
    """The record set breaks a rule (INVALID_RECORD)."""

    code = 87
