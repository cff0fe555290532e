"""Which consumer of a Key_Shared subscription a message belongs to.

A message's sticky key is its ordering key, else its partition key, else its producer and sequence
id (then nothing binds it to another message). The key's hash, MurmurHash3 (32 bit, seed 0) as
Pulsar's clients compute it, falls on one of 65,536 slots, and a selector gives slots to consumers:

- AUTO_SPLIT: consistent hashing. Each consumer has many points on a ring; a slot belongs to the
  next point. When a consumer joins or leaves, only the slots beside its points move.
- STICKY: each consumer names its own ranges, which must not overlap (ConsumerAssignError).
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Protocol

from ..metadata import MessageFormatError, partition_key_of, read_message_metadata
from ..metadata.buffers import Buffer
from ..proto.pulsar_api_pb2 import KeySharedMeta, KeySharedMode, ServerError
from .consumer import Consumer
from .errors import RefusedError

__all__ = ["AutoSplit", "Selector", "StickyRanges", "murmur3_32", "selector_for", "slot_of"]

SLOTS = 65_536
POINTS_PER_CONSUMER = 100
WORD = 0xFFFFFFFF


def murmur3_32(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0, cut to 31 bits as Pulsar does."""
    h = 0
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        h ^= _mix(int.from_bytes(data[at : at + 4], "little"))
        h = (h << 13 | h >> 19) & WORD
        h = (h * 5 + 0xE6546B64) & WORD
    if whole < len(data):
        h ^= _mix(int.from_bytes(data[whole:], "little"))
    h ^= len(data)
    h ^= h >> 16
    h = h * 0x85EBCA6B & WORD
    h ^= h >> 13
    h = h * 0xC2B2AE35 & WORD
    return (h ^ h >> 16) & 0x7FFFFFFF


def _mix(k: int) -> int:
    k = k * 0xCC9E2D51 & WORD
    k = (k << 15 | k >> 17) & WORD
    return k * 0x1B873593 & WORD


def slot_of(headers_and_payload: Buffer) -> int:
    """The slot of an entry's sticky key; a batch has one key for all its members."""
    try:
        metadata = read_message_metadata(headers_and_payload)
    except MessageFormatError:
        return 0
    if metadata.HasField("ordering_key"):
        key = metadata.ordering_key
    else:
        found = partition_key_of(metadata)
        if found is None:
            found = f"{metadata.producer_name}-{metadata.sequence_id}".encode()
        elif metadata.partition_key_b64_encoded:
            with suppress(binascii.Error):
                found = base64.b64decode(found, validate=True)
        key = found
    return murmur3_32(key) % SLOTS


class Selector(Protocol):
    """Gives slots to consumers."""

    def add(self, consumer: Consumer) -> None:
        """Take in a consumer, or raise `RefusedError`."""
        ...

    def remove(self, consumer: Consumer) -> None:
        """Let a consumer go."""
        ...

    def select(self, slot: int) -> Consumer | None:
        """Whose a slot is; None if it is nobody's."""
        ...


def selector_for(meta: KeySharedMeta) -> Selector:
    """The selector that a subscription's first consumer asks for."""
    sticky = meta.keySharedMode == KeySharedMode.STICKY
    return StickyRanges() if sticky else AutoSplit()


class AutoSplit:
    """Consistent hashing over the consumers."""

    def __init__(self) -> None:
        self._points: list[tuple[int, int, Consumer]] = []
        self._keys: list[int] = []
        self._added = 0

    def add(self, consumer: Consumer) -> None:
        """Put a consumer's points on the ring."""
        if consumer.key_shared_meta.keySharedMode != KeySharedMode.AUTO_SPLIT:
            raise RefusedError(ServerError.ConsumerBusy, "the subscription splits keys by itself")
        self._added += 1
        # By name, so that a consumer that comes back gets its slots back; consumers that share a
        # name (or have none) are told apart by their number.
        others = {other for _, _, other in self._points if other.name == consumer.name}
        for point in range(POINTS_PER_CONSUMER):
            label = f"{consumer.name}#{len(others)}-{point}"
            self._points.append((murmur3_32(label.encode()) % SLOTS, self._added, consumer))
        self._renew()

    def remove(self, consumer: Consumer) -> None:
        """Take a consumer's points off."""
        self._points = [point for point in self._points if point[2] is not consumer]
        self._renew()

    def select(self, slot: int) -> Consumer | None:
        """The consumer of the next point at or behind the slot."""
        if not self._points:
            return None
        at = bisect_left(self._keys, slot)
        return self._points[at if at < len(self._points) else 0][2]

    def _renew(self) -> None:
        self._points.sort(key=lambda point: point[:2])
        self._keys = [point[0] for point in self._points]


class StickyRanges:
    """Ranges that the consumers name themselves, both ends included."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, Consumer]] = []
        self._starts: list[int] = []

    def add(self, consumer: Consumer) -> None:
        """Take in a consumer whose ranges are free and make sense."""
        meta = consumer.key_shared_meta
        if meta.keySharedMode != KeySharedMode.STICKY:
            raise RefusedError(ServerError.ConsumerBusy, "the subscription's ranges are sticky")
        wanted = [(r.start, r.end) for r in meta.hashRanges]
        if not wanted or any(not 0 <= start <= end < SLOTS for start, end in wanted):
            raise RefusedError(
                ServerError.ConsumerAssignError, f"ranges must lie within 0 and {SLOTS - 1}"
            )
        taken: Sequence[tuple[int, int]] = [(start, end) for start, end, _ in self._ranges]
        ordered = sorted([*taken, *wanted])
        for (_, end), (start, _) in pairwise(ordered):
            if start <= end:
                raise RefusedError(ServerError.ConsumerAssignError, "ranges overlap")
        self._ranges += [(start, end, consumer) for start, end in wanted]
        self._renew()

    def remove(self, consumer: Consumer) -> None:
        """Free a consumer's ranges."""
        self._ranges = [r for r in self._ranges if r[2] is not consumer]
        self._renew()

    def select(self, slot: int) -> Consumer | None:
        """The consumer whose range holds the slot."""
        at = bisect_left(self._starts, slot + 1) - 1
        if at < 0 or slot > self._ranges[at][1]:
            return None
        return self._ranges[at][2]

    def _renew(self) -> None:
        self._ranges.sort(key=lambda r: r[0])
        self._starts = [r[0] for r in self._ranges]
