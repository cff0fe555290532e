"""An entry as engines without files of their own keep it in memory: a head, then prefix and body.

The head has the facts that prefix and body need not have: kind, message count, append time, index.
"""

from __future__ import annotations

import struct

from ..metadata import Buffer
from .entry import Entry, EntryKind
from .position import Position

__all__ = ["HEAD", "KINDS", "pack", "unpack", "unpack_all"]

HEAD = struct.Struct("<BIQqHII")
"""Kind, message count, append time, index, prefix size, entry id, and the size of what follows."""
KINDS = tuple(EntryKind)
"""By the number in the head."""


def pack(
    entry_id: int,
    kind: EntryKind,
    message_count: int,
    append_time_ms: int,
    index: int,
    prefix: bytes,
    body: Buffer,
) -> tuple[Buffer, ...]:
    """The packed entry: head, prefix and body."""
    size = len(prefix) + len(body)
    head = HEAD.pack(kind, message_count, append_time_ms, index, len(prefix), entry_id, size)
    return head, prefix, body


def unpack(ledger_id: int, data: memoryview, at: int = 0) -> Entry:
    """The packed entry that begins at a place in ``data``; a view on it."""
    kind, count, time_ms, index, prefix_size, entry_id, size = HEAD.unpack_from(data, at)
    start = at + HEAD.size
    stored = data[start : start + size]
    return Entry(
        Position(ledger_id, entry_id), KINDS[kind], count, index, time_ms, prefix_size, stored
    )


def unpack_all(ledger_id: int, data: bytes) -> list[Entry]:
    """The packed entries in ``data``, one after another; views on it."""
    view, entries, at = memoryview(data), [], 0
    while at < len(data):
        entry = unpack(ledger_id, view, at)
        entries.append(entry)
        at += HEAD.size + len(entry.stored)
    return entries
