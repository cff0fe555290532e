"""Splitting a record set into its batches: messages of magic 0 and 1, batches of magic 2.

Each has its size at byte 8, so a set is walked without a look at what is in it. A set may end with
a part of a batch: Kafka's answers to fetch requests do, and old producers' sets may.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...metadata import Buffer
from . import layout
from .errors import CorruptRecordSetError

MAX_MAGIC = 2


class Span(NamedTuple):
    """The place of a batch in its set."""

    start: int
    end: int
    magic: int


def spans(records: Buffer) -> Iterator[Span]:
    """The whole batches of a set; a part of one at its end is left out.

    Raises CorruptRecordSetError: a size below 14, or an unknown magic.
    """
    start, total = 0, len(records)
    while start + layout.LOG_OVERHEAD_BYTES <= total:
        (size,) = layout.SIZE.unpack_from(records, start + layout.SIZE_AT)
        if size < layout.LEAST_SIZE_BYTES:
            raise CorruptRecordSetError(f"a message of {size} bytes at byte {start}")
        if start + layout.MAGIC_AT >= total:
            return
        magic = records[start + layout.MAGIC_AT]
        if magic > MAX_MAGIC:
            raise CorruptRecordSetError(f"unknown magic {magic} at byte {start}")
        end = start + layout.LOG_OVERHEAD_BYTES + size
        if end > total:
            return
        yield Span(start, end, magic)
        start = end


def stored_magic(body: Buffer) -> int:
    """The magic of a stored set. Raises CorruptRecordSetError: it has none, or an unknown one."""
    if len(body) < layout.LOG_OVERHEAD_BYTES + layout.LEAST_SIZE_BYTES:
        raise CorruptRecordSetError(f"a stored set of {len(body)} bytes")
    magic = body[layout.MAGIC_AT]
    if magic > MAX_MAGIC:
        raise CorruptRecordSetError(f"unknown magic {magic} in a stored set")
    return magic


def whole_spans(body: Buffer) -> Iterator[Span]:
    """The batches of a stored set, which ends with one.

    Raises CorruptRecordSetError: it does not, it is empty, or as `spans`.
    """
    end = 0
    for span in spans(body):
        end = span.end
        yield span
    if end != len(body) or not end:
        raise CorruptRecordSetError(f"{len(body) - end} bytes of a stored set are not a message")
