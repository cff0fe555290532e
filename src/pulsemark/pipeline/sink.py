"""The sink ``pulsar-ledger``: writes rows to a broker's topics, over Pulsar's protocol.

Each task publishes its rows and waits for all receipts. The columns have pulsar-spark's names, or
the same without underscores:

    value                                 binary or string; null is a null message
    key, __key                            string or binary (binary is base64 in the message)
    properties, __messageProperties       map<string,string>
    eventTime, __eventTime                timestamp
    topic, __topic                        string: where the row goes, unless the option says it

**Each row once.** A task's producer has the name ``<producerName>-<query>-<partition>``, and its
rows have the sequence ids ``(epoch << 32) + n``. So a broker that deduplicates the topic stores a
row once, also if a repeated task sends it again: after a task failed, and after a query was killed
and started again with its checkpoint. Each try must have the same rows in the same order. Spark
keeps that if the partitions of a micro-batch stay the same: with sources that can be replayed, and
after a shuffle only with a sort. A repeated task asks the broker how far the first one came, and
goes on there: rows may be batched differently. Without deduplication a repeated task's rows are
stored again.

A batch write is one epoch of a query with an id of its own, or with the option ``writeId`` as its
id: then a job that was killed can be repeated. It is not one transaction: if the job fails in the
end, the rows that were published stay.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ..client import RawProducer, Service, ServiceUrlError
from ..metadata import MessageMetadata, pack_message
from ..metadata.message import pack_batch_member
from ..proto.pulsar_api_pb2 import SingleMessageMetadata
from .columns import COLUMNS
from .errors import JobFailedError, OptionError
from .options import Given, full_topic_name, integer

if TYPE_CHECKING:
    from pyarrow import RecordBatch


EPOCH_SHIFT = 32
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass
class Published(WriterCommitMessage):
    """How many rows a task has published."""

    rows: int


class SinkWriter(DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._places = places_of(schema, topic_needed=options.topic is None)
        self._query = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[RecordBatch]) -> Published:
        """Publish the rows of one task. Raises the errors of `RawProducer`."""
        number = _context().partitionId()
        return publish(iterator, self._options, self._places, self._query, 0, number)


class StreamSinkWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._places = places_of(schema, topic_needed=options.topic is None)

    def write(self, iterator: Iterator[RecordBatch]) -> Published:
        """Publish the rows of one task. Raises the errors of `RawProducer`."""
        context = _context()
        query, epoch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        assert query is not None, "Spark names a task's query"
        assert epoch is not None, "Spark numbers a task's micro-batch"
        return publish(
            iterator, self._options, self._places, query, int(epoch), context.partitionId()
        )


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark calls this in a task"
    return context


def publish(
    batches: Iterator[RecordBatch],
    options: SinkOptions,
    places: dict[str, int],
    query: str,
    epoch: int,
    partition: int,
) -> Published:
    """Publish all rows; returns when the broker has acknowledged each of them."""
    name = f"{options.producer_name}-{query}-{partition}"
    topics: dict[str, _Topic] = {}
    rows = 0
    with Service(options.service_url) as service:
        for batch in batches:
            for row in rows_of(batch, places):
                topic = options.topic or _topic_of(row["topic"])
                into = topics.get(topic)
                if into is None:
                    into = topics[topic] = _Topic(service, topic, name, epoch, options)
                into.add(row)
                rows += 1
        for into in topics.values():
            into.finish()
    return Published(rows)


def _topic_of(name: str | None) -> str:
    if name is None:
        raise OptionError("topic", None, "a row's topic is null")
    try:
        return full_topic_name(name)
    except ValueError as error:
        raise OptionError("topic", name, str(error)) from error


class _Topic:
    """One task's producer of one topic, with the messages of the next entry."""

    def __init__(
        self, service: Service, topic: str, name: str, epoch: int, options: SinkOptions
    ) -> None:
        self._producer = RawProducer(service, topic, name=name, gathers=True)
        self._options = options
        self._next_sequence_id = epoch << EPOCH_SHIFT
        self._messages: list[bytes] = []
        self._size_bytes = 0

    def add(self, row: Row) -> None:
        # What an earlier try has stored is left out. An entry that begins with it and goes on with
        # new rows would be dropped as a whole: tries may divide their rows differently.
        if self._next_sequence_id > self._producer.last_sequence_id:
            message = message_of(row, self._next_sequence_id)
            if self._size_bytes + len(message) > self._options.batching_max_bytes:
                self._send()
            self._messages.append(message)
            self._size_bytes += len(message)
        self._next_sequence_id += 1
        if len(self._messages) >= self._options.batching_max_messages:
            self._send()

    def _send(self) -> None:
        count = len(self._messages)
        if not count:
            return
        first, last = self._next_sequence_id - count, self._next_sequence_id - 1
        header = MessageMetadata(
            producer_name=self._producer.name,
            sequence_id=first,
            highest_sequence_id=last,
            publish_time=int(time.time() * 1000),
            num_messages_in_batch=count,
        )
        self._producer.publish(
            pack_message(header, *self._messages),
            num_messages=count,
            sequence_id=first,
            highest_sequence_id=last,
        )
        self._messages, self._size_bytes = [], 0

    def finish(self) -> None:
        """Send the rest, and wait for all receipts."""
        self._send()
        self._producer.flush()
        self._producer.close()


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The target topics of rows, and other options."""

    service_url: str
    topic: str | None = None
    """The topic of all rows; None: the column ``topic`` names it."""
    producer_name: str = "spark"
    """The beginning of the producers' names."""
    batching_max_messages: int = 1_000
    """As in Pulsar's clients."""
    batching_max_bytes: int = 128 * 1024
    write_id: str | None = None
    """The name of a batch write; a repeated write of the same name stores each row once."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Read the options of ``df.write.format("pulsar-ledger")``.

        Raises OptionError: an option is unknown, missing or malformed.
        """
        # Spark adds these to a stream's options by itself.
        given = Given({k: v for k, v in options.items() if k.lower() not in _OF_SPARK})
        service_url = given.required("serviceUrl", _service_url)
        others = given.taken(
            topic=full_topic_name,
            producer_name=_name,
            batching_max_messages=integer(1, 1 << 18),
            batching_max_bytes=integer(1, 5 << 20),
            write_id=_name,
        )
        parsed = cls(service_url, **others)
        given.refuse_unknown()
        return parsed


_OF_SPARK = ("checkpointlocation", "path", "queryname")


def _service_url(text: str) -> str:
    try:
        Service(text)
    except ServiceUrlError as error:
        raise ValueError(str(error)) from error
    return text


def _name(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return text


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

    Raises OptionError: a column is unknown, given twice, of another type, or missing.
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


Row = dict[str, Any]
"""A row's values by the message's field."""


def rows_of(batch: RecordBatch, places: dict[str, int]) -> Iterator[Row]:
    """The rows of a batch."""
    columns = [_values(batch, name, place) for name, place in places.items()]
    for values in zip(*columns, strict=True):
        yield dict(zip(places, values, strict=True))


def _values(batch: RecordBatch, name: str, place: int) -> list[Any]:
    """A column's values. Raises JobFailedError for text that is not UTF-8, which Spark allows."""
    import pyarrow as pa

    column = batch.column(place)
    if name == "value":
        return list(column.cast(pa.binary()).to_pylist())
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError as error:
        said = f"column {batch.schema.names[place]} has text that is not UTF-8: {error.object!r}"
        raise JobFailedError(f"{said}; a key may be binary") from error


def message_of(row: Row, sequence_id: int) -> bytes:
    """A row as a message of a batch."""
    value, key, moment = row["value"], row.get("key"), row.get("eventTime")
    single = SingleMessageMetadata(sequence_id=sequence_id)
    if value is None:
        single.null_value = True
    if isinstance(key, bytes):
        single.partition_key = base64.b64encode(key).decode()
        single.partition_key_b64_encoded = True
    elif key is not None:
        single.partition_key = key
    for name, text in dict(row.get("properties") or ()).items():
        single.properties.add(key=name, value=text or "")
    time_ms = 0 if moment is None else _ms(moment)
    if time_ms > 0:
        single.event_time = time_ms
    return pack_batch_member(single, value or b"")


def _ms(moment: datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int((aware - _EPOCH).total_seconds() * 1000)
