"""The broker's cleaning: expiry, retention and compaction, by timers and on request.

Two threads do the work, each one piece at a time: one expires and trims, the other compacts.
`worker_thread` says how they leave time for clients. A thread claims a topic before it works on it,
so that a topic is never trimmed and compacted at the same time. A topic that is being compacted is
trimmed directly after that.

Timers begin rounds over all topics, with the configuration's `..._interval_ms`. A changed policy at
once begins a round over the topics that it concerns. A topic that was not opened since the broker
started is opened for cleaning only if a policy sets a limit.

All times are the broker's own: its clock, and the times at which it appended entries. Producers'
clocks and file times are not used.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ...ledger import LedgerError, Position
from ...ledger.would_block import when_read
from ...wire import TopicName
from ..errors import RefusedError
from ..ownership import NotOwnedError
from ..policies.pulsar_policies import (
    COMPACTION_THRESHOLD,
    MESSAGE_TTL,
    RETENTION,
    RetentionPolicy,
)
from ..storage import durable
from ..topics.entry_formats import KAFKA_POLICY, cleaner_rules_of
from .compaction_runs import CompactionRuns
from .worker_thread import Claims, Lane

if TYPE_CHECKING:
    from ...compaction.compacted_log import CompactedLog
    from ..policies.policy import Policy
    from ..subscriptions.subscription import HomeTopic
    from ..topics.policy_store import Concerns
    from ..topics.registry import Topics
    from ..topics.topic import Topic
    from .trimming import Removable

log = logging.getLogger(__name__)

T = TypeVar("T")

NOT_CLEANED = "%s: the topic was not cleaned, the next round tries again: %s"


class Kind(NamedTuple):
    """One kind of cleaning: the policy that it carries out, and how."""

    policy: Policy
    interval_ms: int
    lane: Lane
    work: Callable[[Topic], None]


class Cleaning:
    """One broker's cleaning. Its methods are for the event loop, unless they say otherwise."""

    def __init__(self, topics: Topics) -> None:
        config = self._config = topics.config
        self.lane = Lane("pulsemark-cleaning")
        self.claims = Claims()
        self.compactions = CompactionRuns(
            config, self.claims, self._compaction_begins, self._compaction_ended
        )
        #: Counts of ended rounds over all topics, and of topics whose cleaning failed.
        self.rounds = 0
        self.failures = 0
        self._topics = topics
        self._run_blocking = topics.run_blocking
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._numbers = count()
        lane, other = self.lane, self.compactions.lane
        compaction_ms = config.compaction_monitor_interval_ms
        self._kinds = (
            Kind(MESSAGE_TTL, config.message_expiry_check_interval_ms, lane, self._expire),
            Kind(RETENTION, config.retention_check_interval_ms, lane, self._trim),
            Kind(COMPACTION_THRESHOLD, compaction_ms, other, self._compact_if_dirty),
        )
        topics.policies.listeners.append(self._policy_changed)
        topics.before_delete.append(self._wait_until_free)

    def start(self) -> None:
        """Begin the rounds."""
        for kind in self._kinds:
            self._wait(kind)

    async def close(self) -> None:
        """Finish work that has begun, except compactions, which are stopped."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for lane in (self.lane, self.compactions.lane):
            lane.close()
        for topic in self._topics.open_topics.values():
            self.compactions.stop(topic, "the broker is being stopped")
        for lane in (self.lane, self.compactions.lane):
            # Not in the executor: the awaited work may itself need one of its few threads.
            await asyncio.to_thread(lane.join)

    # -- when -----------------------------------------------------------------------------------

    def _wait(self, kind: Kind) -> None:
        due = partial(self._due, kind)
        self._timers[kind.policy.name] = self._loop.call_later(kind.interval_ms / 1000, due)

    def _due(self, kind: Kind) -> None:
        self._wait(kind)
        kind.lane.begin_round(kind.policy.name, self._round(kind))

    async def _wait_until_free(self, name: TopicName) -> None:
        await self._run_blocking(self.claims.wait_until_free, str(name))

    async def clean_now(self) -> None:
        """Clean all topics once, and return when that is done."""
        for kind in self._kinds:
            await asyncio.wrap_future(kind.lane.submit(partial(deque, self._round(kind), 0)))

    def _policy_changed(self, policy: str, concerns: Concerns) -> None:
        for kind in self._kinds:
            if policy == kind.policy.key:
                name = f"{policy} {next(self._numbers)}"
                kind.lane.begin_round(name, self._round(kind, concerns), first=True)

    def _compaction_ended(self, topic: Topic) -> None:
        """On the compaction's thread: trim the topic that it had claimed."""
        self.lane.submit(partial(self._guarded, self._trim, topic))

    # -- rounds, on their lane's thread -----------------------------------------------------------

    def _round(self, kind: Kind, concerns: Concerns = lambda _: True) -> Iterator[None]:
        policies = self._topics.policies
        is_used = policies.is_used(kind.policy) or (
            kind.policy is COMPACTION_THRESHOLD and policies.is_set(KAFKA_POLICY)
        )
        names = self._topics.names.snapshot() if is_used else ()
        for name in names:
            parsed = TopicName.parse(name)
            if concerns(parsed):
                topic = self._topics.open_topics.get(name) or self._opened(parsed)
                if topic is not None:
                    self._guarded(kind.work, topic)
            yield
        self.rounds += 1

    def _opened(self, name: TopicName) -> Topic | None:
        """Open a topic for cleaning, if it has work and no other broker serves it."""
        policies, retention = self._topics.policies, self.retention_of(name)
        settings = policies.value_of(name, KAFKA_POLICY)
        is_cleaned = settings is not None and cleaner_rules_of(settings) is not None
        is_limited = not (retention.is_unlimited or retention.is_at_once)
        others = (policies.applied(name, each) for each in (MESSAGE_TTL, COMPACTION_THRESHOLD))
        if not (is_cleaned or is_limited or any(others)):
            return None
        try:
            return self._on_loop(self._topics.open(name, create=False))
        except NotOwnedError:
            return None
        except (RefusedError, LedgerError, OSError) as error:
            log.warning(NOT_CLEANED, name, error)
            return None

    def retention_of(self, name: TopicName) -> RetentionPolicy:
        """The retention that applies to a topic. From any thread."""
        return RetentionPolicy.from_json(self._topics.policies.applied(name, RETENTION))

    def _guarded(self, work: Callable[[Topic], None], topic: Topic) -> None:
        """Log an error in one topic, so that the other topics are still cleaned."""
        if not topic.is_open:
            return
        import sqlite3

        try:
            work(topic)
        except (LedgerError, RefusedError, OSError, sqlite3.Error) as error:
            self.failures += 1
            log.warning(NOT_CLEANED, topic.name, error)
        except Exception as error:
            self.failures += 1
            log.exception(NOT_CLEANED, topic.name, repr(error))

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _trim(self, topic: Topic) -> None:
        with self.claims.claimed(topic.name, waits=False) as is_free:
            if is_free and topic.is_open:
                self._trim_claimed(topic)

    def _trim_claimed(self, topic: Topic) -> None:
        """Remove what retention allows, and what the view of a cleaned topic replaces."""
        from .trimming import free, trim

        policy = self.retention_of(topic.topic_name)
        ledger, now_ms = topic.ledger, self._config.clock.now_ms()
        trim(ledger, policy, topic.cleaning, now_ms)
        if topic.cleaned is not None and topic.cleaner_rules is not None:
            free(ledger, topic.cleaner_rules, topic.cleaning, now_ms)
        elif topic.cleaned is not None and not policy.is_unlimited:
            # The policy has changed: the view goes as the log does.
            from ...compaction.cleaner import drop_if_over

            drop_if_over(ledger, policy.time_ms, policy.size_bytes, now_ms)
        self._loop.call_soon_threadsafe(topic.entries_removed)

    def _expire(self, topic: Topic) -> None:
        from .trimming import due_position, expire_topic

        ttl_ms = self._topics.policies.applied(topic.topic_name, MESSAGE_TTL) * 1000
        last = due_position(topic, self._config.clock.now_ms(), ttl_ms)
        if last is not None:
            self._on_loop(expire_topic(topic, last))

    def _compact_if_dirty(self, topic: Topic) -> None:
        policies = self._topics.policies
        threshold_bytes = policies.applied(topic.topic_name, COMPACTION_THRESHOLD)
        self.compactions.compact_if_dirty(topic, threshold_bytes)

    def _compaction_begins(self, topic: Topic) -> None:
        """On the compaction's thread: clients read the compacted form from now on.

        After that, the entries that this form replaces can be removed from the log.
        """
        if topic.cleaner_rules is not None and topic.cleaned is None:
            from ...compaction.current_view import compacted_log

            self._on_loop(self._read_compacted(topic, compacted_log(topic.ledger)))

    async def _read_compacted(self, topic: Topic, form: CompactedLog) -> None:
        topic.read_compacted(form)

    # -- asked for ------------------------------------------------------------------------------

    def compact(self, topic: Topic) -> bool:
        """Compact a topic as soon as possible; False if a compaction runs already."""
        return self.compactions.request(topic)

    async def due_position(self, topic: HomeTopic, ttl_s: int) -> Position | None:
        """The last entry older than a number of seconds. Raises LedgerError, OSError."""
        from .trimming import due_position

        now_ms = self._config.clock.now_ms()
        found: Position | None = await self._run_blocking(due_position, topic, now_ms, ttl_s * 1000)
        return found

    async def trim(self, topic: Topic, *, is_dry_run: bool = False) -> Removable:
        """Apply a topic's retention now, before all rounds. Return what was removed.

        `is_dry_run`: nothing is removed. Raises `RefusedError`, LedgerError, OSError.
        """
        job = partial(self._trim_now, topic, is_dry_run=is_dry_run)
        return await asyncio.wrap_future(self.lane.submit(job))

    def _trim_now(self, topic: Topic, *, is_dry_run: bool) -> Removable:
        """Trim a topic. On the lane's thread."""
        from .trimming import Removable, removable

        with self.claims.claimed(topic.name):
            topic.check_is_open()
            if is_dry_run:
                policy = self.retention_of(topic.topic_name)
                return removable(topic.ledger, policy, self._config.clock.now_ms())
            figures = topic.cleaning
            before = figures.entries_removed, figures.messages_removed, figures.bytes_removed
            self._trim_claimed(topic)
            after = figures.entries_removed, figures.messages_removed, figures.bytes_removed
            return Removable(*(new - old for new, old in zip(after, before, strict=True)))

    async def truncate(self, topic: Topic, before: Position | None = None) -> None:
        """Remove all entries of a topic, or those before a position.

        They are removed for all subscriptions and on disk. A running compaction of the topic is
        stopped. Raises `RefusedError`, LedgerError, OSError.
        """
        ledger = topic.read_log
        first = await when_read(lambda: ledger.first_position)
        if before is None:
            last = ledger.last_position
        else:
            last = await when_read(ledger.previous_position, before)
        if last is None or first is None or last < first:
            return
        commits = []
        for subscription in tuple(topic.subscriptions.values()):
            await when_read(subscription.give_up, last)
            commits.append(subscription.cursor.persist())
        for commit in commits:
            await durable(commit)
        self.compactions.stop(topic, "the topic was truncated")
        await asyncio.wrap_future(self.lane.submit(partial(self._truncate, topic, last)))

    def _truncate(self, topic: Topic, last: Position) -> None:
        """Delete a topic's entries up to `last`. On the lane's thread."""
        from ...compaction.cleaner import delete_before
        from .trimming import truncate

        with self.claims.claimed(topic.name):
            topic.check_is_open()
            form = topic.read_log
            first_index = form.index_before(last) + (form.entry_message_count(last) or 0)
            now_ms = self._config.clock.now_ms()
            truncate(topic.ledger, last.following, topic.cleaning, now_ms)
            delete_before(topic.ledger, first_index)
            self._loop.call_soon_threadsafe(topic.entries_removed)
