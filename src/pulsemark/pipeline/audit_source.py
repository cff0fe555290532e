"""The workers' part of the audit: what it counts.

`counted` counts messages by topic and bucket. Each task reads the record headers of its entries (no
bodies) and gives one row for each topic and bucket; Spark merges these rows. Each task also gives
rows without a bucket for what should be there: the indexes that the plan expects, and the losses
that the plan knows. With tags a row is of entries that follow one another in one bucket and have
the same values. ``ledger_id`` and ``entry_id`` are the position of the first one that follows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ..audit.counts import Group, Grouping
from ..audit.rows import MAX_MESSAGES_PER_ENTRY, MAX_TIME_MS
from ..ledger import EntryKind
from .decode.entries import EntryTable
from .decode.gather import gather, text
from .decode.headers import PRODUCER_NAME, read_headers
from .decode.octets import Ints, once, spread
from .decode.protoscan import ABSENT
from .followed import FolderTopics, followed
from .options import ReadOptions
from .tasks import LedgerPartition, opened_slices, tables_of

COUNTS = pa.schema(
    [
        ("topic", pa.string()),
        *((name, pa.int64()) for name in ("bucket_start_ms", "count", "control_count", "bytes")),
        *((name, pa.int64()) for name in ("doubtful_count", "min_index", "max_index")),
        *((name, pa.int64()) for name in ("ledger_id", "entry_id")),
        ("tag_values", pa.list_(pa.field("element", pa.string()))),
        *((name, pa.int64()) for name in ("expected_first", "expected_end")),
        ("loss", pa.string()),
    ]
)
_SUMS = ("count", "control_count", "bytes", "doubtful_count")
_NO_INDEX_MIN, _NO_INDEX_MAX = np.iinfo(np.int64).max, np.iinfo(np.int64).min

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AuditTask:
    """One task's share. The first task also reports what is lost."""

    partition: LedgerPartition
    losses: Mapping[str, str]
    """By topic: the reason."""


def audit_tasks(options: ReadOptions) -> list[AuditTask]:
    """The tasks, at least one. Losses are not errors here: the job counts them."""
    read, losses = replace(options, fail_on_data_loss=False), {}
    topics = followed(read) if read.store is not None else FolderTopics(read, as_written=True)
    with closing(topics):
        partitions = topics.read()
        if isinstance(topics, FolderTopics):
            losses = topics.selected().losses()
    return [
        AuditTask(partition, {} if number else losses)
        for number, partition in enumerate(partitions)
    ]


def counted(
    options: ReadOptions, bucket_ms: int, tags: Sequence[str], named: bool, task: AuditTask
) -> Iterator[pa.RecordBatch]:
    """The counts of one task's slices; ``named``: `producer_name` is that of producers' headers."""
    grouping = Grouping(tags) if tags else None
    for topic, reason in task.losses.items():
        yield _batch(COUNTS, topic, {"loss": [reason]})
    for part, log in opened_slices(options, task.partition):
        bounds = {"expected_first": [part.first_index], "expected_end": [part.end_index]}
        yield _batch(COUNTS, part.topic, bounds)
        if log is None:
            continue
        # The gap in the indexes is what the audit counts.
        damaged = partial(_log.warning, "a damaged record is counted as missing: %s")
        for table in tables_of(log, part, bodies=named, on_damage=damaged):
            names = producer_names(table) if named else None
            yield _batch(COUNTS, part.topic, counts(table, bucket_ms, grouping, names))


def producer_names(table: EntryTable) -> list[str | None]:
    """The producer's name in the header of each entry; None if it has no such header."""
    headers = read_headers(table, {})
    spans = headers.columns[PRODUCER_NAME]
    starts = np.where(headers.good, spans.starts, ABSENT)
    return list(text(gather(table.data, starts, spans.ends)).to_pylist())


def counts(
    table: EntryTable,
    bucket_ms: int,
    grouping: Grouping | None = None,
    names: Sequence[str | None] | None = None,
) -> dict[str, Any]:
    """The columns after ``topic``, by bucket, for some entries (at least one).

    An entry's time is its stamp's, or the ledger's append time if it has no stamp. Both come from
    the broker's clock, so a producer's clock does not decide in which bucket a message is counted.
    If times decrease, a bucket can have several rows. With ``grouping``, each combination of tag
    values has a row of its own; ``names`` are then the names in producers' headers, if those were
    read.
    """
    stamps = table.broker_times_ms()
    is_stamped = (stamps >= 0) & (stamps < MAX_TIME_MS)
    all_stamped = bool(is_stamped.all())
    times = stamps if all_stamped else np.where(is_stamped, stamps, table.append_times_ms)
    first = int(times[0]) // bucket_ms
    if int(times.min()) // bucket_ms == first == int(times.max()) // bucket_ms:
        buckets = spread(np.array([first]), len(times))
    else:
        buckets = times // bucket_ms
    changes = np.append(0, np.flatnonzero(buckets[1:] != buckets[:-1]) + 1)
    entry_ids = table.entry_ids[changes]
    values: list[Group | None] = [None] * len(changes)
    if grouping is not None:
        # The starts of rows: runs of entries in one bucket.
        begins = np.repeat(changes, np.diff(changes, append=len(buckets)))
        groups, numbers = _groups(table, grouping, names)
        order = np.lexsort((numbers, begins))
        table, buckets, begins, numbers = (
            table.select(order), buckets[order], begins[order], numbers[order]
        )  # fmt: skip
        is_new = np.diff(begins, prepend=-1) != 0
        changes = np.flatnonzero(is_new | (np.diff(numbers, prepend=-1) != 0))
        values = [groups[number] for number in numbers[changes].tolist()]
        entry_ids = _entry_ids(table, begins, changes)
    return {
        "bucket_start_ms": buckets[changes] * bucket_ms,
        **_sums(table, changes),
        "ledger_id": np.full(len(changes), table.ledger_ids[0]),
        "entry_id": entry_ids,
        "tag_values": values,
    }


def _groups(
    table: EntryTable, grouping: Grouping, names: Sequence[str | None] | None
) -> tuple[list[Group], Ints]:
    """The combinations of tag values, and for each entry the number of its combination."""
    view = memoryview(table.data)
    known: dict[Group, int] = {}
    spans = zip(table.starts.tolist(), table.body_starts.tolist(), strict=True)
    groups = [grouping.group(view[start:end]) for start, end in spans]
    if names is not None:
        at = grouping.tags.index("producer_name")
        groups = [
            group if name is None else (*group[:at], name, *group[at + 1 :])
            for group, name in zip(groups, names, strict=True)
        ]
    numbers = [known.setdefault(group, len(known)) for group in groups]
    return list(known), np.array(numbers, np.int64)


def _entry_ids(table: EntryTable, begins: Ints, changes: Ints) -> Ints:
    """The id of the first entry of each row's bucket: ids in a table may have gaps."""
    lowest = np.full(int(begins.max()) + 1, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(lowest, begins, table.entry_ids)
    found: Ints = lowest[begins[changes]]
    return found


def _sums(table: EntryTable, changes: Ints) -> dict[str, Any]:
    """Counts and indexes of the rows that begin at ``changes``."""
    counts = once(table.counts)
    messages = counts * (once(table.kinds) != EntryKind.CONTROL)
    sums = {
        "count": messages,
        "control_count": counts - messages,
        "bytes": once(table.sizes),
        "doubtful_count": messages * (messages > MAX_MESSAGES_PER_ENTRY),
    }
    firsts, lasts, counted = table.first_indexes, table.indexes, counts > 0
    if not bool(counted.all()):
        firsts = np.where(counted, firsts, _NO_INDEX_MIN)
        lasts = np.where(counted, lasts, _NO_INDEX_MAX)
    lows, highs = np.minimum.reduceat(firsts, changes), np.maximum.reduceat(lasts, changes)
    return {
        **{name: _added(values, changes, len(table)) for name, values in sums.items()},
        "min_index": pa.array(lows, mask=lows == _NO_INDEX_MIN),
        "max_index": pa.array(highs, mask=highs == _NO_INDEX_MAX),
    }


def _added(values: Ints, changes: Ints, count: int) -> Ints:
    """The sum of each row's values; a single value stands for all ``count`` entries."""
    if len(values) == 1:
        return values * np.diff(changes, append=count)
    return np.add.reduceat(values, changes)


def _batch(schema: pa.Schema, topic: str, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Rows of one topic. Columns that are not given are null, or 0 if they are sums."""
    count = len(next(iter(columns.values())))
    given = {"topic": [topic] * count, **{name: [0] * count for name in _SUMS}, **columns}
    arrays = [pa.array(given.get(field.name, [None] * count), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
