"""Compaction as a job: the latest message of each key, in parallel by topic.

estimate_compaction  what a compaction would keep and write (see `job`)
compact_folder       make the compacted views of a folder that no broker uses (see `views`)
compact_by_broker    let the broker make them (see `views`)

Which messages are kept is decided by the package `compaction`, for all of them.
"""

from __future__ import annotations

from .job import estimate_compaction
from .views import CompactedTopic, compact_by_broker, compact_folder

__all__ = [
    "CompactedTopic",
    "compact_by_broker",
    "compact_folder",
    "estimate_compaction",
]
