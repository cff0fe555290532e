"""Search by time and by index; the gRPC service over it.

    Finder       searches a topic's log (see `search`)
    SeekClient   gets the same answers from a seek service over gRPC (see `client`)
    SeekServer   is a seek service over any source of topics (see `server`; for a data folder,
                 see `server.FolderSource`)

Client and server, and grpc with them, are imported when they are first used. So a broker without a
gRPC port does not load grpc.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names
from .errors import (
    BindError,
    BlockingCallError,
    ClientClosedError,
    CursorBusyError,
    DeadlineExceededError,
    InvalidFieldError,
    NotPossibleError,
    PermissionDeniedError,
    SeekCallError,
    ServerUnavailableError,
    SubscriptionNotFoundError,
    UnauthenticatedError,
)

if TYPE_CHECKING:
    from .client import ClientTls, CursorPlace, SeekClient
    from .message_stamps import MessageNotStoredError, MessageStamp, MessageStamps
    from .messages import ControlAppended, ControlRequest, RemoteEntry
    from .search import Finder, Found, IndexOutOfRangeError, IndexPlace, IndexRange, SearchMethod
    from .server import SeekServer, ServerOptions, ServerTls

__all__ = [
    "BindError",
    "BlockingCallError",
    "ClientClosedError",
    "ClientTls",
    "ControlAppended",
    "ControlRequest",
    "CursorBusyError",
    "CursorPlace",
    "DeadlineExceededError",
    "Finder",
    "Found",
    "IndexOutOfRangeError",
    "IndexPlace",
    "IndexRange",
    "InvalidFieldError",
    "MessageNotStoredError",
    "MessageStamp",
    "MessageStamps",
    "NotPossibleError",
    "PermissionDeniedError",
    "RemoteEntry",
    "SearchMethod",
    "SeekCallError",
    "SeekClient",
    "SeekServer",
    "ServerOptions",
    "ServerTls",
    "ServerUnavailableError",
    "SubscriptionNotFoundError",
    "UnauthenticatedError",
]

_NAMES = {
    "client": ("ClientTls", "CursorPlace", "SeekClient"),
    "message_stamps": ("MessageNotStoredError", "MessageStamp", "MessageStamps"),
    "messages": ("ControlAppended", "ControlRequest", "RemoteEntry"),
    "search": (
        "Finder", "Found", "IndexOutOfRangeError", "IndexPlace", "IndexRange", "SearchMethod",
    ),
    "server": ("SeekServer", "ServerOptions", "ServerTls"),
}  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__, _NAMES)
