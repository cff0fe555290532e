"""The columns a read can have, and how deep into an entry each must look.

The names are pulsar-spark's (``value``, ``__key`` ...) and ours after the same fashion
(``__index`` ...). Depth decides what a read costs:

========  ====================================================================================
LEDGER    record header and prefix: what the broker knows. Nothing of the producer's is touched
HEADER    the producer's message metadata too (PIP-70's headers), but not the payload
PAYLOAD   the payload is opened: decompressed, and a batch taken apart
========  ====================================================================================

Every message has one row, whatever columns are read; the ledger's message count decides how many
rows an entry has. A chunk of a large message counts as a message. The payload of an encrypted
entry is handed out as it is, in the row of its first message; the rows of the others of an
encrypted batch have no value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Depth(IntEnum):
    """How far into an entry one must look."""

    LEDGER = 0
    HEADER = 1
    PAYLOAD = 2


@dataclass(frozen=True, slots=True)
class Column:
    """One column: Spark's type in DDL, the depth it needs, whether a plain read has it."""

    name: str
    ddl: str
    depth: Depth
    default: bool
    meaning: str


_ALL = (
    Column("value", "binary", Depth.PAYLOAD, True, "payload; null for a null message"),
    Column("__key", "binary", Depth.PAYLOAD, True, "partition key, base64 undone"),
    Column("__topic", "string", Depth.LEDGER, True, "full topic name"),
    Column("__messageId", "binary", Depth.LEDGER, True, "serialized MessageIdData"),
    Column("__publishTime", "timestamp", Depth.HEADER, True, "by the producer's clock"),
    Column("__eventTime", "timestamp", Depth.PAYLOAD, True, "null where not set"),
    Column("__messageProperties", "map<string,string>", Depth.PAYLOAD, True, "properties"),
    Column("__index", "bigint", Depth.LEDGER, True, "the message's index (PIP-70)"),
    Column("__brokerPublishTime", "timestamp", Depth.LEDGER, True, "stamp; null without one"),
    Column("__ledgerId", "bigint", Depth.LEDGER, True, "position: ledger"),
    Column("__entryId", "bigint", Depth.LEDGER, True, "position: entry"),
    Column("__batchIndex", "int", Depth.LEDGER, True, "place in the entry; -1 if it is alone"),
    Column("__encrypted", "boolean", Depth.HEADER, False, "value is a producer's cipher text"),
    Column("__chunkUuid", "string", Depth.HEADER, False, "chunked message this is a part of"),
    Column("__chunkId", "int", Depth.HEADER, False, "number of this chunk, from 0"),
    Column("__chunkCount", "int", Depth.HEADER, False, "chunks of the chunked message"),
)

COLUMNS = {column.name: column for column in _ALL}
"""All columns by name, in the order that a plain read has them."""

DEFAULT_COLUMNS = tuple(column.name for column in _ALL if column.default)


def depth_of(names: Iterable[str]) -> Depth:
    """The depth that a read of these columns needs."""
    return max((COLUMNS[name].depth for name in names), default=Depth.LEDGER)


def ddl_of(names: Iterable[str]) -> str:
    """Spark's schema of these columns, as DDL."""
    return ", ".join(f"`{name}` {COLUMNS[name].ddl}" for name in names)


def differing_field(schema: StructType) -> str | None:
    """The first field of ``schema`` that is no column of ours or has another type."""
    for field in schema.fields:
        column = COLUMNS.get(field.name)
        if column is None or column.ddl != field.dataType.simpleString():
            return field.name
    return None
