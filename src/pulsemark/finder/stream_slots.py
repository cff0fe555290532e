"""The limit on streams at a time, and the end of streams whose clients do not read.

A stream whose receiver does not read uses memory and a slot. It waits in a write, and after
`stall_timeout_s` it is ended. If all slots are in use when a new call arrives, the stream that has
waited longest is ended, provided that it has waited for at least YIELD_AFTER_S. The new call gets
its slot. So receivers that do not read never block those that do. Single calls have a limit of
their own (`service`).

gRPC cannot take back a message that was passed to it. So an ended stream lingers in gRPC, with that
one message, until its client reads, cancels or disconnects. A connection with a lingering stream
cannot open another stream. If MAX_LINGERING streams linger, all new streams are refused.
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
    """The client's side of a stream."""

    async def write(self, message: Any) -> None:
        """Send one message; waits while the receiver is slow."""

    def peer(self) -> str:
        """Address and port of the client."""
        ...

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Run `callback` when gRPC has released the call."""


class StreamSlots:
    """The slots for streams; used on one event loop."""

    def __init__(self, limit: int, stall_timeout_s: float) -> None:
        self.limit = limit
        self.stall_timeout_s = stall_timeout_s
        self._open: set[_Slot] = set()
        #: The ended streams that gRPC still holds, and the number of streams, per connection.
        self._lingering: Counter[str] = Counter()
        self._of_peer: Counter[str] = Counter()
        #: Streams that wait in a write, the longest waiting first, and since when they wait.
        self.waiting: dict[_Slot, float] = {}

    def open(self, context: Writer) -> _Slot:
        """A slot, as a context manager. Raises ServerFullError."""
        peer = context.peer()
        if self._lingering[peer]:
            raise ServerFullError(
                "this connection has an ended stream that it has not read: read or cancel it first"
            )
        if self._of_peer[peer] >= MAX_STREAMS_PER_CONNECTION:
            raise ServerFullError(
                f"a connection has at most {MAX_STREAMS_PER_CONNECTION} streams at a time"
            )
        if self._lingering.total() >= MAX_LINGERING:
            raise ServerFullError("too many ended streams were not read by clients; try later")
        if len(self._open) >= self.limit and not self._free_one():
            raise ServerFullError(f"all {self.limit} streams are in use; try later")
        slot = _Slot(self, context)
        self._open.add(slot)
        self._of_peer[peer] += 1
        return slot

    def close(self, slot: _Slot) -> None:
        """Note that the stream has ended."""
        self.waiting.pop(slot, None)
        if slot in self._open:
            self._open.remove(slot)
            _decrement(self._of_peer, slot.peer)

    def linger(self, slot: _Slot) -> None:
        """Note that gRPC still holds a message of an ended stream."""
        self._lingering[slot.peer] += 1
        slot.context.add_done_callback(lambda _: _decrement(self._lingering, slot.peer))

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
    """One stream's slot."""

    def __init__(self, slots: StreamSlots, context: Writer) -> None:
        self._slots = slots
        self.context = context
        #: Address and port of the client, which identify its connection.
        self.peer = context.peer()
        self._ended: asyncio.Event = asyncio.Event()

    def end(self) -> None:
        """End the stream: its running write raises StreamStalledError."""
        self._ended.set()

    async def write(self, message: Any) -> None:
        """Send one message. Raises StreamStalledError if the receiver does not read in time."""
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
                raise StreamStalledError(loop.time() - since_s)
            writing.result()
        finally:
            # Also if the call is cancelled from outside, as one whose credentials expire.
            if not writing.done():
                self._slots.linger(self)
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


def _decrement(counter: Counter[str], peer: str) -> None:
    counter[peer] -= 1
    if not counter[peer]:
        del counter[peer]
