"""The broker's compactions: when a topic is compacted, how fast, and with which result.

A topic is compacted on request, or when more bytes than the threshold were appended since its last
compaction. A topic with Kafka's cleanup policy "compact" is compacted by the rules of Kafka's
cleaner (`compaction.cleaner`), on request too. Compactions run one after another on their own
thread, so that expiry and retention of other topics do not wait for them. A compaction pauses as
long as it works, and reads and writes at most `max_compaction_bytes_per_s`.

A compaction ends early if the topic is truncated or deleted, or if the broker stops. Then the
previous view stays valid, as after any failure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ...ledger import LedgerError, ManagedLedger
from ...ledger.position import EARLIEST
from ...ledger.retention import size_bytes
from ...records import FactsError
from ..configuration.config import BrokerConfig
from ..counters import CompactionFigures, CompactionStatus
from ..errors import BrokerError
from .worker_thread import Claims, Lane, Pace

if TYPE_CHECKING:
    from ...compaction.compaction import CompactionReport
    from ..topics.topic import Topic

log = logging.getLogger(__name__)


class CompactionStoppedError(
    FactsError, BrokerError, text="{topic}: the compaction was stopped: {reason}"
):
    """A compaction was stopped before its end."""

    topic: str
    reason: str


def dirty_bytes(ledger: ManagedLedger) -> int:
    """Bytes of the log that are newer than the last compaction. Blocks."""
    from ...compaction.current_view import current_view

    view = current_view(ledger)
    return size_bytes(ledger, EARLIEST if view is None else view.after_horizon)


class CompactionRuns:
    """Compacts topics, one at a time."""

    def __init__(
        self,
        config: BrokerConfig,
        claims: Claims,
        begins: Callable[[Topic], object],
        ended: Callable[[Topic], object],
    ) -> None:
        self.lane = Lane("pulsemark-compaction")
        self._config = config
        self._claims = claims
        self._begins, self._ended = begins, ended

    def request(self, topic: Topic) -> bool:
        """Compact a topic as soon as possible; False if a compaction runs. On the event loop."""
        figures = topic.cleaning.compaction
        if figures.status is CompactionStatus.RUNNING:
            return False
        figures.begin()
        future = self.lane.submit(partial(self._run, topic))
        if future.cancelled():
            figures.status = CompactionStatus.NOT_RUN
        return True

    def compact_if_dirty(self, topic: Topic, threshold_bytes: int) -> None:
        """On the lane's thread: compact a topic with too many new bytes."""
        figures = topic.cleaning.compaction
        if figures.status is not CompactionStatus.RUNNING and self._is_due(topic, threshold_bytes):
            figures.begin()
            self._run(topic)

    def _is_due(self, topic: Topic, threshold_bytes: int) -> bool:
        if topic.cleaner_rules is None:
            return 0 < threshold_bytes < dirty_bytes(topic.ledger)
        from ...compaction.cleaner import is_due

        return is_due(topic.ledger, topic.cleaner_rules, self._config.clock.now_ms())

    def stop(self, topic: Topic, reason: str) -> None:
        """Stop a topic's compaction, if one runs. Does not wait for its end."""
        topic.cleaning.compaction.ask_to_stop(reason)

    def _run(self, topic: Topic) -> None:
        import sqlite3

        figures = topic.cleaning.compaction
        with self._claims.claimed(topic.name):
            try:
                if not topic.is_open or self.lane.is_closed:
                    raise CompactionStoppedError(topic.name, "the topic is closed")
                self._begins(topic)
                self._compact(topic, figures)
            except (LedgerError, BrokerError, ImportError, OSError, sqlite3.Error) as error:
                self._failed(topic, figures, str(error))
            except Exception as error:
                log.exception("%s: compaction failed unexpectedly", topic.name)
                self._failed(topic, figures, repr(error))
        self._ended(topic)

    def _failed(self, topic: Topic, figures: CompactionFigures, reason: str) -> None:
        log.warning("%s: compaction failed, the previous view stays valid: %s", topic.name, reason)
        figures.failed += 1
        figures.last_failed_ms = self._config.clock.now_ms()
        figures.last_error = reason
        figures.status = CompactionStatus.ERROR

    def _compact(self, topic: Topic, figures: CompactionFigures) -> None:
        from ...compaction.cleaner import clean
        from ...compaction.compaction import DEFAULT_LIMITS, compact

        stop = figures.stop
        assert stop is not None, "a run has begun"
        pace = Pace(self._config.max_compaction_bytes_per_s, stop)

        def check() -> None:
            if not self.lane.is_closed:
                pace.rest()
            if stop.is_set() or self.lane.is_closed:
                reason = figures.stop_reason or "the topic is being closed"
                raise CompactionStoppedError(topic.name, reason)

        limits = replace(
            DEFAULT_LIMITS,
            tombstone_stage=topic.tombstone_stage,
            tombstone_property=topic.tombstone_property,
        )
        how: dict[str, Any] = {"limits": limits, "check": check, "spent": pace.spent}
        ledger, rules = topic.ledger, topic.cleaner_rules
        if rules is None:
            report = compact(ledger, **how)
        else:
            report = clean(ledger, rules, self._config.clock.now_ms(), **how)
        _take_over(figures, report, topic.ledger, self._config.clock.now_ms())


def _take_over(
    figures: CompactionFigures, report: CompactionReport, ledger: ManagedLedger, now_ms: int
) -> None:
    from ...compaction.current_view import current_view

    view = current_view(ledger)
    if report.changed:
        figures.last_removed_events = max(report.messages_read - report.keys, 0)
        figures.removed_events += figures.last_removed_events
        seconds = max(report.duration_s, 1e-6)
        figures.read_bytes_per_s = report.bytes_read / seconds
        figures.written_bytes_per_s = report.bytes_written / seconds
        figures.last_duration_ms = round(report.duration_s * 1000)
    figures.view_entries = report.entries_kept
    figures.view_size_bytes = 0 if view is None else view.size_bytes
    figures.succeeded += 1
    figures.last_succeeded_ms = now_ms
    figures.last_error = ""
    figures.status = CompactionStatus.SUCCESS
