"""Makes the state of idempotent producers again of the newest entries of a partition."""

from __future__ import annotations

import struct

from ..ledger import Entry, EntryKind, ManagedLedger, Position
from ..ledger.reading_on import entries_of
from ..metadata import peek
from ..metadata.source_stamp import source_stamp_of
from .sequences import Batch, Sequences

__all__ = ["read_sequences"]

#: So many of the newest entries are read, or fewer if they are large.
NEWEST_ENTRIES = (5_000, 1_000, 200, 40)
MAX_BYTES = 64 * 1024 * 1024

_HEADER_BYTES = 61
_MAGIC_AT = 16
# producerId i64, producerEpoch i16, baseSequence i32 of a batch of magic 2
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = 43


def read_sequences(ledger: ManagedLedger, max_producers: int) -> Sequences:
    """What the newest entries say. Blocks. Raises LedgerError, OSError."""
    sequences = Sequences(max_producers)
    start = _start(ledger)
    if start is not None:
        for entry in entries_of(ledger, start, skip_damaged=True):
            batch = _batch_of(entry)
            if batch is not None:
                sequences.add(batch, entry.first_index, -1)
    return sequences


def _start(ledger: ManagedLedger) -> Position | None:
    first, end = ledger.first_position, ledger.end_position
    if first is None:
        return None
    count = ledger.count_entries(first, end)
    for newest in NEWEST_ENTRIES:
        start = ledger.entry_after(first, max(0, count - newest))
        if start is None or _size_bytes(ledger, start) <= MAX_BYTES:
            break
    return start


def _size_bytes(ledger: ManagedLedger, start: Position) -> int:
    return sum(
        run.row(end - 1).end_offset - run.row(first).offset
        for run, first, end in ledger.stretches(start)
    )


def _batch_of(entry: Entry) -> Batch | None:
    """The batch of an idempotent producer in an entry; None: it is not one.

    Pulsar's entries do not begin with two zero bytes, or have another byte where the magic is.
    """
    body = entry.body
    if entry.kind is not EntryKind.DATA or len(body) < _HEADER_BYTES or body[_MAGIC_AT] != 2:
        return None
    if bytes(body[:8]) != bytes(8):
        return None
    producer_id, epoch, sequence = _PRODUCER.unpack_from(body, _PRODUCER_AT)
    if producer_id < 0 or source_stamp_of(peek(entry.prefix)) is not None:
        return None  # a mirrored batch has the number of another cluster's producer
    return Batch(producer_id, epoch, sequence, entry.message_count)
