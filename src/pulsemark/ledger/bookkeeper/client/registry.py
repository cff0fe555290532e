"""The registered bookies, their addresses, and the choice of a ledger's ensemble.

Bookies keep a node each while they run. `ClientCore` is what the parts of one client share.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial

from google.protobuf.message import DecodeError

from ....coordination import (
    ConnectionLossError,
    Coordination,
    NodeMissingError,
    SessionExpiredError,
)
from ....proto.bookkeeper_metadata_pb2 import BookieServiceInfoFormat
from .bookies import Bookies
from .errors import BookieUnreachableError, MetadataError, NotEnoughBookiesError
from .ledger_nodes import LedgerNodes, retried
from .options import ClientOptions

# Shared by the parts of one client.


@dataclass(frozen=True, slots=True)
class ClientCore:
    """The metadata, bookies and settings that the parts of a client share."""

    nodes: LedgerNodes
    registry: BookieRegistry
    bookies: Bookies
    options: ClientOptions
    random: random.Random


# ---- placement: any writable bookies, by chance, as BookKeeper's default policy ----


def replacements(
    count: int,
    writable: Iterable[str],
    *,
    excluded: Collection[str],
    suspected: Collection[str],
    random: random.Random,
) -> list[str]:
    """Choose up to `count` bookies not excluded; suspected ones only if others are too few."""
    usable = [one for one in writable if one not in excluded]
    random.shuffle(usable)
    usable.sort(key=lambda one: one in suspected)
    return usable[:count]


def new_ensemble(
    size: int, writable: Collection[str], *, suspected: Collection[str], random: random.Random
) -> tuple[str, ...]:
    """Choose the bookies of a new ledger. Raises NotEnoughBookiesError."""
    chosen = replacements(size, writable, excluded=(), suspected=suspected, random=random)
    if len(chosen) < size:
        raise NotEnoughBookiesError(f"{size} writable ones are needed, {len(writable)} are there")
    # Shuffle, so that the bookies sorted to the end are not always the last.
    random.shuffle(chosen)
    return tuple(chosen)


_PROTOCOL = "bookie-rpc"
_READ_ONLY = "readonly"
"""The node of bookies that take no writes, among those that do."""


def parse_service_info(bookie: str, data: bytes) -> tuple[str, int]:
    """Parse host and port in a bookie's node, else in its id. Raises MetadataError."""
    if not data:
        host, _, port = bookie.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65_535:
            raise MetadataError("its node is empty, and its id is not an address", bookie=bookie)
        return host, int(port)
    try:
        info = BookieServiceInfoFormat.FromString(data)
    except DecodeError as error:
        raise MetadataError("its node is not a service info", bookie=bookie) from error
    for endpoint in info.endpoints:
        if endpoint.protocol == _PROTOCOL:
            return endpoint.host, endpoint.port
    raise MetadataError(f"it has no endpoint for {_PROTOCOL}", bookie=bookie)


class BookieRegistry:
    """The bookies below a root, as the coordination service knows them at this moment."""

    def __init__(self, coordination: Coordination, root: str, options: ClientOptions) -> None:
        self._coordination = coordination
        self._available = f"{root.rstrip('/')}/available"
        self._options = options
        self._known: dict[str, tuple[str, int]] = {}

    async def writable(self) -> list[str]:
        """The ids of the bookies that take writes, sorted."""
        return [name for name in await self._names(self._available) if name != _READ_ONLY]

    async def readable(self) -> list[str]:
        """The ids of all bookies that run."""
        return await self.writable() + await self._names(f"{self._available}/{_READ_ONLY}")

    async def _names(self, folder: str) -> list[str]:
        try:
            return await retried(lambda: self._coordination.children(folder), self._options)
        except NodeMissingError:
            return []

    async def address(self, bookie: str) -> tuple[str, int]:
        """A bookie's host and port, or the last known ones. Raises BookieUnreachableError."""
        known = self._known.get(bookie)
        try:
            found = await self._find(bookie, is_repeated=known is None)
        except (ConnectionLossError, SessionExpiredError):
            if known is None:
                raise
            return known
        self._known[bookie] = found
        return found

    async def _find(self, bookie: str, *, is_repeated: bool) -> tuple[str, int]:
        for folder in (self._available, f"{self._available}/{_READ_ONLY}"):
            path = f"{folder}/{bookie}"
            ask = partial(self._coordination.get, path)
            try:
                data, _ = await (retried(ask, self._options) if is_repeated else ask())
            except NodeMissingError:
                continue
            return parse_service_info(bookie, data)
        raise BookieUnreachableError("it is not registered", bookie=bookie)
