"""Rows of a DataFrame as messages of Pulsar, and batches of messages as entries.

The columns have pulsar-spark's names, or the same without underscores:

    value                                 binary or string; null is a null message
    key, __key                            string or binary (binary is base64 in the message)
    properties, __messageProperties       map<string,string>
    eventTime, __eventTime                timestamp
    topic, __topic                        string: where the row goes, unless the option says it
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ...metadata import MessageMetadata, pack_message
from ...metadata.message import pack_batch_member
from ...proto.pulsar_api_pb2 import SingleMessageMetadata
from ..columns import COLUMNS
from ..errors import OptionError

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_TYPES = {
    "value": ("binary", "string"),
    "key": ("string", "binary"),
    "properties": ("map<string,string>",),
    "eventTime": ("timestamp",),
    "topic": ("string",),
}
_NAMES = {
    **{name: name for name in _TYPES},
    "__key": "key",
    "__messageProperties": "properties",
    "__eventTime": "eventTime",
    "__topic": "topic",
}
IGNORED = frozenset(COLUMNS) - frozenset(_NAMES)
"""Columns of our own source that say where a message was; a new message has its own."""


def places_of(schema: StructType, *, topic_needed: bool) -> dict[str, int]:
    """By the message's field: the number of the column.

    Raises:
        OptionError: a column is unknown, given twice, of another type, or missing.
    """
    places: dict[str, int] = {}
    for number, column in enumerate(schema.fields):
        if column.name in IGNORED:
            continue
        name = _NAMES.get(column.name)
        if name is None:
            raise OptionError("schema", column.name, f"the sink's columns are {', '.join(_NAMES)}")
        if name in places:
            raise OptionError("schema", column.name, f"another column is the {name} too")
        if column.dataType.simpleString() not in _TYPES[name]:
            raise OptionError("schema", column.name, f"must be {' or '.join(_TYPES[name])}")
        places[name] = number
    if "value" not in places:
        raise OptionError("schema", None, "the column value is missing")
    if topic_needed and "topic" not in places:
        raise OptionError("topic", None, "is required, or a column topic")
    return places


@dataclass(frozen=True, slots=True)
class Message:
    """One row."""

    topic: str | None
    value: bytes | None
    key: str | bytes | None
    properties: dict[str, str]
    event_time_ms: int | None


def messages_of(batch: RecordBatch, places: dict[str, int]) -> Iterator[Message]:
    """The rows of a batch."""
    columns = {name: batch.column(place).to_pylist() for name, place in places.items()}
    for row in range(batch.num_rows):
        fields: dict[str, Any] = {name: values[row] for name, values in columns.items()}
        value, moment = fields["value"], fields.get("eventTime")
        yield Message(
            fields.get("topic"),
            value.encode() if isinstance(value, str) else value,
            fields.get("key"),
            dict(fields.get("properties") or ()),
            None if moment is None else _ms(moment),
        )


def _ms(moment: datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int((aware - _EPOCH).total_seconds() * 1000)


@dataclass(slots=True)
class Batch:
    """The messages of the next entry."""

    first_sequence_id: int = 0
    count: int = 0
    parts: list[bytes] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, message: Message, sequence_id: int) -> None:
        """Put a message at the end; sequence ids count up by one."""
        if not self.count:
            self.first_sequence_id = sequence_id
        value = message.value
        single = SingleMessageMetadata(sequence_id=sequence_id)
        if value is None:
            single.null_value = True
        if isinstance(message.key, bytes):
            single.partition_key = base64.b64encode(message.key).decode()
            single.partition_key_b64_encoded = True
        elif message.key is not None:
            single.partition_key = message.key
        for name, text in message.properties.items():
            single.properties.add(key=name, value=text or "")
        if message.event_time_ms is not None and message.event_time_ms > 0:
            single.event_time = message.event_time_ms
        packed = pack_batch_member(single, value or b"")
        self.parts.append(packed)
        self.size_bytes += len(packed)
        self.count += 1

    def entry(
        self, producer_name: str, publish_time_ms: int, *, highest_sequence_id: int | None = None
    ) -> bytes:
        """The batch as a producer's bytes, with their checksum.

        ``highest_sequence_id`` is by default that of the last message.
        """
        if highest_sequence_id is None:
            highest_sequence_id = self.first_sequence_id + self.count - 1
        header = MessageMetadata(
            producer_name=producer_name,
            sequence_id=self.first_sequence_id,
            highest_sequence_id=highest_sequence_id,
            publish_time=publish_time_ms,
            num_messages_in_batch=self.count,
        )
        return pack_message(header, *self.parts)
