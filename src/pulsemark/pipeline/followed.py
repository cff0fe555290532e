"""The topics of a read: in a folder, over gRPC, or in BookKeeper.

A batch reads them as they are now (`FollowedTopics.read`). A stream asks again and again for the
topics as they are then, for a slice between two indexes, and for tasks. Of a folder both get the
same topics, and hear of the same losses.

In BookKeeper nothing is written, recovered or fenced (see `ledger.bookkeeper.reader`), so brokers
go on meanwhile. Each task opens a reader of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ..compaction.current_view import FolderForm, logs_of_folder
from ..ledger import FolderLog, FolderReader, TopicNotFoundError
from ..maintenance.expected import Expected, expected_of
from ..maintenance.verify_catalog import follow_transactions
from .errors import DataLossError
from .marks import Mark, check_place, mark_of, why_other
from .options import Bound, BoundKind, ReadOptions, opened_store
from .plan import Selected, entry_of, finder_for, report, segments_of, slice_of, tasks_of
from .slices import Slice
from .tasks import LedgerPartition, log_in_store

if TYPE_CHECKING:
    from ..finder.client import SeekClient
    from ..finder.search import IndexPlace
    from ..ledger.bookkeeper.address import StoreAddress
    from ..ledger.bookkeeper.reader import BookKeeperReader, StoredLog
    from .remote_log import RemoteLog


FollowedLog: TypeAlias = "FolderLog | StoredLog | RemoteLog"


class FollowedTopics:
    """The selected topics of a read, with one reader for all micro-batches."""

    _reader: FolderReader | BookKeeperReader

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._logs: dict[str, Any] = {}
        self._expected = Expected()
        self.names: Collection[str] = ()
        """The topics at the last refresh, with those that have no message yet."""
        self.may_have_changed = True
        """Whether ledgers came or went at the last refresh, so that marks are compared again."""

    def refresh(self, *, missing_is_error: bool = False) -> Mapping[str, FollowedLog]:
        """The topics as they are now. Raises TopicNotFoundError."""
        raise NotImplementedError

    def read(self) -> list[LedgerPartition]:
        """The tasks of a batch, at least one.

        Spark takes an empty list for "not divided" and would pass a partition of its own to a task.

        Raises TopicNotFoundError, DataLossError (see ``fail_on_data_loss``), OptionError.
        """
        self.refresh(missing_is_error=True)
        for error in self.lost_topics():
            report(error, self._options.fail_on_data_loss)
        slices = [self.slice(topic) for topic in self._logs]
        return self.partitions(slices) or [LedgerPartition(())]

    def lost_topics(self) -> Iterable[DataLossError]:
        """Topics that are lost as a whole."""
        return ()

    def losses(self) -> Iterable[DataLossError]:
        """Topics that are lost, and messages that are lost after the end of topics."""
        return ()

    def mark(self, topic: str, index: int) -> Mark | None:
        """The mark of a stream that has all messages before an index, or None."""
        return mark_of(self._logs[topic], index)

    def check_place(self, topic: str, index: int, mark: Mark | None) -> None:
        """Check that the stream can go on. Raises DataLossError."""
        check_place(self._logs[topic], index, mark, self._expected)

    def slice(self, topic: str, start: Bound | None = None, end: Bound | None = None) -> Slice:
        """A part of a topic; without bounds, those of the options. Raises DataLossError."""
        read = self._options
        bounded = replace(read, start=start or read.start, end=end or read.end)
        return self._slice(self._logs[topic], bounded)

    def _slice(self, log: Any, options: ReadOptions) -> Slice:
        return slice_of(log, options, self._expected)

    def entry_with(self, topic: str, index: int) -> IndexPlace:
        """The entry that holds a message. Raises IndexOutOfRangeError, CorruptEntryError."""
        return finder_for(self._logs[topic]).by_index(index)

    def partitions(self, slices: Sequence[Slice]) -> list[LedgerPartition]:
        """The slices as tasks."""
        return [LedgerPartition(task) for task in tasks_of(slices, self._logs, self._options)]

    def close(self) -> None:
        """Close what is open."""
        self._reader.close()


class FolderTopics(FollowedTopics):
    """Topics of a folder: a refresh costs what has changed."""

    def __init__(self, options: ReadOptions, *, as_written: bool = False) -> None:
        """``as_written``: read cleaned topics as the rest of their log alone."""
        super().__init__(options)
        self._reader = self._folder = FolderReader(options.path)
        self._as_written = as_written
        self._stamp: int | None = None
        self._forms: Mapping[str, FolderLog | FolderForm] = {}

    def refresh(self, *, missing_is_error: bool = False) -> Mapping[str, FollowedLog]:
        stamp = self._folder.names_stamp()
        self.may_have_changed = stamp is None or stamp != self._stamp
        if self.may_have_changed:
            self._expected, self._stamp = expected_of(self._folder, self._options.path), stamp
        there, known = self._folder.topics(), (*self._expected.lost, *self._expected.topics)
        topics, absent = self._options.select({*there, *known})
        if absent and missing_is_error:
            raise TopicNotFoundError(absent[0])
        for topic in self._logs.keys() - set(topics):
            del self._logs[topic]
        ledgers = self._expected.lost_ledgers
        for topic in self._folder.refresh(self._logs.values(), lost=ledgers):
            del self._logs[topic]
        new = [topic for topic in topics if topic not in self._logs and topic in there]
        if new:
            self._logs |= self._folder.logs(new, lost=ledgers)
        if not self._options.uncommitted:
            follow_transactions(self._options.path, self._logs.values())
        self.names, self._forms = topics, {}
        return self._logs

    def selected(self) -> Selected:
        """The topics of the last refresh, with what should be in them."""
        is_pattern = self._options.topics.pattern is not None
        return Selected(list(self.names), self._logs, self._expected, is_pattern)

    def lost_topics(self) -> Iterable[DataLossError]:
        return self.selected().lost_topics()

    def losses(self) -> Iterable[DataLossError]:
        yield from self.lost_topics()
        for topic, log in self._logs.items():
            reason = self._expected.lost_after(log)
            if reason is not None:
                yield DataLossError(topic, log.next_index, None, reason)

    def check_place(self, topic: str, index: int, mark: Mark | None) -> None:
        """As above; what cleaning removed from a log is no loss."""
        log = self._logs[topic]
        if index >= log.first_index or isinstance(self._whole(log), FolderLog):
            super().check_place(topic, index, mark)

    def _whole(self, log: FolderLog) -> FolderLog | FolderForm:
        """The form in which a topic is read; found for all topics at each refresh."""
        if self._as_written:
            return log
        if not self._forms:
            self._forms = logs_of_folder(self._folder, self._logs)
        return self._forms[log.name]

    def _slice(self, log: Any, options: ReadOptions) -> Slice:
        """A slice; of a cleaned topic, entries before its log are in its view."""
        start = options.start.of(log.name)
        in_log = start.kind is BoundKind.INDEX and start.value >= log.first_index
        whole = log if in_log or start.kind is BoundKind.LATEST else self._whole(log)
        return slice_of(whole, options, self._expected)

    def partitions(self, slices: Sequence[Slice]) -> list[LedgerPartition]:
        cleaned = {
            each.topic: self._whole(self._logs[each.topic]) for each in slices if each.has_holes
        }
        tasks = tasks_of(slices, {**self._logs, **cleaned}, self._options)
        lost = self._expected.lost_ledgers
        return [LedgerPartition(task, lost, segments_of(task, self._logs)) for task in tasks]


class StoreTopics(FollowedTopics):
    """Topics of a store. Lost ledgers are noticed when they are read, and not before."""

    def __init__(self, options: ReadOptions, store: StoreAddress) -> None:
        super().__init__(options)
        self._reader = self._store = opened_store(store)
        self._ledgers: dict[str, list[int]] = {}

    def refresh(self, *, missing_is_error: bool = False) -> Mapping[str, FollowedLog]:
        topics, absent = self._options.select(self._store.topics())
        if absent and missing_is_error:
            raise TopicNotFoundError(absent[0])
        logs = {topic: log_in_store(self._store, topic) for topic in topics}
        self._logs = {topic: log for topic, log in logs.items() if log is not None}
        if not self._options.uncommitted:
            follow_transactions(self._store, self._logs.values())
        self.names = self._logs
        before = self._ledgers
        self._ledgers = {
            t: [run.ledger_id for run in log.segments()] for t, log in self._logs.items()
        }
        self.may_have_changed = self._ledgers != before
        return self._logs


class ServiceTopics(FollowedTopics):
    """Named topics of a gRPC service.

    One log is told from another by the place of the last entry.
    """

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        assert options.service is not None, "the stream is of a service"
        self._client: SeekClient = options.service.client()

    def refresh(self, *, missing_is_error: bool = False) -> Mapping[str, FollowedLog]:
        from .remote_log import remote_topics

        names = self._options.topics.names
        logs = remote_topics(
            self._client,
            names,
            missing_is_error=missing_is_error,
            uncommitted=self._options.uncommitted,
        )
        self._logs = {name: logs[name] for name in self._options.select(logs)[0]}
        self.names = self._logs
        return self._logs

    def losses(self) -> Iterable[DataLossError]:
        """Messages that are lost after the end of topics. Lost topics are not known."""
        for topic, log in self._logs.items():
            if log.ends.lost_after is not None:
                yield DataLossError(topic, log.next_index, None, log.ends.lost_after)

    def mark(self, topic: str, index: int) -> Mark | None:
        """The position of the entry, without its epoch and checksum."""
        log = self._logs[topic]
        if not log.first_index < index <= log.next_index:
            return None
        position, first_index = entry_of(log, index - 1)
        return Mark(0, *position, "") if first_index < index else None

    def check_place(self, topic: str, index: int, mark: Mark | None) -> None:
        """Compare the index, and the position of the entry before it if it is there."""
        end = self._logs[topic].next_index
        if end < index:
            raise DataLossError(topic, end, index, "the topic ends before")
        here = None if mark is None else self.mark(topic, index)
        if mark is not None and here is not None and here != mark:
            raise DataLossError(topic, None, index, why_other(mark))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def followed(options: ReadOptions) -> FollowedTopics:
    """The topics of a read with these options; close them after use.

    Raises:
        ForeignFolderError: the path is not a data folder.
        UnsupportedVersionError: a newer version wrote the folder.
        OptionError: the service cannot be called with these options.
    """
    if options.store is not None:
        return StoreTopics(options, options.store)
    return FolderTopics(options) if options.service is None else ServiceTopics(options)
