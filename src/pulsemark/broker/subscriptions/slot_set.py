"""A set of slots that finds the next slot in constant time.

Finding, adding and removing a slot cost the same with one member as with all 65,536. Members are
bits in 256 integers of 256 bits. One more integer has a bit for each of these that is not zero.
"""

from __future__ import annotations

__all__ = ["SLOTS", "SlotSet"]

SLOTS = 65_536
WORD_BITS = 256


class SlotSet:
    """Slots from 0 to 65,535."""

    __slots__ = ("_used", "_words")

    def __init__(self) -> None:
        self._words = [0] * (SLOTS // WORD_BITS)
        #: Which words are not zero.
        self._used = 0

    def add(self, slot: int) -> None:
        """Add a slot."""
        word, bit = divmod(slot, WORD_BITS)
        self._words[word] |= 1 << bit
        self._used |= 1 << word

    def discard(self, slot: int) -> None:
        """Remove a slot, if it is in the set."""
        word, bit = divmod(slot, WORD_BITS)
        self._words[word] &= ~(1 << bit)
        if not self._words[word]:
            self._used &= ~(1 << word)

    def next_from(self, slot: int) -> int | None:
        """The first member at or after a slot, else the first of all; None if the set is empty."""
        word, bit = divmod(slot, WORD_BITS)
        rest = self._words[word] >> bit
        if rest:
            return slot + _lowest(rest)
        after = self._used >> word + 1
        if after:
            word += 1 + _lowest(after)
        elif self._used:
            word = _lowest(self._used)
        else:
            return None
        return word * WORD_BITS + _lowest(self._words[word])


def _lowest(bits: int) -> int:
    """The number of the lowest bit that is set."""
    return (bits & -bits).bit_length() - 1
