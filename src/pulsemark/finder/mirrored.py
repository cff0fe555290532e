"""Finds the last entry that a mirror brought from a source: where mirroring goes on.

The search goes backwards over the heads of the log's entries, without their bodies. In a topic that
only a mirror writes to, the last entry is the one.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from ..ledger import Position, RecordHead, TopicLog
from ..ledger.rows import DamagedRecordError
from ..ledger.writer import rows_before
from ..metadata import PrefixError, peek
from ..metadata.source_stamp import SourceStamp, source_stamp_of

_SLICE_ROWS = 256


def last_mirrored(log: TopicLog, cluster: str) -> SourceStamp | None:
    """The source's facts of the last entry from `cluster`; None if there is none. Blocks.

    Damaged entries are skipped: the entries around them show how far the mirror came.
    """
    return last_of_each(log, {cluster}).get(cluster)


def last_of_each(
    log: TopicLog, clusters: AbstractSet[str], before: Position | None = None
) -> dict[str, SourceStamp]:
    """As `last_mirrored` for several clusters; of the entries before a position, if one is given.

    A cluster without an entry is not in the answer.
    """
    found: dict[str, SourceStamp] = {}
    for segment in reversed(log.segments()):
        end = segment.entry_count if before is None else rows_before(segment, before)
        for row in range(end - 1, segment.cut_rows - 1, -1):
            if len(found) == len(clusters):
                return found
            if row % _SLICE_ROWS == 0:
                log.give_way()
            try:
                stamp = source_of(segment.head(row))
            except (DamagedRecordError, FileNotFoundError, PrefixError):
                continue
            if stamp is not None and stamp.cluster in clusters:
                found.setdefault(stamp.cluster, stamp)
    return found


def source_of(head: RecordHead) -> SourceStamp | None:
    """The source's facts of one entry; None if it was not mirrored. Raises PrefixError."""
    return source_stamp_of(peek(head.prefix))
