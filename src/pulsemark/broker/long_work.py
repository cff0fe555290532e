"""Work that is too long for one turn (one iteration) of the event loop.

One ACK can name half a million messages, a topic can have ten thousand subscriptions, a
subscription twenty thousand consumers. Code that visits all of them is written as an iterator of
pieces: each `next` does a small, bounded part of the work. Two classes run pieces:

- `LongWork`: the work of one subscription, in the order in which it came, one piece in each turn
  of the loop. If nothing is waiting, the first piece runs at once.
- `Turns`: work that a coroutine waits for, for SLICE_S in each turn of the loop. All such work of
  a broker shares these slices, so that many requests get no more of the loop than one request.

Between two pieces other code runs, and it may change the objects that the pieces visit. So pieces
visit a copy of the collection (a tuple of references costs little), and check of each object that
it still exists, where that matters. A result is therefore true for each object at the time of its
visit, not for all objects at one moment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

__all__ = ["PIECE_IDS", "LongWork", "Turns", "at_once"]

T = TypeVar("T")

log = logging.getLogger(__name__)

#: Message ids that are handled in one turn.
PIECE_IDS = 1_000
#: How long the pieces of one turn may take together. The last piece may end after that.
SLICE_S = 0.005


class LongWork:
    """Pieces of work, done in order. Each `next` of an iterator is one piece."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Iterator[None], Callable[[], None]]] = deque()
        self._turn: asyncio.Handle | None = None

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def add(self, pieces: Iterator[None], done: Callable[[], None] = lambda: None) -> None:
        """Run the first piece now if no other work waits. Call `done` after the last piece."""
        self._jobs.append((pieces, done))
        if len(self._jobs) == 1:
            self._step()

    async def finished(self, pieces: Iterator[None]) -> None:
        """Add pieces and return after the last one. Cancelling the caller does not stop them."""
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.add(pieces, lambda: None if end.done() else end.set_result(None))
        await end

    def finish(self) -> None:
        """Run all remaining pieces now."""
        while self._jobs:
            self._step()

    def _step(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        pieces, done = self._jobs[0]
        is_over = True
        try:
            next(pieces)
            is_over = False
        except StopIteration:
            pass
        except Exception:
            log.exception("a step of long work failed; its remaining steps are skipped")
        if is_over:
            self._jobs.popleft()
            done()
        if self._jobs:
            self._turn = asyncio.get_running_loop().call_soon(self._step)


class Turns:
    """Runs the pieces of many callers, one time slice in each turn of the loop."""

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()

    async def work(self, pieces: Iterable[object]) -> None:
        """Return when all pieces are done. An error in a piece ends the work and is raised here.

        A piece that gives a future is the last one of its slice, and the next piece comes after
        that future is done, however it ends. If the caller is cancelled, the remaining pieces are
        not run.
        """
        remaining = iter(pieces)
        while True:
            # The lock is fair: each waiting caller gets its slice in order.
            async with self._one_at_a_time:
                await asyncio.sleep(0)
                is_over, awaited = _slice(remaining)
            if is_over:
                return
            if awaited is not None:
                await asyncio.wait([awaited])

    async def result(self, pieces: Generator[object, None, T]) -> T:
        """Run all pieces, and return the generator's return value."""
        found: list[T] = []

        def keeping() -> Iterator[object]:
            found.append((yield from pieces))

        await self.work(keeping())
        return found[0]


def _slice(remaining: Iterator[object]) -> tuple[bool, asyncio.Future[object] | None]:
    """Run pieces until the slice's time is over, or one gives a future to wait for.

    Return whether all pieces are done, and that future.
    """
    until_s = time.monotonic() + SLICE_S
    for piece in remaining:
        if isinstance(piece, asyncio.Future):
            return False, piece
        if time.monotonic() >= until_s:
            return False, None
    return True, None


def at_once(pieces: Iterable[object]) -> None:
    """Run all pieces now, without other work in between."""
    deque(pieces, maxlen=0)
