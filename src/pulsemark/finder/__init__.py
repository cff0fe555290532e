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

if TYPE_CHECKING:
    from .client import ClientTls as ClientTls
    from .client import CursorPlace as CursorPlace
    from .client import SeekClient as SeekClient
    from .errors import BindError as BindError
    from .errors import BlockingCallError as BlockingCallError
    from .errors import ClientClosedError as ClientClosedError
    from .errors import CursorBusyError as CursorBusyError
    from .errors import DeadlineExceededError as DeadlineExceededError
    from .errors import InvalidFieldError as InvalidFieldError
    from .errors import NotPossibleError as NotPossibleError
    from .errors import PermissionDeniedError as PermissionDeniedError
    from .errors import SeekCallError as SeekCallError
    from .errors import ServerUnavailableError as ServerUnavailableError
    from .errors import SubscriptionNotFoundError as SubscriptionNotFoundError
    from .errors import UnauthenticatedError as UnauthenticatedError
    from .message_stamps import MessageNotStoredError as MessageNotStoredError
    from .message_stamps import MessageStamp as MessageStamp
    from .message_stamps import MessageStamps as MessageStamps
    from .messages import ControlAppended as ControlAppended
    from .messages import ControlRequest as ControlRequest
    from .messages import RemoteEntry as RemoteEntry
    from .search import Finder as Finder
    from .search import Found as Found
    from .search import IndexOutOfRangeError as IndexOutOfRangeError
    from .search import IndexPlace as IndexPlace
    from .search import IndexRange as IndexRange
    from .search import SearchMethod as SearchMethod
    from .server import SeekServer as SeekServer
    from .server import ServerOptions as ServerOptions
    from .server import ServerTls as ServerTls

_NAMES = {
    "client": ("ClientTls", "CursorPlace", "SeekClient"),
    "errors": (
        "BindError", "BlockingCallError", "ClientClosedError", "CursorBusyError",
        "DeadlineExceededError", "InvalidFieldError", "NotPossibleError", "PermissionDeniedError",
        "SeekCallError", "ServerUnavailableError", "SubscriptionNotFoundError",
        "UnauthenticatedError",
    ),
    "message_stamps": ("MessageNotStoredError", "MessageStamp", "MessageStamps"),
    "messages": ("ControlAppended", "ControlRequest", "RemoteEntry"),
    "search": (
        "Finder", "Found", "IndexOutOfRangeError", "IndexPlace", "IndexRange", "SearchMethod",
    ),
    "server": ("SeekServer", "ServerOptions", "ServerTls"),
}  # fmt: skip

__all__ = sorted(name for names in _NAMES.values() for name in names)  # noqa: PLE0605 - the table is the list

__getattr__, __dir__ = lazy_names(__name__, _NAMES)
