"""The trails of a broker's topics: in memory while there is room, in the catalog always.

Used by one thread at a time: the auditor's.

A trail is stored under the topic's name with the topic's id, so that a topic which is deleted and
made again does not get the counts of the one before. What the catalog has may be older than the
log: then the rest of the log is counted again. It is never newer, since only durable entries are
counted. (With a sync interval, a power cut can take entries away that were counted. The trail then
starts again.)
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass

from ...audit.report import Post, Received
from ...audit.trail import SnapshotError, Trail, pack_trail, unpack_trail
from ...ledger import ManagedLedger, Position
from ...ledger.store import MetadataStore
from ..configuration.config import BrokerConfig

__all__ = ["RECEIVED_KIND", "TRAIL_KIND", "Trails"]

TRAIL_KIND = "audit"
RECEIVED_KIND = "audit-received"
#: The limit of rows over all topics is looked at every so many times, and after a loading.
LOOK_TURNS = 64

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Kept:
    topic_id: int
    trail: Trail
    #: What the catalog has: one past the last entry that is counted there.
    saved: Position | None
    saved_s: float

    @property
    def has_unsaved(self) -> bool:
        """Whether it has counted something that the catalog does not have."""
        return self.trail.last_position is not None and self.saved != self.trail.next_position

    @property
    def size(self) -> int:
        """What it counts for in the limit of rows; a trail without rows takes memory, too."""
        return self.trail.counts.row_count + 1


class Trails:
    """Every topic's trail and posted rows. Its methods raise CatalogError."""

    def __init__(self, catalog: MetadataStore, config: BrokerConfig) -> None:
        self._catalog = catalog
        self._config = config
        self._turn = 0
        self._has_loaded = False
        #: Of trails that are not in memory: the topic's id, and the index up to which it counts.
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

    def _empty(self) -> Trail:
        config = self._config
        return Trail.new(
            config.audit_tags,
            config.audit_bucket_ms,
            max_rows=config.max_audit_rows_per_topic,
            max_values=config.max_audit_values_per_bucket,
        )

    def _load(self, ledger: ManagedLedger) -> _Kept:
        empty = self._empty()
        now_s = time.monotonic()
        stored = self._catalog.get(TRAIL_KIND, ledger.name)
        if stored is not None:
            try:
                trail = unpack_trail(stored, ledger.topic_id, empty)
            except SnapshotError as error:
                log.warning(
                    "%s: the stored audit cannot be read; the log is counted again: %s",
                    ledger.name,
                    error,
                )
            else:
                return _Kept(ledger.topic_id, trail, trail.next_position, now_s)
        return _Kept(ledger.topic_id, empty, None, now_s)

    def save(self, name: str) -> None:
        """Store a trail, if it has counted something since."""
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
        """Store and drop trails that were not used for long, until the limit of rows is kept."""
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
            # In this order: another thread may ask whether the topic is up to date.
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
                log.warning(
                    "%s: the audit rows that consumers posted cannot be read, and are lost: %s",
                    ledger.name,
                    error,
                )
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
