"""Work of a subscription that is too long for one turn of the event loop.

One ACK can name half a million messages, and a consumer that leaves gives back all that it was
sent. Such work is done in pieces, one a turn, so that other clients
are answered in between. Work of one subscription is done in the order it came; what is short is
done at once where nothing is waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator

__all__ = ["PIECE_IDS", "LongWork"]

log = logging.getLogger(__name__)

#: Message ids that are handled in one turn.
PIECE_IDS = 1_000


class LongWork:
    """Pieces of work, done in order. Each `next` of an iterator is one piece."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Iterator[None], Callable[[], None]]] = deque()
        self._turn: asyncio.Handle | None = None

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def add(self, pieces: Iterator[None], done: Callable[[], None]) -> None:
        """Begin with the first piece if nothing else is waiting; call `done` after the last."""
        self._jobs.append((pieces, done))
        if len(self._jobs) == 1:
            self._step()

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
