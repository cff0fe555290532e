"""Reads a topic for Pulsar's consumers: entries in Kafka's format become Pulsar's messages.

A consumer must never get the bytes of a Kafka record set, also if the topic's policies are lost
with the catalog. So every entry is looked at. The stored form of a set begins with four zero bytes,
which no message of Pulsar's does: there they would be a header of 0 bytes, which lacks required
fields. So an entry of Pulsar's costs a look at its first byte, and its prefix is not read.

A set that cannot be converted (its records are larger than a message may be, or its codec is not
installed) is shown as a control entry: it is skipped, and counts as acknowledged.

A few bytes can become megabytes, and a set of many records takes seconds. So a dispatcher gets only
as many entries as are not larger, converted, than what it asked for, and waits while a large one is
converted in a thread (`conversions`).
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ...ledger import Entry, EntryKind, Position
from ...metadata import BrokerEntryMetadata, PrefixError, peek
from .conversions import BeingConvertedError

if TYPE_CHECKING:
    from .home_topic import HomeTopic

__all__ = ["ReadableLog", "read_entries"]

log = logging.getLogger(__name__)

_ZEROS = bytes(4)
UNNAMED_PRODUCER = "kafka"
#: A set with more records, or larger when it is decompressed, is converted in a thread.
AT_ONCE_RECORDS = 500
AT_ONCE_BYTES = 128 * 1024


class ReadableLog(Protocol):
    """A topic's log, or its compacted form."""

    def read(
        self, start: Position, *, max_entries: int = 100, max_bytes: int = 1 << 20
    ) -> list[Entry]:
        """Entries from a position on."""
        ...


def read_entries(
    topic: HomeTopic,
    source: ReadableLog,
    start: Position,
    *,
    max_entries: int,
    max_bytes: int,
    may_wait: bool = False,
) -> Sequence[Entry]:
    """Entries as Pulsar's consumers may get them.

    `may_wait`: the caller can come again when a large entry was converted. Raises as the log's
    `read`, and then also BeingConvertedError.
    """
    entries = source.read(start, max_entries=max_entries, max_bytes=max_bytes)
    for entry in entries:
        stored, body = entry.stored, entry.prefix_size_bytes
        if len(stored) > body and not stored[body]:
            return _shown(topic, entries, max_bytes, may_wait=may_wait)
    return entries


def _shown(
    topic: HomeTopic, entries: Sequence[Entry], max_bytes: int, *, may_wait: bool
) -> list[Entry]:
    found: list[Entry] = []
    for entry in entries:
        try:
            shown = _for_pulsar(topic, entry, may_wait=may_wait)
        except BeingConvertedError:
            if not found:
                raise
            break
        found.append(shown)
        max_bytes -= len(shown.stored)
        if max_bytes <= 0:
            break
    return found


def _for_pulsar(topic: HomeTopic, entry: Entry, *, may_wait: bool) -> Entry:
    start = entry.prefix_size_bytes
    if entry.stored[start : start + 4] != _ZEROS or entry.kind is not EntryKind.DATA:
        return entry
    # Imported with the first set: most brokers never have one.
    from ...kafka.records import RecordSetError, UnconvertibleEntryError, magic_of

    try:
        prefix = peek(entry.prefix)
        if prefix is None or magic_of(prefix.source_format) is None:
            return entry
        convert = _conversion(topic, entry, prefix)
        if not may_wait:
            body = convert()
        elif _is_large(entry, prefix):
            # A compacted form may have another entry at the same position.
            key = entry.position, zlib.crc32(entry.stored)
            body = topic.conversions.in_thread(key, convert)
        else:
            body = topic.conversions.at_once(convert)
    except (RecordSetError, UnconvertibleEntryError, PrefixError) as error:
        log.error("%s: entry %s is left out: %s", topic.name, entry.position, error)
        return replace(entry, kind=EntryKind.CONTROL)
    return replace(entry, stored=memoryview(bytes(entry.prefix) + body))


def _is_large(entry: Entry, prefix: BrokerEntryMetadata) -> bool:
    size_bytes = max(prefix.raw_size_bytes, len(entry.stored))
    return entry.message_count > AT_ONCE_RECORDS or size_bytes > AT_ONCE_BYTES


def _conversion(topic: HomeTopic, entry: Entry, prefix: BrokerEntryMetadata) -> Callable[[], bytes]:
    """A function that makes the set a Pulsar batch, in any thread."""
    from ...kafka.records import read, to_pulsar

    def convert() -> bytes:
        return to_pulsar(
            read(entry.body),
            entry.message_count,
            publish_time_ms=entry.append_time_ms,
            producer_name=prefix.producer_name or UNNAMED_PRODUCER,
            sequence_id=entry.first_index,
            tombstone_property=topic.tombstone_property,
            max_bytes=topic.config.max_message_size_bytes,
        )

    return convert
