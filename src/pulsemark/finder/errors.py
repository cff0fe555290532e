"""Errors of the seek service, raised alike by the server's code and by its Python client.

A call refused over gRPC raises in the client the same class, with the same facts, as the finder
raises beside the ledger: `TopicNotFoundError` and `CorruptEntryError` (ledger),
`IndexOutOfRangeError` (search) and those below. What only a network call can meet derives from
`SeekCallError`.

This module must not import grpc: a source of topics (a broker, say) raises these errors, and it
does not pay for grpc where no gRPC port is open.
"""

from __future__ import annotations


class InvalidFieldError(ValueError):
    """A request's field is missing or bad (INVALID_ARGUMENT)."""

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{field}: {reason}")


class SubscriptionNotFoundError(LookupError):
    """The topic has no subscription of that name (NOT_FOUND)."""

    def __init__(self, topic: str, subscription: str) -> None:
        self.topic = topic
        self.subscription = subscription
        super().__init__(f"{topic} has no subscription {subscription!r}")


class CursorBusyError(Exception):
    """Another reset of the same subscription is under way (ABORTED): try again."""

    def __init__(self, topic: str, subscription: str) -> None:
        self.topic = topic
        self.subscription = subscription
        super().__init__(f"subscription {subscription!r} of {topic} is just being reset")


class NotPossibleError(Exception):
    """This server or this topic cannot do it, however often it is asked (FAILED_PRECONDITION)."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class ServerFullError(Exception):
    """The server has no place for another call of this kind (RESOURCE_EXHAUSTED): try later."""


class StreamStalledError(Exception):
    """The receiver of a stream took nothing for `waited_s` seconds (RESOURCE_EXHAUSTED)."""

    def __init__(self, waited_s: float) -> None:
        self.waited_s = waited_s
        super().__init__(f"the stream was ended: nothing was read for {waited_s:.0f} s")


class SeekCallError(Exception):
    """A call failed for a reason that is not the search's own; `code` is gRPC's name for it."""

    def __init__(self, code: str, details: str) -> None:
        self.code = code
        self.details = details
        super().__init__(f"{code}: {details}" if details else code)


class UnauthenticatedError(SeekCallError):
    """The bearer token is missing or wrong."""


class ServerUnavailableError(SeekCallError, ConnectionError):
    """Nobody answers at the target, or the topic is being closed or moved: try again."""


class DeadlineExceededError(SeekCallError, TimeoutError):
    """The answer did not come in time; the server has stopped working on it."""


class BindError(OSError):
    """The gRPC server could not listen on the address: taken, not permitted or not ours."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        super().__init__(f"gRPC cannot listen on {host} port {port}")
