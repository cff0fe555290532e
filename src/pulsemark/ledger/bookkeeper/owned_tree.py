"""A store's nodes in ZooKeeper, changed by their one owner.

The owner's node holds a mark with the owner's name and the number of its last change. Each change
is one transaction, whose first operation sets that node from its known version: so a change of a
former owner fails as a whole. The mark also tells whether a change was made whose answer was lost.
Each change has a number of its own, even one that was given up: a request that arrives later must
not be taken for the next change.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ...coordination import (
    ConnectionLossError,
    Coordination,
    CoordinationError,
    NodeExistsError,
    NodeMissingError,
    Operation,
    SessionExpiredError,
    Set,
    VersionConflictError,
)
from ..errors import CatalogError, OwnershipLostError, UnsupportedVersionError
from .client.ledger_nodes import retried
from .client.options import ClientOptions
from .nodes import FORMAT, MAX_CHANGE_BYTES, Paths

T = TypeVar("T")
_PAUSE_S = 0.05
_OF_OPERATION_BYTES = 64


class OwnedTree:
    """The nodes below a store's root. All coroutines belong to the loop of ``coordination``."""

    def __init__(
        self, coordination: Coordination, root: str, owner_id: str, *, limit_s: float = 30.0
    ) -> None:
        """``limit_s``: how long a call retries while the service does not answer."""
        self.coordination = coordination
        self.paths = Paths(root)
        self._owner_id = owner_id
        self._limit_s = limit_s
        self._retries = ClientOptions(metadata_limit_ms=int(limit_s * 1000), metadata_retry_ms=50)
        self._lock = asyncio.Lock()
        self._version = -1
        self._made = 0
        """The number of the last change that was made."""
        self._begun = 0
        """That of the last one that was tried."""
        self._lost: str | None = None

    # Reading

    async def get(self, path: str) -> bytes | None:
        """A node's data; None if there is no such node. Raises CatalogError."""
        try:
            return (await self._asked(lambda: self.coordination.get(path))).data
        except NodeMissingError:
            return None

    async def children(self, path: str) -> list[str]:
        """The names of a node's children; none without the node. Raises CatalogError."""
        try:
            return await self._asked(lambda: self.coordination.children(path))
        except NodeMissingError:
            return []

    async def content(self, path: str) -> dict[str, bytes]:
        """The data of a node's children by their names, asked for together."""
        names = await self.children(path)
        found: list[bytes | None] = []
        for start in range(0, len(names), 500):
            some = names[start : start + 500]
            found += await asyncio.gather(*(self.get(f"{path}/{name}") for name in some))
        pairs = zip(names, found, strict=True)
        return {name: data for name, data in pairs if data is not None}

    async def _asked(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request until the service answers. Raises NodeMissingError, CatalogError."""
        try:
            return await retried(ask, self._retries)
        except NodeMissingError:
            raise
        except CoordinationError as error:
            raise self._error(str(error)) from error

    # Owning

    async def take_over(self) -> None:
        """Become the only owner. Raises CatalogError, UnsupportedVersionError."""
        await self._make_root()
        while True:
            data, version = await self._asked(lambda: self.coordination.get(self.paths.owner))
            mine = self._mark(0)
            if data == mine:  # an answer was lost
                self._version = version
                return
            try:
                self._version = await self.coordination.set(self.paths.owner, mine, version)
            except (ConnectionLossError, SessionExpiredError, VersionConflictError):
                await asyncio.sleep(_PAUSE_S)
                continue
            except CoordinationError as error:
                raise self._error(str(error)) from error
            return

    async def _make_root(self) -> None:
        text = str(FORMAT).encode()
        for path, data in (
            (self.paths.format, text),
            (self.paths.owner, b"{}"),
            (self.paths.next_topic_id, b"1"),
            *((folder, b"") for folder in self.paths.folders),
        ):
            try:
                await self._asked(
                    lambda path=path, data=data: self.coordination.create(  # type: ignore[misc]
                        path, data, make_parents=True
                    )
                )
            except CatalogError as error:
                if not isinstance(error.__cause__, NodeExistsError):
                    raise
        found = await self.get(self.paths.format) or b""
        if not found.isdigit():
            raise self._error(f"{self.paths.format} says {found!r}: it is not a store of pulsemark")
        if int(found) > FORMAT:
            raise UnsupportedVersionError(
                self.paths.as_path(), "metadata format", int(found), FORMAT
            )

    def _mark(self, change: int) -> bytes:
        return json.dumps({"owner": self._owner_id, "change": change}).encode()

    async def is_owner(self) -> bool:
        """Whether no other owner has taken over yet. Raises CatalogError."""
        if self._lost is None and await self.get(self.paths.owner) != self._mark(self._made):
            async with self._lock:  # a change of our own may have been on its way
                if await self.get(self.paths.owner) != self._mark(self._made):
                    self._lost = "another owner has taken over"
        return self._lost is None

    async def check_owner(self) -> None:
        """Raise OwnershipLostError if another owner has taken over, or CatalogError."""
        if not await self.is_owner():
            raise OwnershipLostError(self.paths.root)

    # Changing

    async def change(self, operations: Sequence[Operation]) -> None:
        """Make all of these changes, or none. Raises OwnershipLostError, CatalogError."""
        size = sum(
            len(one.path) + len(getattr(one, "data", b"")) + _OF_OPERATION_BYTES
            for one in operations
        )
        if size > MAX_CHANGE_BYTES:
            raise self._error(
                f"a change of {size} bytes is above the {MAX_CHANGE_BYTES} that ZooKeeper takes"
            )
        async with self._lock:
            await self._change(operations)

    async def _change(self, operations: Sequence[Operation]) -> None:
        self._begun = number = self._begun + 1
        first = Set(self.paths.owner, self._mark(number), self._version)
        limit = asyncio.get_running_loop().time() + self._limit_s
        while True:
            if self._lost is not None:
                raise OwnershipLostError(self.paths.root)
            try:
                results = await self.coordination.transaction([first, *operations])
                self._made, self._version = number, int(results[0] or 0)
                return
            except SessionExpiredError as error:
                reason = str(error)
            except CoordinationError as error:
                if await self._became_of(number, limit):
                    return
                if not isinstance(error, ConnectionLossError):
                    raise self._error(str(error)) from error
                reason = str(error)
            if asyncio.get_running_loop().time() > limit:
                raise self._error(reason)
            await asyncio.sleep(_PAUSE_S)

    async def _became_of(self, number: int, limit: float) -> bool:
        """Whether a change without an answer was made. Raises OwnershipLostError."""
        while True:
            try:
                data, version = await self.coordination.get(self.paths.owner)
            except (ConnectionLossError, SessionExpiredError) as error:
                if asyncio.get_running_loop().time() > limit:
                    # Whether the change was made is unknown, and going on could contradict it.
                    self._lost = "the outcome of a change is not known"
                    raise OwnershipLostError(f"{self.paths.root} ({self._lost})") from error
                await asyncio.sleep(_PAUSE_S)
                continue
            if data == self._mark(number):
                self._made, self._version = number, version
                return True
            if data != self._mark(self._made):
                # By another owner, or by a change of this one that was given up and made after all.
                self._lost = "another owner has taken over, or a change came late"
                raise OwnershipLostError(self.paths.root)
            return False

    def _error(self, reason: str) -> CatalogError:
        return CatalogError(self.paths.as_path(), reason)
