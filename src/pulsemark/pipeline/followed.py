"""The topics that a stream follows: in a folder, over gRPC, or in BookKeeper.

A stream asks for the topics as they are now, for a slice between two indexes, and for tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ..ledger import FolderReader, TopicLog, TopicNotFoundError
from ..ledger.local.folder_reader import FolderLog
from .options import Bound, BoundKind, ReadOptions, select_topics
from .plan import Slice, segments_of, slice_of, tasks_of
from .tasks import LedgerPartition

if TYPE_CHECKING:
    from ..finder.client import SeekClient
    from .remote.remote_log import RemoteLog


class FollowedLog(Protocol):
    """What a stream needs to know of a topic."""

    @property
    def topic_id(self) -> int:
        """The id of the topic's log."""

    @property
    def next_index(self) -> int:
        """The index of the next message."""


class FollowedTopics(Protocol):
    """The selected topics of a stream."""

    def refresh(self, *, missing_is_error: bool = False) -> Mapping[str, FollowedLog]:
        """The topics as they are now. Raises TopicNotFoundError."""

    def log_of(self, topic: str) -> TopicLog | None:
        """A topic's own log, for a limit by bytes; None if it is elsewhere."""

    def slice(self, topic: str, start: Bound | None = None, end: Bound | None = None) -> Slice:
        """A part of a topic; without bounds, those of the options. Raises DataLossError."""

    def partitions(self, slices: Sequence[Slice]) -> list[LedgerPartition]:
        """The slices as tasks."""

    def close(self) -> None:
        """Close what is open."""


class FolderTopics:
    """Topics of a folder, which one reader follows: a refresh costs what has changed."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._folder = FolderReader(options.path)
        self._logs: dict[str, FolderLog] = {}

    def refresh(self, *, missing_is_error: bool = False) -> Mapping[str, FollowedLog]:
        """The topics as they are now."""
        topics, absent = select_topics(self._options.topics, self._folder.topics())
        if absent and missing_is_error:
            raise TopicNotFoundError(absent[0])
        for topic in self._logs.keys() - set(topics):
            del self._logs[topic]
        for topic in self._folder.refresh(self._logs.values()):
            del self._logs[topic]
        new = [topic for topic in topics if topic not in self._logs]
        if new:
            self._logs |= self._folder.logs(new)
        return self._logs

    def log_of(self, topic: str) -> TopicLog | None:
        """A topic's log."""
        return self._logs[topic]

    def slice(self, topic: str, start: Bound | None = None, end: Bound | None = None) -> Slice:
        """A part of a topic."""
        read = self._options
        bounded = replace(read, start=start or read.start, end=end or read.end)
        return slice_of(self._logs[topic], bounded)

    def partitions(self, slices: Sequence[Slice]) -> list[LedgerPartition]:
        """The slices as tasks."""
        tasks = tasks_of(slices, self._logs, self._options)
        return [LedgerPartition(task, segments=segments_of(task, self._logs)) for task in tasks]

    def close(self) -> None:
        """Close the folder."""
        self._folder.close()


class ServiceTopics:
    """Named topics of a gRPC service."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.service is not None, "the stream is of a service"
        self._options = options
        self._client: SeekClient = options.service.client()
        self._logs: dict[str, RemoteLog] = {}

    def refresh(self, *, missing_is_error: bool = False) -> Mapping[str, FollowedLog]:
        """The topics as they are now."""
        from .remote.remote_plan import remote_topics

        names = self._options.topics.names
        self._logs = remote_topics(self._client, names, missing_is_error=missing_is_error)
        return self._logs

    def log_of(self, topic: str) -> TopicLog | None:
        """None: a service does not tell sizes."""
        del topic
        return None

    def slice(self, topic: str, start: Bound | None = None, end: Bound | None = None) -> Slice:
        """A part of a topic."""
        from .remote.remote_plan import remote_slice

        read = self._options
        return remote_slice(
            self._logs[topic], start or read.start, end or read.end, fail=read.fail_on_data_loss
        )

    def partitions(self, slices: Sequence[Slice]) -> list[LedgerPartition]:
        """The slices as tasks."""
        from .remote.remote_plan import remote_tasks

        return [LedgerPartition(task) for task in remote_tasks(slices, self._logs, self._options)]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def followed(options: ReadOptions) -> FollowedTopics:
    """The topics of a stream with these options.

    Raises:
        ForeignFolderError: the path is not a data folder.
        OptionError: the service cannot be called with these options.
    """
    if options.store is not None:
        from .stores import StoreTopics

        return StoreTopics(options, options.store)
    return FolderTopics(options) if options.service is None else ServiceTopics(options)


def index_bound(index: int) -> Bound:
    """An index as a bound."""
    return Bound(BoundKind.INDEX, index)
