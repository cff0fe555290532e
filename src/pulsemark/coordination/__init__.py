"""ZooKeeper's data model for asyncio: nodes with versions, ephemeral nodes, watches, sessions.

`Coordination` is the protocol; `connect` opens one on ZooKeeper, `MemoryTree` is one in memory, and
`LocalServer` serves one that is kept on disk to the processes of one machine. No other package
knows kazoo, which is imported by `connect` alone.
"""

from .protocol import (
    Check,
    ConnectionLossError,
    Coordination,
    CoordinationClosedError,
    CoordinationError,
    CoordinationUnavailableError,
    Create,
    Delete,
    NodeExistsError,
    NodeMissingError,
    NotEmptyError,
    Operation,
    ParentEphemeralError,
    SessionExpiredError,
    Set,
    Stat,
    State,
    VersionConflictError,
    Versioned,
    Watch,
)

__all__ = [
    "Check",
    "ConnectionLossError",
    "Coordination",
    "CoordinationClosedError",
    "CoordinationError",
    "CoordinationUnavailableError",
    "Create",
    "Delete",
    "NodeExistsError",
    "NodeMissingError",
    "NotEmptyError",
    "Operation",
    "ParentEphemeralError",
    "SessionExpiredError",
    "Set",
    "Stat",
    "State",
    "VersionConflictError",
    "Versioned",
    "Watch",
    "connect",
]


async def connect(
    hosts: str, *, session_timeout_ms: int = 6_000, connect_timeout_ms: int = 10_000
) -> Coordination:
    """A session with ZooKeeper at `HOST:PORT[,HOST:PORT...][/CHROOT]`.

    Raises CoordinationUnavailableError: no server answered in time, or kazoo is not installed.
    """
    from .zookeeper import ZooKeeperCoordination

    return await ZooKeeperCoordination.connect(
        hosts, session_timeout_ms=session_timeout_ms, connect_timeout_ms=connect_timeout_ms
    )
