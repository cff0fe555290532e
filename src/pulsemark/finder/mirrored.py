"""Finds the last entry that a mirror brought from a source: where mirroring goes on.

The search goes backwards over the heads of the log's entries, without their bodies. In a topic that
only a mirror writes to, the last entry is the one.
"""

from __future__ import annotations

from ..ledger import RecordHead, TopicLog
from ..ledger.rows import DamagedRecordError
from ..metadata import PrefixError, peek
from ..metadata.source_stamp import SourceStamp, source_stamp_of

_SLICE_ROWS = 256


def last_mirrored(log: TopicLog, cluster: str) -> SourceStamp | None:
    """The source's facts of the last entry from `cluster`; None if there is none. Blocks.

    Damaged entries are passed over: the entries around them say how far the mirror came.
    """
    for segment in reversed(log.segments()):
        for row in range(segment.entry_count - 1, segment.cut_rows - 1, -1):
            if row % _SLICE_ROWS == 0:
                log.give_way()
            try:
                stamp = source_of(segment.head(row))
            except (DamagedRecordError, FileNotFoundError, PrefixError):
                continue
            if stamp is not None and stamp.cluster == cluster:
                return stamp
    return None


def source_of(head: RecordHead) -> SourceStamp | None:
    """The source's facts of one entry; None if it was not mirrored. Raises PrefixError."""
    return source_stamp_of(peek(head.prefix))
