"""Find lost files: compare a folder's files with what other files say about them.

A missing segment file alone looks as if the log was trimmed there. Three other sources show the
difference, if they exist:

- The catalog lists every segment of every topic, and removes a segment from the list before its
  file is deleted. So a listed segment is lost if its file is missing or has no usable header.
- A segment's header names the ledger before its own. Trimming removes the oldest ledgers first. So
  a named ledger is lost if it is missing while an older ledger exists.
- Durable cursors name entries that were acknowledged. If a log ends before such an entry, entries
  are lost.

While a broker uses the folder, files appear and disappear during the check. So cursors are read
before the files, the catalog after them, and a loss is checked a second time.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..ledger import EARLIEST, CatalogError, FolderReader, Position, TopicLog, TopicNotFoundError
from ..ledger.cursors.cursor_store import CURSOR_TOPIC, cursor_records
from ..ledger.local.io.files import Files
from ..ledger.local.io.folder import CATALOG_NAME, SegmentId, segment_path
from ..ledger.local.segment.salvage import may_have_held_records
from ..ledger.local.segment.segment_format import SegmentHeader
from ..ledger.run import Run
from ..proto.cursor_pb2 import CursorRecord
from .verify_catalog import CatalogContent, read_catalog

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Expected:
    """The lost files of a folder, and the positions that its cursors have acknowledged."""

    lost: Mapping[str, tuple[SegmentId, ...]] = field(default_factory=dict)
    """By topic: segments whose file is gone, or damaged so that nothing of it can be read."""
    nameless: tuple[SegmentId, ...] = ()
    """Segments with records whose topic is not known, because their headers are damaged."""
    acknowledged: Mapping[str, Position] = field(default_factory=dict)
    """By topic: the last position that a durable cursor has acknowledged everything up to."""
    topics: Collection[str] = ()
    """All topics of the catalog, also those that never had an entry, and so have no file."""

    @property
    def lost_ledgers(self) -> frozenset[int]:
        """The ledgers with a missing segment."""
        return frozenset(ledger for lost in self.lost.values() for ledger, _ in lost)

    def may_have_held(self, ledger_id: int) -> bool:
        """Whether a missing ledger is one of the lost ones."""
        nameless = {ledger for ledger, _ in self.nameless}
        return ledger_id in self.lost_ledgers or ledger_id in nameless

    def lost_before(self, log: TopicLog) -> str | None:
        """Why messages before the log's first one are lost; None if no loss is known."""
        place = _place_of(log.segments()[:1])
        return _files_are_gone([each for each in self.lost.get(log.name, ()) if each < place])

    def lost_after(self, log: TopicLog) -> str | None:
        """Why messages after the log's last one are lost; None if no loss is known."""
        place = _place_of(log.segments()[-1:])
        gone = _files_are_gone([each for each in self.lost.get(log.name, ()) if each > place])
        acknowledged = self.acknowledged.get(log.name, EARLIEST)
        if gone is None and acknowledged >= log.end_position:
            return f"the log ends before entry {acknowledged}, which a cursor has acknowledged"
        return gone

    def why_lost(self, topic: str) -> str | None:
        """Which of a topic's files are lost; None if no loss is known."""
        return _files_are_gone(self.lost.get(topic, ()))

    def why_nameless(self) -> str | None:
        """Which files have records of an unknown topic; None if there are no such files."""
        if not self.nameless:
            return None
        name = segment_path(Path(), *self.nameless[0]).name
        more = f" ({len(self.nameless)} in all)" if len(self.nameless) > 1 else ""
        return f"ledger file {name}{more} has a damaged header, so its topic is not known"


@dataclass(frozen=True, slots=True)
class LogEnds:
    """The ends of a log, and why messages beyond them are lost (None: no loss is known)."""

    next_index: int
    lost_before: str | None = None
    lost_after: str | None = None
    lost_before_ms: int = 0
    """No message lost before the first one has a later time than this (unix milliseconds)."""
    has_holes: bool = False
    """Whether it is read in its compacted form: what is missing between entries is no loss."""
    stable_index: int | None = None
    """The first message of an open transaction, or after one; None: no transaction is open."""


def ends_of(log: TopicLog, expected: Expected) -> LogEnds:
    """The ends of a log."""
    before, segments = expected.lost_before(log), log.segments()
    until_ms = segments[0].header.entry_time_floor_ms if before and segments else 0
    after, stable_index = expected.lost_after(log), log.stable_index
    stable = stable_index if stable_index < log.next_index else None
    return LogEnds(log.next_index, before, after, until_ms, stable_index=stable)


def lost_head(log: TopicLog, listed: Iterable[SegmentId]) -> Expected:
    """The loss before the first segment of an open log; ``listed`` are its catalog's segments.

    A listed segment that the log lacks is lost: trimming takes it off the list first.
    """
    first = _place_of(log.all_segments()[:1])
    lost = tuple(each for each in listed if each < first)
    return Expected({log.name: lost} if lost else {})


def _place_of(segments: Sequence[Run]) -> SegmentId:
    """The first segment's place in the catalog's order; without a segment before all others."""
    return (segments[0].ledger_id, segments[0].header.segment_no) if segments else (-1, -1)


def expected_of(reader: FolderReader, folder: Path) -> Expected:
    """Compare the sources. A catalog that cannot be read is logged and not used."""
    acknowledged = _acknowledged(reader)
    headers = reader.headers()
    catalog = _catalog(folder)
    present = {(header.ledger_id, header.segment_no) for header in headers}
    names = {header.topic_id: header.topic for header in headers}
    lost: dict[str, list[SegmentId]] = {}
    if catalog is not None:
        names |= {topic_id: name for name, topic_id in catalog.topics.items()}
        missing = {each: topic for each, topic in catalog.segments.items() if each not in present}
        still_lost = _still_lost(reader, folder, missing)
        for each in sorted(still_lost):
            lost.setdefault(names.get(missing[each], ""), []).append(each)
    else:
        for topic, ledger_id in _skipped_ledgers(reader, headers):
            lost.setdefault(topic, []).append((ledger_id, 0))
    return Expected(
        {topic: tuple(segments) for topic, segments in lost.items() if "://" in topic},
        _nameless(reader, folder, catalog),
        {names[topic]: position for topic, position in acknowledged.items() if topic in names},
        catalog.topics.keys() if catalog is not None else (),
    )


def _catalog(folder: Path) -> CatalogContent | None:
    try:
        return read_catalog(folder / CATALOG_NAME)
    except (CatalogError, sqlite3.Error, OSError) as error:
        _log.warning("the catalog cannot be read, so it is not used to find lost files: %s", error)
        return None


def _still_lost(
    reader: FolderReader, folder: Path, missing: Mapping[SegmentId, int]
) -> set[SegmentId]:
    """The segments that are still lost: not created or trimmed during the check."""
    if not missing:
        return set()
    present = {(header.ledger_id, header.segment_no) for header in reader.headers()}
    catalog = _catalog(folder)
    listed = catalog.segments.keys() if catalog is not None else set()
    return {each for each in missing if each not in present and each in listed}


def _skipped_ledgers(
    reader: FolderReader, headers: Iterable[SegmentHeader]
) -> list[tuple[str, int]]:
    """Ledgers that a header names and that are missing though older ledgers exist."""
    found = _skips(headers)
    return [each for each in found if each in _skips(reader.headers())] if found else []


def _skips(headers: Iterable[SegmentHeader]) -> list[tuple[str, int]]:
    by_topic: dict[tuple[str, int], dict[int, SegmentHeader]] = {}
    for header in headers:
        by_topic.setdefault((header.topic, header.topic_id), {})[header.ledger_id] = header
    skips = []
    for (topic, _), ledgers in by_topic.items():
        ledger_id = max(ledgers)
        while ledger_id in ledgers:
            ledger_id = ledgers[ledger_id].previous_ledger_id
        if ledger_id > min(ledgers):
            skips.append((topic, ledger_id))
    return skips


def _nameless(
    reader: FolderReader, folder: Path, catalog: CatalogContent | None
) -> tuple[SegmentId, ...]:
    files = Files()
    found = []
    for each in reader.damaged_segments():
        listed = catalog is not None and (each in catalog.segments or each in catalog.removed)
        try:
            if not listed and may_have_held_records(files, folder, each):
                found.append(each)
        except FileNotFoundError:
            continue  # trimmed meanwhile
    return tuple(found)


def _acknowledged(reader: FolderReader) -> dict[int, Position]:
    """By topic id: the highest mark delete position of its durable cursors."""
    marks: dict[tuple[int, str], Position] = {}
    try:
        log = reader.log(CURSOR_TOPIC)
    except TopicNotFoundError:
        return {}
    for record in cursor_records(log):
        key = (record.topic_id, record.subscription)
        if record.kind == CursorRecord.DELETED:
            marks.pop(key, None)
        else:
            marks[key] = Position(record.mark_delete_ledger_id, record.mark_delete_entry_id)
    highest: dict[int, Position] = {}
    for (topic_id, _), mark in marks.items():
        highest[topic_id] = max(mark, highest.get(topic_id, EARLIEST))
    return highest


def _files_are_gone(segments: Collection[SegmentId]) -> str | None:
    if not segments:
        return None
    name = segment_path(Path(), *min(segments)).name
    more = f" and {len(segments) - 1} more" if len(segments) > 1 else ""
    return f"ledger file {name}{more} is missing or has no readable header"
