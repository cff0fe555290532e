"""Errors of the seek service, raised by the server's code and by its Python client alike.

If a gRPC call is refused, the client raises the same class, with the same facts, as a local finder:
`TopicNotFoundError` and `CorruptEntryError` (ledger), `IndexOutOfRangeError` (search) and the
errors below. Errors that only a network call can have derive from `SeekCallError`.

This module must not import grpc. A source of topics, such as a broker, raises these errors, and a
broker without a gRPC port should not load grpc.
"""

from __future__ import annotations


class InvalidFieldError(ValueError):
    """A request's field is missing or bad (INVALID_ARGUMENT)."""

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{field}: {reason}")


class BlockingCallError(RuntimeError):
    """A call of `SeekClient` would block the asyncio loop that runs in this thread."""

    def __init__(self, call: str) -> None:
        super().__init__(
            f"SeekClient: {call} would block the asyncio loop that runs in this thread; use "
            "asyncio.to_thread"
        )


class SubscriptionNotFoundError(LookupError):
    """The topic has no subscription with that name (NOT_FOUND)."""

    def __init__(self, topic: str, subscription: str) -> None:
        self.topic = topic
        self.subscription = subscription
        super().__init__(f"{topic} has no subscription {subscription!r}")


class CursorBusyError(Exception):
    """Another reset of the same subscription is running (ABORTED): try again."""

    def __init__(self, topic: str, subscription: str) -> None:
        self.topic = topic
        self.subscription = subscription
        super().__init__(
            f"subscription {subscription!r} of {topic} is being reset by another call; try again"
        )


class NotPossibleError(Exception):
    """This server or this topic cannot do it; a repeated call fails too (FAILED_PRECONDITION)."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class ServerFullError(Exception):
    """The server serves no more calls of this kind at a time (RESOURCE_EXHAUSTED): try later."""


class StreamStalledError(Exception):
    """The receiver of a stream read nothing for `waited_s` seconds (RESOURCE_EXHAUSTED)."""

    def __init__(self, waited_s: float) -> None:
        self.waited_s = waited_s
        super().__init__(f"the stream was ended: its client read nothing for {waited_s:.0f} s")


class SeekCallError(Exception):
    """A call failed, but not because of the search itself; `code` is gRPC's name of the reason."""

    def __init__(self, code: str, details: str) -> None:
        self.code = code
        self.details = details
        super().__init__(f"{code}: {details}" if details else code)


class UnauthenticatedError(SeekCallError):
    """The bearer token is missing or wrong."""


class PermissionDeniedError(SeekCallError):
    """The call is off at this server, or the bearer token is not for it."""


class ServerUnavailableError(SeekCallError, ConnectionError):
    """No server answers at the target, or the topic is being closed or moved: try again."""


class DeadlineExceededError(SeekCallError, TimeoutError):
    """The answer did not arrive in time; the server has stopped working on it."""


class ClientClosedError(SeekCallError):
    """A call of a client that was closed; nothing was sent."""

    def __init__(self) -> None:
        super().__init__("CANCELLED", "the client was closed")


class BindError(OSError):
    """The gRPC server cannot listen: the address is in use, not permitted or not this machine's."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        super().__init__(
            f"gRPC cannot listen on {host} port {port}: it is in use, not permitted or not local"
        )
