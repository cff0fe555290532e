"""Builds the record of an entry at its place: stamp, record, and the topic's end after it."""

from __future__ import annotations

from typing import TypeAlias

from ...metadata import (
    BrokerEntryMetadata,
    Buffer,
    Clock,
    MessageHeader,
    Sender,
    StamperChain,
    pack,
    pack_stamp,
)
from ..admission import raise_too_large
from ..entry import EntryKind
from ..entry_time import checked_ms, time_of_unstamped
from ..errors import InvalidEntryError
from ..limits import MAX_INDEX, MAX_PREFIX_BYTES, MAX_TIME_MS
from ..options import StoreOptions
from .tail import LEDGER, Tail, what_begins

_PLAIN_TIME_END_MS = 2**63


NewEntry: TypeAlias = tuple[
    Buffer,
    int,
    int,
    EntryKind,
    BrokerEntryMetadata | None,
    Sender | None,
    MessageHeader | None,
]
"""An entry that is to be appended, checked as far as possible before it has a place: body, body
check, message count, kind, prefix fields of the store itself, the producer, and the message's own
header where the time index may need it."""

Record: TypeAlias = tuple[tuple[Buffer, ...], tuple[int, int, int, int], int, int, int, int]
"""A built record, and what the `Tail` is after it: the bytes (with the run's header first,
where the entry is the run's first one), the entry's row in the group (``group.ROW_FIELDS``),
its size in bytes, the next index, the ledger's age and the clock in milliseconds."""


class RecordBuilder:
    """Builds a topic's records. It changes nothing. Other stampers need another builder."""

    __slots__ = ("_clock", "_is_plain", "_options", "_topic", "chain", "stamps_time")

    def __init__(
        self, topic: str, clock: Clock, options: StoreOptions, chain: StamperChain
    ) -> None:
        self._topic = topic
        self._clock = clock
        self._options = options
        self.chain = chain
        self.stamps_time = chain.stamps_time
        """Whether prefixes have the broker's time. If not, an entry has the time of its header."""
        self._is_plain = chain.is_plain_stamp

    def build(self, entry: NewEntry, tail: Tail) -> Record | int:
        """The entry's record at ``tail``; or RUN or LEDGER if one must be begun first.

        Raises what ``LedgerWriter.append`` does.
        """
        body, body_check, messages, kind, base, _, header = entry
        run = tail.run
        if run is None:
            return LEDGER  # before any stamper is called
        clock_ms = self._clock.now_ms()
        if clock_ms.__class__ is not int or not 0 <= clock_ms <= MAX_TIME_MS:
            clock_ms = checked_ms(clock_ms)
        age_ms, now_ms, index = tail.ledger_age_ms, tail.stamp_floor_ms, tail.next_index + messages
        if clock_ms > tail.clock_ms:
            age_ms += clock_ms - tail.clock_ms
        if clock_ms > now_ms:
            now_ms = clock_ms
        is_plain = self._is_plain and base is None and messages and now_ms < _PLAIN_TIME_END_MS
        if is_plain and index <= MAX_INDEX + 1:
            prefix = pack_stamp(now_ms, index - 1)  # as the chain does, without calling it
        else:
            prefix = self._prefix(entry, now_ms, index - 1)
        size = self._entry_size_bytes(prefix, body) + run.overhead_bytes[body_check]
        if begins := what_begins(tail, size, messages, age_ms, self._options):
            return begins
        parts = run.pack(tail.entry_id, kind, messages, now_ms, index - 1, prefix, body, body_check)
        start = tail.offset
        if start == 0:
            parts = (run.first_bytes(), *parts)
            start = len(parts[0])
        time_ms = now_ms
        if not (self.stamps_time and prefix):
            time_ms = time_of_unstamped(header or MessageHeader(body), now_ms)
        if time_ms < tail.entry_time_max_ms:
            time_ms = tail.entry_time_max_ms
        row = now_ms, time_ms, index - run.first_index, start + size
        return parts, row, size, index, age_ms, clock_ms

    def _prefix(self, entry: NewEntry, now_ms: int, index: int) -> bytes:
        """The prefix of an entry: the fields of the stampers and of ``base``."""
        body, _, messages, _, base, sender, header = entry
        if index > MAX_INDEX:
            raise InvalidEntryError(self._topic, f"index {index} is above {MAX_INDEX}")
        prefix = self.chain.prefix(
            self._topic, now_ms, index, messages, body, base=base, sender=sender, header=header
        )
        return pack(base) if base is not None and not prefix else prefix

    def _entry_size_bytes(self, prefix: bytes, body: Buffer) -> int:
        """Prefix and body together. Raises EntryTooLargeError."""
        prefix_size = len(prefix)
        size = prefix_size + len(body)
        if size > self._options.max_entry_size_bytes or prefix_size > MAX_PREFIX_BYTES:
            raise_too_large(self._topic, prefix, size, self._options.max_entry_size_bytes)
        return size
