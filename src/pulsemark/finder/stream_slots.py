"""How many streams are served at a time, and what becomes of those that nobody reads.

A stream whose receiver does not read holds memory and a place. It waits in a write; after
`stall_timeout_s` it is ended. When all places are taken, the stream that has waited longest gives
its place to the new call, if it has waited for YIELD_AFTER_S at least: receivers that read are
never kept out by some that do not. Single calls have places of their own (`service`).

gRPC cannot take back a message that it was given: an ended stream lingers in it, with that one
message, until its client reads, cancels or disconnects. A connection with a lingering stream gets
no other one, and MAX_LINGERING of them are the most there are; then new streams are refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from .errors import ServerFullError, StreamStalledError

__all__ = ["StreamSlots", "Writer"]

YIELD_AFTER_S = 1.0
MAX_LINGERING = 32
MAX_STREAMS_PER_CONNECTION = 16


class Writer(Protocol):
    """A stream's other side."""

    async def write(self, message: Any) -> None:
        """Send one message; waits while the receiver is slow."""

    def peer(self) -> str:
        """Address and port of the client."""
        ...

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call it when gRPC has nothing left of the call."""


class StreamSlots:
    """The places for streams; used on one event loop."""

    def __init__(self, limit: int, stall_timeout_s: float) -> None:
        self.limit = limit
        self.stall_timeout_s = stall_timeout_s
        self._open: set[_Slot] = set()
        #: Ended streams that gRPC still holds, and how many streams each connection has.
        self._lingering: Counter[str] = Counter()
        self._of_peer: Counter[str] = Counter()
        #: Streams that wait in a write, the longest waiting first, with the loop's time then.
        self.waiting: dict[_Slot, float] = {}

    def open(self, context: Writer) -> _Slot:
        """A place, as a context manager. Raises ServerFullError."""
        peer = context.peer()
        if self._lingering[peer]:
            raise ServerFullError("an earlier stream of this connection is still to be read")
        if self._of_peer[peer] >= MAX_STREAMS_PER_CONNECTION:
            raise ServerFullError(
                f"a connection has at most {MAX_STREAMS_PER_CONNECTION} streams at a time"
            )
        if self._lingering.total() >= MAX_LINGERING:
            raise ServerFullError("too many ended streams are still to be read")
        if len(self._open) >= self.limit and not self._free_one():
            raise ServerFullError(f"all {self.limit} places for streams are taken")
        slot = _Slot(self, context)
        self._open.add(slot)
        self._of_peer[peer] += 1
        return slot

    def close(self, slot: _Slot) -> None:
        """The stream has ended."""
        self.waiting.pop(slot, None)
        if slot in self._open:
            self._open.remove(slot)
            _less(self._of_peer, slot.peer)

    def linger(self, slot: _Slot) -> None:
        """An ended stream's message is still to be read."""
        self._lingering[slot.peer] += 1
        slot.context.add_done_callback(lambda _: _less(self._lingering, slot.peer))

    def _free_one(self) -> bool:
        if not self.waiting:
            return False
        slot, since_s = next(iter(self.waiting.items()))
        if asyncio.get_running_loop().time() - since_s < YIELD_AFTER_S:
            return False
        slot.end()
        self.close(slot)
        return True


class _Slot:
    """One stream's place."""

    def __init__(self, slots: StreamSlots, context: Writer) -> None:
        self._slots = slots
        self.context = context
        #: Address and port of the client: one connection.
        self.peer = context.peer()
        self._ended: asyncio.Event = asyncio.Event()

    def end(self) -> None:
        """Give the place up: the write under way raises StreamStalledError."""
        self._ended.set()

    async def write(self, message: Any) -> None:
        """Send one message. Raises StreamStalledError when the receiver takes too long."""
        waiting = self._slots.waiting
        loop = asyncio.get_running_loop()
        since_s = waiting[self] = loop.time()
        writing = asyncio.ensure_future(self.context.write(message))
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait(
                {writing, ended},
                timeout=self._slots.stall_timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not writing.done():
                self._slots.linger(self)
                raise StreamStalledError(loop.time() - since_s)
            writing.result()
        finally:
            waiting.pop(self, None)
            writing.cancel()
            ended.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._slots.close(self)


def _less(counter: Counter[str], peer: str) -> None:
    counter[peer] -= 1
    if not counter[peer]:
        del counter[peer]
