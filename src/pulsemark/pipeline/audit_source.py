"""The internal source of the audit job: counts by topic and bucket, made in Spark's workers.

Each task reads the record headers of its entries (no bodies) and returns one row for each topic and
bucket. Spark merges these rows. Each task also returns rows without a bucket for what should be
there: the indexes that the plan expects, and the losses that the plan knows. Only the job
(:mod:`.audit`) uses this source. Its options are those of the usual source, ``bucketMs``, the width
of a bucket, and ``auditTags``, a JSON list of the tags that the rows are divided by.

A row is of entries that follow one another in one bucket; with tags, of those among them that have
the same values. ``ledger_id`` and ``entry_id`` are the position of the first one that follows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ..audit.counts import Group, Grouping
from ..ledger import CorruptEntryError, EntryKind
from .decode.entries import EntryTable
from .decode.octets import Ints, once, spread
from .decode.runs import read_tables
from .options import DEFAULT_MAX_MESSAGES_PER_ENTRY, MAX_TIME_MS, ReadOptions
from .plan import plan
from .tasks import LedgerPartition, opened_slices, spare_the_collector

AUDIT_FORMAT = "pulsemark-audit"
BUCKET_OPTION = "bucketMs"
TAGS_OPTION = "auditTags"

_SCHEMA = (
    "topic string, bucket_start_ms bigint, count bigint, control_count bigint, bytes bigint,"
    " doubtful_count bigint, min_index bigint, max_index bigint,"
    " ledger_id bigint, entry_id bigint, tag_values array<string>,"
    " expected_first bigint, expected_end bigint, loss string"
)
_SUMS = ("count", "control_count", "bytes", "doubtful_count")
_NO_INDEX_MIN, _NO_INDEX_MAX = np.iinfo(np.int64).max, np.iinfo(np.int64).min

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AuditPartition(LedgerPartition):
    """One task's share. The first task also reports what is lost."""

    losses: tuple[tuple[str, str], ...] = ()
    """Topic and reason."""


class AuditSource(DataSource):
    """``spark.read.format("pulsemark-audit")``: partial counts, to be merged."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return AUDIT_FORMAT

    def schema(self) -> str:
        """One row for each topic and bucket of a task."""
        return _SCHEMA

    def reader(self, schema: StructType) -> AuditReader:
        """The reader."""
        options = dict(self.options)
        bucket_ms = int(options.pop(BUCKET_OPTION.lower()))
        tags = json.loads(options.pop(TAGS_OPTION.lower(), "[]"))
        return AuditReader(ReadOptions.parse(options), bucket_ms, tags, schema)


class AuditReader(DataSourceReader):
    """Plans like the usual source, but counts messages instead of returning them."""

    def __init__(
        self, options: ReadOptions, bucket_ms: int, tags: Sequence[str], schema: StructType
    ) -> None:
        self._options = options
        self._bucket_ms = bucket_ms
        self._tags = tags
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """The tasks. Losses are not errors here: the job counts them."""
        planned = plan(replace(self._options, fail_on_data_loss=False))
        tasks = planned.tasks or ((),)
        losses = [tuple(planned.losses.items()), *[()] * (len(tasks) - 1)]
        return [
            AuditPartition(task, planned.lost_ledgers, losses=task_losses)
            for task, task_losses in zip(tasks, losses, strict=True)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The counts of one task's slices."""
        assert isinstance(partition, AuditPartition), "the partitions are our own"
        spare_the_collector()
        schema = to_arrow_schema(self._schema, timezone="UTC")
        grouping = Grouping(self._tags) if self._tags else None
        for topic, reason in partition.losses:
            yield _batch(topic, {"loss": [reason]}, schema)
        for part, log in opened_slices(self._options, partition):
            bounds = {"expected_first": [part.first_index], "expected_end": [part.end_index]}
            yield _batch(part.topic, bounds, schema)
            if log is None:
                continue
            tables = read_tables(
                log, part.start, part.end, bodies=False, on_damage=_missing_by_damage
            )
            for table in tables:
                yield _batch(part.topic, counts(table, self._bucket_ms, grouping), schema)


def _missing_by_damage(damage: CorruptEntryError) -> None:
    # The gap in the indexes is what the audit counts.
    _log.warning("a damaged record is counted as missing: %s", damage)


def counts(table: EntryTable, bucket_ms: int, grouping: Grouping | None = None) -> dict[str, Any]:
    """The columns after ``topic``, by bucket, for some entries (at least one).

    An entry's time is its stamp's, or the ledger's append time if it has no stamp. Both come from
    the broker's clock, so a producer's clock does not decide in which bucket a message is counted.
    If times decrease, a bucket can have several rows. With ``grouping``, each combination of tag
    values has a row of its own.
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
        # Where the entries of each row begin that follow one another in one bucket.
        begins = np.repeat(changes, np.diff(changes, append=len(buckets)))
        groups, numbers = _groups(table, grouping)
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


def _groups(table: EntryTable, grouping: Grouping) -> tuple[list[Group], Ints]:
    """The combinations of tag values, and for each entry the number of its combination."""
    view = memoryview(table.data)
    known: dict[Group, int] = {}
    spans = zip(table.starts.tolist(), table.body_starts.tolist(), strict=True)
    numbers = [
        known.setdefault(grouping.group(view[start:end]), len(known)) for start, end in spans
    ]
    return list(known), np.array(numbers, np.int64)


def _entry_ids(table: EntryTable, begins: Ints, changes: Ints) -> Ints:
    """The id of the first entry of each row's bucket: a table's ids need not follow closely."""
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
        "doubtful_count": messages * (messages > DEFAULT_MAX_MESSAGES_PER_ENTRY),
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
    """The sums of the values of each row; one value stands for all ``count`` entries."""
    if len(values) == 1:
        return values * np.diff(changes, append=count)
    return np.add.reduceat(values, changes)


def _batch(topic: str, columns: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of one topic. Columns that are not given are null, or 0 if they are sums."""
    count = len(next(iter(columns.values())))
    given = {"topic": [topic] * count, **{name: [0] * count for name in _SUMS}, **columns}
    arrays = [pa.array(given.get(field.name, [None] * count), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
