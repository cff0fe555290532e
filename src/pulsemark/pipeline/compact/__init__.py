"""Compaction as a job: the latest message of each key, in parallel by topic.

estimate_compaction  what a compaction would keep and write (see `job`)
compact_folder       make the compacted views of a folder that no broker uses (see `views`)
compact_by_broker    let the broker make them (see `views`)
compact_to_table     write the latest messages to a Parquet or Delta table (see `job`)

Which messages are kept is decided by the package `compaction`, for all of them.
"""

from __future__ import annotations

from .job import LatestFile, compact_to_table, estimate_compaction
from .views import CompactedTopic, compact_by_broker, compact_folder

__all__ = [
    "CompactedTopic",
    "LatestFile",
    "compact_by_broker",
    "compact_folder",
    "compact_to_table",
    "estimate_compaction",
]
