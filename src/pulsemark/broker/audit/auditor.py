"""The broker's auditor: counts the topics' entries after they are appended, in a thread of its own.

Nothing is counted in an append. The auditor walks each log as a slow reader does, by its records'
heads. While clients write, it takes at most 2 % of the processor time that the broker takes, and
may fall behind; while they do not, up to half of a processor. If a topic has more uncounted
messages than `max_audit_lag_messages`, it takes up to half of a processor in any case. A lag
makes no count wrong, because

- a report has everything that was durable when it was asked for: the rest is counted first;
- before retention removes entries, they are counted, and the counts are stored;
- after a restart, also after a kill, counting goes on from what was stored last.

A failing disk does not stop retention: entries are removed without being counted then, and the
report says how many (`uncounted`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ...audit.report import Labels, Post, Received, Report, report
from ...audit.rows import AuditInputError, AuditRow
from ...audit.trail import SnapshotError, Trail, pack_trail, unpack_trail
from ...ledger import LedgerError, ManagedLedger, Position
from ...ledger.store import MetadataStore
from ...proto.pulsar_api_pb2 import ServerError
from ...records import record
from ..cleaning.worker_thread import Lane
from ..configuration.config import BrokerConfig
from ..errors import RefusedError

if TYPE_CHECKING:
    from ..topics.registry import Topics
    from ..topics.topic import Topic

log = logging.getLogger(__name__)

T = TypeVar("T")

ROUND_INTERVAL_S = 1.0
STEP_ENTRIES = 128
#: Topics that are looked at in one step.
LOOK_TOPICS = 100
#: Entries that a request counts before other requests have their turn.
JOB_ENTRIES = 50_000
#: After this time a request is answered with what is counted by then.
REPORT_MAX_S = 20.0
#: Pauses for each second of counting: while clients write, in processor time of the whole broker.
BUSY_RESTS, IDLE_RESTS = 70.0, 1.0
#: How often the broker's share of a processor is measured, and the least that is assumed.
SHARE_INTERVAL_S, SHARE_MIN = 0.2, 0.05
#: Clients count as writing for so long after a commit.
URGENT_S = 1.0


class Auditor:
    """One broker's auditor. Its methods are for the event loop, unless they say otherwise."""

    def __init__(self, topics: Topics, writes_are_urgent: Callable[[], bool]) -> None:
        self._topics = topics
        config = self._config = topics.config
        self._lane = Lane(
            "pulsemark-audit",
            rests=lambda: self.rests(
                urgent=self._is_urgent(), is_far_behind=self._is_far_behind, share=self._share()
            ),
            clock=time.thread_time,
        )
        self._trails = Trails(topics.catalog, config)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_far_behind = False
        self._writes_are_urgent = writes_are_urgent
        self._urgent_until_s = 0.0
        self._measured = time.monotonic(), time.process_time()
        self._last_share = SHARE_MIN
        #: The time that a round took to look at all topics.
        self._look_s = 0.0
        #: How often counting or storing failed.
        self.failures = 0
        #: Processor time of the auditor's thread.
        self.cpu_s = 0.0
        self.labels = Labels(host=socket.gethostname())
        if self.is_on:
            topics.on_open.append(self._topic_opened)

    @property
    def is_on(self) -> bool:
        """Whether the broker keeps an audit."""
        return self._config.audit_enabled

    def start(self) -> None:
        """Begin to count."""
        if self.is_on:
            self._due()

    def _due(self) -> None:
        # Looking at very many topics takes time itself, also if none has anything new.
        interval_s = max(ROUND_INTERVAL_S, BUSY_RESTS * self._look_s)
        self._timer = self._loop.call_later(interval_s, self._due)
        self._lane.begin_round("audit", self._round())

    async def close(self) -> None:
        """End the thread, and store unsaved counts. The cleaning must have ended before."""
        if self._timer is not None:
            self._timer.cancel()
        self._lane.close()
        await asyncio.to_thread(self._lane.join)
        try:
            await asyncio.to_thread(self._trails.save_all)
        except (LedgerError, OSError) as error:
            text = "the audit could not be stored; after a restart the rest is counted again: %s"
            log.warning(text, error)

    # -- counting, on the lane's thread ---------------------------------------------------------

    @staticmethod
    def rests(*, urgent: bool, is_far_behind: bool, share: float) -> float:
        """The length of the auditor's pauses, as a multiple of the time that it counted.

        ``share`` is the part of a processor that the broker takes; it can be above 1.
        """
        return BUSY_RESTS / share if urgent and not is_far_behind else IDLE_RESTS

    def _is_urgent(self) -> bool:
        """Whether clients write now, or did a moment ago. On the lane's thread."""
        now_s = time.monotonic()
        if self._writes_are_urgent():
            self._urgent_until_s = now_s + URGENT_S
        return now_s < self._urgent_until_s

    def _share(self) -> float:
        """The part of a processor that the broker took lately. On the lane's thread."""
        (at_s, cpu_s), (now_s, now_cpu_s) = self._measured, (time.monotonic(), time.process_time())
        if now_s - at_s >= SHARE_INTERVAL_S:
            self._measured = now_s, now_cpu_s
            self._last_share = max(SHARE_MIN, (now_cpu_s - cpu_s) / (now_s - at_s))
        return self._last_share

    def _round(self) -> Iterator[None]:
        topics = tuple(self._topics.open_topics.values())
        look_s = 0.0
        for at in range(0, len(topics), LOOK_TOPICS):
            began_s = time.thread_time()
            some = [t for t in topics[at : at + LOOK_TOPICS] if t.is_open and self.has_work(t)]
            look_s += time.thread_time() - began_s
            yield
            for topic in some:
                while topic.is_open and self._step(topic):
                    yield
                yield
        self._look_s = look_s

    def has_work(self, topic: Topic) -> bool:
        """Whether there is something of a topic to count or to store."""
        up_to_date = self._trails.is_up_to_date(topic.ledger)
        return not up_to_date or self._trails.is_due(topic.name)

    def _step(self, topic: Topic) -> bool:
        """Count some entries of a topic. Return whether there are more."""
        ledger = topic.ledger
        try:
            if self._trails.is_up_to_date(ledger):
                self._trails.save_if_due(topic.name)
                return False
            trail = self._trails.of(ledger)
            left = trail.left(ledger)
            self._is_far_behind = left > self._config.max_audit_lag_messages
            is_end = trail.advance(ledger, STEP_ENTRIES)
            self._trails.save_if_due(topic.name)
            self._trails.make_room()
        except (LedgerError, OSError) as error:
            self._failed(topic.name, error)
            return False
        finally:
            self.cpu_s = time.thread_time()
        return not is_end

    def _failed(self, name: str, error: Exception) -> None:
        self.failures += 1
        text = "%s: the audit could not count its entries; the next round tries again: %s"
        log.warning(text, name, error)

    # -- retention ------------------------------------------------------------------------------

    def _topic_opened(self, topic: Topic) -> None:
        # A topic that is closed and opened again has the same ledger.
        topic.ledger.before_removal["audit"] = partial(self._before_removal, topic.ledger)

    def _before_removal(self, ledger: ManagedLedger, before: Position) -> None:
        """Count what will be removed, and store the counts. On the removing thread."""
        try:
            self._lane.submit(partial(self._count_before, ledger, before)).result()
        except CancelledError:
            text = "%s: retention removes entries that the audit, which has ended, did not count"
            log.info(text, ledger.name)
        except (LedgerError, OSError) as error:
            # A disk that fails must not keep retention from making room.
            self._failed(ledger.name, error)
        except Exception:
            self.failures += 1
            text = "%s: retention removes entries that the audit could not count"
            log.exception(text, ledger.name)

    def _count_before(self, ledger: ManagedLedger, before: Position) -> None:
        first = ledger.first_position
        if first is None or before <= first:
            return
        self._trails.of(ledger).advance(ledger, until=before)
        self._trails.save(ledger.name)

    # -- asked for ------------------------------------------------------------------------------

    async def report(
        self,
        topic: Topic,
        by: Sequence[str] | None = None,
        *,
        starting_time_ms: int | None = None,
        ending_time_ms: int | None = None,
    ) -> Report:
        """A topic's rows with everything that is durable now.

        Args:
            topic: an open topic.
            by: some of the tags that are counted by; None: all of them.
            starting_time_ms: leave out buckets that end before.
            ending_time_ms: leave out buckets that begin at it or later.

        Raises `RefusedError` (NotAllowedError if no audit is kept), AuditInputError, LedgerError,
        OSError.
        """
        self._check_on()
        ledger = topic.ledger
        counting = partial(self._count_up_to, ledger, ledger.next_index)
        until_s = self._loop.time() + REPORT_MAX_S
        while True:
            topic.check_is_open()
            left = await self._job(counting)
            if not left or self._loop.time() >= until_s:
                break

        def make() -> Report:
            trail = self._trails.of(ledger)
            return report(
                topic.name,
                trail,
                trail.grouping.tags if by is None else by,
                log_first_index=ledger.first_index,
                left=left,
                starting_time_ms=starting_time_ms,
                ending_time_ms=ending_time_ms,
                labels=self.labels,
            )

        return await self._job(make)

    def _count_up_to(self, ledger: ManagedLedger, end_index: int) -> int:
        """Count some entries of a topic. Return how many messages below an index are left."""
        trail = self._trails.of(ledger)
        is_end = trail.advance(ledger, JOB_ENTRIES)
        self._trails.make_room()
        self.cpu_s = time.thread_time()
        return 0 if is_end else max(0, end_index - trail.next_index)

    async def received(self, topic: Topic) -> list[AuditRow]:
        """The rows that other tiers have posted. Raises as `report`."""
        self._check_on()
        found = await self._job(partial(self._trails.received, topic.ledger))
        return found.rows()

    async def post(self, topic: Topic, post: Post) -> None:
        """Take posted rows; they are durable when this returns. Raises as `report`."""
        self._check_on()
        width_ms = self._config.audit_bucket_ms
        for row in post.rows:
            if row.bucket_end_ms - row.bucket_start_ms != width_ms:
                own_ms = row.bucket_end_ms - row.bucket_start_ms
                text = f"ends a bucket of {own_ms} ms; this broker's have {width_ms} ms"
                raise AuditInputError("bucket_end_ms", row.bucket_end_ms, text)
        topic.check_is_open()
        await self._job(partial(self._trails.post, topic.ledger, post))

    async def forget(self, name: str) -> None:
        """Forget a deleted topic. Raises LedgerError, OSError."""
        if self.is_on:
            await self._job(partial(self._trails.forget, name))

    def trail_in_memory(self, name: str) -> Trail | None:
        """A topic's trail if it is in memory, perhaps not up to date."""
        return self._trails.in_memory(name)

    def _check_on(self) -> None:
        if not self.is_on:
            how = "start it with pulsemarkAuditEnabled=true or --audit"
            raise RefusedError(ServerError.NotAllowedError, f"this broker keeps no audit: {how}")

    async def _job(self, call: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._lane.submit(call))


TRAIL_KIND = "audit"
RECEIVED_KIND = "audit-received"
#: The limit of rows over all topics is looked at every so many times, and after a loading.
LOOK_TURNS = 64


@record
class _Kept:
    """A trail in memory, and its stored position."""

    topic_id: int
    trail: Trail
    #: The stored position: one past the last entry that is counted in the catalog.
    saved: Position | None
    saved_s: float

    @property
    def has_unsaved(self) -> bool:
        """Whether it has counts that the catalog lacks."""
        return self.trail.last_position is not None and self.saved != self.trail.next_position

    @property
    def size(self) -> int:
        """The rows that it counts for in the limit; a trail without rows takes memory, too."""
        return self.trail.counts.row_count + 1


class Trails:
    """Every topic's trail and posted rows. Its methods raise CatalogError."""

    def __init__(self, catalog: MetadataStore, config: BrokerConfig) -> None:
        self._catalog = catalog
        self._config = config
        self._turn = 0
        self._has_loaded = False
        #: For trails that are not in memory: the topic's id, and the index up to which it counts.
        self._dropped: dict[str, tuple[int, int]] = {}
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def of(self, ledger: ManagedLedger) -> Trail:
        """A topic's trail."""
        kept = self._kept.get(ledger.name)
        if kept is None or kept.topic_id != ledger.topic_id:
            kept = self._kept[ledger.name] = self._load(ledger)
            self._dropped.pop(ledger.name, None)
            self._has_loaded = True
        self._kept.move_to_end(ledger.name)
        return kept.trail

    def in_memory(self, name: str) -> Trail | None:
        """A topic's trail, if it is in memory. Any thread may ask."""
        kept = self._kept.get(name)
        return None if kept is None else kept.trail

    def is_up_to_date(self, ledger: ManagedLedger) -> bool:
        """Whether a topic has no new messages. Reads nothing from the catalog."""
        kept = self._kept.get(ledger.name)
        if kept is not None:
            known = kept.topic_id, kept.trail.next_index
        else:
            known = self._dropped.get(ledger.name, (-1, -1))
        return known == (ledger.topic_id, ledger.next_index)

    def _load(self, ledger: ManagedLedger) -> _Kept:
        config = self._config
        empty = Trail.new(
            config.audit_tags,
            config.audit_bucket_ms,
            max_rows=config.max_audit_rows_per_topic,
            max_values=config.max_audit_values_per_bucket,
        )
        now_s = time.monotonic()
        stored = self._catalog.get(TRAIL_KIND, ledger.name)
        if stored is not None:
            try:
                trail = unpack_trail(stored, ledger.topic_id, empty)
            except SnapshotError as error:
                text = "%s: the stored audit cannot be read; the log is counted again: %s"
                log.warning(text, ledger.name, error)
            else:
                return _Kept(ledger.topic_id, trail, trail.next_position, now_s)
        return _Kept(ledger.topic_id, empty, None, now_s)

    def save(self, name: str) -> None:
        """Store a trail if it has new counts."""
        kept = self._kept.get(name)
        if kept is None or not kept.has_unsaved:
            return
        self._catalog.put(TRAIL_KIND, name, pack_trail(kept.trail, kept.topic_id))
        kept.saved, kept.saved_s = kept.trail.next_position, time.monotonic()

    def is_due(self, name: str) -> bool:
        """Whether a trail has counts that were not stored for the configured time."""
        kept = self._kept.get(name)
        if kept is None or not kept.has_unsaved:
            return False
        return time.monotonic() - kept.saved_s >= self._config.audit_save_interval_ms / 1000

    def save_if_due(self, name: str) -> None:
        """Store a trail if that is due."""
        if self.is_due(name):
            self.save(name)

    def save_all(self) -> None:
        """Store every trail."""
        for name in tuple(self._kept):
            self.save(name)

    def make_room(self) -> None:
        """Store and drop the least recently used trails above the limit of rows."""
        self._turn += 1
        if self._turn % LOOK_TURNS and not self._has_loaded:
            return
        self._has_loaded = False
        rows = sum(kept.size for kept in self._kept.values())
        while rows > self._config.max_audit_rows and len(self._kept) > 1:
            name = next(iter(self._kept))
            self.save(name)
            dropped = self._kept[name]
            rows -= dropped.size
            # Keep this order: another thread may ask whether the topic is up to date.
            self._dropped[name] = dropped.topic_id, dropped.trail.next_index
            del self._kept[name]

    def received(self, ledger: ManagedLedger) -> Received:
        """The rows that other tiers have posted."""
        limit = self._config.max_audit_rows_per_topic
        stored = self._catalog.get(RECEIVED_KIND, ledger.name)
        if stored is not None:
            try:
                return Received.unpack(stored, ledger.topic_id, limit)
            except SnapshotError as error:
                text = "%s: the audit rows that consumers posted cannot be read, and are lost: %s"
                log.warning(text, ledger.name, error)
        return Received(limit)

    def post(self, ledger: ManagedLedger, post: Post) -> None:
        """Add posted rows; they are durable when this returns."""
        rows = self.received(ledger).with_post(post)
        self._catalog.put(RECEIVED_KIND, ledger.name, rows.pack(ledger.topic_id))

    def forget(self, name: str) -> None:
        """Forget a deleted topic."""
        self._kept.pop(name, None)
        self._dropped.pop(name, None)
        self._catalog.write([(TRAIL_KIND, name, None), (RECEIVED_KIND, name, None)])
