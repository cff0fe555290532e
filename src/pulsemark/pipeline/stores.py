"""Topics in BookKeeper as a read, or a stream, sees them.

Each task opens a reader of its own. Nothing is written, recovered or fenced (see
`ledger.bookkeeper.reader`), so brokers go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..ledger import TopicNotFoundError
from .errors import DataLossError
from .expected import Expected
from .marks import Mark, check_place, mark_of
from .options import Bound, ReadOptions, select_topics
from .places import opened_store
from .plan import Plan, Slice, slice_of, tasks_of
from .tasks import LedgerPartition

if TYPE_CHECKING:
    from ..ledger.bookkeeper.address import StoreAddress
    from ..ledger.bookkeeper.reader import BookKeeperReader, StoredLog
    from .followed import FollowedLog


def plan_of_store(options: ReadOptions, store: StoreAddress) -> Plan:
    """As `plan.plan`: the tasks of a read.

    Raises:
        CatalogError: ZooKeeper does not answer.
        TopicNotFoundError: a named topic does not exist.
        DataLossError: a bound's index is outside of a topic's indexes.
    """
    with opened_store(store) as reader:
        topics, absent = select_topics(options.topics, reader.topics())
        if absent:
            raise TopicNotFoundError(absent[0])
        logs = {topic: reader.log(topic) for topic in topics}
        slices = [slice_of(log, options, Expected()) for log in logs.values()]
        tasks = tuple(tasks_of(slices, logs, options))
        return Plan(tasks, tuple({} for _ in tasks), frozenset(), {})


def slices_in_store(
    store: StoreAddress, partition: LedgerPartition
) -> Iterator[tuple[Slice, StoredLog | None]]:
    """A task's slices with their topics, opened once; None for a missing topic."""
    with opened_store(store) as reader:
        logs: dict[str, StoredLog | None] = {}
        for part in partition.slices:
            if part.topic not in logs:
                logs[part.topic] = _log_of(reader, part.topic)
            yield part, logs[part.topic]


def _log_of(reader: BookKeeperReader, topic: str) -> StoredLog | None:
    try:
        return reader.log(topic)
    except TopicNotFoundError:
        return None


class StoreTopics:
    """Topics of a store, which one reader follows. Lost ledgers are noticed when they are read."""

    may_have_changed = True

    def __init__(self, options: ReadOptions, store: StoreAddress) -> None:
        self._options = options
        self._reader = opened_store(store)
        self._logs: dict[str, StoredLog] = {}
        self._ledgers: dict[str, list[int]] = {}

    def refresh(self, *, missing_is_error: bool = False) -> Mapping[str, FollowedLog]:
        """The topics as they are now."""
        topics, absent = select_topics(self._options.topics, self._reader.topics())
        if absent and missing_is_error:
            raise TopicNotFoundError(absent[0])
        logs = {topic: _log_of(self._reader, topic) for topic in topics}
        self._logs = {topic: log for topic, log in logs.items() if log is not None}
        before = self._ledgers
        self._ledgers = {
            t: [run.ledger_id for run in log.segments()] for t, log in self._logs.items()
        }
        self.may_have_changed = self._ledgers != before
        return self._logs

    def losses(self) -> Iterable[DataLossError]:
        """None are known before reading."""
        return ()

    def log_of(self, topic: str) -> None:
        """None: a store does not tell sizes."""
        del topic

    def mark(self, topic: str, index: int) -> Mark | None:
        """As `marks.mark_of`."""
        return mark_of(self._logs[topic], index)

    def check_place(self, topic: str, index: int, mark: Mark | None) -> None:
        """As `marks.check_place`."""
        check_place(self._logs[topic], index, mark, Expected())

    def slice(self, topic: str, start: Bound | None = None, end: Bound | None = None) -> Slice:
        """A part of a topic."""
        read = self._options
        bounded = replace(read, start=start or read.start, end=end or read.end)
        return slice_of(self._logs[topic], bounded, Expected())

    def partitions(self, slices: Sequence[Slice]) -> list[LedgerPartition]:
        """The slices as tasks."""
        return [LedgerPartition(task) for task in tasks_of(slices, self._logs, self._options)]

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()
