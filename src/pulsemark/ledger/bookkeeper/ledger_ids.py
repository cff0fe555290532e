"""Ledger ids from the generator that all clients of the bookies share.

BookKeeper takes an id from the number of an ephemeral sequential node below ``idgen``. So an id is
never given twice, neither to us nor to another application with ledgers at the same root.
"""

from __future__ import annotations

from pathlib import Path

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

MAX_ID = 2**31 - 2
"""Above this BookKeeper's clients take ids from another generator, which is not used here."""


class LedgerIds:
    """Takes ids below the root of BookKeeper's own nodes."""

    def __init__(self, coordination: Coordination, ledgers_root: str) -> None:
        self._coordination = coordination
        self._root = ledgers_root

    async def reserve(self, count: int) -> int:
        """Take ``count`` ids that follow one another; returns the first. Raises CatalogError."""
        folder = f"{self._root}/idgen"
        create = Create(f"{folder}/ID-", b"", True, True)
        for _ in range(3):
            try:
                made = await self._coordination.transaction([create] * count)
                break
            except NodeMissingError:
                await self._make(folder)
            except (ConnectionLossError, SessionExpiredError):
                continue  # at worst some ids are left out
            except CoordinationError as error:
                raise self._error(str(error)) from error
        else:
            raise self._error("no ledger ids: ZooKeeper does not answer")
        paths = [str(path) for path in made]
        ids = [int(path.rpartition("-")[2]) for path in paths]
        if ids != list(range(ids[0], ids[0] + count)) or ids[-1] > MAX_ID:
            raise self._error(f"ledger ids {ids[0]} to {ids[-1]} cannot be used")
        try:
            await self._coordination.transaction([Delete(path) for path in paths])
        except CoordinationError:
            pass  # they are ephemeral, and go with the session
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
