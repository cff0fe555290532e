"""The workers' part of the jobs `audit` and `verify`: Spark sources that only they use.

`AuditSource` counts messages by topic and bucket. Each task reads the record headers of its entries
(no bodies) and returns one row for each topic and bucket; Spark merges these rows. Each task also
returns rows without a bucket for what should be there: the indexes that the plan expects, and the
losses that the plan knows. Its options are those of the usual source, ``bucketMs``, the width of a
bucket, and ``auditTags``, a JSON list of the tags that the rows are divided by. A row is of entries
that follow one another in one bucket; with tags, of those among them that have the same values.
``ledger_id`` and ``entry_id`` are the position of the first one that follows.

`RunsSource` finds the indexes of a folder's messages by bucket, for a comparison with another tier.
A row is of messages that follow one another without a gap in one bucket. Control entries take
indexes, and no other tier has them, so they are in no row. With the option `sourceIndexes`, the
entries of a mirror count under the index and the time that they had in the mirror's source.

`VerifySource` returns what a verification finds.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ..audit.counts import Group, Grouping
from ..ledger import CorruptEntryError, EntryKind, Position
from ..ledger.bookkeeper.address import StoreAddress, is_store_address
from ..maintenance.findings import Finding
from ..maintenance.verify import verify_around_topics, verify_logs, verify_topics
from ..maintenance.verify_topic import Checked
from ..metadata import PrefixError, peek
from .decode.entries import EntryTable
from .decode.gather import gather, text
from .decode.headers import PRODUCER_NAME, read_headers
from .decode.octets import Ints, once, spread
from .decode.protoscan import ABSENT
from .decode.runs import read_tables
from .options import DEFAULT_MAX_MESSAGES_PER_ENTRY, MAX_TIME_MS, ReadOptions, opened_store
from .plan import plan
from .tasks import LedgerPartition, opened_slices, spare_the_collector

AUDIT_FORMAT = "pulsemark-audit"
BUCKET_OPTION = "bucketMs"
TAGS_OPTION = "auditTags"
NAMES_OPTION = "auditProducerNames"

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
        named = options.pop(NAMES_OPTION.lower(), "false") == "true"
        return AuditReader(ReadOptions.parse(options), bucket_ms, tags, schema, named=named)


class AuditReader(DataSourceReader):
    """Plans like the usual source, but counts messages instead of returning them."""

    def __init__(
        self,
        options: ReadOptions,
        bucket_ms: int,
        tags: Sequence[str],
        schema: StructType,
        *,
        named: bool = False,
    ) -> None:
        """``named``: the tag `producer_name` is the name in the producer's own header."""
        self._options = options
        self._named = named
        self._bucket_ms = bucket_ms
        self._tags = tags
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """The tasks. Losses are not errors here: the job counts them."""
        planned = plan(replace(self._options, fail_on_data_loss=False), as_written=True)
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
                log, part.start, part.end, bodies=self._named, on_damage=_missing_by_damage
            )
            for table in tables:
                names = producer_names(table) if self._named else None
                yield _batch(part.topic, counts(table, self._bucket_ms, grouping, names), schema)


def _missing_by_damage(damage: CorruptEntryError) -> None:
    # The gap in the indexes is what the audit counts.
    _log.warning("a damaged record is counted as missing: %s", damage)


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
        # Where the entries of each row begin that follow one another in one bucket.
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


RUNS_FORMAT = "pulsemark-runs"
SOURCE_OPTION = "sourceIndexes"
_RUNS_SCHEMA = (
    "topic string, bucket_start_ms bigint, first_index bigint, end_index bigint, loss string"
)


class RunsSource(DataSource):
    """``spark.read.format("pulsemark-runs")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return RUNS_FORMAT

    def schema(self) -> str:
        """One row for each run of a task; a topic of the plan has one without indexes too.

        A row without a bucket is of indexes that no entry has; ``loss`` says why some are lost.
        """
        return _RUNS_SCHEMA

    def reader(self, schema: StructType) -> RunsReader:
        """The reader."""
        options = dict(self.options)
        bucket_ms = int(options.pop(BUCKET_OPTION.lower()))
        by_source = options.pop(SOURCE_OPTION.lower(), "false") == "true"
        return RunsReader(ReadOptions.parse(options), bucket_ms, by_source, schema)


class RunsReader(AuditReader):
    """Plans as the audit does."""

    def __init__(
        self, options: ReadOptions, bucket_ms: int, by_source: bool, schema: StructType
    ) -> None:
        super().__init__(options, bucket_ms, (), schema)
        self._by_source = by_source

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The runs of one task's slices."""
        assert isinstance(partition, AuditPartition), "the partitions are our own"
        spare_the_collector()
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for topic, reason in partition.losses:
            yield _batch(topic, {"loss": [reason]}, schema)
        for part, log in opened_slices(self._options, partition):
            yield _batch(part.topic, {"loss": [None]}, schema)
            following = part.first_index
            tables = (
                ()
                if log is None
                else read_tables(
                    log, part.start, part.end, bodies=False, on_damage=_missing_by_damage
                )
            )
            for table in tables:
                yield _batch(part.topic, gaps_before(table, following), schema)
                following = int(table.indexes[-1]) + 1
                columns = index_runs(table, self._bucket_ms, by_source=self._by_source)
                yield _batch(part.topic, columns, schema)
            if following < part.end_index:
                rest = {"first_index": [following], "end_index": [part.end_index]}
                yield _batch(part.topic, rest, schema)


def gaps_before(table: EntryTable, following: int) -> dict[str, Any]:
    """The indexes that no entry has, from ``following`` on: columns after ``topic``."""
    ends = np.append(following, table.indexes[:-1] + 1)
    gaps = np.flatnonzero(table.first_indexes > ends)
    return {"first_index": ends[gaps], "end_index": table.first_indexes[gaps]}


def index_runs(table: EntryTable, bucket_ms: int, *, by_source: bool = False) -> dict[str, Any]:
    """The columns after ``topic`` for some entries."""
    table = table.with_messages()
    if not len(table):
        return {"bucket_start_ms": [], "first_index": [], "end_index": []}
    stamps = table.broker_times_ms()
    is_stamped = (stamps >= 0) & (stamps < MAX_TIME_MS)
    times, lasts = np.where(is_stamped, stamps, table.append_times_ms), table.indexes
    if by_source:
        times, lasts = _as_in_source(table, times, lasts)
    buckets = times // bucket_ms
    firsts, ends = lasts - table.counts + 1, lasts + 1
    is_new = np.ones(len(table), bool)
    is_new[1:] = (buckets[1:] != buckets[:-1]) | (firsts[1:] != ends[:-1])
    begins = np.flatnonzero(is_new)
    return {
        "bucket_start_ms": buckets[begins] * bucket_ms,
        "first_index": firsts[begins],
        "end_index": ends[np.append(begins[1:], len(table)) - 1],
    }


def _as_in_source(table: EntryTable, times: Ints, lasts: Ints) -> tuple[Ints, Ints]:
    """Times and indexes from the tags that a mirror sets, where an entry has them."""
    times, lasts = times.copy(), lasts.copy()
    view = memoryview(table.data)
    spans = zip(table.starts.tolist(), table.body_starts.tolist(), strict=True)
    for row, (start, end) in enumerate(spans):
        try:
            stamp = peek(view[start:end])
        except PrefixError:
            continue
        if stamp is not None and stamp.HasField("source_index"):
            lasts[row] = stamp.source_index
            if stamp.HasField("source_time_ms"):
                times[row] = stamp.source_time_ms
    return times, lasts


VERIFY_FORMAT = "pulsemark-verify"
VERIFY_SCHEMA = (
    "severity string, kind string, topic string, ledger_id bigint, entry_id bigint, path string,"
    " what string"
)
SUMMARY = "Summary"
"""The kind of the rows that say how much one task has read."""
TASKS_OPTION = "verifyTasks"

Row = tuple[str | None, str, str | None, int | None, int | None, str | None, str]


@dataclass(frozen=True)
class TopicsPartition(InputPartition):
    """The topics of one task; none: everything in the folder that is in no topic."""

    topics: tuple[str, ...]


class VerifySource(DataSource):
    """``spark.read.format("pulsemark-verify")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return VERIFY_FORMAT

    def schema(self) -> str:
        """One row for each finding."""
        return VERIFY_SCHEMA

    def reader(self, schema: StructType) -> VerifyReader:
        """The reader."""
        tasks = json.loads(self.options[TASKS_OPTION])
        return VerifyReader(self.options["path"], tasks)


class VerifyReader(DataSourceReader):
    """One partition for each list of topics."""

    def __init__(self, place: str, tasks: list[list[str]]) -> None:
        """``place``: a data folder, or the address of a store."""
        self._place = place
        self._tasks = tasks

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        return [TopicsPartition(tuple(topics)) for topics in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        """The findings of one task."""
        assert isinstance(partition, TopicsPartition), "the partitions are our own"
        # The findings already contain everything that the store would log.
        logging.getLogger("pulsemark.ledger").addHandler(logging.NullHandler())
        if not partition.topics:
            yield from map(_row, verify_around_topics(Path(self._place)))
            return
        checked = Checked()
        yield from map(_row, self._findings(partition.topics, checked))
        what = (
            f"{checked.topics} topics, {checked.segments} segments, {checked.entries} entries,"
            f" {checked.messages} messages, {checked.size_bytes} bytes"
        )
        yield None, SUMMARY, None, None, None, None, what

    def _findings(self, topics: Sequence[str], checked: Checked) -> Iterator[Finding]:
        if not is_store_address(self._place):
            yield from verify_topics(Path(self._place), topics, checked=checked)
            return
        with opened_store(StoreAddress.parse(self._place)) as reader:
            yield from verify_logs(map(reader.log, topics), self._place, checked)


def _row(finding: Finding) -> Row:
    facts = finding.facts()
    place = facts.get("position") or facts.get("first")
    position = place if isinstance(place, dict) else dict.fromkeys(Position._fields)
    return (
        str(facts["severity"]),
        str(facts["kind"]),
        finding.topic,
        position["ledger_id"],
        position["entry_id"],
        str(finding.path) if finding.path is not None else None,
        finding.what,
    )
