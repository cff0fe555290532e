"""Removing the segments of a topic: first from the catalog's list, durably, then their files.

On a full disk, removing may use the folder's reserve; afterwards it fills the reserve up again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..cursors.cursor_store import CURSOR_TOPIC
from ..errors import CatalogError
from .catalog.catalog import Catalog
from .commit.checkpoint import Checkpointer
from .io.folder import SegmentId
from .io.reserve import Reserve
from .segment.filer import Filer
from .segment.segment import Segment

_log = logging.getLogger(__name__)

T = TypeVar("T")


class SegmentRemoval:
    """Removes segments from one folder, which this process owns."""

    def __init__(
        self,
        filer: Filer,
        catalog: Catalog,
        checkpointer: Checkpointer,
        reserve: Reserve,
    ) -> None:
        self._filer = filer
        self._catalog = catalog
        self._checkpointer = checkpointer
        self._reserve = reserve

    def freeing(self, work: Callable[[], T]) -> T:
        """Do work that frees space; on a full disk it may use the reserve (see `reserve`)."""
        done = self._reserve.with_space_for(work)
        self._reserve.try_to_fill_up()
        return done

    def unlist(self, topic_id: int, segments: Sequence[Segment]) -> None:
        """Take segments off a topic's list in the catalog, durably. Raises CatalogError."""
        ids = [segment.segment_id for segment in segments]
        self.freeing(lambda: self._catalog.remove_segments(topic_id, ids))
        self._filer.forget(segments)

    def remove(self, segments: Sequence[Segment]) -> None:
        """Remove files of unlisted segments. Raises OSError: the next opening removes them then."""
        self.remove_files([segment.segment_id for segment in segments])
        # Cursors' segments are removed in the committer's thread, which must not make a checkpoint.
        if segments and segments[0].header.topic != CURSOR_TOPIC:
            self.take_space_back()

    def remove_files(self, segments: Sequence[SegmentId]) -> None:
        """Remove files that the catalog no longer lists. Raises OSError."""
        self._filer.remove_files(segments)
        self._filer.files_removed(segments)

    def remove_files_of_topic(self, segments: Sequence[SegmentId]) -> None:
        """As `remove_files`, for all that a deleted topic had."""
        try:
            self.remove_files(segments)
        finally:
            self.take_space_back()

    def take_space_back(self) -> None:
        """Fill the reserve up again, if removing had to use it."""
        if self._reserve.is_whole:
            return
        try:
            self._checkpointer.checkpoint()  # until then removed files are held open
        except (OSError, CatalogError) as error:
            _log.warning("%s: checkpoint after a removal failed: %s", self._filer.folder, error)
        self._reserve.try_to_fill_up()

    def left_over(self, name: str, topic_id: int, segments: Sequence[Segment]) -> None:
        """On opening: remove segments of a tail that was cut off before a crash."""
        ids = [segment.segment_id for segment in segments]
        try:
            self._catalog.remove_segments(topic_id, ids)
            self.remove_files(ids)
        except (OSError, CatalogError) as error:
            _log.warning("%s: files of cut-off segments %s stay: %s", name, ids, error)
