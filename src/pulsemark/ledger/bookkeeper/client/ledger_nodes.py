"""Ledgers' nodes in the coordination service: ids, create, read, change, delete.

After a lost connection a change may have been made or not. It is then decided by what the node
holds: by its creation token, or by version and content.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from ....coordination import (
    ConnectionLossError,
    Coordination,
    NodeExistsError,
    NodeMissingError,
    SessionExpiredError,
    VersionConflictError,
)
from .errors import (
    InvalidRequestError,
    LedgerExistsError,
    LedgerMissingError,
    MetadataConflictError,
    UnknownLayoutError,
)
from .metadata import LedgerMetadata, decode_metadata, encode_metadata
from .options import ClientOptions

# The path of a ledger's node below the root. Source: BookKeeper's HierarchicalLedgerManager.


#: From here on, an id has the long form of the path.
LONG_IDS = (1 << 31) - 1
_MAX_ID = (1 << 63) - 1


def check_ledger_id(ledger_id: int) -> None:
    """Raise InvalidRequestError for a number out of the range of ids."""
    if not 0 <= ledger_id <= _MAX_ID:
        raise InvalidRequestError(f"a ledger's id is from 0 to {_MAX_ID}, not {ledger_id}")


def ledger_path(root: str, ledger_id: int) -> str:
    """The path of a ledger's node."""
    check_ledger_id(ledger_id)
    if ledger_id < LONG_IDS:
        digits, first = f"{ledger_id:010d}", 2
    else:
        digits, first = f"{ledger_id:019d}", 3
    folders = [digits[:first], *(digits[at : at + 4] for at in range(first, len(digits) - 4, 4))]
    return "/".join((root, *folders, f"L{digits[-4:]}"))


LAYOUT = "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"
_ANY = TypeVar("_ANY")


class VersionedMetadata(NamedTuple):
    """A ledger's metadata with the version of its node."""

    metadata: LedgerMetadata
    version: int


class _Pauses:
    """The pauses between attempts: each twice as long as the one before, up to a cap."""

    def __init__(self, options: ClientOptions) -> None:
        self._pause_ms = options.metadata_retry_ms
        self._max_ms = options.metadata_retry_max_ms
        self._limit_s = asyncio.get_running_loop().time() + options.metadata_limit_ms / 1000

    async def next(self) -> bool:
        """Wait for the next pause. Return False at once if the time for attempts is over."""
        if asyncio.get_running_loop().time() >= self._limit_s:
            return False
        await asyncio.sleep(min(self._pause_ms, self._max_ms) / 1000)
        self._pause_ms *= 2
        return True


async def retried(request: Callable[[], Awaitable[_ANY]], options: ClientOptions) -> _ANY:
    """Make an idempotent request, and repeat it after a lost connection."""
    pauses = _Pauses(options)
    while True:
        try:
            return await request()
        except (ConnectionLossError, SessionExpiredError):
            if not await pauses.next():
                raise


class LedgerNodes:
    """The nodes of ledgers below a root. ``random`` makes creation tokens."""

    def __init__(
        self, coordination: Coordination, root: str, options: ClientOptions, random: random.Random
    ) -> None:
        self._coordination = coordination
        self._root = root.rstrip("/")
        self._options = options
        self._random = random
        self._layout_checked = False

    async def check_layout(self) -> None:
        """Raise UnknownLayoutError unless the cluster's layout is the known one."""
        if self._layout_checked:
            return
        path = f"{self._root}/LAYOUT"
        try:
            data, _ = await retried(lambda: self._coordination.get(path), self._options)
        except NodeMissingError:
            raise UnknownLayoutError(f"there is no node {path}: no cluster here") from None
        if data.rstrip() != f"2\n{LAYOUT}:1".encode():
            raise UnknownLayoutError(f"{path} says {data[:120]!r}")
        self._layout_checked = True

    # -- ids --------------------------------------------------------------------------------------

    async def new_ledger_id(self) -> int:
        """Take an id that no ledger had before. An id in a lost answer stays unused."""
        path = f"{self._root}/idgen/ID-"
        made = await retried(
            lambda: self._coordination.create(
                path, ephemeral=True, sequence=True, make_parents=True
            ),
            self._options,
        )
        # If this fails, the node is removed with the session.
        with contextlib.suppress(ConnectionLossError, SessionExpiredError, NodeMissingError):
            await self._coordination.delete(made)
        return int(made[len(path) :])

    # -- nodes ------------------------------------------------------------------------------------

    async def create(self, metadata: LedgerMetadata) -> VersionedMetadata:
        """Create a ledger's node. `metadata` has a creation token. Raises LedgerExistsError."""
        path = ledger_path(self._root, metadata.ledger_id)
        data = encode_metadata(metadata)
        try:
            await retried(
                lambda: self._coordination.create(path, data, make_parents=True), self._options
            )
        except NodeExistsError:
            # An earlier attempt, whose answer was lost, may have created it.
            found = await self.read(metadata.ledger_id)
            if found.metadata.creation_token != metadata.creation_token:
                raise LedgerExistsError(ledger_id=metadata.ledger_id) from None
            return found
        return VersionedMetadata(metadata, 0)

    def new_token(self) -> int:
        """A random creation token."""
        return self._random.getrandbits(62)

    async def read(self, ledger_id: int) -> VersionedMetadata:
        """A ledger's metadata. Raises LedgerMissingError, MetadataError."""
        data, version = await self._found(ledger_path(self._root, ledger_id), ledger_id)
        return VersionedMetadata(decode_metadata(ledger_id, data), version)

    async def change(
        self, metadata: LedgerMetadata, version: int, *, must_be_ours: bool = False
    ) -> int:
        """Replace metadata of that version. Raises MetadataConflictError, LedgerMissingError."""
        path = ledger_path(self._root, metadata.ledger_id)
        data = encode_metadata(metadata)
        pauses, is_lost = _Pauses(self._options), False
        while True:
            try:
                return await self._coordination.set(path, data, version)
            except NodeMissingError:
                raise LedgerMissingError(ledger_id=metadata.ledger_id) from None
            except VersionConflictError:
                if not is_lost or must_be_ours:
                    raise MetadataConflictError(ledger_id=metadata.ledger_id) from None
            except (ConnectionLossError, SessionExpiredError):
                is_lost = True
                if not await pauses.next():
                    raise
            found, now = await self._found(path, metadata.ledger_id)
            if now == version:
                continue
            if found == data and now == version + 1 and not must_be_ours:
                return now
            raise MetadataConflictError(ledger_id=metadata.ledger_id)

    async def _found(self, path: str, ledger_id: int) -> tuple[bytes, int]:
        try:
            return await retried(lambda: self._coordination.get(path), self._options)
        except NodeMissingError:
            raise LedgerMissingError(ledger_id=ledger_id) from None

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger's node: bookies delete its entries later. Raises LedgerMissingError."""
        path = ledger_path(self._root, ledger_id)
        attempts = 0

        async def attempt() -> None:
            nonlocal attempts
            attempts += 1
            try:
                await self._coordination.delete(path)
            except NodeMissingError:
                if attempts == 1:
                    raise LedgerMissingError(ledger_id=ledger_id) from None

        await retried(attempt, self._options)
