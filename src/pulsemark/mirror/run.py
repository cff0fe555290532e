"""The loop of a mirror: one thread advances each topic by a step, round and round.

All topics are opened before the first entry is copied, so that a mistake is seen before anything is
written. If a connection is lost, all of them are opened again, and go on at the target's progress.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from ..client import ClientError, Pace, RequestRefusedError
from ..client.errors import LOST, may_pass
from .endpoints import Selection
from .entries import Source, Target
from .errors import LostError, MirrorError, NoTopicsError, PartitionCountError, TopicMissingError
from .subscriptions import CARRY_S, SubscriptionCarrier
from .topic_mirror import Report, TopicMirror

#: How long a turn without work waits for more, if no socket says that there is some.
IDLE_S = 0.05
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.1, 5.0
DISCOVERY_S = 5.0
#: A broker needs 5 s to notice that the connection of an earlier mirror is dead.
BUSY_S = 10.0
DRAIN_S = 30.0
#: After so long without work both sides must answer a PING, within the second time.
PING_S, PING_TIMEOUT_S = 15.0, 10.0


@dataclass(slots=True, kw_only=True)
class Run:
    """What the runs of mirrors and followers share: when they end, their clock, their patience.

    With ``once`` a run ends when all that was there at the start is copied. It tries for
    ``reconnect_s`` to make a lost connection again. ``is_stopped`` is asked between steps.
    """

    once: bool = False
    reconnect_s: float = 300.0
    is_stopped: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def until_back(
        self, lost: Exception, attempt: Callable[[], Exception | None], since_s: float
    ) -> None:
        """Call ``attempt`` with growing pauses until it returns None, or the run is stopped.

        ``lost`` is the first error, and ``attempt`` returns the next ones. Raises LostError
        ``reconnect_s`` after ``since_s``.
        """
        while not self.is_stopped():
            waited_s = self.clock() - since_s
            if waited_s > self.reconnect_s:
                raise LostError(waited_s, str(lost)) from lost
            self.sleep(min(max(waited_s, BACKOFF_MIN_S), BACKOFF_MAX_S))
            failed = attempt()
            if failed is None:
                return
            lost = failed


@dataclass(slots=True)
class MirrorRun(Run):
    """One run of a mirror. Without a ``carrier`` subscriptions stay where they are."""

    source: Source
    target: Target
    selection: Selection
    pace: Pace
    report: Report
    carrier: SubscriptionCarrier | None = None
    _topics: dict[str, TopicMirror | None] = field(default_factory=dict)
    """None: a topic that is not open."""
    _gone: set[str] = field(default_factory=set)
    """Topics that were deleted in the source."""
    _waiting: set[str] = field(default_factory=set)
    """Messages about topics whose new partitions the target lacks."""
    _discovered_s: float = 0.0
    _carried_s: float = 0.0
    _worked_s: float = field(init=False)
    _lost_s: float = 0.0
    """When the present loss began, after which nothing was copied."""
    _lost_entries: int = -1
    _back_s: float = 0.0

    def run(self) -> bool:
        """Mirror. Return whether everything that was there at the start is in the target.

        Raises MirrorError (LostError if a side cannot be reached for `reconnect_s`), ClientError,
        LedgerError, OSError. What was mirrored stays, and the next run goes on after it.
        """
        self._worked_s = self.clock()
        try:
            self._discover(is_first=True)
            self._open_first()
            while not self.is_stopped():
                try:
                    if self._turn():
                        return True
                except ClientError as error:
                    if not may_pass(error):
                        raise
                    self._begin_again(error)
            return self._drain()
        finally:
            self._close()

    def topics(self) -> list[str]:
        """The topics that are mirrored."""
        return list(self._topics)

    def _turn(self) -> bool:
        """Advance every topic by a step. Return whether the run is over."""
        moved = False
        for topic in self._open_topics():
            # With `once`, later entries are left to the next run: a busy source has no end.
            moved |= topic.step(takes=not (self.once and topic.has_taken_all))
            if self.is_stopped():
                return False
        self.report.progress()
        if self.once and self._is_caught_up():
            self._carry()
            return True
        if self.clock() - self._carried_s > CARRY_S:
            self._carry()
        if not self.once and self.clock() - self._discovered_s > DISCOVERY_S:
            self._discover()
            self._open()
        if moved:
            self._worked_s = self.clock()
        else:
            self._ping()
            self._wait()
        return False

    def _carry(self) -> None:
        """Move the target's subscriptions after those of the source."""
        if self.carrier is not None:
            self.carrier.carry(self._topics.keys())
        self._carried_s = self.clock()

    def _ping(self) -> None:
        """Detect a side that hangs, or is gone without closing its connections."""
        if self.clock() - self._worked_s > PING_S:
            self.source.ping(PING_TIMEOUT_S)
            self.target.ping(PING_TIMEOUT_S)
            self._worked_s = self.clock()

    def _is_caught_up(self) -> bool:
        return all(topic and topic.is_caught_up for topic in self._topics.values())

    def _discover(self, *, is_first: bool = False) -> None:
        """Find the topics to mirror. Later calls add new ones, and keep deleted ones."""
        self._discovered_s = self.clock()
        left_out = None if is_first else self._left_out
        try:
            found = self.selection.find(self.source, self.target, left_out)
        except NoTopicsError:
            if is_first:
                raise
            found = []
        for name in found:
            self._topics.setdefault(name, None)
            self.report.of(name)

    def _left_out(self, error: MirrorError) -> None:
        """Report once that a topic has more partitions than in the target."""
        if isinstance(error, PartitionCountError) and str(error) not in self._waiting:
            self._waiting.add(str(error))
            self.report.say(f"waits: {error}; until then the partitions that were there go on")

    def _open(self, *, is_first: bool = False) -> None:
        """Open closed topics. One that was deleted in the source waits until it is back."""
        for name, topic in self._topics.items():
            if topic is not None:
                continue
            try:
                self._topics[name] = TopicMirror(
                    name, self.source, self.target, self.pace, self.report
                )
            except TopicMissingError as error:
                if self.once or is_first:
                    raise
                if name not in self._gone:
                    self._gone.add(name)
                    self.report.gone(str(error))
            else:
                self._gone.discard(name)

    def _open_topics(self) -> list[TopicMirror]:
        return [topic for topic in self._topics.values() if topic is not None]

    def _open_first(self) -> None:
        """Open all topics. A transient refusal is retried for a short while."""
        began_s = self.clock()
        while not self.is_stopped():
            try:
                self._open(is_first=True)
            except RequestRefusedError as error:
                waited_s = self.clock() - began_s
                if not may_pass(error) or waited_s > min(BUSY_S, self.reconnect_s):
                    raise
            else:
                return
            self._close()
            self.sleep(BACKOFF_MIN_S)

    def _begin_again(self, lost: Exception) -> None:
        """Close everything, and open it until that succeeds. Raises LostError."""
        self.report.lost(str(lost))
        self._close()
        if self.carrier is not None:
            self.carrier.forget()
        now_s, entries = self.clock(), self.report.sum().entries
        if entries != self._lost_entries or now_s - self._back_s > PING_S:
            self._lost_s, self._lost_entries = now_s, entries
        self.until_back(lost, self._opened, self._lost_s)
        self._back_s = self.clock()

    def _opened(self) -> Exception | None:
        """Open everything. Return None, or the error after which all is closed again."""
        try:
            self._open()
        except ClientError as error:
            if not may_pass(error):
                raise
            self._close()
            return error
        return None

    def _drain(self) -> bool:
        """Wait until put entries are durable. Return whether nothing is left to mirror."""
        end_s = self.clock() + DRAIN_S
        dropped = sum(topic.drop_waiting() for topic in self._open_topics())
        try:
            while any(topic.in_flight for topic in self._open_topics()) and self.clock() < end_s:
                for topic in self._open_topics():
                    topic.step(takes=False)
                self._wait()
            self._carry()
        except ClientError as error:
            if not may_pass(error):
                raise
            return False
        return not dropped and self._is_caught_up()

    def _wait(self) -> None:
        """Wait until a socket is readable, the rate allows more, or a moment has passed."""
        wait_s = min(self.pace.wait_s() or IDLE_S, IDLE_S)
        poll = select.poll()
        for descriptor in (*self.source.descriptors(), *self.target.descriptors()):
            poll.register(descriptor, select.POLLIN)
        poll.poll(wait_s * 1000)

    def _close(self) -> None:
        topics = self._open_topics()
        self._topics = dict.fromkeys(self._topics)
        for topic in topics:
            with suppress(*LOST):
                topic.close()
        self.source.close()
        self.target.close()
        if self.carrier is not None:
            self.carrier.close()
