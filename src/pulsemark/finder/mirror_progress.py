"""The progress of mirrors: the last entry from each source, even after retention removed it.

A target finds the progress of a mirror in the tags of its last entry from the source
(`last_mirrored`). The search goes backwards over the heads of the log's entries, without their
bodies. In a topic that only a mirror writes to, the last entry is the one.

If that entry is removed, the progress would be lost, and the mirror would copy everything again. So
it is stored in the catalog just before, in the topic's record of its mirrors:

    {"topic_id": 7, "clusters": {"west": [3, 41, 99], "north": null}}

that is the source's ledger id, entry id and index (null: not known). A cluster with null has had a
mirror, and none of its entries was removed. Topics without mirrors have no record and no cost.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TypeAlias

from ..ledger import LedgerError, ManagedLedger, Position, RecordHead, TopicLog
from ..ledger.run import DamagedRecordError
from ..ledger.store import MetadataStore
from ..ledger.writer import rows_before
from ..metadata import PrefixError, peek
from ..metadata.source_stamp import SourceStamp, source_stamp_of

MIRRORS_KIND = "mirrors"
MAX_CLUSTERS = 1000
_SLICE_ROWS = 256
_Progress: TypeAlias = dict[str, list[int | None] | None]


class TooManyMirrorsError(
    LedgerError, text=f"{{topic}} has had mirrors from {MAX_CLUSTERS} clusters; not {{cluster!r}}"
):
    """A topic already has mirrors from `MAX_CLUSTERS` clusters."""

    topic: str
    cluster: str


class MirrorProgress:
    """The progress of a store's topics. Thread-safe; blocks. Raises LedgerError, OSError."""

    def __init__(self, catalog: MetadataStore) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()

    def last(self, ledger: ManagedLedger, cluster: str) -> SourceStamp | None:
        """The source's facts of the last entry from ``cluster`` that the topic has, or had.

        From then on the progress is kept when the entry is removed. Raises TooManyMirrorsError.
        """
        self.watch(ledger)
        with self._lock:
            known = self._read(ledger)
            if cluster not in known:
                if len(known) >= MAX_CLUSTERS:
                    raise TooManyMirrorsError(ledger.name, cluster)
                self._write(ledger, {**known, cluster: None})
        found = last_mirrored(ledger, cluster)
        if found is not None:
            return found
        # In this order: the progress is stored before the entry is removed.
        with self._lock:
            stored = self._read(ledger).get(cluster)
        return None if stored is None else _stamp(cluster, stored)

    def watch(self, ledger: ManagedLedger) -> None:
        """Keep the progress of an open topic before its entries are removed."""
        ledger.before_removal["mirrors"] = partial(self._before_removal, ledger)

    def forget(self, name: str) -> None:
        """Forget a deleted topic."""
        self._catalog.delete(MIRRORS_KIND, name)

    def _before_removal(self, ledger: ManagedLedger, before: Position) -> None:
        """Store progress; an error prevents the removal. It may use the reserve."""
        with self._lock:
            known = self._read(ledger)
            changed = dict(known)
            for cluster, stamp in last_of_each(ledger, known.keys(), before).items():
                changed[cluster] = [stamp.ledger_id, stamp.entry_id, stamp.index]
            if changed != known:
                ledger.store.engine.freeing(partial(self._write, ledger, changed))

    def _read(self, ledger: ManagedLedger) -> _Progress:
        """The record of this topic, not of an earlier one with its name."""
        stored = self._catalog.get(MIRRORS_KIND, ledger.name)
        record = {} if stored is None else json.loads(stored)
        if record.get("topic_id") != ledger.topic_id:
            return {}
        progress: _Progress = record["clusters"]
        return progress

    def _write(self, ledger: ManagedLedger, progress: _Progress) -> None:
        record = {"topic_id": ledger.topic_id, "clusters": progress}
        self._catalog.put(MIRRORS_KIND, ledger.name, json.dumps(record).encode())


def _stamp(cluster: str, progress: list[int | None]) -> SourceStamp:
    ledger_id, entry_id, index = progress
    assert ledger_id is not None
    assert entry_id is not None
    return SourceStamp(cluster, ledger_id, entry_id, index)


def last_mirrored(log: TopicLog, cluster: str) -> SourceStamp | None:
    """The source stamp of the last readable entry from `cluster`, or None. Blocks."""
    return last_of_each(log, {cluster}).get(cluster)


def last_of_each(
    log: TopicLog, clusters: AbstractSet[str], before: Position | None = None
) -> dict[str, SourceStamp]:
    """As `last_mirrored` for clusters that have entries, before a position if one is given."""
    found: dict[str, SourceStamp] = {}
    for segment in reversed(log.segments()):
        end = segment.entry_count if before is None else rows_before(segment, before)
        for row in range(end - 1, segment.cut_rows - 1, -1):
            if len(found) == len(clusters):
                return found
            if row % _SLICE_ROWS == 0:
                log.give_way()
            try:
                stamp = source_of(segment.head(row))
            except (DamagedRecordError, FileNotFoundError, PrefixError):
                continue
            if stamp is not None and stamp.cluster in clusters:
                found.setdefault(stamp.cluster, stamp)
    return found


def source_of(head: RecordHead) -> SourceStamp | None:
    """The source stamp of an entry; None if it was not mirrored. Raises PrefixError."""
    return source_stamp_of(peek(head.prefix))
