"""The columns that a read can have, and how much of an entry each of them needs.

The names are pulsar-spark's (``value``, ``__key`` ...) and our own in the same style
(``__index`` ...). The depth decides how much a read costs:

========  ====================================================================================
LEDGER    record header and prefix, which the broker wrote. The producer's bytes are not read
HEADER    also the producer's message metadata (PIP-70's headers), but not the payload
PAYLOAD   also the payload: it is decompressed, and a batch is split into its messages
========  ====================================================================================

Every message has one row, whatever columns are read. The ledger's message count is the number of an
entry's rows. A chunk of a large message counts as a message. The payload of an encrypted entry is
returned unchanged, in the row of its first message. The other rows of an encrypted batch have no
value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType


class Depth(IntEnum):
    """How much of an entry must be read."""

    LEDGER = 0
    HEADER = 1
    PAYLOAD = 2


@dataclass(frozen=True, slots=True)
class Column:
    """One column: Spark's type in DDL, the depth it needs, whether it is read by default."""

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
    Column("__producerName", "string", Depth.HEADER, False, "as the producer gave it"),
    Column("__sequenceId", "bigint", Depth.HEADER, False, "the producer's number of the entry"),
    Column("__tags", "map<string,string>", Depth.LEDGER, False, "the stamp's tags, by name"),
    Column("__schemaId", "int", Depth.PAYLOAD, False, "a schema registry's id, before the value"),
    Column("__error", "string", Depth.PAYLOAD, False, "why the row has no value; null if it has"),
)
COLUMNS = {column.name: column for column in _ALL}
"""All columns by name, in their order in a default read."""

VALUE_BYTES = "__value"
VALUE_ERROR = "__valueError"
"""What an offload reads beside decoded values: their bytes, and why they could not be decoded."""
_OF_OFFLOADS = (
    Column(VALUE_BYTES, "binary", Depth.PAYLOAD, False, "payload, where `value` is decoded"),
    Column(VALUE_ERROR, "string", Depth.PAYLOAD, False, "why a value could not be decoded"),
)
_KNOWN = {column.name: column for column in (*_ALL, *_OF_OFFLOADS)}

DEFAULT_COLUMNS = tuple(column.name for column in _ALL if column.default)
ERROR_COLUMN = "__error"


def depth_of(names: Iterable[str]) -> Depth:
    """The depth that a read of these columns needs."""
    return max((_KNOWN[name].depth for name in names), default=Depth.LEDGER)


def arrow_schema_of(names: Iterable[str]) -> pa.Schema:
    """The Arrow schema of these columns, as Spark would ask for it."""
    import pyarrow as pa

    types = {
        "binary": pa.binary(),
        "string": pa.string(),
        "timestamp": pa.timestamp("us", "UTC"),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "boolean": pa.bool_(),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    return pa.schema([pa.field(name, types[_KNOWN[name].ddl]) for name in names])


def differing_field(schema: StructType, value_type: DataType | None = None) -> str | None:
    """The first field of ``schema`` that is not a column of this source, or has another type.

    ``value_type`` is the type of decoded values; None: they are not decoded.
    """
    for field in schema.fields:
        column = COLUMNS.get(field.name)
        if column is None:
            return field.name
        if field.name == "value" and value_type is not None:
            if field.dataType.simpleString() != value_type.simpleString():
                return field.name
        elif column.ddl != field.dataType.simpleString():
            return field.name
    return None
