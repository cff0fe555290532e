"""Record batches of whole entries: one row for each, nothing decompressed or split.

An entry is in a range if its last message is, so an entry that reaches over a range's end is in one
of two neighbouring ranges only. Columns of the producer's header are null if the header is
malformed, and for record sets of Kafka's clients, which have no such header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from ...proto.pulsar_api_pb2 import CompressionType
from ..columns import ENTRY_COLUMNS, Depth, depth_of
from . import headers as message
from .batches import BatchForm
from .entries import EntryTable
from .gather import gather, message_ids, small_integers, tag_maps, text, timestamps
from .headers import Headers, read_headers
from .octets import Ints
from .protoscan import ABSENT, Want

_HEADER_FIELDS = {message.ENCRYPTION_KEYS: Want.COUNT, message.COMPRESSION: Want.VARINT}
_OF_HEADERS = frozenset(
    {"__publishTime", "__encrypted", "__compression", "__producerName", "__sequenceId"}
)


def entry_batches(table: EntryTable, form: BatchForm) -> Iterator[pa.RecordBatch]:
    """The entries in ``table`` whose last message is in the form's range; at most one batch."""
    seen = table.with_messages()
    inside = (seen.indexes >= form.first_index) & (seen.indexes < form.end_index)
    table = seen if bool(inside.all()) else seen.select(inside)
    if not len(table):
        return
    names = form.schema.names
    headers = read_headers(table, _HEADER_FIELDS) if not _OF_HEADERS.isdisjoint(names) else None
    columns = [
        _OF_HEADER[name](headers)
        if headers is not None and name in _OF_HEADER
        else _OF_LEDGER[name](table, form)
        for name in names
    ]
    yield pa.RecordBatch.from_arrays(columns, schema=form.schema)


def needs_bodies(schema: pa.Schema) -> bool:
    """Whether a read of these columns needs the producers' bytes."""
    return depth_of(schema.names, ENTRY_COLUMNS) > Depth.LEDGER


def _ids(table: EntryTable, form: BatchForm) -> pa.Array:
    alone = np.ones(len(table), np.int64)
    return message_ids(form.topic, table.ledger_ids, table.entry_ids, alone, alone)


def _prefix(table: EntryTable, _: BatchForm) -> pa.Array:
    has = table.prefix_sizes > 0
    starts = np.where(has, table.starts, ABSENT)
    return gather(table.data, starts, np.where(has, table.body_starts, ABSENT))


def _tags(table: EntryTable, form: BatchForm) -> pa.Array:
    return tag_maps(table, form.schema.field("__tags").type)


_OF_LEDGER: dict[str, Callable[[EntryTable, BatchForm], pa.Array]] = {
    "value": lambda table, _: gather(table.data, table.body_starts, table.ends),
    "__topic": lambda table, form: pa.repeat(form.topic, len(table)),
    "__messageId": _ids,
    "__index": lambda table, _: pa.array(table.indexes),
    "__brokerPublishTime": lambda table, _: timestamps(table.broker_times_ms()),
    "__ledgerId": lambda table, _: pa.array(table.ledger_ids),
    "__entryId": lambda table, _: pa.array(table.entry_ids),
    "__messageCount": lambda table, _: small_integers(table.counts),
    "__storedSize": lambda table, _: pa.array(table.sizes),
    "__prefix": _prefix,
    "__appendTime": lambda table, _: timestamps(table.append_times_ms),
    "__tags": _tags,
    "__error": lambda table, _: pa.nulls(len(table), pa.string()),
}


def _number(headers: Headers, number: int) -> Ints:
    return np.where(headers.good, headers.columns[number].values, ABSENT)


def _encrypted(headers: Headers) -> pa.Array:
    return pa.array(headers.is_encrypted, mask=~headers.good)


def _compression(headers: Headers) -> pa.Array:
    names = dict(zip(CompressionType.values(), CompressionType.keys(), strict=True))
    numbers = _number(headers, message.COMPRESSION).tolist()
    shown = [None if number <= 0 else names.get(number, str(number)) for number in numbers]
    return pa.array(shown, pa.string())


def _producer(headers: Headers) -> pa.Array:
    spans = headers.columns[message.PRODUCER_NAME]
    starts = np.where(headers.good, spans.starts, ABSENT)
    return text(gather(headers.table.data, starts, spans.ends))


def _sequence_id(headers: Headers) -> pa.Array:
    values = headers.columns[message.SEQUENCE_ID].values
    return pa.array(values, mask=~headers.good)


_OF_HEADER: dict[str, Callable[[Headers], pa.Array]] = {
    "__publishTime": lambda headers: timestamps(_number(headers, message.PUBLISH_TIME)),
    "__encrypted": _encrypted,
    "__compression": _compression,
    "__producerName": _producer,
    "__sequenceId": _sequence_id,
}
