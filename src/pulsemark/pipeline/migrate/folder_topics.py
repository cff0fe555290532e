"""Topics of a data folder, copied segment by segment: the same positions, indexes and bytes.

All topics of the folder are copied, also the store's own ones with the cursors. So message ids,
subscriptions, schemas and policies stay as they are. Only prefixes of producers' entries change.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...ledger import FolderReader
from ...ledger.local.catalog.catalog import Catalog, catalog_error
from ...ledger.local.io.files import OsFiles
from ...ledger.local.io.folder import CATALOG_NAME
from ...ledger.local.segment.head_cut import read_cut
from ...ledger.local.segment.segment import Segment
from ...ledger.rows import DamagedRecordError
from ...ledger.store import DELETING_KIND
from ...maintenance.verify_catalog import connect_read_only, read_catalog
from ..errors import MigrateError
from .entry_format import EntryFormat, prefix_of
from .segments import Digest, NewRecord, Written, write_segment
from .staging import Staging

__all__ = ["copy_topic", "fill_catalog", "plan_of"]

_READ_ENTRIES, _READ_BYTES = 4096, 8 << 20


def plan_of(source: Path) -> dict[str, Any]:
    """What is copied: the segments of each topic, with as many entries as they have now.

    The store's own topics are looked at first: so no cursor is copied that has acknowledged an
    entry which is not.
    """
    deleted = _deleted_ids(source)
    with FolderReader(source) as reader:
        ids = {header.topic: header.topic_id for header in reader.headers()}
        names = sorted(ids, key=lambda name: ("://" in name, name))
        topics = []
        for name in names:
            segments = reader.load(name)
            if not segments or segments[0].header.topic_id in deleted:
                continue
            topics.append(
                {
                    "topic": name,
                    "topic_id": segments[0].header.topic_id,
                    "segments": [[*s.header.segment_id, s.entry_count] for s in segments],
                    "next_index": segments[-1].next_index,
                }
            )
    return {"topics": topics}


def _deleted_ids(source: Path) -> set[int]:
    """Topics that are deleted, though files of them are still there."""
    content = read_catalog(source / CATALOG_NAME)
    if content is None:
        return set()
    noted = {key for kind, key, _ in _properties(source) if kind == DELETING_KIND}
    return {int(key) for key in noted if key.isdecimal()} - set(content.topics.values())


def _properties(source: Path) -> list[tuple[str, str, bytes]]:
    path = source / CATALOG_NAME
    try:
        with closing(connect_read_only(path)) as db:
            rows = db.execute("SELECT kind, key, value FROM property ORDER BY 1, 2").fetchall()
    except sqlite3.Error as error:
        raise catalog_error(path, error) from error
    return [(kind, key, bytes(value)) for kind, key, value in rows]


def copy_topic(
    source: Path, staging: Staging, planned: Mapping[str, Any], form: EntryFormat
) -> Written | None:
    """Copy one topic; what is staged already stays. The last segment, with the topic's sums.

    Raises:
        MigrateError: an entry is damaged or was removed meanwhile, or cannot have this form.
        OSError: the target cannot be written.
    """
    last: Written | None = None
    with FolderReader(source) as reader:
        segments = {s.header.segment_id: s for s in _planned_segments(reader, planned)}
        for ledger_id, segment_no, entries in planned["segments"]:
            done = staging.written(ledger_id, segment_no)
            if done is None:
                segment = segments.get((ledger_id, segment_no))
                if segment is None or segment.header.topic_id != planned["topic_id"]:
                    reason = f"ledger {ledger_id} was removed from the source meanwhile"
                    raise MigrateError(planned["topic"], reason)
                done = _copy(segment, entries, staging, form, last)
                staging.note(done)
            last = done
    return last


def _planned_segments(reader: FolderReader, planned: Mapping[str, Any]) -> Sequence[Segment]:
    """Those of the plan that are still there. Other topics' files are not opened."""
    topic = planned["topic"]
    ids = [(ledger_id, number) for ledger_id, number, _ in planned["segments"]]
    log = reader.logs_of({topic: ids}).get(topic)
    return () if log is None else cast("Sequence[Segment]", log.segments())


def _copy(
    segment: Segment, entries: int, staging: Staging, form: EntryFormat, last: Written | None
) -> Written:
    header = segment.header
    if last is not None:
        header = replace(
            header,
            entry_time_floor_ms=last.entry_time_max_ms,
            stamp_floor_ms=last.append_time_max_ms,
        )
    elif form is EntryFormat.STAMPED:
        # Entry times are append times then; those of entries that are gone are not known.
        header = replace(
            header, entry_time_floor_ms=min(header.entry_time_floor_ms, header.stamp_floor_ms)
        )
    counter = _Changes()
    cut = read_cut(OsFiles(), segment.path, *header.segment_id) if segment.cut_rows else None
    if cut is not None and form is EntryFormat.STAMPED:
        cut = replace(cut, entry_time_max_ms=min(cut.entry_time_max_ms, cut.append_time_max_ms))
    _, digest, end, next_index, time_max_ms, append_max_ms = write_segment(
        staging.data,
        header,
        _records(segment, entries, form, counter),
        Digest() if last is None else last.digest,
        cut=cut,
    )
    added = counter.count + (0 if last is None else last.added)
    return Written(*header.segment_id, end, next_index, time_max_ms, append_max_ms, digest, added)


class _Changes:
    """Counts the entries whose prefix changes."""

    count = 0


def _records(
    segment: Segment, entries: int, form: EntryFormat, changes: _Changes
) -> Iterator[NewRecord]:
    topic, row = segment.header.topic, segment.cut_rows
    while row < entries:
        try:
            found = segment.read(row, min(_READ_ENTRIES, entries - row), _READ_BYTES)
        except (DamagedRecordError, FileNotFoundError) as error:
            gone = segment.is_gone(row)
            position = f"{segment.ledger_id}:{segment.first_entry_id + row}"
            what = "was removed from the source meanwhile" if gone else f"is damaged: {error}"
            raise MigrateError(topic, f"entry {position} {what}") from error
        for entry in found:
            prefix = prefix_of(topic, entry, form) if "://" in topic else bytes(entry.prefix)
            changes.count += prefix != entry.prefix
            yield NewRecord(
                entry.kind,
                entry.message_count,
                entry.append_time_ms,
                entry.index,
                prefix,
                entry.body,
            )
        row += len(found)


def fill_catalog(source: Path, staging: Staging, plan: Mapping[str, Any]) -> None:
    """Make the target's catalog: the topics, their segments, and the source's properties."""
    content = read_catalog(source / CATALOG_NAME)
    topics = {each["topic"]: each["topic_id"] for each in plan["topics"]}
    segments = [
        (each["topic_id"], ledger_id, segment_no)
        for each in plan["topics"]
        for ledger_id, segment_no, _ in each["segments"]
    ]
    next_ledger_id = max((ledger_id for _, ledger_id, _ in segments), default=-1) + 1
    highest = max(topics.values(), default=0)
    empty: dict[str, int] = {}
    if content is not None:
        next_ledger_id = max(next_ledger_id, content.next_ledger_id)
        highest = max(highest, *content.topics.values(), 0)
        empty = {
            name: topic_id
            for name, topic_id in content.topics.items()
            if name not in topics and topic_id not in topics.values()
        }
    path = staging.data / CATALOG_NAME
    for suffix in ("", "-wal", "-shm"):  # a killed run's
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    with closing(Catalog(path)) as catalog:
        catalog.adopt({**empty, **topics}, segments, (), next_ledger_id)
        catalog.skip_topic_ids(highest)
        if content is not None:
            kept = [each for each in _properties(source) if each[0] != DELETING_KIND]
            catalog.write(kept)
