"""Removing the segments of a topic: off the catalog's list first, durably, then their files.

What makes room may use the folder's reserve where the disk is full, and fills it up again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ...cursors.cursor_store import CURSOR_TOPIC
from ...errors import CatalogError
from ..catalog.catalog import Catalog, SegmentId
from ..commit.checkpoint import Checkpointer
from ..io.fd_cache import FdCache
from ..io.files import Files
from ..io.reserve import Reserve
from ..opening.recovery import remove_segment_files
from .segment import Segment

_log = logging.getLogger(__name__)

T = TypeVar("T")


def segment_ids(segments: Sequence[Segment]) -> list[SegmentId]:
    """Ledger ids and segment numbers."""
    return [(s.ledger_id, s.header.segment_no) for s in segments]


class SegmentRemoval:
    """Removes segments from one folder, which this process owns."""

    def __init__(
        self,
        files: Files,
        fds: FdCache,
        folder: Path,
        catalog: Catalog,
        checkpointer: Checkpointer,
        reserve: Reserve,
    ) -> None:
        self._files = files
        self._fds = fds
        self._folder = folder
        self._catalog = catalog
        self._checkpointer = checkpointer
        self._reserve = reserve

    def freeing(self, work: Callable[[], T]) -> T:
        """Do what makes room, with the reserve where the disk is full (see `reserve`)."""
        done = self._reserve.with_space_for(work)
        self._reserve.try_to_fill_up()
        return done

    def unlist(self, topic_id: int, segments: Sequence[Segment]) -> None:
        """Decide, durably, that a topic no longer has these segments. Raises CatalogError."""
        ids = segment_ids(segments)
        self.freeing(lambda: self._catalog.remove_segments(topic_id, ids))
        for segment in segments:
            segment.mark_removed()

    def remove(self, segments: Sequence[Segment]) -> None:
        """Remove files of unlisted segments. Raises OSError: the next opening removes them then."""
        self.remove_files(segment_ids(segments))
        if segments and segments[0].header.topic != CURSOR_TOPIC:  # those go in the committer
            self.take_space_back()

    def remove_files(self, segments: Sequence[SegmentId]) -> None:
        """Remove files that the catalog no longer lists. Raises OSError."""
        remove_segment_files(self._files, self._fds, self._folder, segments)
        self._checkpointer.segments_removed(set(segments))

    def remove_files_of_topic(self, segments: Sequence[SegmentId]) -> None:
        """As `remove_files`, for all that a deleted topic had."""
        try:
            self.remove_files(segments)
        finally:
            self.take_space_back()

    def take_space_back(self) -> None:
        """Where removing took from the reserve, fill it up from what was removed."""
        if self._reserve.is_whole:
            return
        try:
            self._checkpointer.checkpoint()  # until then removed files are held open
        except (OSError, CatalogError) as error:
            _log.warning("%s: no checkpoint: %s", self._folder, error)
        self._reserve.try_to_fill_up()

    def left_over(self, name: str, topic_id: int, segments: Sequence[Segment]) -> None:
        """On opening: remove segments of a tail that was cut off before a crash."""
        ids = segment_ids(segments)
        try:
            self._catalog.remove_segments(topic_id, ids)
            remove_segment_files(self._files, self._fds, self._folder, ids)
        except (OSError, CatalogError) as error:
            _log.warning("%s: %s count no more, and stay: %s", name, ids, error)
            return
        self._checkpointer.segments_removed(set(ids))
