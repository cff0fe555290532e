"""The workers' part of a compaction: of each topic they return figures, or write a file.

Which rows of a topic are the latest of their keys is decided by `compaction.keys`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ...compaction.compacted_log import CompactedLog
from ...compaction.compaction import MAX_UNCOMPRESSED_BYTES, READ_ENTRIES, estimate
from ...compaction.current_view import newest_view
from ...compaction.keys import Kept, LatestPerKey, Limits
from ...compaction.view import CompactedView
from ...ledger import EARLIEST, CorruptEntryError, FolderReader, Position, TopicLog
from ...ledger.errors import CompactionFailedError
from ...ledger.local.folder_reader import FolderLog
from ..columns import arrow_schema_of
from ..errors import JobFailedError
from ..offload.places import place_of
from ..options import ReadOptions
from ..plan import Slice, segments_of
from ..tasks import LedgerPartition, messages_of, spare_the_collector
from .views import figures_of

COMPACT_FORMAT = "pulsemark-compact"
PLAN_OPTION = "compactPlan"


@dataclass(frozen=True)
class TopicsPartition(InputPartition):
    """One task: some topics, and the file to write for each; None: only figures are wanted."""

    topics: tuple[tuple[Slice, str | None], ...]


class CompactSource(DataSource):
    """``spark.read.format("pulsemark-compact")``: the tasks of a plan."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return COMPACT_FORMAT

    def schema(self) -> str:
        """A task's result as JSON."""
        return "result string"

    def reader(self, schema: StructType) -> CompactReader:
        """The reader."""
        options = dict(self.options)
        plan = json.loads(options.pop(PLAN_OPTION.lower()))
        return CompactReader(ReadOptions.parse(options), plan)


class CompactReader(DataSourceReader):
    """The tasks of the plan."""

    def __init__(self, options: ReadOptions, plan: dict[str, Any]) -> None:
        self._options = options
        self._rule = Rule(plan["stage"], plan["property"])
        self._target = plan["target"]
        self._lost = frozenset(plan["lost"])
        self._tasks = plan["tasks"]

    def partitions(self) -> list[InputPartition]:
        """The topics, as they were planned."""
        return [
            TopicsPartition(tuple((Slice.from_json(part), path) for part, path in task))
            for task in self._tasks
        ]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Figures of each topic, or of the file that was written for it."""
        assert isinstance(partition, TopicsPartition), "the partitions are our own"
        spare_the_collector()
        names = [part.topic for part, _ in partition.topics]
        with FolderReader(self._options.path) as folder:
            logs = folder.logs(names, lost=self._lost)
            for part, path in partition.topics:
                log = logs[part.topic]
                view = newest_view(folder, part.topic, log.topic_id)
                if path is None:
                    yield (json.dumps(self._figures(log, view)),)
                else:
                    yield (json.dumps(self._written(log, view, part, path)),)

    def _figures(self, log: FolderLog, view: CompactedView | None) -> dict[str, Any]:
        try:
            report = estimate(log, view, self._rule.limits)
        except CompactionFailedError as error:
            raise JobFailedError(str(error)) from error
        return asdict(figures_of(report))

    def _written(
        self, log: FolderLog, view: CompactedView | None, part: Slice, path: str
    ) -> list[Any]:
        fail = self._options.fail_on_data_loss
        kept = kept_of(log, view, part.end, self._rule, fail_on_data_loss=fail)
        segments = segments_of([part], {part.topic: log})
        share = LedgerPartition((part,), self._lost, segments)
        place = place_of(self._target)
        rows = place.write(path, lambda file: self._fill(share, kept, file))
        with place.open(path) as written:
            return [part.topic, path, rows, written.size()]

    def _fill(self, share: LedgerPartition, kept: list[Kept], file: IO[bytes]) -> int:
        rows = 0
        with pq.ParquetWriter(file, arrow_schema_of(self._options.columns)) as writer:
            for batch in latest_rows(share, kept, self._options):
                rows += batch.num_rows
                writer.write_table(pa.Table.from_batches([batch]))
        return rows


_PLACE_BITS = 31
_POSITION = ("__ledgerId", "__entryId", "__batchIndex")
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Rule:
    """What deletes a key (see `compaction.compaction.compact`)."""

    tombstone_stage: int
    tombstone_property: str | None

    @property
    def limits(self) -> Limits:
        """The same for a compaction."""
        return Limits(MAX_UNCOMPRESSED_BYTES, self.tombstone_stage, self.tombstone_property)


def kept_of(
    log: TopicLog,
    view: CompactedView | None,
    end: Position,
    rule: Rule,
    *,
    fail_on_data_loss: bool = True,
) -> list[Kept]:
    """What is kept of the entries before ``end``, in the order of the log.

    Raises:
        JobFailedError: an entry is damaged (see ``fail_on_data_loss``); or the log was trimmed, and
            a kept message is only in the view.
    """
    latest = LatestPerKey(rule.limits)
    source = CompactedLog(log, lambda: view)
    position = EARLIEST
    while position < end:
        try:
            entries = source.read(position, max_entries=READ_ENTRIES, max_bytes=_READ_BYTES)
        except CorruptEntryError as error:
            if fail_on_data_loss:
                raise JobFailedError(f"{log.name}: {error}") from error
            position = error.next_position
            continue
        for entry in entries:
            if entry.position < end:
                latest.take(entry)
        if not entries:
            break
        position = entries[-1].position.following
    kept = list(latest.kept())
    first = log.first_position
    if kept and (first is None or kept[0].position < first):
        reason = "the log was trimmed, and messages that are only in its compacted view"
        raise JobFailedError(f"{log.name}: {reason} cannot be written to a table")
    return kept


class _Mask:
    """Says of rows, in batches, whether they are kept."""

    def __init__(self, kept: list[Kept]) -> None:
        whole: dict[int, list[int]] = {}
        places: dict[int, list[int]] = {}
        for each in kept:
            ledger_id, entry_id = each.position
            if each.places is None:
                whole.setdefault(ledger_id, []).append(entry_id)
            else:
                first = entry_id << _PLACE_BITS
                places.setdefault(ledger_id, []).extend(first + place for place in each.places)
        self._whole = {ledger: np.array(ids, np.int64) for ledger, ids in whole.items()}
        self._places = {ledger: np.array(numbers, np.int64) for ledger, numbers in places.items()}

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        """True for the rows that are kept."""
        ledgers, entries, places = (batch.column(name).to_numpy() for name in _POSITION)
        numbers = entries << _PLACE_BITS | np.maximum(places, 0)
        mask = np.zeros(len(ledgers), bool)
        for ledger_id in np.unique(ledgers).tolist():
            here = ledgers == ledger_id
            for values, wanted in (
                (numbers, self._places.get(ledger_id)),
                (entries, self._whole.get(ledger_id)),
            ):
                if wanted is not None:
                    mask[here] |= np.isin(values[here], wanted)
        return pa.array(mask)


def latest_rows(
    partition: LedgerPartition, kept: list[Kept], options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """The rows of what is kept, in the order of the log, with the columns of the options.

    Raises:
        DataLossError, DecodeError: messages of the partition cannot be read.
    """
    names = [*options.columns, *(name for name in _POSITION if name not in options.columns)]
    schema = arrow_schema_of(names)
    mask = _Mask(kept)
    for batch in messages_of(partition, options, schema):
        rows = batch.filter(mask.of(batch))
        if rows.num_rows:
            yield rows.select(list(options.columns))
