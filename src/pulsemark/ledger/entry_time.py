"""The one time of an entry: searching, expiry, compaction and statistics all use it (PIP-70).

It is the broker's time if the entry's stamp has one, else the publish time that its producer set.
An entry with neither (control entries, cursors, foreign bytes) has its append time.
"""

from __future__ import annotations

from operator import index as as_int
from typing import SupportsIndex, cast

from ..metadata import (
    Buffer,
    MessageFormatError,
    MessageHeader,
    PrefixError,
    entry_time_ms,
    peek,
)
from .errors import ClockError
from .limits import MAX_TIME_MS


def time_of_entry(append_time_ms: int, prefix: Buffer, body: Buffer) -> int:
    """The time of a stored entry. ``prefix`` may also be the whole entry."""
    try:
        return entry_time_ms(peek(prefix), body)
    except (PrefixError, MessageFormatError):
        return append_time_ms


def time_of_unstamped(header: MessageHeader, append_time_ms: int) -> int:
    """The time of an entry that is being appended without a stamp of time."""
    try:
        return header.publish_time_ms()
    except MessageFormatError:
        return append_time_ms


def checked_ms(value: object) -> int:
    """A clock's time as an exact int; before 1970 it is negative. Raises ClockError."""
    try:
        time_ms = int(as_int(cast("SupportsIndex", value)))
    except TypeError as error:
        raise ClockError(value) from error
    if not -MAX_TIME_MS <= time_ms <= MAX_TIME_MS:
        raise ClockError(value)
    return time_ms
