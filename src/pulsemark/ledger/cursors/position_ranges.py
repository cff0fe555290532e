"""A set of positions, kept as bits: the entries acknowledged above a cursor's mark delete.

It keeps one bit an entry, in blocks of 1024 entries. A block has a bounded cost, so adding, looking
up and removing cost the same however many holes there are, and a hostile order of acknowledgements
(every second entry) takes no more memory than a friendly one. The set is shown as a list of
disjoint [first, last] entry ranges that never touch.

Each block also keeps a weight: the sum of what ``weigh`` says of the ranges added to it. A cursor
weighs by messages, so it has its backlog without going over the ranges. Where ``weigh`` would have
to wait for a read, the block is weighed again when the weight is asked for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator

from ..position import EARLIEST, Position

BLOCK_ENTRIES = 1024
_SHIFT = 10
_FULL = (1 << BLOCK_ENTRIES) - 1

Weigh = Callable[[int, int, int], int]
"""The weight of the entries ``first`` to ``last`` of a ledger."""
IsAtHand = Callable[[int, int, int], bool]
"""Whether that weight can be said without waiting."""


class _Block:
    """The bits of 1024 entries, and their weight."""

    __slots__ = ("bits", "weight")

    def __init__(self) -> None:
        self.bits = 0
        self.weight = 0


class PositionRanges:
    """Positions with entry ids from 0 on."""

    def __init__(self, weigh: Weigh | None = None, is_at_hand: IsAtHand | None = None) -> None:
        self._weigh = weigh
        self._is_at_hand = is_at_hand
        self._blocks: dict[tuple[int, int], _Block] = {}
        #: Keys of the blocks, (ledger id, block number), in order.
        self._keys: list[tuple[int, int]] = []
        self._weight = 0
        self._unweighed: set[tuple[int, int]] = set()
        """Keys of blocks whose weight is to be found out."""

    @property
    def weight(self) -> int:
        """The weight of all positions. Raises what ``weigh`` does."""
        while self._unweighed:
            key = min(self._unweighed)
            self._set_weight(self._blocks[key], self._weight_of(key, self._blocks[key].bits))
            self._unweighed.discard(key)
        return self._weight

    def _set_weight(self, block: _Block, weight: int) -> None:
        self._weight += weight - block.weight
        block.weight = weight

    def __bool__(self) -> bool:
        return bool(self._keys)

    def weigh_by(self, weigh: Weigh, is_at_hand: IsAtHand | None = None) -> None:
        """Weigh with ``weigh`` from now on, also the positions that are there already."""
        self._weigh, self._is_at_hand = weigh, is_at_hand
        self.recount()

    def add_one(self, position: Position, weight: int | None = 0) -> None:
        """Add one missing position with its weight; None: the weight is not known."""
        key = position[0], position[1] >> _SHIFT
        block = self._block(key)
        block.bits |= 1 << (position[1] & (BLOCK_ENTRIES - 1))
        if weight is None:
            self._unweighed.add(key)
        elif weight:
            self._set_weight(block, block.weight + weight)

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
            self._weigh_more(key, block, new)

    def __contains__(self, position: Position) -> bool:
        block = self._blocks.get((position[0], position[1] >> _SHIFT))
        return block is not None and bool(block.bits >> (position[1] & (BLOCK_ENTRIES - 1)) & 1)

    def end_of(self, position: Position) -> int | None:
        """The last entry id of the range that holds ``position``; None if it is in no range."""
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
        """Remove everything at or before ``position``.

        ``recount``: weigh what stays of a block again. Needed if ``weigh`` can no longer give the
        weight of removed entries.
        """
        ledger_id, number = position[0], position[1] >> _SHIFT
        gone = 0
        for key in self._keys:
            if key >= (ledger_id, number):
                break
            self._weight -= self._blocks.pop(key).weight
            self._unweighed.discard(key)
            gone += 1
        del self._keys[:gone]
        key = ledger_id, number
        block = self._blocks.get(key)
        if block is None:
            return
        removed = block.bits & ((2 << (position[1] & (BLOCK_ENTRIES - 1))) - 1)
        if not removed:
            return
        block.bits ^= removed
        if not block.bits:
            self._set_weight(block, 0)
            self._unweighed.discard(key)
            del self._blocks[key]
            del self._keys[0]
        elif recount:
            self._set_weight(block, 0)
            self._weigh_more(key, block, block.bits)
        else:
            self._weigh_more(key, block, removed, -1)

    def remove_one(self, position: Position, weight: int) -> None:
        """Remove one present position and its weight."""
        key = position[0], position[1] >> _SHIFT
        block = self._blocks[key]
        block.bits ^= 1 << (position[1] & (BLOCK_ENTRIES - 1))
        self._set_weight(block, block.weight - weight)
        if not block.bits:
            del self._blocks[key]
            del self._keys[bisect_left(self._keys, key)]

    def recount(self, since: Position = EARLIEST) -> None:
        """Weigh all blocks again from that of a position on."""
        for key in self._keys[bisect_left(self._keys, (since[0], since[1] >> _SHIFT)) :]:
            self._unweighed.discard(key)
            self._set_weight(self._blocks[key], 0)
            self._weigh_more(key, self._blocks[key], self._blocks[key].bits)

    def _weigh_more(self, key: tuple[int, int], block: _Block, bits: int, sign: int = 1) -> None:
        """Add the weight of some bits to their block, or mark it to be weighed later."""
        if self._weigh is None or key in self._unweighed:
            return
        runs = runs_of(key[0], key[1] << _SHIFT, bits)
        if self._is_at_hand is None or all(self._is_at_hand(*run) for run in runs):
            self._set_weight(block, block.weight + sign * self._weight_of(key, bits))
        else:
            self._unweighed.add(key)

    def clear(self) -> None:
        """Remove everything."""
        self._blocks.clear()
        self._keys.clear()
        self._unweighed.clear()
        self._weight = 0

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
