"""How a connection answers: what a request names, once and in turns; then the answer, encoded.

A request of a megabyte may name one thing 80,000 times, and each may be answered with a megabyte.
So handlers take what a request names from `named` or `gathered`: each thing once, when the event
loop has time for it, after the size of its part of the answer was counted. An answer with many
parts is encoded in a thread. What is written is copied as little as pays.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from ..metadata import Buffer
from .errors import ProtocolError
from .ports import Ports
from .wire import Connection, Request, encode, splice

__all__ = ["Answering"]

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

#: With more topics or partitions, an answer is encoded in a thread.
ENCODED_AT_ONCE_PARTS = 500
#: The largest answer, without records. A client that asks for more is disconnected.
MAX_ANSWER_BYTES = 64 * 1024 * 1024
#: What a part of an answer has at most, if it has no texts that others have sent.
PART_BYTES = 64
#: Buffers with a smaller average size are joined, since a copy costs less than one more buffer.
JOIN_BELOW_BYTES = 2 * 1024


class Answering:
    """The answers of a connection. `KafkaSession` puts them in their order and sends them."""

    is_closed: bool
    connection: Connection
    _ports: Ports
    _transport: asyncio.Transport | None
    _largest_buffer_bytes: int

    def _answered(self, request: Request, buffers: Sequence[Buffer]) -> None:
        """Send an answer when it is its turn."""
        raise NotImplementedError

    def answer(
        self, request: Request, response: Any, records: Sequence[Sequence[Buffer]] = ()
    ) -> None:
        """Answer a request, after all earlier ones; `records` take the place of the marks."""
        if self.is_closed:
            return
        frame = encode(request, response)
        self._answered(request, splice(frame, records) if records else [frame])

    async def answer_by_size(
        self,
        request: Request,
        response: Any,
        parts: int,
        records: Sequence[Sequence[Buffer]] = (),
    ) -> None:
        """As `answer`; a thread encodes a response with many parts, such as partitions."""
        if parts <= ENCODED_AT_ONCE_PARTS:
            self.answer(request, response, records)
            return

        def encoded() -> Sequence[Buffer]:
            frame = encode(request, response)
            return splice(frame, records) if records else [frame]

        buffers = await self._ports.run_blocking(encoded)
        if not self.is_closed:
            self._answered(request, buffers)

    def answer_frame(self, request: Request, frame: bytes) -> None:
        """Answer a request with a frame that was encoded elsewhere."""
        if not self.is_closed:
            self._answered(request, [frame])

    def answer_nothing(self, request: Request) -> None:
        """A Produce with acks=0 has no answer."""
        if not self.is_closed:
            self._answered(request, ())

    async def in_turns(self, items: Iterable[T]) -> AsyncIterator[T]:
        """The parts of a request that may have very many: each when the loop has time for it."""
        turns = self._ports.turns
        for item in items:
            if not turns.has_time():
                await turns.next()
            yield item

    async def named(
        self,
        items: Iterable[T],
        answer_bytes: Callable[[T], int] = lambda _: PART_BYTES,
        *,
        key: Callable[[T], Hashable] | None = None,
    ) -> AsyncIterator[T]:
        """What a request names: each thing once, when the loop has time for it.

        `answer_bytes` says how large the answer about a thing will be, before it is made. `key`
        says which items name the same thing; of these the first one counts.

        Raises ProtocolError: all answers together would have more than `MAX_ANSWER_BYTES`.
        """
        seen: set[Hashable] = set()
        total_bytes = 0
        async for item in self.in_turns(items):
            thing: Hashable = item if key is None else key(item)
            if thing in seen:
                continue
            seen.add(thing)
            total_bytes += answer_bytes(item)
            if total_bytes > MAX_ANSWER_BYTES:
                raise ProtocolError(
                    f"an answer of {total_bytes} bytes or more; at most {MAX_ANSWER_BYTES} are sent"
                )
            yield item

    async def gathered(self, items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
        """What a request names, with all that it says of each thing."""
        found: dict[K, list[T]] = {}
        async for item in self.in_turns(items):
            found.setdefault(key(item), []).append(item)
        return found

    # -- what is written ------------------------------------------------------------------------

    def _write(self, buffers: Sequence[Buffer]) -> None:
        transport = self._transport
        if not buffers or transport is None or transport.is_closing():
            return
        self._largest_buffer_bytes = _write_buffers(transport, buffers, self._largest_buffer_bytes)
        self._ports.output.wrote(self)

    def unsent_bytes(self) -> int:
        """Data written that the socket has not accepted yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def untaken_bytes(self) -> int:
        """As `unsent_bytes`. What the socket has is sent also after the connection was closed."""
        return self.unsent_bytes()

    def held_output_bytes(self) -> int:
        """The memory of that data, and of answers that wait for earlier ones.

        What a view shows a part of is held until it is sent.
        """
        unsent_bytes = self.unsent_bytes()
        held_bytes = self.connection.held_bytes
        return held_bytes + (unsent_bytes + self._largest_buffer_bytes if unsent_bytes else 0)


def _write_buffers(
    transport: asyncio.Transport, buffers: Sequence[Buffer], largest_bytes: int
) -> int:
    """Write buffers. Return the memory that the largest one holds, or `largest_bytes`.

    Entries of one read are views on the same bytes, which are held until the last one is sent.
    """
    if len(buffers) == 1:
        transport.write(buffers[0])
    elif sum(map(len, buffers)) < JOIN_BELOW_BYTES * len(buffers):
        transport.write(b"".join(buffers))
    else:
        transport.writelines(buffers)
        return max(map(_held_bytes, buffers))
    return largest_bytes


def _held_bytes(buffer: Buffer) -> int:
    return memoryview(buffer.obj).nbytes if isinstance(buffer, memoryview) else len(buffer)
