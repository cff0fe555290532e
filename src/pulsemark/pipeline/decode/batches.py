"""Arrow record batches from entries: the last step before Spark.

One batch holds up to 64 k rows and some 16 MiB of values. An entry has one row for each message
that the broker counted. So the number of rows does not depend on the selected columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..columns import VALUE_BYTES, VALUE_ERROR, Depth, depth_of
from ..errors import DecodeError
from ..options import EntryLimits
from . import headers as message
from .entries import EntryTable
from .gather import (
    gather,
    maps,
    message_ids,
    registry_ids,
    small_integers,
    tag_maps,
    text,
    timestamps,
    without_base64,
)
from .headers import Headers, read_headers
from .messages import HEADER_FIELDS, Messages, open_messages
from .octets import Bools, Ints, once, spread
from .payloads import with_messages_of_sets
from .protoscan import Want

BATCH_ROWS = 65_536
BATCH_BYTES = 16 << 20

_OUTER_FIELDS = {
    message.ENCRYPTION_KEYS: Want.COUNT,
    message.UUID: Want.SPAN,
    message.NUM_CHUNKS_FROM_MSG: Want.VARINT,
    message.CHUNK_ID: Want.VARINT,
    message.SCHEMA_VERSION: Want.SPAN,
}
_IN_METADATA = frozenset({"__key", "__eventTime", "__messageProperties"})

Reasons = dict[int, str]
"""By row: why its value cannot be decoded."""


class Decoder(Protocol):
    """Decodes values by a topic's schema (`..values`)."""

    def decode(self, values: pa.Array, versions: Sequence[int | None]) -> tuple[pa.Array, Reasons]:
        """The values of these rows; null ones stay null."""


OnBadEntry = Callable[[EntryTable, int, str], None]
_Value = TypeVar("_Value", bound=np.generic)


@dataclass(frozen=True, slots=True)
class BatchForm:
    """The schema and limits of all batches of a read."""

    topic: str
    schema: pa.Schema
    """Spark's own schema: names, types and nullability."""
    first_index: int
    """Messages before this index are left out,"""
    end_index: int
    """and messages from this index on too."""
    limits: EntryLimits
    open_all: bool = False
    """Decode every payload, whatever columns are read. This is set if entries that cannot be
    decoded are left out, or are rows of their own: otherwise the number of rows would depend on the
    columns."""
    decoder: Decoder | None = None
    """Decodes values by the topic's schema; None: they stay bytes."""
    without_holes: bool = False
    """Leave out the messages that compaction has removed from batches; ``open_all`` is set, too."""
    fail_fast: bool = True
    """Whether a value that cannot be decoded by the schema is an error; else it is null."""


@dataclass(slots=True)
class _Rows:
    """The rows of one batch; ``entry_rows`` is each row's entry in the table."""

    form: BatchForm
    table: EntryTable
    entry_rows: Ints | None
    """None: the table's entries have one row each."""
    places: Ints
    """Its place in that entry, from 0."""
    headers: Headers | None = None
    messages: Messages | None = None
    first_message: int = 0
    """The number, in ``messages``, of the first row; the others follow it."""
    decoded: tuple[pa.Array, Reasons] | None = None
    """The decoded values, once they are asked for."""

    def __len__(self) -> int:
        return len(self.places)

    def entry_of(self, row: int) -> int:
        """A row's entry."""
        return row if self.entry_rows is None else int(self.entry_rows[row])

    def of_entries(self, values: NDArray[_Value]) -> NDArray[_Value]:
        """For each row the value of its entry."""
        return values if self.entry_rows is None else values[self.entry_rows]

    def taken(self, values: pa.Array) -> pa.Array:
        """For each row the value of its entry, from an Arrow array."""
        return values if self.entry_rows is None else values.take(pa.array(self.entry_rows))


def record_batches(
    table: EntryTable, form: BatchForm, on_bad_entry: OnBadEntry
) -> Iterator[pa.RecordBatch]:
    """The messages of the entries in ``table`` as record batches.

    Args:
        table: entries in order; with bodies if a column needs them.
        form: columns, range and limits.
        on_bad_entry: called with (table, row, reason) for each entry that cannot be decoded. It may
            raise; if it does not, the entry is left out.
    """
    seen = table.with_messages()
    inside = (seen.first_indexes < form.end_index) & (seen.indexes >= form.first_index)
    limit = form.limits.max_messages_per_entry
    for row in np.flatnonzero(inside & (once(seen.counts) > limit)).tolist():
        inside[row] = False
        on_bad_entry(seen, row, f"it states {seen.counts[row]} messages; the limit is {limit}")
    table = seen if bool(inside.all()) else seen.select(inside)
    for rows in _all_rows(table, form, on_bad_entry):
        if form.decoder is not None and form.fail_fast and "value" in form.schema.names:
            for row, reason in _decoded(rows)[1].items():
                position = rows.table.position(rows.entry_of(row))
                raise DecodeError(form.topic, position, f"its value: {reason}")
        columns = [_BUILDERS[name](rows) for name in form.schema.names]
        batch = pa.RecordBatch.from_arrays(columns, schema=form.schema)
        if form.without_holes and rows.messages is not None and len(rows.messages.holes):
            numbers = np.arange(rows.first_message, rows.first_message + len(rows))
            batch = batch.filter(pa.array(~np.isin(numbers, rows.messages.holes)))
        yield batch


def _all_rows(table: EntryTable, form: BatchForm, on_bad_entry: OnBadEntry) -> Iterator[_Rows]:
    depth = Depth.PAYLOAD if form.open_all else depth_of(form.schema.names)
    if depth is Depth.LEDGER or not len(table):
        yield from _windows(table, form)
        return
    table = with_messages_of_sets(table, form.limits.max_uncompressed_bytes, on_bad_entry)
    wanted = _OUTER_FIELDS if depth is Depth.HEADER else _OUTER_FIELDS | HEADER_FIELDS
    headers = read_headers(table, wanted)
    for row in np.flatnonzero(~headers.good).tolist():
        on_bad_entry(table, row, headers.reason(row))
    if depth is Depth.HEADER:
        yield from _windows(table, form, headers)
        return
    for part in _parts(headers):
        yield from _opened(part, form, on_bad_entry)


def _windows(table: EntryTable, form: BatchForm, headers: Headers | None = None) -> Iterator[_Rows]:
    """Rows of entries whose payload is not decoded, in parts of at most one batch.

    The producer states the message count, so it must not decide how much memory is used.
    """
    if table.one_each and (headers is None or bool(headers.good.all())):
        for first in range(0, len(table), BATCH_ROWS):
            last = min(first + BATCH_ROWS, len(table))
            part = headers.part(first, last) if headers is not None else None
            yield _Rows(form, table.select(slice(first, last)), None, _none(last - first), part)
        return
    firsts = np.maximum(form.first_index - table.first_indexes, 0)
    counts = np.minimum(form.end_index - table.first_indexes, table.counts) - firsts
    if headers is not None:
        counts[~headers.good] = 0
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, BATCH_ROWS):
        rows = np.arange(start, min(start + BATCH_ROWS, total))
        entry_rows = np.searchsorted(ends, rows, "right")
        places = rows - (ends - counts - firsts)[entry_rows]
        first, last = int(entry_rows[0]), int(entry_rows[-1]) + 1
        yield _Rows(
            form,
            table.select(slice(first, last)),
            entry_rows - first,
            places,
            headers.part(first, last) if headers is not None else None,
        )


def _none(count: int) -> Ints:
    return spread(np.zeros(1, np.int64), count)


def _parts(headers: Headers) -> Iterator[Headers]:
    """Cut entries into groups of about the same size that give one batch each after decoding."""
    packed = once(headers.value(message.UNCOMPRESSED_SIZE))
    packed = packed * (once(headers.value(message.COMPRESSION)) != 0)
    sizes = np.maximum(packed, once(headers.table.sizes))
    shares = sizes / BATCH_BYTES + once(headers.table.counts) / BATCH_ROWS
    shares = spread(shares, len(headers.good))
    total = float(shares.sum())
    if total <= 1:
        yield headers
        return
    # Groups of about the same size: splitting batches is fastest for many at once.
    groups = np.floor((np.cumsum(shares) - shares) * (math.ceil(total) / max(total, 1e-9)))
    cuts = (np.flatnonzero(np.diff(groups)) + 1).tolist()
    for first, last in zip([0, *cuts], [*cuts, len(groups)], strict=True):
        yield headers.part(first, last)


def _opened(headers: Headers, form: BatchForm, on_bad_entry: OnBadEntry) -> Iterator[_Rows]:
    """Rows of entries that are decoded."""
    table = headers.table
    messages = open_messages(
        headers,
        max_bytes=form.limits.max_uncompressed_bytes,
        max_properties=form.limits.max_properties_per_entry,
        values_only=not form.open_all and _IN_METADATA.isdisjoint(form.schema.names),
        on_bad_entry=lambda row, reason: on_bad_entry(table, row, reason),
    )
    indexes = table.first_indexes
    if not messages.one_each:
        indexes = indexes[messages.entry_rows] + messages.places
    # Indexes rise with the rows, so the rows inside the range are next to each other.
    first, end = np.searchsorted(indexes, [form.first_index, form.end_index]).tolist()
    for start in range(first, end, BATCH_ROWS):
        window = slice(start, min(start + BATCH_ROWS, end))
        each = messages.one_each and window == slice(0, len(table))
        entry_rows = None if each else messages.entry_rows[window]
        yield _Rows(form, table, entry_rows, messages.places[window], headers, messages, start)


# The columns. Each builder gets rows that were read to the depth that its column needs.


def _value(rows: _Rows) -> pa.Array:
    if rows.form.decoder is None:
        return _bytes_of_values(rows)
    return _decoded(rows)[0]


def _bytes_of_values(rows: _Rows) -> pa.Array:
    messages, window = _messages(rows)
    return gather(messages.arena, messages.value_starts[window], messages.value_ends[window])


def _decoded(rows: _Rows) -> tuple[pa.Array, Reasons]:
    """Decode the values by the topic's schema. Return them and the reasons of nulls."""
    if rows.decoded is None:
        assert rows.form.decoder is not None, "values are decoded"
        headers, values, sealed = _headers(rows), _bytes_of_values(rows), {}
        whole = ~headers.is_encrypted & (headers.value(message.NUM_CHUNKS_FROM_MSG, 1) <= 1)
        whole = rows.of_entries(whole)
        if not bool(whole.all()):
            valid: Bools = values.is_valid().to_numpy(zero_copy_only=False)
            hidden = np.flatnonzero(~whole & valid)
            sealed = dict.fromkeys(hidden.tolist(), "the value is encrypted, or a chunk of one")
            at = np.where(whole, np.arange(len(values)), -1)
            values = values.take(pa.array(at, mask=at < 0))
        versions = headers.schema_versions()
        found, reasons = rows.form.decoder.decode(
            values, [versions[rows.entry_of(row)] for row in range(len(rows))]
        )
        rows.decoded = found, sealed | reasons
    return rows.decoded


def _error(rows: _Rows) -> pa.Array:
    count = len(rows)
    if rows.form.decoder is None or not _decoded(rows)[1]:
        return pa.nulls(count, pa.string())
    reasons = _decoded(rows)[1]
    return pa.array([reasons.get(row) for row in range(count)], pa.string())


def _key(rows: _Rows) -> pa.Array:
    messages, window = _messages(rows)
    keys = gather(messages.arena, messages.key_starts[window], messages.key_ends[window])
    return without_base64(keys, messages.key_is_base64[window])


def _event_time(rows: _Rows) -> pa.Array:
    messages, window = _messages(rows)
    times = messages.event_times_ms[window]
    # Producers write 0 if a message has no event time.
    return timestamps(np.where(times == 0, -1, times))


def _properties(rows: _Rows) -> pa.Array:
    messages, window = _messages(rows)
    every = messages.properties
    part = slice(*np.searchsorted(every.message_rows, [window.start, window.stop]))
    return maps(
        every.message_rows[part] - window.start,
        gather(messages.arena, every.key_starts[part], every.key_ends[part]),
        gather(messages.arena, every.value_starts[part], every.value_ends[part]),
        len(rows),
        rows.form.schema.field("__messageProperties").type,
    )


def _tags(rows: _Rows) -> pa.Array:
    return rows.taken(tag_maps(rows.table, rows.form.schema.field("__tags").type))


def _index(rows: _Rows) -> pa.Array:
    firsts = rows.of_entries(rows.table.first_indexes)
    return pa.array(firsts if rows.table.one_each else firsts + rows.places)


def _message_id(rows: _Rows) -> pa.Array:
    table = rows.table
    return message_ids(
        rows.form.topic,
        rows.of_entries(table.ledger_ids),
        rows.of_entries(table.entry_ids),
        rows.of_entries(table.counts),
        rows.places,
    )


def _batch_index(rows: _Rows) -> pa.Array:
    alone = rows.of_entries(rows.table.counts) == 1
    return pa.array(np.where(alone, -1, rows.places).astype(np.int32))


def _text_of_header(number: int, rows: _Rows) -> pa.Array:
    spans = _headers(rows).columns[number]
    by_entry = gather(rows.table.data, spans.starts, spans.ends)
    return rows.taken(text(by_entry))


def _of_header(number: int, rows: _Rows) -> Ints:
    return rows.of_entries(_headers(rows).columns[number].values)


def _headers(rows: _Rows) -> Headers:
    assert rows.headers is not None, "the column's depth asks for headers"
    return rows.headers


def _messages(rows: _Rows) -> tuple[Messages, slice]:
    assert rows.messages is not None, "the column's depth asks for payloads"
    return rows.messages, slice(rows.first_message, rows.first_message + len(rows))


_BUILDERS: dict[str, Callable[[_Rows], pa.Array]] = {
    "value": _value,
    "__key": _key,
    "__topic": lambda rows: pa.repeat(rows.form.topic, len(rows)),
    "__messageId": _message_id,
    "__publishTime": lambda rows: timestamps(_of_header(message.PUBLISH_TIME, rows)),
    "__eventTime": _event_time,
    "__messageProperties": _properties,
    "__index": _index,
    "__brokerPublishTime": lambda rows: timestamps(rows.of_entries(rows.table.broker_times_ms())),
    "__ledgerId": lambda rows: pa.array(rows.of_entries(rows.table.ledger_ids)),
    "__entryId": lambda rows: pa.array(rows.of_entries(rows.table.entry_ids)),
    "__batchIndex": _batch_index,
    "__encrypted": lambda rows: pa.array(rows.of_entries(_headers(rows).is_encrypted)),
    "__chunkUuid": lambda rows: _text_of_header(message.UUID, rows),
    "__chunkId": lambda rows: small_integers(_of_header(message.CHUNK_ID, rows)),
    "__chunkCount": lambda rows: small_integers(_of_header(message.NUM_CHUNKS_FROM_MSG, rows)),
    "__producerName": lambda rows: _text_of_header(message.PRODUCER_NAME, rows),
    "__sequenceId": lambda rows: pa.array(_of_header(message.SEQUENCE_ID, rows)),
    "__tags": _tags,
    "__schemaId": lambda rows: small_integers(registry_ids(_bytes_of_values(rows))[0]),
    VALUE_BYTES: _bytes_of_values,
    VALUE_ERROR: _error,
    "__error": _error,
}
