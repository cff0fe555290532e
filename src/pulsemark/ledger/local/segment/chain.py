"""Which segments make a topic's log, and how many of their entries count.

The rule needs only the segments' own headers, so that a reader without the catalog comes to the
same answer as the owner. It goes from the newest ledger back: each names the previous ledger, and
how many of its entries count. A ledger that no later one names had nothing durable (its first write
failed and another ledger took its place) and is left out; so are entries beyond the count. Going
back ends where the named ledger does not exist: it was trimmed. If it is known to be lost through
damage, the newest of the older ledgers is next.

Entries that a later header counts were durable. If their records are gone, they keep their places
all the same, and reading them raises CorruptEntryError.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .indexing import index_lost_rows
from .segment import Segment
from .segment_format import UNKNOWN_COUNT, SegmentHeader

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Link:
    """A segment of the chain."""

    header: SegmentHeader
    end_entry_id: int | None
    """Where its entries end, by the next header; None: no header says it."""
    end_index: int | None
    """Index of the first message after them; None: no header says it."""


def chain_of(headers: Sequence[SegmentHeader], lost: Collection[int] = ()) -> list[Link]:
    """The segments that belong to a topic's log, oldest first, by their headers.

    ``lost`` are ledgers that should be there, and are missing or have no usable header.
    """
    ledgers: dict[int, list[SegmentHeader]] = {}
    for header in sorted(headers, key=lambda h: (h.ledger_id, h.first_entry_id, h.segment_no)):
        ledgers.setdefault(header.ledger_id, []).append(header)
    newest_first: list[list[Link]] = []
    ledger_id = max(ledgers, default=-1)
    count = end_index = None
    while ledger_id in ledgers:
        members = ledgers.pop(ledger_id)
        newest_first.append(_ledger(members, count, end_index))
        first = members[0]
        ledger_id, count, end_index = first.previous_ledger_id, first.previous_entry_count, None
        if first.first_entry_id == 0:
            end_index = first.first_index
        if count == UNKNOWN_COUNT:
            count = None
        if ledger_id not in ledgers and ledger_id in lost:
            ledger_id = max((other for other in ledgers if other < ledger_id), default=-1)
            count = end_index = None
    return [link for links in reversed(newest_first) for link in links]


def _ledger(
    members: Sequence[SegmentHeader], count: int | None, end_index: int | None
) -> list[Link]:
    """The segments of one ledger of which ``count`` entries count (None: as many as there are)."""
    links = []
    for number, header in enumerate(members):
        end, index = count, end_index
        if number + 1 < len(members):
            following = members[number + 1]
            if count is None or following.first_entry_id <= count:
                end, index = following.first_entry_id, following.first_index
        if end is None or end > header.first_entry_id:
            links.append(Link(header, end, index))
    return links


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
    shown = []
    for link in chain_of(list(by_header), lost):
        segment = by_header[link.header]
        _load(segment, link, is_known=segment in known)
        if segment.entry_count:
            shown.append(segment)
    if shown:
        shown[0].load_cut()
    return shown


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


def _load(segment: Segment, link: Link, *, is_known: bool) -> None:
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
        _log.error("%s: %d entries are lost from its end", segment.path, count - index.count)
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
