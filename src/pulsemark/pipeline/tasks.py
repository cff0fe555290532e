"""One task of a read: what a worker does with its share, whether of a batch read or of a stream.

Spark pickles a partition and the reader that made it, and sends both to a worker. So partitions are
frozen and name what they cover, readers hold only options, and files are opened here.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from ..ledger import FolderReader, TopicLog
from .columns import Depth, depth_of
from .continuity import Continuity
from .decode.batches import BatchForm, record_batches
from .decode.entries import EntryTable
from .decode.runs import read_tables
from .errors import DecodeError
from .options import ReadOptions
from .plan import Slice

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LedgerPartition(InputPartition):
    """One task's share, and the ledgers that were known to be lost at planning."""

    slices: tuple[Slice, ...]
    lost_ledgers: frozenset[int] = frozenset()


def messages_of(
    partition: LedgerPartition, options: ReadOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The messages of one task's slices, in order.

    Raises:
        DataLossError: messages are missing (see ``fail_on_data_loss``).
        DecodeError: an entry cannot be decoded (see ``fail_on_data_loss``).
    """
    spare_the_collector()
    for part, log in opened_slices(options, partition):
        yield from _messages_of_slice(log, part, options, schema)


def _messages_of_slice(
    log: TopicLog | None, part: Slice, options: ReadOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    form = BatchForm(
        part.topic,
        schema,
        part.first_index,
        part.end_index,
        options.limits,
        open_all=not options.fail_on_data_loss,
    )
    continuity = Continuity(part, fail=options.fail_on_data_loss)

    def on_bad_entry(table: EntryTable, row: int, reason: str) -> None:
        error = DecodeError(part.topic, table.position(row), reason)
        if options.fail_on_data_loss:
            raise error
        _log.warning("an entry was left out of the result: %s", error)

    if log is None:
        continuity.finish()
        return
    tables = read_tables(
        log,
        part.start,
        part.end,
        bodies=form.open_all or depth_of(schema.names) > Depth.LEDGER,
        on_damage=continuity.damaged,
    )
    for table in tables:
        continuity.check(table)
        yield from record_batches(table, form, on_bad_entry)
    continuity.finish()


def opened_slices(
    options: ReadOptions, partition: LedgerPartition
) -> Iterator[tuple[Slice, TopicLog | None]]:
    """A task's slices with their topics, from one scan of the folder; None for a missing topic."""
    with FolderReader(options.path) as folder:
        topics = dict.fromkeys(part.topic for part in partition.slices)
        logs = folder.logs(topics, lost=partition.lost_ledgers)
        for part in partition.slices:
            yield part, logs.get(part.topic)


_spared = False


def spare_the_collector() -> None:
    """Exclude all loaded objects from garbage collection, once per worker.

    Spark's daemon runs the collector after every task: 40 ms with all imported modules, 9 ms
    without them.
    """
    global _spared
    if not _spared:
        gc.collect()
        gc.freeze()
        _spared = True
