"""Reads a topic for Pulsar's consumers: entries in Kafka's format become Pulsar's messages.

A consumer must never get the bytes of a Kafka record set, also if the topic's policies are lost
with the catalog. So every entry is looked at. The stored form of a set begins with four zero bytes,
which no message of Pulsar's does: there they would be a header of 0 bytes, which lacks required
fields. So an entry of Pulsar's costs a look at its first byte, and its prefix is not read.

A set that cannot be converted (its records are larger than a message may be, or its codec is not
installed) is shown as a control entry: it is skipped, and counts as acknowledged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ...ledger import Entry, EntryKind, Position
from ...metadata import PrefixError, peek

if TYPE_CHECKING:
    from ..topics.topic import Topic

__all__ = ["ReadableLog", "read_entries"]

log = logging.getLogger(__name__)

_ZEROS = bytes(4)
UNNAMED_PRODUCER = "kafka"


class ReadableLog(Protocol):
    """A topic's log, or its compacted form."""

    def read(
        self, start: Position, *, max_entries: int = 100, max_bytes: int = 1 << 20
    ) -> list[Entry]:
        """Entries from a position on."""
        ...


def read_entries(
    topic: Topic, source: ReadableLog, start: Position, *, max_entries: int, max_bytes: int
) -> Sequence[Entry]:
    """Entries as Pulsar's consumers may get them. Raises as the log's `read`."""
    entries = source.read(start, max_entries=max_entries, max_bytes=max_bytes)
    for entry in entries:
        stored, body = entry.stored, entry.prefix_size_bytes
        if len(stored) > body and not stored[body]:
            return [_for_pulsar(topic, each) for each in entries]
    return entries


def _for_pulsar(topic: Topic, entry: Entry) -> Entry:
    start = entry.prefix_size_bytes
    if entry.stored[start : start + 4] != _ZEROS or entry.kind is not EntryKind.DATA:
        return entry
    # Imported with the first set: most brokers never have one.
    from ...kafka.records import RecordSetError, UnconvertibleEntryError, magic_of, read, to_pulsar

    try:
        prefix = peek(entry.prefix)
        if prefix is None or magic_of(prefix.source_format) is None:
            return entry
        body = to_pulsar(
            read(entry.body),
            entry.message_count,
            publish_time_ms=entry.append_time_ms,
            producer_name=prefix.producer_name or UNNAMED_PRODUCER,
            sequence_id=entry.first_index,
            tombstone_property=topic.tombstone_property,
            max_bytes=topic.config.max_message_size_bytes,
        )
    except (RecordSetError, UnconvertibleEntryError, PrefixError) as error:
        log.error("%s: entry %s is left out: %s", topic.name, entry.position, error)
        return replace(entry, kind=EntryKind.CONTROL)
    return replace(entry, stored=memoryview(bytes(entry.prefix) + body))
