"""The counts of a topic's cleaning, for stats and metrics, since the topic was opened."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["CompactionFigures", "CompactionStatus", "TopicCleaning"]


class CompactionStatus(Enum):
    """Pulsar's `LongRunningProcessStatus`."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(slots=True)
class CompactionFigures:
    """The counts of a topic's compactions."""

    status: CompactionStatus = CompactionStatus.NOT_RUN
    last_error: str = ""
    #: Set to stop the compaction that runs. None before the first one: each topic has figures.
    stop: threading.Event | None = None
    stop_reason: str = ""
    succeeded: int = 0
    failed: int = 0
    #: Messages that all compactions, and the last one, left out.
    removed_events: int = 0
    last_removed_events: int = 0
    last_succeeded_ms: int = 0
    last_failed_ms: int = 0
    last_duration_ms: int = 0
    read_bytes_per_s: float = 0.0
    written_bytes_per_s: float = 0.0
    view_entries: int = 0
    view_size_bytes: int = 0

    def begin(self) -> None:
        """Begin a run: its status is running, and it is not asked to stop."""
        self.status = CompactionStatus.RUNNING
        self.stop_reason = ""
        self.stop = threading.Event()

    def ask_to_stop(self, reason: str = "") -> None:
        """Ask the compaction that runs, if one does, to stop."""
        self.stop_reason = reason
        if self.stop is not None:
            self.stop.set()


@dataclass(slots=True)
class TopicCleaning:
    """What cleaning removed from a topic, and the counts of its compactions."""

    entries_removed: int = 0
    messages_removed: int = 0
    bytes_removed: int = 0
    #: When entries were last removed, by the broker's clock; 0: never.
    last_removed_ms: int = 0
    compaction: CompactionFigures = field(default_factory=CompactionFigures)
