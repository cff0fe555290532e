"""A set of positions, kept as bits: what a cursor holds above its mark delete.

It keeps one bit an entry, in blocks of 1024 entries. The cost of a block is bounded, so that
adding, asking and dropping cost the same however many holes there are, and a hostile order of
acknowledgements (every second entry) takes no more memory than a friendly one. To its user the set
is a list of disjoint [first, last] entry ranges that never touch.

Each block also keeps a weight: the sum of what ``weigh`` says of the ranges added to it. A cursor
weighs by messages, so it has its backlog without going over the ranges.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator

from ..position import Position

BLOCK_ENTRIES = 1024
_SHIFT = 10
_FULL = (1 << BLOCK_ENTRIES) - 1

Weigh = Callable[[int, int, int], int]
"""The weight of the entries ``first`` to ``last`` of a ledger."""


class _Block:
    """The bits of 1024 entries, and their weight."""

    __slots__ = ("bits", "weight")

    def __init__(self) -> None:
        self.bits = 0
        self.weight = 0


class PositionRanges:
    """Positions with entry ids from 0 on."""

    def __init__(self, weigh: Weigh | None = None) -> None:
        self._weigh = weigh
        self._blocks: dict[tuple[int, int], _Block] = {}
        #: Keys of the blocks, (ledger id, block number), in order.
        self._keys: list[tuple[int, int]] = []
        self.weight = 0
        """The weight of all positions."""

    def __bool__(self) -> bool:
        return bool(self._keys)

    def weigh_by(self, weigh: Weigh) -> None:
        """From now on, ``weigh`` gives the weights; positions already in are weighed again."""
        self._weigh = weigh
        self.recount()

    def add_one(self, position: Position, weight: int = 0) -> None:
        """Add one position that is not in yet, and its weight."""
        block = self._block((position[0], position[1] >> _SHIFT))
        block.bits |= 1 << (position[1] & (BLOCK_ENTRIES - 1))
        block.weight += weight
        self.weight += weight

    def _block(self, key: tuple[int, int]) -> _Block:
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = _Block()
            if self._keys and key < self._keys[-1]:
                insort(self._keys, key)
            else:
                self._keys.append(key)
        return block

    def add(self, ledger_id: int, first: int, last: int) -> None:
        """Add the entries ``first`` to ``last`` (both inclusive) of a ledger."""
        for number in range(first >> _SHIFT, (last >> _SHIFT) + 1):
            base = number << _SHIFT
            low, high = max(first - base, 0), min(last - base, BLOCK_ENTRIES - 1)
            key = (ledger_id, number)
            block = self._block(key)
            new = ((1 << (high - low + 1)) - 1) << low & ~block.bits
            block.bits |= new
            if self._weigh is not None:
                added = self._weight_of(key, new)
                block.weight += added
                self.weight += added

    def __contains__(self, position: Position) -> bool:
        block = self._blocks.get((position[0], position[1] >> _SHIFT))
        return block is not None and bool(block.bits >> (position[1] & (BLOCK_ENTRIES - 1)) & 1)

    def end_of(self, position: Position) -> int | None:
        """The last entry id of the range that holds ``position``; None if none does."""
        if position not in self:
            return None
        ledger_id, number = position[0], position[1] >> _SHIFT
        at = position[1] & (BLOCK_ENTRIES - 1)
        while True:
            block = self._blocks.get((ledger_id, number))
            zeros = _FULL if block is None else ~block.bits & _FULL
            zeros >>= at
            if zeros:
                return (number << _SHIFT) + at + (zeros & -zeros).bit_length() - 2
            number, at = number + 1, 0

    def remove_up_to(self, position: Position, *, recount: bool = False) -> None:
        """Drop everything at or before ``position``.

        ``recount``: what stays of a block is weighed again. Needed where ``weigh`` can no longer
        give the weight of what is dropped.
        """
        ledger_id, number = position[0], position[1] >> _SHIFT
        gone = 0
        for key in self._keys:
            if key >= (ledger_id, number):
                break
            self.weight -= self._blocks.pop(key).weight
            gone += 1
        del self._keys[:gone]
        block = self._blocks.get((ledger_id, number))
        if block is None:
            return
        removed = block.bits & ((2 << (position[1] & (BLOCK_ENTRIES - 1))) - 1)
        if not removed:
            return
        block.bits ^= removed
        if self._weigh is not None:
            before = block.weight
            if recount:
                block.weight = self._weight_of((ledger_id, number), block.bits)
            else:
                block.weight -= self._weight_of((ledger_id, number), removed)
            self.weight += block.weight - before
        if not block.bits:
            del self._blocks[ledger_id, number]
            del self._keys[0]

    def recount(self) -> None:
        """Weigh everything again."""
        self.weight = 0
        for key, block in self._blocks.items():
            block.weight = self._weight_of(key, block.bits)
            self.weight += block.weight

    def clear(self) -> None:
        """Drop everything."""
        self._blocks.clear()
        self._keys.clear()
        self.weight = 0

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(ledger id, first, last) of every range, in order."""
        pending: tuple[int, int, int] | None = None
        for key in self._keys:
            for found in runs_of(key[0], key[1] << _SHIFT, self._blocks[key].bits):
                if pending is None:
                    pending = found
                elif pending[0] == found[0] and pending[2] + 1 == found[1]:
                    pending = (pending[0], pending[1], found[2])
                else:
                    yield pending
                    pending = found
        if pending is not None:
            yield pending

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def blocks_after(self, position: Position) -> Iterator[tuple[Position, int]]:
        """(first position, bits) of each block that has entries after ``position``, in order."""
        at = bisect_right(self._keys, (position[0], (position[1] + 1) >> _SHIFT)) - 1
        for key in self._keys[max(at, 0) :]:
            if key >= (position[0], (position[1] + 1) >> _SHIFT):
                yield Position(key[0], key[1] << _SHIFT), self._blocks[key].bits

    def _weight_of(self, key: tuple[int, int], bits: int) -> int:
        if self._weigh is None:
            return 0
        return sum(self._weigh(*run) for run in runs_of(key[0], key[1] << _SHIFT, bits))


def runs_of(ledger_id: int, at: int, bits: int) -> Iterator[tuple[int, int, int]]:
    """(ledger id, first, last) of the runs of set bits; the lowest bit is the entry ``at``."""
    while bits:
        skipped = (bits & -bits).bit_length() - 1
        bits >>= skipped
        length = (~bits & (bits + 1)).bit_length() - 1
        bits >>= length
        at += skipped + length
        yield ledger_id, at - length, at - 1
