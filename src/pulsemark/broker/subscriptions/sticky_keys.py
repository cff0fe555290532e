"""Selects the consumer of a message in a Key_Shared subscription.

A message's sticky key is its ordering key, else its partition key, else its producer name and
sequence id (then it shares its key with no other message). The key's hash, MurmurHash3 (32 bit,
seed 0) as Pulsar's clients compute it, gives one of 65,536 slots. A selector assigns slots to
consumers, the same ones as Pulsar 4's:

- AUTO_SPLIT: consistent hashing. Each consumer has 100 points on a ring, and a slot belongs to
  the next point. When a consumer joins or leaves, only the slots next to its points move. Slot 0 is
  not used.
- STICKY: each consumer names its own ranges, which must not overlap (ConsumerAssignError).
"""

from __future__ import annotations

import base64
import binascii
import struct
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from contextlib import suppress
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

from ...metadata import MessageFormatError, partition_key_of, read_message_metadata
from ...metadata.crc import Buffer
from ...proto.pulsar_api_pb2 import KeySharedMeta, KeySharedMode, ServerError
from ..configuration.config import BrokerConfig
from ..errors import RefusedError

if TYPE_CHECKING:
    from .consumer import Consumer

SLOTS = 65_536
_NUMBER = struct.Struct("<Q")
#: Slots that are cleaned of consumers that left, in one piece.
SWEPT_AT_ONCE = 1_000
#: Ranges that one STICKY consumer may name.
MAX_RANGES_PER_CONSUMER = 1_000
WORD = 0xFFFFFFFF


def murmur3_32(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0, reduced to 31 bits as in Pulsar."""
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


def sticky_hash(headers_and_payload: Buffer) -> int:
    """The hash of an entry's sticky key; a batch has one key for all its messages."""
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
    return murmur3_32(key)


HashRange = tuple["Consumer", int, int]
"""A consumer, and the first and last of some slots that it has."""


class Selector(ABC):
    """Assigns slots to consumers."""

    @abstractmethod
    def add(self, consumer: Consumer) -> None:
        """Add a consumer, or raise `RefusedError`."""

    @abstractmethod
    def remove(self, consumers: Iterable[Consumer]) -> None:
        """Remove consumers; unknown ones are ignored."""

    def sweeping(self) -> Iterator[None]:
        """Delete the remains of removed consumers, in pieces."""
        return iter(())

    @abstractmethod
    def select(self, slot: int) -> Consumer | None:
        """The consumer of a slot, if it has one."""

    def slot_of(self, sticky_hash: int) -> int:
        """The slot of a sticky key's hash. Slot 0 is not used."""
        return sticky_hash % SLOTS or 1

    @abstractmethod
    def ranges(self) -> Iterator[HashRange]:
        """The slots of each consumer, in order. Consumers may come and go meanwhile."""


class AutoSplit(Selector):
    """Consistent hashing over the consumers.

    Two consumers may have a point on the same slot; the slot belongs to the one that came first.
    The cost of adding a consumer does not grow with the number of consumers. When a consumer is
    removed, its points stay and are ignored. They are deleted when `select` meets them, or by
    `sweeping`.

    Points are kept as numbers in arrays: Python's collector visits every list. With 20,000
    consumers, lists for all slots made one `add` block the event loop for 61 ms.
    """

    def __init__(self, points: int = 100) -> None:
        """Each consumer gets this many points."""
        self._points_per_consumer = points
        #: Slots with points, in order.
        self._points = array("H")
        #: The consumers with a point on a slot, as arrival numbers (`_NUMBER`) in order; some may
        #: have left.
        self._numbers: dict[int, bytearray] = {}
        self._members: dict[int, Consumer] = {}
        #: The arrival number and the label of each consumer.
        self._place_of: dict[Consumer, tuple[int, int]] = {}
        self._labels: dict[str, _Labels] = {}
        self._added = 0

    def add(self, consumer: Consumer) -> None:
        """Put a consumer's points on the ring."""
        self._added += 1
        number = self._added
        self._members[number] = consumer
        # The points depend on the name, so that a consumer that reconnects gets its slots back.
        # Consumers with the same name (or without a name) get different numbers.
        label = self._labels.setdefault(consumer.name, _Labels()).take()
        self._place_of[consumer] = number, label
        packed = _NUMBER.pack(number)
        for slot in self._points_of(consumer.name, label):
            numbers = self._numbers.get(slot)
            if numbers is not None:
                numbers += packed
            else:
                self._numbers[slot] = bytearray(packed)
                insort(self._points, slot)

    def remove(self, consumers: Iterable[Consumer]) -> None:
        """Remove consumers."""
        for consumer in consumers:
            place = self._place_of.pop(consumer, None)
            if place is not None:
                number, label = place
                del self._members[number]
                if self._labels[consumer.name].give_back(label):
                    del self._labels[consumer.name]

    def sweeping(self) -> Iterator[None]:
        """Delete the points of consumers that left, in pieces."""
        for done, slot in enumerate(tuple(self._numbers), start=1):
            if slot in self._numbers:
                self._owner_at(slot)
            if done % SWEPT_AT_ONCE == 0:
                yield

    def select(self, slot: int) -> Consumer | None:
        """The consumer of the next point at or after the slot."""
        while self._points:
            owner = self._owner_at(self._point_from(slot))
            if owner is not None:
                return owner
        return None

    def _point_from(self, slot: int) -> int:
        """The first point at or after a slot, else the first of all."""
        at = bisect_left(self._points, slot)
        return self._points[at if at < len(self._points) else 0]

    def slot_of(self, sticky_hash: int) -> int:
        """The slot of a sticky key's hash."""
        return sticky_hash % (SLOTS - 1) + 1

    def ranges(self) -> Iterator[HashRange]:
        """See `Selector.ranges`."""
        first, before = 1, self.select(1)
        at = 1
        while before is not None and at < SLOTS:
            owner = self.select(at)
            if owner is None:
                return
            point = self._point_from(at)
            if owner is not before:
                yield before, first, at - 1
                first, before = at, owner
            # The slots after the last point belong to the first one.
            at = point + 1 if point >= at else SLOTS
        if before is not None:
            yield before, first, SLOTS - 1

    def _points_of(self, name: str, number: int) -> list[int]:
        """The points of a consumer. `number` distinguishes consumers of the same name."""
        prefix = f"{name}\0{number}\0"
        return [
            murmur3_32(f"{prefix}{at}".encode()) % (SLOTS - 1) + 1
            for at in range(self._points_per_consumer)
        ]

    def _owner_at(self, slot: int) -> Consumer | None:
        """The consumer of a slot with points. If all its consumers left, the slot is deleted."""
        numbers = self._numbers[slot]
        owner = self._members.get(_NUMBER.unpack_from(numbers)[0])
        if owner is None:
            left = [one for (one,) in _NUMBER.iter_unpack(numbers) if one in self._members]
            if not left:
                del self._numbers[slot]
                del self._points[bisect_left(self._points, slot)]
                return None
            numbers[:] = b"".join(map(_NUMBER.pack, left))
            owner = self._members[left[0]]
        return owner


class _Labels:
    """Numbers for consumers of one name: always the smallest free one."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = 0

    def take(self) -> int:
        if self._free:
            return heappop(self._free)
        self._next += 1
        return self._next - 1

    def give_back(self, number: int) -> bool:
        """Free a number. Return whether no number is in use any more."""
        heappush(self._free, number)
        return len(self._free) == self._next


class StickyRanges(Selector):
    """Slot ranges that the consumers name themselves, with both ends included."""

    def __init__(self) -> None:
        #: (start, end) of the ranges, in order; none overlap.
        self._ranges: list[tuple[int, int]] = []
        self._owners: dict[int, Consumer] = {}
        self._starts_of: dict[Consumer, list[int]] = {}

    def add(self, consumer: Consumer) -> None:
        """Add a consumer if its ranges are valid and free, or raise `RefusedError`."""
        meta = consumer.key_shared_meta
        if len(meta.hashRanges) > MAX_RANGES_PER_CONSUMER:
            most, count = MAX_RANGES_PER_CONSUMER, len(meta.hashRanges)
            raise _cannot_assign(f"a consumer has at most {most} ranges, not {count}")
        if not meta.hashRanges:
            raise _cannot_assign("Ranges for KeyShared policy must not be empty.")
        for one in meta.hashRanges:
            if one.start > one.end:
                text = f"Fixed hash range start > end for range: [{one.start},{one.end}]"
                raise _cannot_assign(text)
        wanted = sorted((r.start, r.end) for r in meta.hashRanges)
        for before, after in pairwise(wanted):
            if before[1] >= after[0]:
                raise _cannot_assign(
                    "Consumer's own ranges conflict: "
                    f"[{before[0]},{before[1]}] overlaps with [{after[0]},{after[1]}]"
                )
        for start, end in wanted:
            owner = self._owner_within(start, end)
            if owner is not None:
                raise _cannot_assign(f"Range conflict with consumer {owner.name}")
        for start, end in wanted:
            insort(self._ranges, (start, end))
            self._owners[start] = consumer
        self._starts_of[consumer] = [start for start, _ in wanted]

    def ranges(self) -> Iterator[HashRange]:
        """See `Selector.ranges`."""
        for start, end in tuple(self._ranges):
            if start in self._owners:
                yield self._owners[start], start, end

    def _owner_within(self, start: int, end: int) -> Consumer | None:
        """A consumer with a range that overlaps this one."""
        at = bisect_left(self._ranges, (end + 1,))
        if at == 0 or self._ranges[at - 1][1] < start:
            return None
        return self._owners[self._ranges[at - 1][0]]

    def remove(self, consumers: Iterable[Consumer]) -> None:
        """Remove consumers and free their ranges."""
        for consumer in consumers:
            for start in self._starts_of.pop(consumer, ()):
                del self._owners[start]
        self._ranges = [one for one in self._ranges if one[0] in self._owners]

    def select(self, slot: int) -> Consumer | None:
        """The consumer whose range contains the slot."""
        at = bisect_left(self._ranges, (slot + 1,)) - 1
        if at < 0 or slot > self._ranges[at][1]:
            return None
        return self._owners[self._ranges[at][0]]


def _cannot_assign(reason: str) -> RefusedError:
    return RefusedError(ServerError.ConsumerAssignError, reason)


def selector_for(meta: KeySharedMeta, config: BrokerConfig) -> Selector:
    """The selector that a subscription's first consumer asks for."""
    if meta.keySharedMode == KeySharedMode.STICKY:
        return StickyRanges()
    return AutoSplit(config.subscription_key_shared_consistent_hashing_replica_points)


def check_key_shared_meta(active: KeySharedMeta, asked: KeySharedMeta) -> None:
    """Raise `RefusedError` if a Key_Shared consumer asks for other rules than the first one."""
    if active.keySharedMode != asked.keySharedMode:
        mode = KeySharedMode.Name
        raise different_type(
            f"Active subscription key_shared mode of '{mode(active.keySharedMode)}' is different "
            f"than the connecting consumer's key_shared mode '{mode(asked.keySharedMode)}'."
        )
    if active.allowOutOfOrderDelivery != asked.allowOutOfOrderDelivery:
        allows = ("does not allow", "allows")
        raise different_type(
            f"Active subscription {allows[active.allowOutOfOrderDelivery]} out of order delivery "
            f"while the connecting consumer {allows[asked.allowOutOfOrderDelivery]} it."
        )


def different_type(reason: str) -> RefusedError:
    """The refusal of a consumer that asks for another subscription type, in Pulsar's words."""
    return RefusedError(ServerError.ConsumerBusy, f"Subscription is of different type. {reason}")
