"""The sending side of a connection: writes to its transport and counts output memory.

`writable` is False above the transport's high-water mark and while output memory is scarce.
Dispatchers then wait for `Consumer.resume`. Answers are written in any case.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Sequence
from typing import Any

from ...metadata import Buffer
from ...wire import commands
from ..errors import RefusedError
from .draining import unconfirmed_bytes
from .memory import OutputMemory

__all__ = ["Outgoing"]

#: Buffers with a smaller average size are joined, since a copy costs less than one more buffer.
JOIN_BELOW_BYTES = 2 * 1024


class Outgoing(abc.ABC):
    """The sending side of a connection."""

    def __init__(self, output: OutputMemory) -> None:
        self.is_closed = False
        self._output = output
        self._transport: asyncio.Transport | None = None
        self._writable = True
        self._largest_buffer_bytes = 0

    @abc.abstractmethod
    def give_up_input(self) -> None:
        """See `memory.Holder`."""

    @abc.abstractmethod
    def give_up_output(self) -> None:
        """See `memory.Holder`."""

    @abc.abstractmethod
    def output_freed(self) -> None:
        """See `memory.Holder`."""

    @property
    def writable(self) -> bool:
        """Whether unsent data is below the high-water mark."""
        return self._writable and not self.is_closed and self._output.has_room(self)

    def write(self, data: bytes) -> None:
        """Send finished frames."""
        transport = self._transport
        if transport is not None and data and not self.is_closed and not transport.is_closing():
            transport.write(data)
            self._output.wrote(self)

    def write_gathered(self, buffers: Sequence[Buffer]) -> None:
        """Send buffers in order, without joining them."""
        transport = self._transport
        if transport is not None and buffers and not self.is_closed and not transport.is_closing():
            if sum(map(len, buffers)) < JOIN_BELOW_BYTES * len(buffers):
                transport.write(b"".join(buffers))
            else:
                self._largest_buffer_bytes = max(map(len, buffers))
                transport.writelines(buffers)
            self._output.wrote(self)

    def refuse(self, request_id: int, refusal: RefusedError) -> None:
        """Answer a request with an ERROR."""
        self.write(commands.error(request_id, refusal.code, refusal.message))

    @property
    def peer_certificate(self) -> dict[str, Any] | None:
        """The client's certificate, which the TLS handshake verified; None without one."""
        return self._transport.get_extra_info("peercert") or None if self._transport else None

    def unsent_bytes(self) -> int:
        """Data written that the socket has not accepted yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def untaken_bytes(self) -> int:
        """Data written that the client's system has not acknowledged."""
        return self.unsent_bytes() + unconfirmed_bytes(self._transport) if self._transport else 0

    def held_output_bytes(self) -> int:
        """The memory of that data. A buffer is held until its last byte is sent."""
        unsent_bytes = self.unsent_bytes()
        return unsent_bytes + self._largest_buffer_bytes if unsent_bytes else 0
