"""Work that is too long for one turn of the event loop.

One ACK can name half a million messages, a topic can have ten thousand subscriptions, a
subscription twenty thousand consumers. Whatever goes through all of them is written as pieces: an
iterator, and each `next` of it does a small, bounded part. Two things work through pieces:

- `LongWork`: work of one subscription, in the order in which it came, a piece in each turn of the
  loop. What is short is done at once where nothing is waiting.
- `Turns`: work that a coroutine waits for, a slice of SLICE_S in each turn of the loop. All such
  work of a broker takes turns, so that many who ask at once get no more of the loop than one.

Between two pieces others have their turns, and may change what the pieces go through. So pieces go
through a copy of what they began with (a tuple of pointers costs little), and ask of each part
whether it is still there where that matters. What they report was true of each part when its turn
came, not of all parts at one moment.
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
#: How long the pieces of one turn may take in all; one piece more may be begun before that.
SLICE_S = 0.005


class LongWork:
    """Pieces of work, done in order. Each `next` of an iterator is one piece."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Iterator[None], Callable[[], None]]] = deque()
        self._turn: asyncio.Handle | None = None

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def add(self, pieces: Iterator[None], done: Callable[[], None] = lambda: None) -> None:
        """Begin with the first piece if nothing else is waiting; call `done` after the last."""
        self._jobs.append((pieces, done))
        if len(self._jobs) == 1:
            self._step()

    async def finished(self, pieces: Iterator[None]) -> None:
        """The same, and return after the last; who is cancelled does not stop the work."""
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.add(pieces, lambda: None if end.done() else end.set_result(None))
        await end

    def finish(self) -> None:
        """Do everything that is left, at once."""
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
            log.exception("a piece of work failed; the rest of it is left out")
        if is_over:
            self._jobs.popleft()
            done()
        if self._jobs:
            self._turn = asyncio.get_running_loop().call_soon(self._step)


class Turns:
    """Works through pieces, a slice of all such work in each turn of the loop."""

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()

    async def work(self, pieces: Iterable[object]) -> None:
        """Return when all pieces are done; what one raises ends the work and is raised here.

        Who is cancelled leaves the rest undone.
        """
        remaining = iter(pieces)
        while True:
            # The lock gives each waiting work its slice in turn.
            async with self._one_at_a_time:
                await asyncio.sleep(0)
                if _slice(remaining):
                    return

    async def result(self, pieces: Generator[object, None, T]) -> T:
        """The same; what the generator returns in the end."""
        found: list[T] = []

        def keeping() -> Iterator[object]:
            found.append((yield from pieces))

        await self.work(keeping())
        return found[0]


def _slice(remaining: Iterator[object]) -> bool:
    """Work until the slice's time is over; whether nothing remains."""
    until_s = time.monotonic() + SLICE_S
    return all(time.monotonic() < until_s for _ in remaining)


def at_once(pieces: Iterable[object]) -> None:
    """Do all pieces now, where nothing else is to be done in between."""
    deque(pieces, maxlen=0)
