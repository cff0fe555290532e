"""What of a topic's segments stands before a position, and may be removed from its head."""

from __future__ import annotations

from collections.abc import Sequence

from ...position import Position
from .segment import Segment


def segments_before(segments: Sequence[Segment], before: Position) -> Sequence[Segment]:
    """The first segments, whose entries all stand before ``before``.

    The last one with visible entries is none of them: it carries the index on.
    """
    keep = next(
        (n for n, s in enumerate(segments) if Position(s.ledger_id, s.end_entry_id) > before),
        len(segments),
    )
    last = max((n for n, s in enumerate(segments) if s.entry_count), default=0)
    return segments[: min(keep, last)]


def rows_before(segment: Segment, before: Position) -> int:
    """How many of a segment's visible rows stand before ``before``, in whatever ledger that is."""
    if segment.ledger_id == before.ledger_id:
        return min(segment.entry_count, max(0, before.entry_id - segment.first_entry_id))
    return segment.entry_count if segment.ledger_id < before.ledger_id else 0
