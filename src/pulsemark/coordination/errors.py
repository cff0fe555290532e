"""Every error of the coordination service.

CoordinationError
 +-- NodeMissingError          the node, or the parent of one to be created, does not exist
 +-- NodeExistsError
 +-- VersionConflictError      somebody else changed the node meanwhile
 +-- NotEmptyError             a node with children cannot be deleted
 +-- ParentEphemeralError      an ephemeral node cannot have children
 +-- ConnectionLossError       the connection broke or was too slow: the outcome is unknown
 +-- SessionExpiredError       the session is over, and its ephemeral nodes are gone
 +-- CoordinationClosedError   this side has closed the session
 +-- CoordinationUnavailableError  no session could be opened

Each has the node's path as an attribute ("" where it is no matter of one node).
"""

from __future__ import annotations


class CoordinationError(Exception):
    """Base of everything the coordination package raises on purpose."""

    what = "cannot use the node"

    def __init__(self, path: str = "", reason: str = "") -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        of_node = f" {self.path}" if self.path else ""
        return f"{self.what}{of_node}{': ' if self.reason else ''}{self.reason}"


class NodeMissingError(CoordinationError):
    """The node, or the parent of a node to be created, does not exist."""

    what = "no node"


class NodeExistsError(CoordinationError):
    """A node with that path exists already."""

    what = "the node exists already:"


class VersionConflictError(CoordinationError):
    """The node has another version than expected: it was changed meanwhile."""

    what = "another version of node"


class NotEmptyError(CoordinationError):
    """The node has children."""

    what = "the node has children:"


class ParentEphemeralError(CoordinationError):
    """The parent is ephemeral, and such a node cannot have children."""

    what = "the parent is ephemeral:"


class ConnectionLossError(CoordinationError):
    """The connection broke, or no answer came in time. A change may have been made, or not."""

    what = "connection lost, outcome unknown, node"


class SessionExpiredError(CoordinationError):
    """The session is over, and its ephemeral nodes are gone. Nothing was done."""

    what = "session expired, node"


class CoordinationClosedError(CoordinationError):
    """This side has closed the session. Nothing was done."""

    what = "session closed, node"


class CoordinationUnavailableError(CoordinationError):
    """No session could be opened."""

    what = "no session with the coordination service"
