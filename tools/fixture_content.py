"""The content of a data folder as readers see it, as JSON values.

`make_fixture_folders.py` records it beside each folder, and the tests compare.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pulsemark.ledger import (
    EARLIEST,
    CorruptEntryError,
    LocalStore,
    ManagedLedger,
    Position,
    TopicLog,
)

ROWS_LISTED = 100
"""Longer logs are recorded as a digest."""

Expected = dict[str, Any]


def rows_of(log: TopicLog) -> list[list[Any]]:
    """Every entry of a log as JSON values; damaged ones as [ledger, entry, "damaged"]."""
    rows: list[list[Any]] = []
    place = EARLIEST
    while True:
        try:
            entries = log.read(place)
        except CorruptEntryError as error:
            rows.append([*error.position, "damaged"])
            place = error.next_position
            continue
        if not entries:
            return rows
        rows += [
            [*entry.position, entry.kind.name, entry.message_count, entry.index,
             entry.append_time_ms, entry.prefix_size_bytes, bytes(entry.stored).hex()]
            for entry in entries
        ]  # fmt: skip
        last = entries[-1].position
        place = Position(last.ledger_id, last.entry_id + 1)


def content_of(log: TopicLog) -> Expected:
    """The recorded content of a topic."""
    rows = rows_of(log)
    content: Expected = {
        "first_index": log.first_index,
        "next_index": log.next_index,
        "entries": len(rows),
    }
    if len(rows) <= ROWS_LISTED:
        content["rows"] = rows
    else:
        content["sha256"] = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    return content


def cursors_of(topic: ManagedLedger) -> Expected:
    """A topic's cursors: mark delete, entries acknowledged above it, properties."""
    positions = [Position(*row[:2]) for row in rows_of(topic)]
    return {
        name: {
            "mark_delete": list(cursor.mark_delete),
            "acked": [list(p) for p in positions if p > cursor.mark_delete and cursor.is_acked(p)],
            "batches": [
                [*p, cursor.remaining_in_batch(p)]
                for p in positions
                if cursor.remaining_in_batch(p)
            ],
            "properties": cursor.properties,
        }
        for name, cursor in sorted(topic.cursors.items())
    }


def content_of_store(store: LocalStore) -> Expected:
    """The recorded content of a folder."""
    topics = {name: store.open_topic(name) for name in store.topic_names()}
    return {
        "topics": {name: content_of(topic) for name, topic in topics.items()},
        "cursors": {name: cursors_of(topic) for name, topic in topics.items() if topic.cursors},
        "epochs": {
            name: [[start.epoch, start.first_index, *start.position] for start in topic.epochs]
            for name, topic in topics.items()
        },
        "properties": {
            kind: {key: value.decode() for key, value in store.catalog.items(kind)}
            for kind in ("namespace", "schema")
        },
    }
