"""A continuous offload: runs one after another beside a broker that writes, until it is stopped.

Each run is an offload: what it commits counts as a whole, and the next one goes on there. So a
follower may be killed at any moment, and nothing is copied twice. How far the table is behind is
counted from the folder whenever it is asked for, also while a run takes long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any

from ...finder import Finder, IndexOutOfRangeError
from ...ledger import CorruptEntryError, FolderReader, TopicLog
from ...until_signal import by_topic
from ..arguments import checked_options, option_texts
from ..plan import selected
from .job import OffloadResult, offload
from .table import OffloadTable, table_of

if TYPE_CHECKING:
    from prometheus_client import Metric
    from pyspark.sql import SparkSession

DEFAULT_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Lag:
    """The messages of a topic that a table does not have yet."""

    messages: int
    seconds: float
    """Broker time between the last message in the table and the last one of the topic."""


@dataclass(slots=True, eq=False)
class OffloadFollower:
    """A table that follows a folder's topics.

    Args:
        spark, path, target, topics: as of `offload`, and ``more`` are its other arguments.
        every_s: from the beginning of a run to that of the next one; one that takes longer is
            followed at once.
        on_run: called after each run.
    """

    spark: SparkSession
    path: str | os.PathLike[str]
    target: OffloadTable | str | os.PathLike[str]
    topics: str | Sequence[str] | None = None
    every_s: float = DEFAULT_EVERY_S
    on_run: Callable[[OffloadResult], object] = lambda _: None
    more: dict[str, Any] = field(default_factory=dict)
    runs: int = field(init=False, default=0)
    messages: int = field(init=False, default=0)
    """Copied by all runs."""
    _stopping: Event = field(init=False, default_factory=Event)
    _copied: dict[tuple[str, int], int] = field(init=False, default_factory=dict)

    def stop(self) -> None:
        """Let `run` return after the run that is under way; from any thread."""
        self._stopping.set()

    def run(self) -> None:
        """Copy what is new, again and again. Raises what `offload` raises."""
        table = table_of(self.target)
        while not self._stopping.is_set():
            began_s = time.monotonic()
            result = offload(self.spark, self.path, table, self.topics, **self.more)
            self._copied = table.load().next_indexes()
            self.runs, self.messages = self.runs + 1, self.messages + result.rows
            self.on_run(result)
            self._stopping.wait(max(0.0, self.every_s - (time.monotonic() - began_s)))

    def lags(self) -> dict[str, Lag]:
        """How far the table is behind each topic now."""
        options = checked_options(option_texts(self.path, self.topics))
        with FolderReader(options.path) as reader:
            logs = selected(reader, options).logs
            return {topic: self._lag(log, log.topic_id) for topic, log in logs.items()}

    def _lag(self, log: TopicLog, log_id: int) -> Lag:
        reached = self._copied.get((log.name, log_id), log.first_index)
        end = log.stable_index
        if reached >= end:
            return Lag(0, 0.0)
        try:
            places = max(reached - 1, log.first_index), end - 1
            first, last = (Finder(log).by_index(index).time_ms for index in places)
        except (IndexOutOfRangeError, CorruptEntryError):
            first = last = 0
        return Lag(end - reached, max(0, last - first) / 1000)

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment, for a registry of Prometheus."""
        from prometheus_client.core import CounterMetricFamily

        name, lags = "pulsemark_offload", self.lags()
        yield CounterMetricFamily(f"{name}_runs", "Runs that have ended", self.runs)
        yield CounterMetricFamily(f"{name}_messages", "Messages copied", self.messages)
        text = "Messages that are not in the table yet"
        messages = {topic: lag.messages for topic, lag in lags.items()}
        yield by_topic(f"{name}_lag_messages", text, messages)
        text = "Broker time between the last message in the table and that of the topic"
        yield by_topic(f"{name}_lag_seconds", text, {t: lag.seconds for t, lag in lags.items()})
