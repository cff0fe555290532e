"""The stream of ``pulsar-ledger``: micro-batches that follow growing topics.

A stream's offset has, for each topic, the index of the next message, the id of the topic's log, and
the mark of the last message (:mod:`.marks`). So an offset names the same message after any restart:
the rows of a micro-batch depend only on its two offsets. Spark keeps these in the query's
checkpoint before the batch runs.

- New topics that match `topicsPattern` are read from their first message.
- A topic that was deleted and created again has another id, and is read from its first message.
- What retention removes before the stream has read it is a loss (`failOnDataLoss`), and so is all
  that a batch read reports as one. If the log gives indexes again, because its tail was cut off or
  an older copy was restored, the stream goes on only with `failOnDataLoss=false`, at its index.

Spark runs the methods in a process of its own on the driver's machine, and `read` in workers. One
reader follows the folder through all micro-batches, so a batch costs what has changed.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ..client import AdminClient, AdminError, UnreachableError
from ..client.admin import topic_path
from ..finder import IndexOutOfRangeError
from ..ledger import (
    EARLIEST,
    CorruptEntryError,
    Position,
    TopicLog,
    TopicNotFoundError,
)
from ..ledger.retention import size_bytes, size_cut
from .errors import DataLossError, JobFailedError, OptionError
from .followed import FollowedLog, FollowedTopics, followed
from .marks import Mark
from .options import Bound, BoundKind, ServiceOptions, StreamOptions, SubscriptionOptions
from .plan import entry_of
from .tasks import TaskReader

if TYPE_CHECKING:
    import pyarrow as pa

    from ..finder.search import IndexPlace
    from .values.form import ValueForm

_log = logging.getLogger(__name__)

Place = dict[str, Any]
"""``index``, of the next message, ``id``, of the topic's log, and ``mark``, of the message before,
if one is there; offsets of earlier versions have no mark."""
Offset = dict[str, Place]
"""By topic."""


class Subscription:
    """A stream's progress as a subscription: durable cursors of the broker, by topic.

    Retention keeps what a subscription has not acknowledged, and tools that show backlogs show the
    query's. A cursor follows what is in the query's checkpoint, and is never ahead of it: a place
    inside of an entry is that entry. It is created and moved over the broker's REST API,
    pulsemark's or Apache Pulsar's, and stays when the query ends, because the query may go on.
    """

    def __init__(self, options: SubscriptionOptions) -> None:
        self._options = options
        self._admin = _client(options.service)
        self._at: dict[str, object] = {}
        """The places to which this process has moved the cursors."""

    def place(self, topic: str, place: object, find: Callable[[], Position]) -> None:
        """Set a topic's cursor to the next entry; create it if it is missing.

        ``place`` says which entry that is; ``find`` finds it, if the cursor is elsewhere.

        Raises:
            OptionError: the predefined subscription does not exist.
            JobFailedError: the broker refuses, or cannot be reached.
        """
        if self._at.get(topic) == place:
            return
        position = find()
        name = self._options.name
        try:
            there = topic in self._at or name in self._admin.subscriptions(topic)
            if not there and self._options.is_predefined:
                reason = f"{topic} has no such subscription; subscriptionName creates one"
                raise OptionError("predefinedSubscription", name, reason)
            path = f"{topic_path(topic)}/subscription/{quote(name, safe='')}"
            body = {"ledgerId": position.ledger_id, "entryId": position.entry_id}
            method, path = ("POST", f"{path}/resetcursor") if there else ("PUT", path)
            self._admin.request(method, path, body)
        except (AdminError, UnreachableError) as error:
            self._at.pop(topic, None)
            reason = f"{topic}: the subscription {name!r} cannot be moved: {error}"
            raise JobFailedError(reason) from error
        self._at[topic] = place

    def follow(self, topic: str, place: object, find: Callable[[], Position]) -> None:
        """As `place`, but a broker that is away is only logged: the next call moves it further."""
        try:
            self.place(topic, place, find)
        except JobFailedError as error:
            _log.warning("%s", error)


def _client(service: ServiceOptions) -> AdminClient:
    """A client of the REST API. Raises OptionError."""
    try:
        context = ssl.create_default_context(cafile=service.tls_ca) if service.tls else None
        if context is not None and service.tls_certificate is not None:
            context.load_cert_chain(service.tls_certificate, service.tls_key)
        return AdminClient(service.target, token=service.token_text(), ssl_context=context)
    except (OSError, ValueError) as error:
        raise OptionError("adminUrl", service.target, f"cannot be called: {error}") from error


class LedgerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets and plans on the driver's machine, reads in the workers."""

    def __init__(
        self, options: StreamOptions, schema: StructType, values: ValueForm | None = None
    ) -> None:
        self._options = options
        self._reader = TaskReader.of(options.read, schema, values)
        self._topics: FollowedTopics | None = None
        self._logs: Mapping[str, FollowedLog] = {}
        self._turn = 0
        self._latest: Offset | None = None
        self._reached: Offset = {}
        """How far the last micro-batch goes."""
        self._subscription: Subscription | None = None
        self._target: Offset | None = None
        """With Trigger.AvailableNow: the offset at which the query ends."""
        self._waiting_since: float | None = None
        self._trusted: Offset = {}
        """Places that are known to be in the logs as they are now."""
        self._reported: set[str] = set()
        """Losses that were logged."""

    def initialOffset(self) -> Offset:  # noqa: N802
        """The start of a new query in each topic that exists now.

        Raises:
            TopicNotFoundError: a named topic does not exist.
            DataLossError: an index to start at is outside of the topic's indexes.
        """
        logs = self._refreshed(missing_is_error=True)
        offset = {
            topic: self._place(topic, log, self._followed.slice(topic).first_index)
            for topic, log in logs.items()
        }
        start = self._options.read.start  # at the latest message, earlier ones are skipped
        is_latest = any(start.of(topic).kind is BoundKind.LATEST for topic in logs)
        _log.log(logging.WARNING if is_latest else logging.INFO, "%s", start_text(offset))
        self._acknowledge(offset, Subscription.place)
        return offset

    def commit(self, end: Offset) -> None:
        """A micro-batch is in the query's checkpoint: its subscription follows."""
        self._acknowledge(end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Tell Spark whether there are limits; `latestOffset` applies them, as there can be two."""
        given = self._options
        most = given.max_offsets_per_trigger
        if most or given.max_bytes_per_trigger or given.min_offsets_per_trigger:
            return ReadMaxRows(most or 2**63 - 1)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """How far the next micro-batch goes; `start` if it shall wait.

        Raises DataLossError: a topic is gone, shorter than it was or another one, or
        messages are lost (see ``failOnDataLoss``).
        """
        end = self._available(start)
        self._latest = dict(end)
        # Spark asks for the next micro-batch when the one before it is in the checkpoint.
        self._acknowledge(start)
        self._reached = self._next_end(end, start, limit)
        return self._reached

    def _next_end(self, end: Offset, start: Offset, limit: ReadLimit) -> Offset:
        options = self._options
        if isinstance(limit, ReadAllAvailable):
            return self._marked(end, start)
        first = {topic: _first_of(start, topic, place) for topic, place in end.items()}
        backlogs = {
            topic: Backlog(self._logs[topic], first[topic], place["index"])
            for topic, place in end.items()
            if topic in self._logs and place["index"] > first[topic]
        }
        if self._shall_wait(sum(each.end_index - each.first_index for each in backlogs.values())):
            return start
        parts = admit(
            backlogs, options.max_offsets_per_trigger, options.max_bytes_per_trigger, self._turn
        )
        self._turn += 1
        for topic, place in end.items():
            if topic in backlogs:
                reached = parts[topic].end_index if topic in parts else first[topic]
                end[topic] = {**place, "index": reached}
        return self._marked(end, start)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """For the query's progress: the ends of all topics, and how far they are from its own.

        Seconds are broker time, between the last message of the query and that of the topic.
        """
        if self._latest is None:
            return None
        return {t: {**place, **self._lag(t, place)} for t, place in self._latest.items()}

    def _lag(self, topic: str, latest: Place) -> dict[str, Any]:
        reached, end = _first_of(self._reached, topic, latest), latest["index"]
        seconds = 0.0
        if reached < end and topic in self._logs:
            first = self._entry(topic, reached - 1) or self._entry(topic, reached)
            last = self._entry(topic, end - 1)
            if first is not None and last is not None:
                seconds = max(0, last.time_ms - first.time_ms) / 1000
        return {"messagesBehindLatest": max(0, end - reached), "secondsBehindLatest": seconds}

    def _entry(self, topic: str, index: int) -> IndexPlace | None:
        """The entry with a message; None if it cannot be found."""
        try:
            return self._followed.entry_with(topic, index) if index >= 0 else None
        except (IndexOutOfRangeError, CorruptEntryError, TopicNotFoundError):
            return None

    def _acknowledge(
        self,
        offset: Offset,
        move: Callable[..., None] = Subscription.follow,
    ) -> None:
        """Let the subscription follow an offset that is in the checkpoint, or begins it."""
        if self._options.subscription is None:
            return
        if self._subscription is None:
            self._subscription = Subscription(self._options.subscription)
        for topic in self._followed.names:
            log, place = self._logs.get(topic), offset.get(topic)
            if log is None and place is None:  # it has no message yet
                self._subscription.follow(topic, 0, lambda: EARLIEST)
            elif log is not None:
                index = _first_of(offset, topic, {"id": log.topic_id})
                find = partial(self._after, topic, index)
                move(self._subscription, topic, (log.topic_id, index), find)

    def _after(self, topic: str, index: int) -> Position:
        """The entry with the next message to read, which may be read in part already."""
        entry = self._entry(topic, index - 1)
        if entry is None:
            return EARLIEST
        return entry.position.following if entry.index < index else entry.position

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query ends where its topics end now."""
        self._target = self._ends(self._refreshed(missing_is_error=True))

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The tasks of a micro-batch.

        Raises:
            DataLossError: messages between the offsets are gone (see ``failOnDataLoss``).
        """
        if any(topic not in self._logs for topic in end):
            self._refreshed()  # a restarted query plans its last batch again, first of all
        slices = []
        for topic, place in end.items():
            first = _first_of(start, topic, place)
            if place["index"] <= first:
                continue
            log = self._logs.get(topic)
            if log is None or log.topic_id != place["id"]:
                reason = "the topic was deleted"
                self._report(DataLossError(topic, first, place["index"], reason))
                continue
            if first:
                self._check(topic, start[topic])
            self._check(topic, place)
            bounds = (Bound(BoundKind.INDEX, index) for index in (first, place["index"]))
            slices.append(self._followed.slice(topic, *bounds))
        return [*self._followed.partitions(slices)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one task's slices, in order."""
        return self._reader.read(partition)

    def stop(self) -> None:
        """Close the folder, or the connection."""
        if self._topics is not None:
            self._topics.close()

    @property
    def _followed(self) -> FollowedTopics:
        """The topics; opened where they are first needed, because readers are pickled."""
        if self._topics is None:
            self._topics = followed(self._options.read)
        return self._topics

    def _refreshed(self, *, missing_is_error: bool = False) -> Mapping[str, FollowedLog]:
        """The selected topics as they are now."""
        self._logs = self._followed.refresh(missing_is_error=missing_is_error)
        if self._followed.may_have_changed:
            self._trusted = {}
            for error in self._followed.losses():
                self._report(error)
        return self._logs

    def _ends(self, logs: Mapping[str, FollowedLog]) -> Offset:
        return {
            topic: {"index": log.stable_index, "id": log.topic_id} for topic, log in logs.items()
        }

    def _place(self, topic: str, log: FollowedLog, index: int) -> Place:
        """A place in a log as it is now, with its mark."""
        place: Place = {"index": index, "id": log.topic_id}
        mark = self._followed.mark(topic, index)
        if mark is not None:
            place["mark"] = mark.to_json()
        self._trusted[topic] = place
        return place

    def _marked(self, end: Offset, start: Offset) -> Offset:
        """Add marks to the end of a micro-batch; unchanged places stay."""
        for topic, place in end.items():
            log, before = self._logs.get(topic), start.get(topic)
            if before is not None and (before["id"], before["index"]) == (
                place["id"],
                place["index"],
            ):
                end[topic] = before
            elif log is not None and log.topic_id == place["id"]:
                end[topic] = self._place(topic, log, place["index"])
        return end

    def _check(self, topic: str, place: Place) -> None:
        """Check that what was read up to a place is still what the log has there."""
        if self._trusted.get(topic) == place and place["index"] <= self._logs[topic].stable_index:
            return
        try:
            mark = Mark.from_json(place.get("mark"))
            self._followed.check_place(topic, place["index"], mark)
        except DataLossError as error:
            self._report(error)
        self._trusted[topic] = place

    def _available(self, start: Offset) -> Offset:
        """The end of each topic; topics that are gone stay in the offset where they were."""
        logs = self._refreshed()
        ends = self._ends(logs)
        if self._target is not None:
            ends = _not_after(ends, self._target)
        for topic, place in start.items():
            end = ends.setdefault(topic, place)
            if end["id"] != place["id"] or topic not in logs:
                again = " and created again" if topic in logs else ""
                reason = f"the topic was deleted{again}"
                self._report(DataLossError(topic, place["index"], None, reason))
            else:
                self._check(topic, place)
                if end["index"] < place["index"]:
                    ends[topic] = place
        return ends

    def _shall_wait(self, available: int) -> bool:
        """Whether there is less than `minOffsetsPerTrigger`, and time to wait for more."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        waited_ms = (now - self._waiting_since) * 1000
        if available < least and waited_ms < self._options.max_trigger_delay_ms:
            return True
        self._waiting_since = now
        return False

    def _report(self, error: DataLossError) -> None:
        """Raise a loss, or log it once."""
        if self._options.read.fail_on_data_loss:
            raise error
        if str(error) not in self._reported:
            self._reported.add(str(error))
            _log.warning("missing messages are left out of the stream: %s", error)


def start_text(offset: Offset) -> str:
    """One line that says where a new query starts; of many topics it names five."""
    places = [f"{topic} at index {place['index']}" for topic, place in sorted(offset.items())]
    more = f" and {len(places) - 5} more" if len(places) > 5 else ""
    return f"the new stream starts in {', '.join(places[:5]) or 'no topic yet'}{more}"


def _first_of(start: Offset, topic: str, end: Mapping[str, Any]) -> int:
    """The first message of a micro-batch: a topic that is new, or created again, begins at 0."""
    place = start.get(topic)
    return place["index"] if place is not None and place["id"] == end["id"] else 0


def _not_after(ends: Offset, target: Offset) -> Offset:
    """Limit a query with Trigger.AvailableNow to the ends at its beginning."""
    return {
        topic: {**place, "index": min(place["index"], target[topic]["index"])}
        for topic, place in ends.items()
        if topic in target and target[topic]["id"] == place["id"]
    }


@dataclass(frozen=True, slots=True)
class Backlog:
    """Messages ``[first_index, end_index)`` of a topic that a micro-batch may include."""

    log: FollowedLog
    first_index: int
    end_index: int


Cut = Callable[[Backlog, int], tuple[int, int]]
"""The end of the part of a backlog that a budget is enough for, and what the part costs."""


def admit(
    backlogs: Mapping[str, Backlog], max_offsets: int | None, max_bytes: int | None, turn: int
) -> dict[str, Backlog]:
    """The part of each topic's backlog for the next micro-batch.

    A limit is shared fairly: topics with little to read are read to their ends, and the others
    divide the rest equally. So a topic with a large backlog does not keep others waiting. One
    topic, another one each time, gets at least one entry first. So every topic goes on, however
    small the limit is and however large an entry.

    Args:
        backlogs: by topic; none is empty.
        max_offsets: the most messages of all topics together; None: no limit.
        max_bytes: the most stored bytes of all topics together. The first entry of the topic whose
            turn it is is admitted also if it is larger.
        turn: a number that grows with each call.
    """
    admitted = dict(backlogs)
    if max_offsets is not None:
        admitted = _shared(admitted, max_offsets, _cut_messages, lambda _: 1, turn)
    if max_bytes is not None:
        admitted = _shared(admitted, max_bytes, _cut_bytes, _first_entry_bytes, turn)
    return admitted


def _shared(
    backlogs: Mapping[str, Backlog],
    budget: int,
    cut: Cut,
    first_cost: Callable[[Backlog], int],
    turn: int,
) -> dict[str, Backlog]:
    if not backlogs:
        return {}
    topics = sorted(backlogs)
    first = topics[turn % len(topics)]
    reserved = first_cost(backlogs[first])
    costs = {topic: cut(backlogs[topic], _UNLIMITED)[1] for topic in topics}
    topics.sort(key=costs.__getitem__)
    admitted: dict[str, Backlog] = {}
    for number, topic in enumerate(topics):
        waiting = len(topics) - number
        if topic == first:
            share, reserved = max(reserved, budget // waiting), 0
        else:
            share = max(0, budget - reserved) // waiting
        end_index, cost = cut(backlogs[topic], share)
        budget -= cost
        if end_index > backlogs[topic].first_index:
            admitted[topic] = replace(backlogs[topic], end_index=end_index)
    return admitted


_UNLIMITED = 1 << 62


def _cut_messages(backlog: Backlog, budget: int) -> tuple[int, int]:
    count = min(budget, backlog.end_index - backlog.first_index)
    return backlog.first_index + count, count


def _cut_bytes(backlog: Backlog, budget: int) -> tuple[int, int]:
    """Whole entries, as stored; only the first and the last one may be cut by their messages."""
    log, start = _start_of(backlog)
    cut, left_bytes = log.end_position, size_bytes(log, start)
    if left_bytes > budget:
        # What begins further back than the budget, and the entry before that, do not fit.
        cut = log.previous_position(size_cut(log, left_bytes - budget - 1))
    reached = max(backlog.first_index, min(log.index_before(cut), backlog.end_index))
    return reached, left_bytes - size_bytes(log, cut)


def _first_entry_bytes(backlog: Backlog) -> int:
    log, start = _start_of(backlog)
    return size_bytes(log, start) - size_bytes(log, log.next_position(start))


def _start_of(backlog: Backlog) -> tuple[TopicLog, Position]:
    log = backlog.log
    assert isinstance(log, TopicLog), "sizes are known of a folder's topics"
    return log, entry_of(log, backlog.first_index)[0]
