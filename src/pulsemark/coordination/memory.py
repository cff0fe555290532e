"""A coordination service in memory, whose nodes can be kept on disk: that of one machine's brokers.

    tree = MemoryTree()
    first, second = tree.session(), tree.session()

There is no clock in it: a session ends when it is closed. A seeded loop makes the whole
deterministic.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ..sqlite_transactions import DoubtfulCommitError, transaction
from . import (
    ANY_VERSION,
    OF_STATE,
    Check,
    Coordination,
    CoordinationClosedError,
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
    Watches,
    parent_of,
)

T = TypeVar("T")


@dataclass(slots=True)
class _Node:
    data: bytes
    owner: int = 0
    version: int = 0
    created: int = 0
    """Children created below it so far: the next one's sequence number."""
    children: set[str] = field(default_factory=set)


class MemoryTree:
    """The service: its nodes, and the open sessions. Safe between threads."""

    def __init__(self, *, session_timeout_ms: int = 6_000) -> None:
        self.session_timeout_ms = session_timeout_ms
        self._nodes = {"/": _Node(b"")}
        self._lock = threading.RLock()
        self._sessions: dict[int, MemoryCoordination] = {}
        self._next_session = 1

    def session(self) -> MemoryCoordination:
        """A new session."""
        return MemoryCoordination(self)

    def paths(self) -> list[str]:
        """All nodes' paths, sorted."""
        with self._lock:
            return sorted(self._nodes)

    def admit(self, session: MemoryCoordination) -> int:
        """A new session's id."""
        with self._lock:
            number, self._next_session = self._next_session, self._next_session + 1
            self._sessions[number] = session
            return number

    def dismiss(self, number: int) -> None:
        """A session is over: remove its ephemeral nodes."""
        with self._lock:
            self._sessions.pop(number, None)
            own = [path for path, node in self._nodes.items() if node.owner == number]
            for path in own:
                self._delete(path)

    def has_session(self, number: int) -> bool:
        """Whether a session is open."""
        with self._lock:
            return number in self._sessions

    def read(self, path: str) -> Versioned:
        """A node's data and version. Raises NodeMissingError."""
        with self._lock:
            node = self.node(path)
            return Versioned(node.data, node.version)

    def stat(self, path: str) -> Stat | None:
        """A node's facts; None without the node."""
        with self._lock:
            node = self._nodes.get(path)
            return None if node is None else Stat(node.version, node.owner, len(node.children))

    def names(self, path: str) -> list[str]:
        """The names of a node's children. Raises NodeMissingError."""
        with self._lock:
            return sorted(self.node(path).children)

    def make_parents(self, path: str) -> None:
        """Create the parents of a node that do not exist."""
        with self._lock:
            parent = parent_of(path)
            if parent not in self._nodes:
                self.make_parents(parent)
                self.apply([Create(parent)], 0)

    def node(self, path: str) -> _Node:
        """The node at a path. Raises NodeMissingError."""
        with self._lock:
            node = self._nodes.get(path)
            if node is None:
                raise NodeMissingError(path)
            return node

    def apply(self, operations: Sequence[Operation], session_id: int) -> list[str | int | None]:
        """All operations or none. Raises the error of the first that cannot be done."""
        with self._lock:
            undo: list[Callable[[], None]] = []
            changed: list[tuple[str, bool]] = []
            try:
                results = [self._apply(one, session_id, undo, changed) for one in operations]
                self.keep([path for path, _ in changed])
            except BaseException:
                for step in reversed(undo):
                    step()
                raise
            for path, is_list in changed:
                self._report(path, is_list=is_list)
            return results

    def keep(self, paths: Iterable[str]) -> None:
        """Make changes durable before they are seen; nothing here. Errors undo the changes."""

    def facts(self, path: str) -> tuple[bytes, int, int] | None:
        """Data, version and sequence number of a persistent node; None for any other."""
        node = self._nodes.get(path)
        if node is None or node.owner:
            return None
        return node.data, node.version, node.created

    def restore(self, path: str, data: bytes, version: int, created: int) -> None:
        """Add a stored node again; its parent must be there."""
        if path == "/":
            self._nodes["/"].created = created
        else:
            self._link(path, _Node(data, 0, version, created))

    def _apply(
        self,
        operation: Operation,
        session_id: int,
        undo: list[Callable[[], None]],
        changed: list[tuple[str, bool]],
    ) -> str | int | None:
        path = operation.path
        if isinstance(operation, Create):
            return self._create(operation, session_id, undo, changed)
        node = self.node(path)
        if operation.version not in (ANY_VERSION, node.version):
            raise VersionConflictError(path, f"expected {operation.version}, is {node.version}")
        if isinstance(operation, Check):
            return None
        if isinstance(operation, Set):
            before = node.data
            node.data, node.version = operation.data, node.version + 1
            undo.append(lambda: self._unset(node, before))
            changed.append((path, False))
            return node.version
        if node.children:
            raise NotEmptyError(path)
        self._unlink(path)
        undo.append(lambda: self._link(path, node))
        changed += [(path, False), (path, True), (parent_of(path), True)]
        return None

    def _create(
        self,
        operation: Create,
        session_id: int,
        undo: list[Callable[[], None]],
        changed: list[tuple[str, bool]],
    ) -> str:
        parent = self.node(parent_of(operation.path))
        if parent.owner:
            raise ParentEphemeralError(operation.path)
        path = operation.path + (f"{parent.created:010d}" if operation.sequence else "")
        if path in self._nodes:
            raise NodeExistsError(path)
        parent.created += 1
        self._link(path, _Node(operation.data, session_id if operation.ephemeral else 0))
        undo.append(lambda: self._unlink(path))
        changed += [(path, False), (parent_of(path), True)]
        return path

    @staticmethod
    def _unset(node: _Node, data: bytes) -> None:
        node.data, node.version = data, node.version - 1

    def _link(self, path: str, node: _Node) -> None:
        self._nodes[path] = node
        self._nodes[parent_of(path)].children.add(path.rpartition("/")[2])

    def _unlink(self, path: str) -> None:
        del self._nodes[path]
        self._nodes[parent_of(path)].children.discard(path.rpartition("/")[2])

    def _delete(self, path: str) -> None:
        self._unlink(path)
        self._report(path, is_list=False)
        self._report(path, is_list=True)
        self._report(parent_of(path), is_list=True)

    def _report(self, path: str, *, is_list: bool) -> None:
        for session in tuple(self._sessions.values()):
            session.report(path, is_list=is_list)


class MemoryCoordination(Coordination):
    """A session with a `MemoryTree`."""

    def __init__(self, tree: MemoryTree) -> None:
        self._tree = tree
        self._loop: asyncio.AbstractEventLoop | None = None
        self.state = State.CONNECTED
        self.session_timeout_ms = tree.session_timeout_ms
        self._is_closed = False
        self._watches: Watches = {}
        self._listeners: Watches = {}
        self._session_id = tree.admit(self)

    @property
    def session_id(self) -> int:
        return self._session_id

    async def get(self, path: str) -> Versioned:
        return await self._request("get", path, lambda: self._tree.read(path))

    async def exists(self, path: str) -> Stat | None:
        return await self._request("exists", path, lambda: self._tree.stat(path))

    async def children(self, path: str) -> list[str]:
        return await self._request("children", path, lambda: self._tree.names(path))

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> str:
        create = Create(path, data, ephemeral, sequence)

        def apply() -> str:
            if make_parents:
                self._tree.make_parents(path)
            return str(self._tree.apply([create], self._session_id)[0])

        return await self._request("create", path, apply)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        one = Set(path, data, version)
        results = await self._request(
            "set", path, lambda: self._tree.apply([one], self._session_id)
        )
        assert isinstance(results[0], int)
        return results[0]

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        one = Delete(path, version)
        await self._request("delete", path, lambda: self._tree.apply([one], self._session_id))

    async def transaction(self, operations: Sequence[Operation]) -> list[str | int | None]:
        path = operations[0].path if operations else ""
        return await self._request(
            "transaction", path, lambda: self._tree.apply(operations, self._session_id)
        )

    async def watch(
        self, path: str, look_again: Callable[[], None], *, children: bool = False
    ) -> Watch:
        def add() -> Watch:
            if children:
                self._tree.node(path)
            return Watch(self._watches, (path, children), look_again)

        return await self._request("watch", path, add)

    def listen(self, changed: Callable[[State], None]) -> Watch:
        self._loop = self._loop or asyncio.get_running_loop()
        return Watch(self._listeners, OF_STATE, changed)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._tree.dismiss(self._session_id)
        self._become(State.LOST)
        self._watches.clear()

    # -- inside -----------------------------------------------------------------------------------

    async def _request(self, name: str, path: str, effect: Callable[[], T]) -> T:
        self._loop = self._loop or asyncio.get_running_loop()
        await asyncio.sleep(0)
        return self._perform(name, path, effect)

    def _perform(self, name: str, path: str, effect: Callable[[], T]) -> T:
        if self._is_closed:
            raise CoordinationClosedError(path, name)
        if not self._tree.has_session(self._session_id):
            raise SessionExpiredError(path, name)
        return effect()

    def report(self, path: str, *, is_list: bool) -> None:
        """Call the watches of this path. The tree calls this in any thread."""
        if self.state is not State.CONNECTED:
            return
        for watch in tuple(self._watches.get((path, is_list), ())):
            self._call(watch.run)

    def _become(self, state: State) -> None:
        if state is self.state:
            return
        self.state = state
        for listener in tuple(self._listeners.get(OF_STATE, ())):
            self._call(listener.run, state)

    def _call(self, function: Callable[..., None], *arguments: State) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)


# A tree that outlives its process: its persistent nodes are in one SQLite file.
#
# SQLite notices damage of a page's structure only, so each node has a CRC-32: of its path, version
# and sequence number, each followed by a zero byte, and its data.


class DurableTree(MemoryTree):
    """The service for brokers of one machine. A change is on disk before anyone sees it."""

    def __init__(self, file: Path) -> None:
        """Open or create the file. Raises CoordinationUnavailableError: it cannot be used."""
        super().__init__()
        self._doubt: DoubtfulCommitError | None = None
        with suppress(OSError):  # it is there, or SQLite says why it cannot be made
            file.touch(0o600, exist_ok=False)
        try:
            self._database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise CoordinationUnavailableError("", f"{file}: {error}") from error
        try:
            self._load()
        except (sqlite3.Error, TypeError, ValueError) as error:
            self._database.close()
            raise CoordinationUnavailableError("", f"{file}: {error}") from error

    def _load(self) -> None:
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        problem = self._database.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if problem != "ok":
            raise ValueError(f"it is damaged: {problem}")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS nodes (path TEXT PRIMARY KEY, data BLOB, version INTEGER, "
            "created INTEGER, crc32 INTEGER) WITHOUT ROWID"
        )
        rows = self._database.execute("SELECT path, data, version, created, crc32 FROM nodes")
        for path, data, version, created, crc in sorted(rows):
            if crc != _checksum(path, data, version, created):
                raise ValueError(f"it is damaged: node {path} is not what was stored")
            self.restore(path, data, version, created)

    def keep(self, paths: Iterable[str]) -> None:
        """Store the present state of these nodes. Raises sqlite3.Error; then nothing is stored.

        After a DoubtfulCommitError nothing can be stored until the file is opened again.
        """
        if self._doubt is not None:
            raise DoubtfulCommitError(f"nothing is stored any more: {self._doubt}")
        try:
            with transaction(self._database):
                self._put(paths)
        except DoubtfulCommitError as error:
            self._doubt = error
            raise

    def _put(self, paths: Iterable[str]) -> None:
        for path in sorted(set(paths)):
            facts = self.facts(path)
            if facts is None:
                self._database.execute("DELETE FROM nodes WHERE path = ?", (path,))
            else:
                row = (path, *facts, _checksum(path, *facts))
                self._database.execute("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?)", row)

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def _checksum(path: str, data: bytes, version: int, created: int) -> int:
    # Damaged columns may have another type: they fail here or give another checksum.
    return zlib.crc32(bytes(data), zlib.crc32(f"{path}\0{version}\0{created}\0".encode()))
