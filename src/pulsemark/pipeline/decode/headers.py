"""Producers' message headers (MessageMetadata), for a whole table of entries at once.

Layout and limits are those of :mod:`pulsemark.metadata.message`. If a header is bad here, that
module parses it again to find the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...metadata import (
    MESSAGE_METADATA_SIZE_MAX_BYTES,
    MessageFormatError,
    MessageMetadata,
    read_message_metadata,
)
from .entries import EntryTable
from .octets import Bools, Ints, items_at, once, once_if_alike, spread, u32_at
from .protoscan import ABSENT, Column, Want, scan

_MAGIC = bytes((0x0E, 0x01))
_MAGIC_NUMBER = int.from_bytes(_MAGIC, "big")
_CHECKSUM_BYTES = 6
"""The size of magic and CRC32C, which may stand before the metadata's size."""
_SIZE_BYTES = 4

PRODUCER_NAME = MessageMetadata.PRODUCER_NAME_FIELD_NUMBER
SEQUENCE_ID = MessageMetadata.SEQUENCE_ID_FIELD_NUMBER
PUBLISH_TIME = MessageMetadata.PUBLISH_TIME_FIELD_NUMBER
PROPERTIES = MessageMetadata.PROPERTIES_FIELD_NUMBER
PARTITION_KEY = MessageMetadata.PARTITION_KEY_FIELD_NUMBER
COMPRESSION = MessageMetadata.COMPRESSION_FIELD_NUMBER
UNCOMPRESSED_SIZE = MessageMetadata.UNCOMPRESSED_SIZE_FIELD_NUMBER
NUM_MESSAGES_IN_BATCH = MessageMetadata.NUM_MESSAGES_IN_BATCH_FIELD_NUMBER
EVENT_TIME = MessageMetadata.EVENT_TIME_FIELD_NUMBER
ENCRYPTION_KEYS = MessageMetadata.ENCRYPTION_KEYS_FIELD_NUMBER
PARTITION_KEY_B64_ENCODED = MessageMetadata.PARTITION_KEY_B64_ENCODED_FIELD_NUMBER
NULL_VALUE = MessageMetadata.NULL_VALUE_FIELD_NUMBER
SCHEMA_VERSION = MessageMetadata.SCHEMA_VERSION_FIELD_NUMBER
UUID = MessageMetadata.UUID_FIELD_NUMBER
NUM_CHUNKS_FROM_MSG = MessageMetadata.NUM_CHUNKS_FROM_MSG_FIELD_NUMBER
CHUNK_ID = MessageMetadata.CHUNK_ID_FIELD_NUMBER
NULL_PARTITION_KEY = MessageMetadata.NULL_PARTITION_KEY_FIELD_NUMBER

_REQUIRED = {PRODUCER_NAME: Want.SPAN, SEQUENCE_ID: Want.VARINT, PUBLISH_TIME: Want.VARINT}


@dataclass(slots=True)
class Headers:
    """The headers of a table's entries; offsets are in the table's ``data``."""

    table: EntryTable
    metadata_starts: Ints
    payload_starts: Ints
    columns: dict[int, Column]
    good: Bools
    """Entries whose header is well formed. The other values of a bad header mean nothing."""

    def value(self, number: int, default: int = 0) -> Ints:
        """A number of every header, ``default`` if it is not set."""
        values = once(self.columns[number].values)
        return spread(np.where(values == ABSENT, default, values), len(self.good))

    def has(self, number: int) -> Bools:
        """Whether each header has this field."""
        return spread(once(self.columns[number].values) != ABSENT, len(self.good))

    @property
    def is_encrypted(self) -> Bools:
        """Whether each payload is the producer's cipher text."""
        return spread(once(self.columns[ENCRYPTION_KEYS].values) > 0, len(self.good))

    def part(self, first: int, last: int) -> Headers:
        """The headers of a range of entries."""
        return Headers(
            self.table.select(slice(first, last)),
            self.metadata_starts[first:last],
            self.payload_starts[first:last],
            {number: column.part(first, last) for number, column in self.columns.items()},
            self.good[first:last],
        )

    def schema_versions(self) -> list[int | None]:
        """The version of the schema of each entry's values; None if its header names none."""
        spans, data = self.columns[SCHEMA_VERSION], self.table.data
        return [
            None if start == ABSENT else int.from_bytes(data[start:end], "big")
            for start, end in zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)
        ]

    def reason(self, row: int) -> str:
        """The reason why a header is bad."""
        start, end = int(self.table.body_starts[row]), int(self.table.ends[row])
        try:
            read_message_metadata(memoryview(self.table.data)[start:end])
        except MessageFormatError as error:
            return str(error)
        return "its message metadata holds fields that Pulsar's format does not have"


def read_headers(table: EntryTable, wanted: Mapping[int, Want]) -> Headers:
    """Find the ``wanted`` fields, by number, in the headers of all entries of a table."""
    octets, starts, ends = table.octets, table.body_starts, table.ends
    has_checksum = ends - starts >= len(_MAGIC)
    inside = starts if bool(has_checksum.all()) else np.minimum(starts, len(octets) - len(_MAGIC))
    if len(octets) >= len(_MAGIC):
        has_checksum &= items_at(octets, ">u2", inside) == _MAGIC_NUMBER
    size_at = starts + np.where(once_if_alike(has_checksum), _CHECKSUM_BYTES, 0)
    metadata_starts = size_at + _SIZE_BYTES
    good = metadata_starts <= ends
    if bool(good.all()):
        sizes = u32_at(octets, size_at, "big")
    else:
        sizes = np.zeros(len(table), np.int64)
        sizes[good] = u32_at(octets, size_at[good], "big")
    sizes = once_if_alike(sizes)
    payload_starts = metadata_starts + sizes
    good &= (payload_starts <= ends) & (sizes <= MESSAGE_METADATA_SIZE_MAX_BYTES)
    # The scan gets a bad header as an empty one, so it never reads wrong bytes.
    metadata_starts[~good] = payload_starts[~good] = starts[~good]
    columns, bad = scan(octets, metadata_starts, payload_starts, {**wanted, **_REQUIRED})
    good &= ~bad & (once(columns[PRODUCER_NAME].starts) != ABSENT)
    for number in (SEQUENCE_ID, PUBLISH_TIME):
        good &= once(columns[number].values) != ABSENT
    return Headers(table, metadata_starts, payload_starts, columns, good)
