"""Divide what is to be copied into pieces: one file each, of one topic and one hour.

A piece ends where the hour of the broker's time ends, or at a multiple of the rows a file may have.
So the same entries give the same pieces in every run; only the last piece of a topic depends on
where its log ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...finder import Finder
from ...ledger.local.folder_reader import FolderLog
from ...ledger.local.io.folder import SegmentId
from ..marks import Mark, mark_of
from ..plan import Slice, entry_of, row_of, segments_of, slice_between
from .manifest import HOUR_MS, LAST_HOUR_MS, file_name


@dataclass(frozen=True, slots=True)
class Piece:
    """What one file will hold."""

    path: str
    log_id: int
    hour_ms: int
    part: Slice
    segments: tuple[SegmentId, ...]
    """Those to open, so that a worker reads no headers of other topics."""
    mark: Mark | None
    """Of the entry with the last message."""

    def to_json(self) -> list[object]:
        """A list for JSON."""
        mark = None if self.mark is None else self.mark.to_json()
        return [self.path, self.log_id, self.hour_ms, self.segments, mark, *self.part.to_json()]

    @classmethod
    def from_json(cls, values: list[Any]) -> Piece:
        """The piece of such a list."""
        path, log_id, hour_ms, segments, mark, *part = values
        ids = tuple((each[0], each[1]) for each in segments)
        return cls(path, log_id, hour_ms, Slice.from_json(part), ids, Mark.from_json(mark))


def pieces_of(log: FolderLog, first: int, end: int, rows_per_file: int) -> Iterator[Piece]:
    """The pieces of the messages ``[first, end)`` of a topic."""
    finder = Finder(log)
    while first < end:
        hour_ms = min(_time_ms(log, first) // HOUR_MS * HOUR_MS, LAST_HOUR_MS)
        hour_end = end if hour_ms == LAST_HOUR_MS else _hour_end(finder, hour_ms, first, end)
        limit = (first // rows_per_file + 1) * rows_per_file
        piece_end = _entry_end(log, limit) if limit < hour_end else hour_end
        piece_end = max(piece_end, _entry_end(log, first + 1))
        part = slice_between(log, first, piece_end)
        path = file_name(log.name, log.topic_id, hour_ms, first, piece_end)
        (segments,) = segments_of([part], {log.name: log}).values()
        yield Piece(path, log.topic_id, hour_ms, part, segments, mark_of(log, piece_end))
        first = piece_end


def _hour_end(finder: Finder, hour_ms: int, first: int, end: int) -> int:
    found = finder.by_time(hour_ms + HOUR_MS)
    return end if found.end else min(end, max(found.first_index, first))


def _time_ms(log: FolderLog, index: int) -> int:
    """The time by which searches find a message's entry: the highest up to that entry."""
    place = row_of(log, index)
    assert place is not None, "the index is before the log's end"
    segment, row = place
    return segment.row(row).time_ms


def _entry_end(log: FolderLog, index: int) -> int:
    """The first index at or after this one with which an entry begins."""
    position, first_index = entry_of(log, index)
    if first_index >= index:
        return index
    _, following = entry_of(log, log.index_before(log.next_position(position)))
    return following
