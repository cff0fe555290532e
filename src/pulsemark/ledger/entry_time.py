"""The one time of an entry, which searching, expiry, compaction and statistics go by (PIP-70).

The broker's time where the entry is stamped with one, else the time at which its producer says it
was published. What has neither (control entries, cursors, foreign bytes) has its append time.
"""

from __future__ import annotations

from ..metadata import (
    Buffer,
    MessageFormatError,
    MessageHeader,
    PrefixError,
    entry_time_ms,
    peek,
)


def time_of_entry(append_time_ms: int, prefix: Buffer, body: Buffer) -> int:
    """The time of a stored entry. ``prefix`` may be all of the entry, which begins with it."""
    try:
        return entry_time_ms(peek(prefix), body)
    except (PrefixError, MessageFormatError):
        return append_time_ms


def time_of_unstamped(header: MessageHeader, append_time_ms: int) -> int:
    """The time of an entry that is just being appended without a stamp of time."""
    try:
        return header.publish_time_ms()
    except MessageFormatError:
        return append_time_ms
