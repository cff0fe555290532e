"""Which rows of a topic are the latest of their keys: as `compaction.keys` decides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...compaction.compacted_log import CompactedLog
from ...compaction.compaction import MAX_UNCOMPRESSED_BYTES, READ_ENTRIES
from ...compaction.keys import Kept, LatestPerKey
from ...compaction.view import CompactedView
from ...ledger import EARLIEST, CorruptEntryError, Position, TopicLog
from ..columns import arrow_schema_of
from ..errors import JobFailedError
from ..options import ReadOptions
from ..tasks import LedgerPartition, messages_of

_PLACE_BITS = 31
_POSITION = ("__ledgerId", "__entryId", "__batchIndex")
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Rule:
    """What deletes a key (see `compaction.compaction.compact`)."""

    tombstone_stage: int
    tombstone_property: str | None


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
    latest = LatestPerKey(MAX_UNCOMPRESSED_BYTES, rule.tombstone_stage, rule.tombstone_property)
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
