"""The consumers of a subscription, ordered by rank; consumers of equal rank by arrival.

One connection can have tens of thousands of consumers, and all leave in one step when it ends. So
a consumer is found by binary search, not by visiting all the others.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

from .consumer import Consumer

__all__ = ["Rank", "RankedConsumers"]

#: Values that can be compared, the priority level first; the smallest comes first.
Rank = tuple[Any, ...]


#: If more than 1/FEW_PART of all leave, the list is built again instead of deleting one by one.
FEW_PART = 100


class RankedConsumers(Sequence[Consumer]):
    """Consumers ordered by `rank`, which must not change while a consumer is in the list."""

    def __init__(self, rank: Callable[[Consumer], Rank]) -> None:
        self._rank = rank
        #: Sorted by rank and arrival number. Numbers differ, so consumers are never compared.
        self._places: list[tuple[Rank, int, Consumer]] = []
        self._place_of: dict[Consumer, tuple[Rank, int, Consumer]] = {}
        self._added = 0

    def add(self, consumer: Consumer) -> None:
        """Add a consumer."""
        self._added += 1
        place = self._place_of[consumer] = (self._rank(consumer), self._added, consumer)
        insort(self._places, place)

    def remove(self, consumers: Iterable[Consumer]) -> list[Consumer]:
        """Remove consumers; return those that were in the list."""
        found = [self._place_of.pop(one) for one in consumers if one in self._place_of]
        if len(found) * FEW_PART < len(self._places):
            # From the end, so that fewer list items have to move.
            for place in sorted(found, reverse=True):
                del self._places[bisect_left(self._places, place)]
        elif found:
            self._places = [place for place in self._places if place[2] in self._place_of]
        return [consumer for _, _, consumer in found]

    def __contains__(self, consumer: object) -> bool:
        return consumer in self._place_of

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Consumer]:
        return (consumer for _, _, consumer in self._places)

    @overload
    def __getitem__(self, at: int) -> Consumer: ...
    @overload
    def __getitem__(self, at: slice) -> list[Consumer]: ...
    def __getitem__(self, at: int | slice) -> Consumer | list[Consumer]:
        if isinstance(at, slice):
            return [consumer for _, _, consumer in self._places[at]]
        return self._places[at][2]
