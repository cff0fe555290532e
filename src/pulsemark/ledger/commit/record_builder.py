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
    pack_stamp,
)
from ...metadata.prefix import pack_stamps
from ..admission import raise_too_large
from ..entry import EntryKind
from ..entry_time import checked_ms, time_of_unstamped
from ..errors import InvalidEntryError
from ..limits import MAX_INDEX, MAX_PREFIX_BYTES, MAX_TIME_MS
from ..options import StoreOptions
from ..run import Run
from .commit import ROW_FIELDS
from .tail import LEDGER, Tail, what_begins

_PLAIN_TIME_END_MS = 2**63
_MANY_MAX_BYTES = 1 << 20
"""Larger records are not built together: they cost enough alone, and a batch has a limit."""


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

Records: TypeAlias = tuple[Sequence[Buffer], list[int], int, int, int, int]
"""Built records, and what the `Tail` is after them: the bytes (with the run's header first, where
the first entry is the run's), the entries' rows in the group (``group.ROW_FIELDS``), their size in
bytes, the next index, the ledger's age and the clock in milliseconds."""


class RecordBuilder:
    """Builds a topic's records. It changes nothing. Other stampers need another builder."""

    __slots__ = ("_clock", "_options", "_topic", "chain", "is_plain", "stamps_time")

    def __init__(
        self, topic: str, clock: Clock, options: StoreOptions, chain: StamperChain
    ) -> None:
        self._topic = topic
        self._clock = clock
        self._options = options
        self.chain = chain
        self.stamps_time = chain.stamps_time
        """Whether prefixes have the broker's time. If not, an entry has the time of its header."""
        self.is_plain = chain.is_plain_stamp
        """Whether prefixes have time and index, and nothing else."""

    def build(self, entries: NewEntries, tail: Tail) -> Records | int:
        """The records at ``tail``; or RUN or LEDGER if one must be begun for the first entry.

        Of several entries it builds all, or only the first: where a run begins or ends, and where
        stampers of others are asked. Raises what ``LedgerWriter.append`` does.
        """
        bodies, body_check, counts, kind, base, _ = entries
        run = tail.run
        if run is None:
            return LEDGER  # before any stamper is called
        if len(bodies) > 1:
            if tail.offset and self.is_plain and base is None:
                records = self._build_many(entries, tail, run)
                if records is not None:
                    return records
            entries = _first_of(entries)
            bodies, body_check, counts, kind, base, _ = entries
        body, messages = bodies[0], counts[0]
        clock_ms = self._clock.now_ms()
        if clock_ms.__class__ is not int or not 0 <= clock_ms <= MAX_TIME_MS:
            clock_ms = checked_ms(clock_ms)
        age_ms, now_ms, index = tail.ledger_age_ms, tail.stamp_floor_ms, tail.next_index + messages
        if clock_ms > tail.clock_ms:
            age_ms += clock_ms - tail.clock_ms
        if clock_ms > now_ms:
            now_ms = clock_ms
        header = None
        plain = self.is_plain and base is None and messages and now_ms < _PLAIN_TIME_END_MS
        if plain and index <= MAX_INDEX + 1:
            prefix = pack_stamp(now_ms, index - 1)  # as the chain does, without calling it
        else:
            # Both the stampers and the time index may read it.
            header = None if self.stamps_time else MessageHeader(body)
            prefix = self._prefix(entries, now_ms, index - 1, header)
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
        rows = [now_ms, max(time_ms, tail.entry_time_max_ms), index - run.first_index, start + size]
        return parts, rows, size, index, age_ms, clock_ms

    def _build_many(self, entries: NewEntries, tail: Tail, run: Run) -> Records | None:
        """The records of several entries with plain stamps; None if one may have to be alone."""
        bodies, body_check, counts, kind, _, _ = entries
        messages, entry_count = sum(counts), len(bodies)
        clock_ms = self._clock.now_ms()
        now_ms, index = max(clock_ms, tail.stamp_floor_ms), tail.next_index + messages
        age_ms = tail.ledger_age_ms + max(0, clock_ms - tail.clock_ms)
        if index > MAX_INDEX + 1 or now_ms >= _PLAIN_TIME_END_MS:
            return None
        prefixes = pack_stamps(now_ms, tail.next_index, counts)
        # Their indexes grow: so none is longer than the last one.
        if max(map(len, bodies)) + len(prefixes[-1]) > self._options.max_entry_size_bytes:
            return None
        size = sum(map(len, bodies)) + sum(map(len, prefixes))
        size += entry_count * run.overhead_bytes[body_check]
        if size > _MANY_MAX_BYTES or what_begins(
            tail, size, messages, age_ms, self._options, entry_count
        ):
            return None
        parts, ends = run.pack_run(
            tail.entry_id, kind, counts, now_ms, tail.next_index, prefixes, bodies, body_check,
            tail.offset,
        )  # fmt: skip
        rows = [now_ms, max(now_ms, tail.entry_time_max_ms), 0, 0] * entry_count
        rows[2::ROW_FIELDS] = [*accumulate(counts, initial=tail.next_index - run.first_index)][1:]
        rows[3::ROW_FIELDS] = ends
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

    def _entry_size_bytes(self, prefix: bytes, body: Buffer) -> int:
        """Prefix and body together. Raises EntryTooLargeError."""
        prefix_size = len(prefix)
        size = prefix_size + len(body)
        if size > self._options.max_entry_size_bytes or prefix_size > MAX_PREFIX_BYTES:
            raise_too_large(self._topic, prefix, size, self._options.max_entry_size_bytes)
        return size


def _first_of(entries: NewEntries) -> NewEntries:
    bodies, body_check, counts, kind, base, sender = entries
    return bodies[:1], body_check, counts[:1], kind, base, sender
