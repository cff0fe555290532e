"""A store's address, `zk://HOST:PORT[,HOST:PORT...]/ledgers`, and the sessions with it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ...coordination import Coordination, connect
from ...records import FactsError

if TYPE_CHECKING:
    from .client import BookieTls, BookKeeperClient

_SCHEME = "zk://"
DEFAULT_ROOT = "/pulsemark"
Connection: TypeAlias = "tuple[Coordination, BookKeeperClient]"
Connect: TypeAlias = Callable[[], Coroutine[Any, Any, Connection]]


class StoreAddressError(FactsError, ValueError, text="store address {address!r}: {reason}"):
    """A store's address cannot be understood."""

    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """ZooKeeper's servers, and the path of BookKeeper's own nodes."""

    hosts: str
    """HOST:PORT, several of them separated by commas."""
    ledgers_root: str

    @classmethod
    def parse(cls, address: str) -> StoreAddress:
        """The parts of an address. Raises StoreAddressError."""
        if not address.startswith(_SCHEME):
            raise StoreAddressError(address, f"it must begin with {_SCHEME}")
        hosts, slash, path = address[len(_SCHEME) :].partition("/")
        root = f"/{path.rstrip('/')}" if slash and path.rstrip("/") else "/ledgers"
        for host in hosts.split(","):
            name, colon, port = host.rpartition(":")
            if not (colon and name and port.isdigit() and 0 < int(port) < 65536):
                raise StoreAddressError(address, f"{host!r} is not HOST:PORT")
        return cls(hosts, root)

    def __str__(self) -> str:
        return f"{_SCHEME}{self.hosts}{self.ledgers_root}"


async def connected(
    address: StoreAddress, tls: BookieTls | None, *, session_timeout_ms: int = 6_000
) -> Connection:
    """Sessions with ZooKeeper and bookies. Raises CoordinationError, BookKeeperError."""
    from .client import BookKeeperClient

    coordination = await connect(address.hosts, session_timeout_ms=session_timeout_ms)
    try:
        client = BookKeeperClient(coordination, address.ledgers_root, tls=tls)
        await client.check_cluster()
    except BaseException:
        await coordination.close()
        raise
    return coordination, client


async def disconnected(coordination: Coordination, client: BookKeeperClient) -> None:
    """End both sessions."""
    try:
        await client.close()
    finally:
        await coordination.close()


def is_store_address(text: str) -> bool:
    """Whether this names a store in BookKeeper, and no folder."""
    return text.startswith(_SCHEME)
