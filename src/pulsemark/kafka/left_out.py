"""Lets a fetch wait only shortly while its client still has to fetch what an answer left out.

An answer has limits, so it may leave out records of some partitions. A consumer of Kafka's Java
client asks next for the partitions whose part of the answer it has used up, while the rest of the
answer is still in its buffer. If those have nothing new, that fetch waits up to `max_wait_ms`, 500
ms by default, and the connection takes no other one. Meanwhile the client has used up its buffer
and waits, too, with most of the log still to read. So such a fetch is answered after a short time,
without records, and the client asks again, for all partitions that it can take by then.

The times grow from one such answer to the next, so that a client that takes long costs few answers.
A client that does not ask for what was left out within `REMEMBERED_S` has paused those partitions,
or takes so long that a wait makes no difference; then they are forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from .reading import Asked, Read

__all__ = ["LeftOut"]

FIRST_WAIT_MS = 5
GROWTH = 1.5
MAX_WAIT_MS = 50
REMEMBERED_S = 5.0
#: More partitions are not remembered: one is enough to let a fetch wait shortly.
MAX_REMEMBERED = 1_000
#: A fetch of more partitions waits as it says: the loop has no time to compare so many.
MAX_ASKED = 5_000


class LeftOut:
    """The partitions of one connection whose records were left out of an answer."""

    def __init__(self) -> None:
        self._left: set[tuple[str, int]] = set()
        self._until_s = 0.0
        self._wait_ms = float(FIRST_WAIT_MS)

    def wait_ms(self, asked: Sequence[Asked], max_wait_ms: int, now_s: float) -> int:
        """How long a fetch of these partitions may wait: less than its client says, or as long."""
        if now_s >= self._until_s:
            self._left.clear()
        if not self._left or len(asked) > MAX_ASKED:
            return max_wait_ms
        if self._left <= {(each.topic, each.index) for each in asked}:
            return max_wait_ms
        wait_ms, self._wait_ms = self._wait_ms, min(self._wait_ms * GROWTH, MAX_WAIT_MS)
        return min(int(wait_ms), max_wait_ms)

    def answered(self, asked: Sequence[Asked], reads: Sequence[Read], now_s: float) -> None:
        """Remember what an answer leaves out."""
        if len(asked) > MAX_ASKED:
            self._left.clear()
            return
        parts = zip(asked, reads, strict=True)
        left = {(each.topic, each.index) for each, read in parts if read.has_more}
        if self._left:
            self._left.difference_update((each.topic, each.index) for each in asked)
        if left:
            self._until_s = now_s + REMEMBERED_S
            self._left.update(islice(left, MAX_REMEMBERED - len(self._left)))
        if any(read.parts for read in reads):
            self._wait_ms = float(FIRST_WAIT_MS)
