"""ZooKeeper's data model for asyncio: nodes with versions, ephemeral nodes, watches, sessions.

It is a tree of nodes, each with up to 1 MB of data and a version that grows by 1 with each `set`. A
change can demand a version, and several changes can be one transaction. An ephemeral node belongs
to the session that created it and goes with it. A watch says that something has changed, never
what: its user looks again.

`Coordination` is a session; `connect` opens one on ZooKeeper, `MemoryTree` is one in memory, and
`LocalServer` serves one that is kept on disk to the processes of one machine. No other package
knows kazoo, which is imported by `connect` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import ClassVar, NamedTuple, Protocol

from ..records import record

ANY_VERSION = -1
"""Instead of a version: whatever it is."""


class Versioned(NamedTuple):
    """A node's data, with the version to demand of the next change."""

    data: bytes
    version: int


class Stat(NamedTuple):
    """The facts about a node without its data."""

    version: int
    ephemeral_owner: int
    """Session id of the creator of an ephemeral node; 0 for a persistent one."""
    children_count: int


class State(Enum):
    """The session's state, as far as this side knows."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """The connection is lost, and the session may go on or end. Requests fail or wait."""
    LOST = "lost"
    """The session is over, its ephemeral nodes are gone. CONNECTED follows, with a new session id,
    unless the session was closed by this side."""


@record(frozen=True)
class Create:
    """Create a node. `sequence` appends ten digits, which grow, to the path."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@record(frozen=True)
class Set:
    """Replace a node's data, if it has this version."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@record(frozen=True)
class Delete:
    """Delete a node, if it has this version."""

    path: str
    version: int = ANY_VERSION


@record(frozen=True)
class Check:
    """Let the transaction fail unless the node has this version."""

    path: str
    version: int


Operation = Create | Set | Delete | Check


class CoordinationError(Exception):
    """Base of everything the coordination package raises on purpose."""

    what: ClassVar[str] = "cannot use the node"

    def __init_subclass__(cls, *, what: str) -> None:
        cls.what = what

    def __init__(self, path: str = "", reason: str = "") -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        of_node = f" {self.path}" if self.path else ""
        return f"{self.what}{of_node}{': ' if self.reason else ''}{self.reason}"


class NodeMissingError(CoordinationError, what="no node"):
    """The node, or the parent of a node to be created, does not exist."""


class NodeExistsError(CoordinationError, what="the node exists already:"):
    """A node with that path exists already."""


class VersionConflictError(CoordinationError, what="another version of node"):
    """The node has another version than expected: it was changed meanwhile."""


class NotEmptyError(CoordinationError, what="the node has children:"):
    """The node has children."""


class ParentEphemeralError(CoordinationError, what="the parent is ephemeral:"):
    """The parent is ephemeral, and such a node cannot have children."""


class ConnectionLossError(CoordinationError, what="connection lost, outcome unknown, node"):
    """The connection broke, or no answer came in time. A change may have been made, or not."""


class SessionExpiredError(CoordinationError, what="session expired, node"):
    """The session is over, and its ephemeral nodes are gone. Nothing was done."""


class CoordinationClosedError(CoordinationError, what="session closed, node"):
    """This side has closed the session. Nothing was done."""


class CoordinationUnavailableError(
    CoordinationError, what="no session with the coordination service"
):
    """No session could be opened."""


class Watch:
    """A callback for changes of one place, until it is closed.

    It may be called more often than things change.
    """

    def __init__(self, holders: Watches, place: Place, call: Callable[..., object]) -> None:
        """`holders` has it under its place."""
        self.place = place
        self._call = call
        self._holders = holders
        holders.setdefault(place, []).append(self)

    def run(self, *arguments: object) -> None:
        """Call, unless it was closed meanwhile."""
        if self in self._holders.get(self.place, ()):
            self._call(*arguments)

    def close(self) -> None:
        """Report nothing more, from now on."""
        watches = self._holders.get(self.place, [])
        if self in watches:
            watches.remove(self)
            if not watches:
                del self._holders[self.place]


Place = tuple[str, bool]
"""A node's path, and whether the list of its children is watched."""
Watches = dict[Place, list[Watch]]
OF_STATE: Place = "", False
"""The place of what listens to the session's state."""


class Coordination(Protocol):
    """A session with the service. All its methods belong to one event loop.

    Besides those named, each coroutine raises ConnectionLossError (a change may have been made or
    not), SessionExpiredError and CoordinationClosedError (nothing was done).
    """

    state: State
    """As far as this side knows."""
    session_timeout_ms: int
    """How long the service keeps a session of which it hears nothing."""

    @property
    def session_id(self) -> int:
        """The session's id; another one after the session was lost. 0 before the first one."""

    async def get(self, path: str) -> Versioned:
        """Data and version. Raises NodeMissingError."""

    async def exists(self, path: str) -> Stat | None:
        """The node's facts; None if there is no such node."""

    async def children(self, path: str) -> list[str]:
        """The names of a node's children, sorted. Raises NodeMissingError."""

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> str:
        """Create a node; returns its path, with the digits of `sequence`.

        Raises NodeExistsError, NodeMissingError (the parent's path), ParentEphemeralError.
        """

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Replace the data; returns the new version. Raises NodeMissingError,
        VersionConflictError.
        """

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node. Raises NodeMissingError, VersionConflictError, NotEmptyError."""

    async def transaction(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """All operations, or none. Returns, for each, the path created, the version set, or None.

        Raises the error of the first operation that cannot be done; nothing has changed then.
        """

    async def watch(
        self, path: str, look_again: Callable[[], None], *, children: bool = False
    ) -> Watch:
        """Call `look_again` on the loop after each change of the node's data and existence.

        With `children` after each change of the list of its children; raises NodeMissingError then.
        What changes after this call returns is reported, also what changed while the connection was
        lost. One report may stand for several changes.
        """

    def listen(self, changed: Callable[[State], None]) -> Watch:
        """Call `changed` on the loop with each new state of the session."""

    async def close(self) -> None:
        """End the session: its ephemeral nodes go at once. A second call does nothing."""


def parent_of(path: str) -> str:
    """The path of a node's parent; "/" is its own."""
    return path.rpartition("/")[0] or "/"


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
