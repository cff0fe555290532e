"""One task of a read: what a worker does with its share, whether of a batch read or of a stream.

Spark pickles a partition and the reader that made it, and sends both to a worker. So partitions are
frozen and name what they cover, readers hold only options, and files are opened here.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from ..ledger import FolderLog, FolderReader, Position, TopicLog
from ..ledger.local.io.folder import SegmentId
from .bad_entries import BadEntries
from .columns import Depth, RowKind, depth_of
from .continuity import Continuity, Indexes
from .decode.batches import BatchForm, record_batches
from .decode.entries import EntryTable
from .decode.entry_batches import entry_batches, needs_bodies
from .decode.runs import read_tables
from .options import DecodeMode, ReadOptions
from .plan import Slice, indexes_of

if TYPE_CHECKING:
    import pyarrow as pa

    from .values.value_form import ValueForm


@dataclass(frozen=True)
class LedgerPartition(InputPartition):
    """One task's share, and the ledgers that were known to be lost at planning."""

    slices: tuple[Slice, ...]
    lost_ledgers: frozenset[int] = frozenset()
    segments: Mapping[str, tuple[SegmentId, ...]] | None = None
    """By topic: the segments to open; None: the worker looks for them in the folder."""


def messages_of(
    partition: LedgerPartition,
    options: ReadOptions,
    schema: pa.Schema,
    values: ValueForm | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of one task's slices, in order.

    Args:
        partition: the task.
        options: those of the read.
        schema: the columns, as Spark asks for them.
        values: how values are decoded; None: they are not.

    Raises:
        DataLossError: messages are missing (see ``fail_on_data_loss``).
        DecodeError: an entry cannot be decoded (see ``fail_on_data_loss``), or a value by its
            schema (see ``mode``).
    """
    spare_the_collector()
    if options.service is not None:
        from .remote.remote_log import remote_tables

        with options.service.client() as client:
            for part in partition.slices:
                tables = partial(remote_tables, client, part)
                yield from _rows_of_slice(tables, _unknown, part, options, schema, values)
        return
    for part, log in opened_slices(options, partition):
        if log is None:
            Continuity(part, fail=options.fail_on_data_loss).finish()
            continue
        tables = partial(read_tables, log, part.start, part.end)
        indexes = partial(indexes_of, log) if options.store is None else _unknown
        yield from _rows_of_slice(tables, indexes, part, options, schema, values)


def _unknown(_: Position) -> None:
    """Only the entry itself would tell its indexes, where it is read from elsewhere."""


def _rows_of_slice(
    tables_of: Callable[..., Iterator[EntryTable]],
    indexes: Callable[[Position], Indexes | None],
    part: Slice,
    options: ReadOptions,
    schema: pa.Schema,
    values: ValueForm | None,
) -> Iterator[pa.RecordBatch]:
    continuity = Continuity(part, fail=options.fail_on_data_loss)
    bad = BadEntries(part, options, schema, continuity)
    form = _form(part, options, schema, values, open_all=bad.are_rows)
    entries = options.rows is RowKind.ENTRIES
    bodies = needs_bodies(schema) if entries else depth_of(schema.names) > Depth.LEDGER
    tables = tables_of(
        bodies=bodies or form.open_all,
        on_damage=lambda damage: bad.damaged(damage, indexes(damage.position)),
    )
    for table in tables:
        continuity.check(table)
        if entries:
            yield from entry_batches(table, form)
        else:
            yield from record_batches(table, form, bad.undecodable)
        yield from bad.batches()
    continuity.finish()
    yield from bad.batches()


def _form(
    part: Slice,
    options: ReadOptions,
    schema: pa.Schema,
    values: ValueForm | None,
    *,
    open_all: bool,
) -> BatchForm:
    decoder = None
    if values is not None and "value" in schema.names:
        decoder = values.decoder(part.topic, schema.field("value").type)
    return BatchForm(
        part.topic,
        schema,
        part.first_index,
        part.end_index,
        options.limits,
        open_all=open_all or not options.fail_on_data_loss,
        decoder=decoder,
        fail_fast=options.mode is DecodeMode.FAILFAST,
    )


def opened_slices(
    options: ReadOptions, partition: LedgerPartition
) -> Iterator[tuple[Slice, TopicLog | None]]:
    """A task's slices with their topics, opened once; None for a missing topic."""
    if options.store is not None:
        from .stores import slices_in_store

        yield from slices_in_store(options.store, partition)
        return
    with FolderReader(options.path) as folder:
        logs = _opened(folder, partition)
        for part in partition.slices:
            yield part, logs.get(part.topic)


def _opened(folder: FolderReader, partition: LedgerPartition) -> dict[str, FolderLog]:
    if partition.segments is not None:
        return folder.logs_of(partition.segments, lost=partition.lost_ledgers)
    topics = dict.fromkeys(part.topic for part in partition.slices)
    return folder.logs(topics, lost=partition.lost_ledgers)


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
