"""Whether the disk takes writes, and making producers wait until it does again.

A SEND that cannot be stored is answered with a SEND_ERROR; clients close the connection then, and
come back at once. The official C++ and Python clients start their send timeout anew whenever they
are let in: let in again and again while the disk is full, a send of theirs would never fail. So
from the first failed append on, PRODUCER is answered only once a probe could be written: sends
time out as they should meanwhile, and go on within half a second of space.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ..ledger import LedgerError
from ..proto.pulsar_api_pb2 import ServerError
from .errors import RefusedError

__all__ = ["StorageHealth"]

log = logging.getLogger(__name__)

PROBE_INTERVAL_S = 0.5
#: Shorter than a client's operation timeout (30 s), so that it hears why.
WAIT_MAX_S = 20.0


class StorageHealth:
    """What the last append or probe said. `probe` raises OSError while the disk takes no writes."""

    def __init__(self, probe: Callable[[], Awaitable[None]]) -> None:
        self._probe = probe
        self._probing: asyncio.Task[None] | None = None
        self._reason = ""

    @property
    def is_well(self) -> bool:
        """Whether nothing is known to be wrong."""
        return self._probing is None

    def failed(self, error: BaseException) -> None:
        """An append failed: probe until one would not."""
        self._reason = str(error)
        if self._probing is None:
            self._probing = asyncio.ensure_future(self._probe_until_well())

    async def wait_until_well(self) -> None:
        """Return once entries can be stored; raise `RefusedError` if that takes too long."""
        if self._probing is not None:
            done, _ = await asyncio.wait({self._probing}, timeout=WAIT_MAX_S)
            if not done:
                raise RefusedError(ServerError.PersistenceError, self._reason)

    def close(self) -> None:
        """Stop probing."""
        if self._probing is not None:
            self._probing.cancel()

    async def _probe_until_well(self) -> None:
        try:
            while True:
                try:
                    await self._probe()
                except (OSError, LedgerError) as error:  # the latter: the store has stopped
                    self._reason = str(error)
                    await asyncio.sleep(PROBE_INTERVAL_S)
                else:
                    return
        finally:
            self._probing = None
