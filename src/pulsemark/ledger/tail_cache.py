"""The entries committed last, kept in memory for readers at the end of a topic.

A consumer that keeps up reads each entry right after its commit. Without the cache every
subscription reads it from the operating system's cache, checks its checksums and unpacks it again.
With the cache the committer hands over the bytes it has just written, the first reader unpacks
them, and all readers share the entries. As in Pulsar, one cache with one limit in bytes serves all
topics of a store (managedLedgerCacheSizeMB).

- It has only entries that are durable and shown: the committer adds them in the same step, under
  its lock, in which readers can first see them. Entries removed from a log are dropped under the
  same lock, before the removal returns.
- It is filled only while a topic is read at its end: a topic without such readers costs a test
  per commit and no memory.
- The oldest entries are dropped first: when the cache is full, when they are older than
  ``MAX_AGE_MS`` (Pulsar: managedLedgerCacheEvictionTimeThresholdMillis), and when all cursors of
  the topic are past them.
- It has one sequence of entries without gaps per topic, all of one ledger. Any other entry is a
  miss, and is read from the disk.

Readers take no lock. A block of entries never changes; it is only unpacked, once.

**Lru.**
A cache of a limited number of values: the least recently used one is dropped first.

For values that can be computed or read again. Files in use must stay open, so they have a cache of
their own (`local.io.fd_cache`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from operator import attrgetter
from typing import Generic, TypeVar

from ..metadata import Clock
from .entry import Entry, checked_ms
from .errors import ClockError
from .position import Position

MAX_AGE_MS = 1_000
"""Entries older than this are dropped: a reader at the end has long read them."""
IDLE_COMMITS = 100
"""A topic that is not read at its end for so many commits is no longer kept."""
ENTRY_COST_BYTES = 480
"""What an entry takes in memory beside its bytes, once unpacked: the objects and their list."""
BLOCK_COST_BYTES = 480
"""What a block takes beside its entries and its bytes."""
_CURSOR_CHECK_BYTES = 256 * 1024
"""The cursors' places are read again after so many more bytes of a topic."""

_stored = attrgetter("stored")

Piece = tuple[int, bytes, Callable[[bytes], list[Entry]]]
"""Number of entries, their bytes as they were written, and the function that unpacks them."""


class _Block:
    """Consecutive entries of one commit, kept and dropped together."""

    __slots__ = (
        "data",
        "end_entry_id",
        "entries",
        "first_entry_id",
        "ledger_id",
        "number",
        "recent",
        "since_ms",
        "size_bytes",
        "unpack",
    )

    def __init__(
        self, recent: RecentEntries, number: int, first_entry_id: int, piece: Piece, since_ms: int
    ) -> None:
        count, self.data, self.unpack = piece
        self.recent = recent
        self.ledger_id = recent.ledger_id
        self.number = number
        self.first_entry_id = first_entry_id
        self.end_entry_id = first_entry_id + count
        self.since_ms = since_ms
        self.size_bytes = len(self.data) + BLOCK_COST_BYTES + count * ENTRY_COST_BYTES
        self.entries: list[Entry] | None = None


class TailCache:
    """The cache of a store; ``max_size_bytes`` counts the objects around the entries, too.

    Hits and misses are counted without a lock: threads that read at once may lose a count.
    """

    def __init__(self, max_size_bytes: int, clock: Clock) -> None:
        self.max_size_bytes = max_size_bytes
        self._clock = clock
        self._last_ms = 0
        self.lock = threading.Lock()
        self.blocks: OrderedDict[_Block, None] = OrderedDict()
        """The blocks of all topics, oldest first."""
        self.used_size_bytes = 0
        self.entry_count = 0
        self.inserted_entries = 0
        self.evicted_entries = 0
        self.evictions = 0
        """How often blocks were dropped: the cache was full, or they were old or read by all."""
        self.hit_entries = 0
        self.hit_bytes = 0
        self.missed_entries = 0
        self.missed_bytes = 0

    def of_topic(self, mark_deletes: Callable[[], Iterable[Position]]) -> RecentEntries:
        """A topic's part of the cache; ``mark_deletes`` gives the positions of its cursors."""
        return RecentEntries(self, mark_deletes)

    def now_ms(self) -> int:
        """The clock's time; the last good one if it gives something else: commits must go on."""
        with suppress(ClockError):
            self._last_ms = checked_ms(self._clock.now_ms())
        return self._last_ms

    def evict_old(self) -> None:
        """Drop what is too old. To be called from time to time while nothing is committed."""
        with self.lock:
            self.evict(self.now_ms())

    def close(self) -> None:
        """Drop everything, and keep nothing from now on."""
        with self.lock:
            self.max_size_bytes = 0
            self.evict(self.now_ms())

    # Called under the lock, by `RecentEntries` too

    def evict(self, now_ms: int) -> None:
        """Drop what is too old or too much."""
        evicted = []
        size_bytes = self.used_size_bytes
        for block in self.blocks:
            # A clock that was set back makes everything look new: then nothing is kept.
            if size_bytes <= self.max_size_bytes and 0 <= now_ms - block.since_ms <= MAX_AGE_MS:
                break
            size_bytes -= block.size_bytes
            evicted.append(block)
        for block in evicted:
            block.recent.drop_first(block)
        self.drop(evicted, is_eviction=True)

    def drop(self, blocks: list[_Block], *, is_eviction: bool = False) -> None:
        """Forget blocks that left their topic."""
        count = 0
        for block in blocks:
            del self.blocks[block]
            self.used_size_bytes -= block.size_bytes
            count += block.end_entry_id - block.first_entry_id
        self.entry_count -= count
        if blocks and is_eviction:
            self.evictions += 1
            self.evicted_entries += count


class RecentEntries:
    """The cached entries of one topic: the end of its log, or a part near the end."""

    def __init__(self, cache: TailCache, mark_deletes: Callable[[], Iterable[Position]]) -> None:
        self._cache = cache
        self._mark_deletes = mark_deletes
        self._blocks: dict[int, _Block] = {}
        """Blocks by number, without gaps; replaced when a new sequence begins."""
        self._first_number = 0
        self._end_number = 0
        self.ledger_id = -1
        self.end_entry_id = 0
        self._is_read = False
        """Whether it was read at its end since the last commit."""
        self._idle_commits = IDLE_COMMITS
        self._unchecked_bytes = 0

    # Readers

    def read(self, start: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from ``start`` on, within limits; [] if the first one is not here."""
        blocks = self._blocks
        ledger_id, entry_id = start
        block = self._find(blocks, entry_id)
        found: list[Entry] = []
        size = 0
        if block is None or block.ledger_id != ledger_id:
            return found
        while block is not None and block.first_entry_id <= entry_id < block.end_entry_id:
            entries = block.entries
            if entries is None:
                entries = block.entries = block.unpack(block.data)
            at = entry_id - block.first_entry_id
            for entry in entries[at : at + max_entries - len(found)]:
                size += len(entry.stored)
                if size > max_bytes and found:
                    return self._hit(found, size - len(entry.stored))
                found.append(entry)
            entry_id = block.end_entry_id
            block = blocks.get(block.number + 1) if len(found) < max_entries else None
        return self._hit(found, size) if found else found

    def reached_end(self) -> None:
        """Note that a reader is at the end: from now on caching is useful."""
        self._is_read = True

    def reader_left(self) -> None:
        """Note that the only reader at the end has left."""
        self._is_read, self._idle_commits = False, IDLE_COMMITS

    def missed(self, entries: list[Entry]) -> None:
        """Count entries that were read from the disk."""
        cache = self._cache
        cache.missed_entries += len(entries)
        cache.missed_bytes += sum(map(len, map(_stored, entries)))

    def _hit(self, found: list[Entry], size_bytes: int) -> list[Entry]:
        self._is_read = True
        cache = self._cache
        cache.hit_entries += len(found)
        cache.hit_bytes += size_bytes
        return found

    def _find(self, blocks: dict[int, _Block], entry_id: int) -> _Block | None:
        """The block that may have an entry; None if no block may, or it was just dropped."""
        low, high = self._first_number, self._end_number - 1
        block = blocks.get(high)
        if block is None or entry_id >= block.first_entry_id:
            return block  # the newest: what readers want nearly always
        while high - low > 1:
            middle = (low + high) // 2
            block = blocks.get(middle)
            if block is None:
                return None
            if block.first_entry_id <= entry_id:
                low = middle
            else:
                high = middle
        return blocks.get(low)

    # The committer, under its lock

    def is_wanted(self) -> bool:
        """Whether entries that were just committed are to be added; asked once per commit."""
        if self._is_read:
            self._is_read, self._idle_commits = False, 0
        elif self._idle_commits >= IDLE_COMMITS:
            return False
        self._idle_commits += 1
        return self._cache.max_size_bytes > 0

    def add(self, ledger_id: int, entry_id: int, pieces: list[Piece]) -> None:
        """Keep consecutive entries, from ``entry_id`` on, which are durable and shown."""
        cache = self._cache
        now_ms = cache.now_ms()
        with cache.lock:
            if (ledger_id, entry_id) != (self.ledger_id, self.end_entry_id):
                dropped, self._blocks = list(self._blocks.values()), {}
                self._first_number, self.ledger_id = self._end_number, ledger_id
                cache.drop(dropped)
            for piece in pieces:
                block = _Block(self, self._end_number, entry_id, piece, now_ms)
                self._blocks[block.number] = block
                self.end_entry_id = entry_id = block.end_entry_id
                self._end_number += 1
                self._unchecked_bytes += block.size_bytes
                cache.blocks[block] = None
                cache.used_size_bytes += block.size_bytes
                cache.entry_count += piece[0]
                cache.inserted_entries += piece[0]
            cache.drop(self._take_finished(), is_eviction=True)
            cache.evict(now_ms)

    def removed_before(self, position: Position) -> None:
        """Drop entries before ``position``, which were removed from the log: whole blocks."""
        with self._cache.lock:
            self._cache.drop(
                self._take(lambda block: (block.ledger_id, block.first_entry_id) < position)
            )

    def clear(self) -> None:
        """Drop all: entries were removed from the end of the log, or all of them."""
        with self._cache.lock:
            self._cache.drop(self._take(lambda _: True))

    # Under the cache's lock

    def drop_first(self, block: _Block) -> None:
        """Drop the first block."""
        self._first_number = block.number + 1
        del self._blocks[block.number]

    def _take_finished(self) -> list[_Block]:
        """From time to time: remove and return the blocks that all cursors are past."""
        if self._unchecked_bytes < _CURSOR_CHECK_BYTES:
            return []
        self._unchecked_bytes = 0
        slowest = min(self._mark_deletes(), default=None)
        if slowest is None:
            return []
        return self._take(lambda block: (block.ledger_id, block.end_entry_id - 1) <= slowest)

    def _take(self, is_past: Callable[[_Block], bool]) -> list[_Block]:
        taken = []
        while (block := self._blocks.get(self._first_number)) is not None and is_past(block):
            self.drop_first(block)
            taken.append(block)
        return taken


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """The last used values. Safe between threads without a lock: each step is one of a dict's."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value, if it is here; marks it as the last used."""
        value = self._values.get(key)
        if value is not None:
            with suppress(KeyError):  # another thread just dropped it; ours is still good
                self._values.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Keep a value as the last used; drop the least recently used one if there are too many."""
        self._values[key] = value
        with suppress(KeyError):  # another thread was faster
            self._values.move_to_end(key)
            while len(self._values) > self.capacity:
                self._values.popitem(last=False)

    def clear(self) -> None:
        """Drop all."""
        self._values.clear()

    def forget(self, is_dropped: Callable[[K], bool]) -> None:
        """Drop the values of all keys for which ``is_dropped`` is true."""
        for key in [key for key in list(self._values) if is_dropped(key)]:
            self._values.pop(key, None)
