"""Builds the records of entries at their place: stamps, records, and the topic's end after them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

from ...metadata import (
    BrokerEntryMetadata,
    Buffer,
    Clock,
    MessageHeader,
    Sender,
    StamperChain,
    pack,
    pack_stamps,
)
from ..admission import raise_too_large
from ..entry import EntryKind
from ..entry_time import time_of_unstamped
from ..errors import InvalidEntryError
from ..limits import MAX_INDEX, MAX_PREFIX_BYTES
from ..options import StoreOptions
from .commit import ROW_FIELDS
from .tail import LEDGER, RUN, Tail, what_begins

_PLAIN_TIME_END_MS = 2**63


NewEntries: TypeAlias = tuple[
    Sequence[Buffer],
    int,
    Sequence[int],
    EntryKind,
    BrokerEntryMetadata | None,
    Sender | None,
]
"""Entries that are to be appended one after another, checked as far as possible before they have a
place: bodies, body check, message counts, kind, prefix fields of the store itself, the producer.
Where there is more than one, all have messages, and nothing but these to be told apart by."""

Records: TypeAlias = tuple[list[Buffer], list[int], int, int, int, int]
"""Built records, and what the `Tail` is after them: the bytes (with the run's header first, where
the first entry is the run's), the entries' rows in the group (``group.ROW_FIELDS``), their size in
bytes, the next index, the ledger's age and the clock in milliseconds."""


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

    def build(self, entries: NewEntries, tail: Tail) -> Records | int:
        """The records at ``tail``; or RUN or LEDGER if one must be begun for the first entry.

        Of several entries it builds all, or only the first: where a run begins or ends, and where
        stampers of others are asked. Raises what ``LedgerWriter.append`` does.
        """
        if tail.run is None:
            return LEDGER  # before any stamper is called
        clock_ms = self._clock.now_ms()
        if len(entries[0]) > 1:
            built = self._build(entries, tail, clock_ms) if tail.offset else RUN
            if type(built) is tuple:
                return built
            bodies, check, counts, *rest = entries
            entries = (bodies[:1], check, counts[:1], *rest)
        return self._build(entries, tail, clock_ms)

    def _build(self, entries: NewEntries, tail: Tail, clock_ms: int) -> Records | int:
        """The records of all entries; or what must be begun, or RUN if they cannot be together."""
        bodies, body_check, counts, kind, base, _ = entries
        run, entry_count, messages = tail.run, len(bodies), sum(counts)
        assert run is not None
        age_ms, now_ms, index = tail.ledger_age_ms, tail.stamp_floor_ms, tail.next_index + messages
        if clock_ms > tail.clock_ms:
            age_ms += clock_ms - tail.clock_ms
        if clock_ms > now_ms:
            now_ms = clock_ms
        header = None
        is_plain = self._is_plain and base is None and messages and now_ms < _PLAIN_TIME_END_MS
        if is_plain and index <= MAX_INDEX + 1:
            prefixes = pack_stamps(now_ms, tail.next_index, counts)  # as the chain, without a call
        elif entry_count > 1:
            return RUN
        else:
            # Both the stampers and the time index may read it.
            header = None if self.stamps_time else MessageHeader(bodies[0])
            prefixes = [self._prefix(entries, now_ms, index - 1, header)]
        size = self._check_sizes(prefixes, bodies)
        if size < 0:
            return RUN
        size += entry_count * run.overhead_bytes[body_check]
        if begins := what_begins(tail, size, messages, age_ms, self._options, entry_count):
            return begins
        parts, sizes = run.pack_run(
            tail.entry_id, kind, counts, now_ms, tail.next_index, prefixes, bodies, body_check
        )
        start = tail.offset
        if start == 0:
            parts.insert(0, run.first_bytes())
            start = len(parts[0])
        time_ms = now_ms
        if not (self.stamps_time and prefixes[0]):
            time_ms = time_of_unstamped(header or MessageHeader(bodies[0]), now_ms)
        if time_ms < tail.entry_time_max_ms:
            time_ms = tail.entry_time_max_ms
        rows = [now_ms, time_ms, 0, 0] * entry_count
        rows[2::ROW_FIELDS] = [*accumulate(counts, initial=tail.next_index - run.first_index)][1:]
        rows[3::ROW_FIELDS] = [*accumulate(sizes, initial=start)][1:]
        return parts, rows, size, index, age_ms, clock_ms

    def _prefix(
        self, entries: NewEntries, now_ms: int, index: int, header: MessageHeader | None
    ) -> bytes:
        """The prefix of one entry: the fields of the stampers and of ``base``."""
        (body,), _, (messages,), _, base, sender = entries
        if index > MAX_INDEX:
            raise InvalidEntryError(self._topic, f"index {index} is above {MAX_INDEX}")
        prefix = self.chain.prefix(
            self._topic, now_ms, index, messages, body, base=base, sender=sender, header=header
        )
        return pack(base) if base is not None and not prefix else prefix

    def _check_sizes(self, prefixes: Sequence[bytes], bodies: Sequence[Buffer]) -> int:
        """The size of prefixes and bodies together; -1 if one of several is too large.

        Raises EntryTooLargeError for a single one.
        """
        limit = self._options.max_entry_size_bytes
        if len(bodies) == 1:
            prefix_size = len(prefixes[0])
            size = prefix_size + len(bodies[0])
            if size > limit or prefix_size > MAX_PREFIX_BYTES:
                raise_too_large(self._topic, prefixes[0], size, limit)
            return size
        # The prefixes are stamps of growing indexes: none is longer than the last one.
        if len(prefixes[-1]) + max(map(len, bodies)) > limit:
            return -1
        return sum(map(len, prefixes)) + sum(map(len, bodies))
