"""Reads a topic for Pulsar's consumers: entries in Kafka's format become Pulsar's messages.

A consumer must never get the bytes of a Kafka record set, also if the topic's policies are lost
with the catalog. So every entry is looked at: the stored form of a set begins with four zero bytes,
and no message of Pulsar's does. Of an entry of Pulsar's one byte is read, and not its prefix.

A set that cannot be converted (its records are larger than a message may be, or its codec is not
installed) is shown as a control entry: it is skipped, and counts as acknowledged. So is one without
records, with which a mirror or a Kafka's compaction keeps the offsets of a hole.

A few bytes can become megabytes, and a set of many records takes seconds. So a large set is
converted in a thread, and small ones at once, but only for a part of a turn of the event loop
(`Conversions`). A dispatcher that has to wait gets a `BeingConvertedError`, and goes on as after an
entry that came over a network. It gets no more than it asked for, converted.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ...ledger import Entry, EntryKind, Position
from ...ledger.errors import WouldBlockError
from ...metadata import BrokerEntryMetadata, PrefixError, peek

if TYPE_CHECKING:
    from ...compaction.compacted_log import CompactedLog
    from ...ledger import ManagedLedger
    from .subscription import HomeTopic

log = logging.getLogger(__name__)

_ZEROS = bytes(4)
UNNAMED_PRODUCER = "kafka"
#: A set with more records, or larger when it is decompressed, is converted in a thread.
AT_ONCE_RECORDS = 500
AT_ONCE_BYTES = 128 * 1024
#: How long a topic's small conversions may run in one turn of the event loop.
TURN_S = 0.01
#: How long a result is kept that no dispatcher takes; they are called as soon as it is there.
KEPT_S = 1.0

T = TypeVar("T")


def read_entries(
    topic: HomeTopic,
    source: ManagedLedger | CompactedLog,
    start: Position,
    *,
    max_entries: int,
    max_bytes: int,
    may_wait: bool = False,
) -> Sequence[Entry]:
    """Read entries as Pulsar's consumers may get them. Raises as the log's `read_stable`.

    `may_wait`: the caller can try again later, so BeingConvertedError may be raised.
    """
    entries = source.read_stable(start, max_entries=max_entries, max_bytes=max_bytes)
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
    from ...kafka.records import RecordSetError, UnconvertibleEntryError, is_hole, magic_of

    try:
        prefix = peek(entry.prefix)
        if prefix is None or magic_of(prefix.source_format) is None:
            return entry
        if is_hole(entry.body):
            return replace(entry, kind=EntryKind.CONTROL)
        convert = _conversion(topic, entry, prefix)
        if not may_wait:
            body = convert()
        elif (
            entry.message_count > AT_ONCE_RECORDS
            # 0: it is not known, because a mirror brought the set.
            or not 0 < prefix.raw_size_bytes <= AT_ONCE_BYTES
        ):
            # A compacted form may have another entry at the same position.
            key = entry.position, zlib.crc32(entry.stored)
            body = topic.conversions.in_thread(key, convert)
        else:
            body = topic.conversions.at_once(convert)
    except (RecordSetError, UnconvertibleEntryError, PrefixError) as error:
        log.error("%s: entry %s is left out: %s", topic.name, entry.position, error)
        return replace(entry, kind=EntryKind.CONTROL)
    return replace(entry, stored=memoryview(bytes(entry.prefix) + body))


def _conversion(topic: HomeTopic, entry: Entry, prefix: BrokerEntryMetadata) -> Callable[[], bytes]:
    """A function that makes a Pulsar batch of a record set, in any thread."""
    from ...kafka.records import read, to_pulsar

    def convert() -> bytes:
        return to_pulsar(
            read(entry.body),
            entry.message_count,
            publish_time_ms=entry.append_time_ms,
            producer_name=prefix.producer_name or UNNAMED_PRODUCER,
            sequence_id=entry.first_index,
            tombstone_property=topic.tombstone_property,
            schema_numbers=topic.schema_numbers,
            max_bytes=topic.config.max_message_size_bytes,
        )

    return convert


class BeingConvertedError(WouldBlockError):
    """The next entry cannot be read yet: it is being converted."""


class Conversions:
    """Converts the Kafka record sets of one topic to Pulsar's batches."""

    def __init__(self) -> None:
        self._in_threads: dict[object, asyncio.Future[Any]] = {}
        self._turn: asyncio.Future[None] | None = None
        self._until_s = 0.0

    def at_once(self, make: Callable[[], T]) -> T:
        """Return what `make` returns. Raises BeingConvertedError if this turn's time is used up."""
        if self._turn is None:
            loop = asyncio.get_running_loop()
            self._turn = loop.create_future()
            self._until_s = time.monotonic() + TURN_S
            loop.call_soon(self._end_turn, self._turn)
        elif time.monotonic() >= self._until_s:
            raise BeingConvertedError(self._turn)
        return make()

    def _end_turn(self, turn: asyncio.Future[None]) -> None:
        self._turn = None
        turn.set_result(None)

    def in_thread(self, key: object, make: Callable[[], T]) -> T:
        """Return or raise what `make` did in a thread; BeingConvertedError until then."""
        known = self._in_threads.get(key)
        if known is None:
            known = asyncio.get_running_loop().run_in_executor(None, make)
            self._in_threads[key] = known
            known.add_done_callback(lambda done: self._made(key, done))
        if not known.done():
            raise BeingConvertedError(known)
        # Other dispatchers that wait for the result are called in this turn, too.
        asyncio.get_running_loop().call_soon(self._in_threads.pop, key, None)
        return cast("T", known.result())

    def _made(self, key: object, done: asyncio.Future[Any]) -> None:
        if not done.cancelled():
            done.exception()  # it may be that no dispatcher wants it any more
        asyncio.get_running_loop().call_later(KEPT_S, self._in_threads.pop, key, None)
