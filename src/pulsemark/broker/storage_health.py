"""Knows whether the disk accepts writes, and lets producers wait until it does again.

A SEND that cannot be stored is answered with a SEND_ERROR. The client then closes its connection
and reconnects at once. The official C++ and Python clients restart their send timeout whenever a
producer is opened. If the broker accepted producers while the disk is full, such a client would
reconnect again and again, and its sends would never time out.

So after the first failed append the broker answers PRODUCER only when a probe could be written.
Meanwhile sends time out as they should. When the disk has space again, producers go on within
half a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..ledger import LedgerError
from ..proto.pulsar_api_pb2 import ServerError
from .errors import RefusedError

__all__ = ["StorageHealth"]

PROBE_INTERVAL_S = 0.5
#: Shorter than a client's operation timeout (30 s), so that the client gets the reason.
WAIT_MAX_S = 20.0


class StorageHealth:
    """The result of the last append or probe.

    `probe` raises OSError while the disk accepts no writes.
    """

    def __init__(self, probe: Callable[[], Awaitable[None]]) -> None:
        self._probe = probe
        self._probing: asyncio.Task[None] | None = None
        self._reason = ""

    @property
    def is_healthy(self) -> bool:
        """Whether the last append or probe succeeded."""
        return self._probing is None

    def failed(self, error: BaseException) -> None:
        """An append failed: probe the disk until a probe succeeds."""
        self._reason = str(error)
        if self._probing is None:
            self._probing = asyncio.ensure_future(self._probe_until_healthy())

    async def wait_until_healthy(self) -> None:
        """Return once entries can be stored; raise `RefusedError` if that takes too long."""
        if self._probing is not None:
            done, _ = await asyncio.wait({self._probing}, timeout=WAIT_MAX_S)
            if not done:
                raise RefusedError(ServerError.PersistenceError, self._reason)

    def close(self) -> None:
        """Stop probing."""
        if self._probing is not None:
            self._probing.cancel()

    async def _probe_until_healthy(self) -> None:
        try:
            while True:
                try:
                    await self._probe()
                except (OSError, LedgerError) as error:  # LedgerError: the store has stopped
                    self._reason = str(error)
                    await asyncio.sleep(PROBE_INTERVAL_S)
                else:
                    return
        finally:
            self._probing = None
