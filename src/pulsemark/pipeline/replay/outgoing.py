"""The entries of a range as they are published: untouched, or mapped by a user's function.

Untouched, an entry's bytes are the producer's: batch, compression, encryption, properties and
checksum stay. Mapped, the messages that the function makes out of one entry's messages are one
entry again, and none if there are none. So in both cases an entry of the source is the step by
which a replay goes on, and its indexes are the sequence ids of what is published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from ...ledger import TopicLog
from ..columns import arrow_schema_of
from ..decode.batches import BatchForm, record_batches
from ..decode.entries import EntryTable
from ..errors import DecodeError, ReplayError
from ..options import EntryLimits
from ..plan import Slice
from ..sink import Batch, Message
from ..tasks import Continuity, tables_of
from .options import ReplayFunction, ReplayMessage

_COLUMNS = (
    *("value", "__key", "__messageProperties", "__eventTime", "__publishTime"),
    *("__brokerPublishTime", "__index", "__ledgerId", "__entryId", "__encrypted", "__chunkUuid"),
)
_RECORD_SET = bytes(4)
"""How a record set of Kafka's clients begins; no Pulsar message does."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An entry of the source, and what is published of it."""

    first_index: int
    last_index: int
    message_count: int
    """0: a function has left all of its messages out."""
    body: bytes


def _tables(log: TopicLog, part: Slice, *, fail_on_data_loss: bool) -> Iterator[EntryTable]:
    """The range's entries with messages. Raises DataLossError if some are missing."""
    continuity = Continuity(part, fail=fail_on_data_loss)
    for table in tables_of(log, part, bodies=True, on_damage=continuity.damaged):
        continuity.check(table)
        yield table.with_messages()
    continuity.finish()


def untouched_entries(
    log: TopicLog, part: Slice, *, fail_on_data_loss: bool = True
) -> Iterator[Outgoing]:
    """The entries as their producers made them.

    Raises:
        DataLossError: entries are missing (see ``fail_on_data_loss``).
        ReplayError: an entry is a record set of a Kafka client, which is not a message of Pulsar.
    """
    for table in _tables(log, part, fail_on_data_loss=fail_on_data_loss):
        spans = zip(table.body_starts.tolist(), table.ends.tolist(), strict=True)
        indexes = zip(table.first_indexes.tolist(), table.indexes.tolist(), strict=True)
        for (start, end), (first, last) in zip(spans, indexes, strict=True):
            body = bytes(table.data[start:end])
            if body[:4] == _RECORD_SET:
                reason = (
                    f"message {first} was written by a Kafka client; use a function, which gets"
                    " its records as messages"
                )
                raise ReplayError(part.topic, reason)
            yield Outgoing(first, last, last - first + 1, body)


def mapped_entries(
    log: TopicLog,
    part: Slice,
    function: ReplayFunction,
    limits: EntryLimits,
    *,
    producer_name: str,
    fail_on_data_loss: bool = True,
) -> Iterator[Outgoing]:
    """The entries that the function makes out of the range's messages.

    Raises:
        DataLossError: entries are missing (see ``fail_on_data_loss``).
        DecodeError: an entry cannot be opened.
        ReplayError: the function fails, or an entry is encrypted or a part of a larger message.
    """
    schema = arrow_schema_of(_COLUMNS)
    form = BatchForm(part.topic, schema, part.first_index, part.end_index, limits)

    def on_bad_entry(table: EntryTable, row: int, reason: str) -> None:
        raise DecodeError(part.topic, table.position(row), reason)

    for table in _tables(log, part, fail_on_data_loss=fail_on_data_loss):
        bounds = _bounds(table)
        rows = _rows(record_batches(table, form, on_bad_entry))
        for position, group in groupby(rows, lambda row: (row["__ledgerId"], row["__entryId"])):
            messages = [made for row in group for made in _mapped(part.topic, row, function)]
            first, last = bounds[position]
            yield _entry(first, last, messages, producer_name)


def _bounds(table: EntryTable) -> dict[tuple[int, int], tuple[int, int]]:
    """The first and the last index of each entry."""
    places = zip(table.ledger_ids.tolist(), table.entry_ids.tolist(), strict=True)
    indexes = zip(table.first_indexes.tolist(), table.indexes.tolist(), strict=True)
    return dict(zip(places, indexes, strict=True))


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        columns = [
            _milliseconds(batch.column(place)) if pa.types.is_timestamp(field.type) else
            batch.column(place).to_pylist()
            for place, field in enumerate(batch.schema)
        ]  # fmt: skip
        names = batch.schema.names
        for values in zip(*columns, strict=True):
            yield dict(zip(names, values, strict=True))


def _milliseconds(column: pa.Array) -> list[int | None]:
    return [None if us is None else us // 1000 for us in column.cast(pa.int64()).to_pylist()]


def _mapped(topic: str, row: dict[str, Any], function: ReplayFunction) -> list[ReplayMessage]:
    index = row["__index"]
    if row["__encrypted"]:
        raise ReplayError(topic, f"message {index} is encrypted; a function cannot read it")
    if row["__chunkUuid"]:
        raise ReplayError(topic, f"message {index} is a chunk; a function cannot join chunks")
    message = ReplayMessage(
        topic,
        index,
        row["value"],
        row["__key"],
        dict(row["__messageProperties"] or ()),
        row["__eventTime"],
        row["__publishTime"] or 0,
        row["__brokerPublishTime"],
    )
    try:
        made = function(message)
        listed = [] if made is None else [made] if isinstance(made, ReplayMessage) else list(made)
    except Exception as error:  # the user's function may raise anything
        reason = f"the function failed at message {index}: {type(error).__name__}: {error}"
        raise ReplayError(topic, reason) from error
    for each in listed:
        _check(topic, index, each)
    return listed


def _check(topic: str, index: int, made: object) -> None:
    """Raise ReplayError for what the function must not return."""
    reason = None
    if not isinstance(made, ReplayMessage):
        reason = f"returned a {type(made).__name__}, not a ReplayMessage"
    elif not isinstance(made.value, bytes | None):
        reason = f"returned a value of type {type(made.value).__name__}, not bytes or None"
    elif not isinstance(made.key, bytes | str | None):
        reason = f"returned a key of type {type(made.key).__name__}, not bytes or None"
    elif not all(isinstance(text, str) for pair in made.properties.items() for text in pair):
        reason = "returned properties that are not text"
    if reason is not None:
        raise ReplayError(topic, f"the function {reason}, at message {index}")


def _entry(first: int, last: int, messages: list[ReplayMessage], producer_name: str) -> Outgoing:
    if not messages:
        return Outgoing(first, last, 0, b"")
    batch = Batch()
    for place, made in enumerate(messages):
        key: bytes | str | None = made.key
        if isinstance(key, bytes):
            with suppress(UnicodeDecodeError):  # else as base64, as Pulsar's clients do with bytes
                key = key.decode()
        message = Message(None, made.value, key, dict(made.properties), made.event_time_ms)
        batch.add(message, first + place)
    publish_time_ms = messages[0].publish_time_ms
    body = batch.entry(producer_name, publish_time_ms, highest_sequence_id=last)
    return Outgoing(first, last, len(messages), body)
