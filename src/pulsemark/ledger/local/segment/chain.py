"""A topic's segments that count, with their rows loaded: the chain's rule applied to files.

`ledger.chain` has the rule. It needs only the segments' own headers, so that a reader without the
catalog comes to the same answer as the owner.

Entries that a later header counts were durable. If their records are gone, they keep their places
all the same, and reading them raises CorruptEntryError.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from ...chain import UNKNOWN_COUNT, Link, chain_of
from .indexing import index_lost_rows
from .segment import Segment
from .segment_format import SegmentHeader

_log = logging.getLogger(__name__)


def counting_segments(
    segments: Sequence[Segment],
    *,
    known: Collection[Segment] = (),
    lost: Collection[int] = (),
) -> list[Segment]:
    """Load the indexes of the segments that count, and show the entries that count, in order.

    Those in ``known`` were loaded before, and only load what was written since. ``lost`` is for
    `chain_of`.
    """
    by_header = {segment.header: segment for segment in segments}
    shown: list[Segment] = []
    for link in chain_of(by_header, lost):
        segment = by_header[link.header]
        _load(segment, link, is_known=segment in known)
        if segment.entry_count:
            if shown and segment not in known:
                _check_follows(shown[-1], segment)
            shown.append(segment)
    if shown:
        shown[0].load_cut()
    return shown


def _check_follows(before: Segment, segment: Segment) -> None:
    """Log an error if a segment does not begin at the index at which the one before it ends."""
    if before.next_index != segment.first_index:
        _log.error(
            "%s begins at index %d, but %s ends at %d: entries are lost, or one of the two files"
            " is of another data folder; run `verify`",
            segment.path,
            segment.first_index,
            before.path.name,
            before.next_index,
        )


def dropped_segments(segments: Sequence[Segment], counting: Sequence[Segment]) -> list[Segment]:
    """Those of a topic's segments that surely no longer count: a newer header skips them.

    This happens when a tail was cut off. A segment that merely cannot be reached (because one
    between it and the newer ones is missing) is not among them.
    """
    heads = [segment.header for segment in counting if segment.first_entry_id == 0]
    dropped = []
    for segment in segments:
        newer = next((h for h in heads if h.ledger_id > segment.ledger_id), None)
        if newer is None or segment in counting:
            continue
        before, count = newer.previous_ledger_id, newer.previous_entry_count
        if before < segment.ledger_id or (
            before == segment.ledger_id and UNKNOWN_COUNT != count <= segment.first_entry_id
        ):
            dropped.append(segment)
    return dropped


def _load(segment: Segment, link: Link[SegmentHeader], *, is_known: bool) -> None:
    """Load a segment's rows and show those that count."""
    index = segment.index
    count = None if link.end_entry_id is None else link.end_entry_id - segment.first_entry_id
    if is_known and index.sealed and segment.entry_count == index.count:
        is_unchanged = link.end_index is None if count is None else count == index.count
        if is_unchanged:
            return  # the usual case when a topic of many segments is refreshed
    if not is_known:
        segment.load_index()
    elif not index.sealed and (count is None or index.count < count):
        segment.read_new_records()
    if count is not None and index.count < count:
        if index.sealed:  # the end of the segment, or the next segment, is gone
            index.reopen()
            segment.read_new_records()
        _log.error(
            "%s: the last %d entries are lost; run `verify`", segment.path, count - index.count
        )
        stated = index.next_message
        if link.end_index is not None:
            stated = link.end_index - segment.first_index
        index_lost_rows(index, count, stated)
    if count is None:
        count = index.count
        if link.end_index is not None:
            # A salvaged header does not say how many entries count, but which is the last.
            count = segment.find_message(link.end_index - segment.first_index, count)
    if count < index.count:
        segment.truncate(count)  # what never counted must not be counted by the next header
    else:
        segment.show(index.count)
