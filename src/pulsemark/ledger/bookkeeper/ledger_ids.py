"""Ledger ids from the generator that all clients of the bookies share.

BookKeeper takes an id from the number of an ephemeral sequential node below ``idgen``. So an id is
never given twice, neither to us nor to another application with ledgers at the same root.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...coordination import (
    ConnectionLossError,
    Coordination,
    CoordinationError,
    Create,
    Delete,
    NodeExistsError,
    NodeMissingError,
    SessionExpiredError,
)
from ..errors import CatalogError
from .loop_thread import LoopThread

MAX_ID = 2**31 - 2
"""Above this BookKeeper's clients take ids from another generator, which is not used here."""
_PAUSE_S = 0.2
_LIMIT_S = 30.0
WAIT_S = 1.0
"""So long may a topic that needs an id hold up others, once, while ZooKeeper does not answer."""
_LOOKS = 10
"""The loop looks so often at the time within `WAIT_S`."""


class LedgerIds:
    """Takes ids below the root of BookKeeper's own nodes."""

    def __init__(self, coordination: Coordination, ledgers_root: str) -> None:
        self._coordination = coordination
        self._root = ledgers_root

    async def reserve(self, count: int) -> int:
        """Take ``count`` ids that follow one another; returns the first. Raises CatalogError."""
        folder = f"{self._root}/idgen"
        create = Create(f"{folder}/ID-", b"", True, True)
        limit_s = asyncio.get_running_loop().time() + _LIMIT_S
        while True:
            try:
                made = await self._coordination.transaction([create] * count)
                break
            except NodeMissingError:
                await self._make(folder)
            except (ConnectionLossError, SessionExpiredError) as error:
                # At worst some ids are left out.
                if asyncio.get_running_loop().time() > limit_s:
                    raise self._error("no ledger ids: ZooKeeper does not answer") from error
                await asyncio.sleep(_PAUSE_S)
            except CoordinationError as error:
                raise self._error(str(error)) from error
        paths = [str(path) for path in made]
        ids = [int(path.rpartition("-")[2]) for path in paths]
        if ids != list(range(ids[0], ids[0] + count)) or ids[-1] > MAX_ID:
            raise self._error(f"ledger ids {ids[0]} to {ids[-1]} cannot be used")
        with suppress(CoordinationError):  # they are ephemeral, and go with the session
            await self._coordination.transaction([Delete(path) for path in paths])
        return ids[0]

    async def _make(self, folder: str) -> None:
        try:
            await self._coordination.create(folder, make_parents=True)
        except NodeExistsError:
            return
        except CoordinationError as error:
            raise self._error(str(error)) from error

    def _error(self, reason: str) -> CatalogError:
        return CatalogError(Path(self._root), reason)


class IdsAhead:
    """Takes the next ids before the last ones are used up, so that nobody waits for ZooKeeper.

    Callers hold locks that all topics of a store need, some on a broker's event loop.
    """

    def __init__(self, thread: LoopThread, ids: LedgerIds, root: Path) -> None:
        self._thread = thread
        self._ids = ids
        self._root = root
        self._count = 0
        self._ahead: Future[int] | None = None
        self._late: Future[None] = Future()
        """Done when the ids that were asked for may not be waited for any longer."""

    def reserve(self, count: int) -> int:
        """The first of ``count`` ids. One thread at a time.

        Raises CatalogError, at once if ZooKeeper was asked long ago and has not answered.
        """
        ahead = self._ahead
        # An error of some earlier time says nothing about now.
        if ahead is None or self._count != count or (ahead.done() and ahead.exception()):
            ahead = self._ask(count)
        either: list[Future[Any]] = [ahead, self._late]
        wait(either, return_when=FIRST_COMPLETED)
        if not ahead.done():
            raise CatalogError(self._root, "no new ledger ids yet: ZooKeeper does not answer")
        first = ahead.result()
        self._ask(count)
        return first

    def _ask(self, count: int) -> Future[int]:
        self._count, self._late = count, Future()
        self._ahead = self._thread.begin(self._reserve(count, self._late))
        return self._ahead

    async def _reserve(self, count: int, late: Future[None]) -> int:
        counting = asyncio.create_task(_count_looks(late))
        try:
            return await self._ids.reserve(count)
        finally:
            counting.cancel()


async def _count_looks(late: Future[None]) -> None:
    """Counts looks, not time: an answer that came while this process was paused is read first."""
    for _ in range(_LOOKS):
        await asyncio.sleep(WAIT_S / _LOOKS)
    late.set_result(None)
