"""The tree of the coordination service in memory: nodes, versions, transactions, watches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .errors import (
    NodeExistsError,
    NodeMissingError,
    NotEmptyError,
    ParentEphemeralError,
    VersionConflictError,
)
from .protocol import ANY_VERSION, Check, Create, Operation, Set, Stat, Versioned, parent_of


class Hearer(Protocol):
    """A session, as the tree sees it."""

    def report(self, path: str, *, is_list: bool) -> None:
        """This node, or the list of its children, has changed."""


@dataclass(slots=True)
class _Node:
    data: bytes
    owner: int = 0
    version: int = 0
    created: int = 0
    """Children created below it so far: the next one's sequence number."""
    children: set[str] = field(default_factory=set)


class Nodes:
    """The nodes, and the open sessions. Safe between threads."""

    def __init__(self) -> None:
        self._nodes = {"/": _Node(b"")}
        self._lock = threading.RLock()
        self._sessions: dict[int, Hearer] = {}
        self._next_session = 1

    def paths(self) -> list[str]:
        """All nodes' paths, sorted."""
        with self._lock:
            return sorted(self._nodes)

    def admit(self, session: Hearer) -> int:
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
        """Make changes of these nodes durable, before they are seen; here there is nothing to do.

        What it raises undoes the changes.
        """

    def facts(self, path: str) -> tuple[bytes, int, int] | None:
        """Data, version and sequence number of a persistent node; None for any other."""
        node = self._nodes.get(path)
        if node is None or node.owner:
            return None
        return node.data, node.version, node.created

    def restore(self, path: str, data: bytes, version: int, created: int) -> None:
        """Have a node again that was kept; after its parent."""
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
