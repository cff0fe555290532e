"""The check of the records of a batch when it is produced: sizes, numbers, keys, times.

This is what a batch costs that is stored in place, so it is one loop without calls for ordinary
records, and makes no objects. It reads the same bytes as `batch.read_records`; a test holds the two
together.
"""

from __future__ import annotations

from dataclasses import dataclass

from .batch import read_headers
from .errors import InvalidRecordSetError
from .record import NO_TIME_MS, TOMBSTONE_FLAG
from .varints import MOST_BITS_64, int64, read_unsigned

_ONE_BYTE = 0x7F


@dataclass(slots=True)
class Scan:
    """What the check of a set saw."""

    count: int = 0
    numbered: bool = True
    """The offsets are 0, 1, 2 ...: none has to be assigned."""
    max_time_ms: int = NO_TIME_MS
    keys: int = 0
    """Records that have a key."""
    nulls: int = 0
    """Records without a value and without the tombstone flag."""
    flags: int = 0
    """Records with the tombstone flag."""


def scan_records(raw: bytes, count: int, base_time_ms: int) -> Scan:
    """Check the records of a batch of magic 2, decompressed.

    Raises InvalidRecordSetError: they are no records, or not ``count`` of them.
    """
    try:
        scan, at, latest = _scan(raw, count)
    except (IndexError, ValueError) as error:
        raise InvalidRecordSetError(f"{count} records in {len(raw)} bytes: {error}") from error
    if at != len(raw):
        raise InvalidRecordSetError(f"{len(raw) - at} bytes after {count} records")
    scan.max_time_ms = int64(base_time_ms + latest)
    return scan


def _scan(raw: bytes, count: int) -> tuple[Scan, int, int]:
    """What is in the records, where they end, and the latest time delta.

    Each number is read in place if it has one or two bytes, as ordinary ones have.
    """
    at = keys = nulls = flags = 0
    numbered, latest, total = True, -(2**63), len(raw)
    for number in range(count):
        size, at = raw[at], at + 1
        if size > _ONE_BYTE:
            size, at = size + (raw[at] << 7) - 128, at + 1
            if raw[at - 1] > _ONE_BYTE:
                size, at = read_unsigned(raw, at - 2)
        end = at + (size >> 1)
        if size & 1 or end > total:
            raise ValueError(f"record {number} ends at byte {end}")
        flagged = raw[at] & TOMBSTONE_FLAG
        delta, at = raw[at + 1], at + 2
        if delta > _ONE_BYTE:
            delta, at = read_unsigned(raw, at - 1, MOST_BITS_64)
        delta = delta >> 1 ^ -(delta & 1)
        if delta > latest:
            latest = delta
        offset, at = raw[at], at + 1
        if offset > _ONE_BYTE:
            offset, at = offset + (raw[at] << 7) - 128, at + 1
            if raw[at - 1] > _ONE_BYTE:
                offset, at = read_unsigned(raw, at - 2)
        if offset != number << 1:
            numbered = False
        size, at = raw[at], at + 1
        if size > _ONE_BYTE:
            size, at = read_unsigned(raw, at - 1)
        if not size & 1:
            keys, at = keys + 1, at + (size >> 1)
        size, at = raw[at], at + 1
        if size > _ONE_BYTE:
            size, at = size + (raw[at] << 7) - 128, at + 1
            if raw[at - 1] > _ONE_BYTE:
                size, at = read_unsigned(raw, at - 2)
        if not size & 1:
            at += size >> 1
        elif not flagged:
            nulls += 1
        if flagged:
            flags += 1
        if raw[at] or at + 1 != end:
            at = read_headers(raw, at, end)[1]
            if at != end:
                raise ValueError(f"record {number} ends {end - at} bytes before its size")
        else:
            at = end
    return Scan(count, numbered, NO_TIME_MS, keys, nulls, flags), at, latest
