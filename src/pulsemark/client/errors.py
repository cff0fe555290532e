"""Errors of clients. A frame that breaks the protocol raises a `wire.ProtocolError` instead."""

from __future__ import annotations

from typing import Any

from ..proto import pulsar_api_pb2 as pb


class ClientError(Exception):
    """Base of a client's errors, except ProtocolError for frames that are not valid."""


class WaitTimeoutError(ClientError, TimeoutError):
    """`what` did not arrive within `timeout_s` seconds."""

    def __init__(self, what: str, timeout_s: float) -> None:
        super().__init__(f"no {what} within {timeout_s:g} s")
        self.what = what
        self.timeout_s = timeout_s


class ConnectionLostError(ClientError, ConnectionError):
    """The peer closed the connection while this side waited for `what`."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the connection was closed while waiting for {what}")
        self.what = what


class UnreachableError(ClientError, ConnectionError):
    """No connection to `url` could be made, for the `reason`."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"cannot connect to {url}: {reason}")
        self.url = url
        self.reason = reason


class ServiceUrlError(ValueError):
    """`url` is not the URL of a broker, for the `reason`."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"not a service URL: {url!r}: {reason}")
        self.url = url
        self.reason = reason


class AdminError(ClientError):
    """The admin interface answered a call of `url` with an error: `status` and its `reason`."""

    def __init__(self, url: str, status: int, reason: str) -> None:
        super().__init__(f"{url}: {status} {reason}")
        self.url = url
        self.status = status
        self.reason = reason


class EntryRefusedError(ClientError, ValueError):
    """An entry that cannot be published, for the `reason`. Nothing was sent."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"{topic}: {reason}")
        self.topic = topic
        self.reason = reason


class RequestRefusedError(ClientError):
    """The broker refused a request: `error` (ServerError) with its `message`."""

    def __init__(self, request_id: int, error: int, message: str) -> None:
        name = pb.ServerError.Name(error)
        super().__init__(f"{name}: {message}")
        self.request_id = request_id
        self.error = error
        self.error_name = name
        self.message = message

    @classmethod
    def raise_if_refused(cls, body: Any) -> None:
        """Raise if `body` is ERROR, or a response with an error field."""
        names = body.DESCRIPTOR.fields_by_name
        error = "error" if "error" in names else "error_code"
        message = "message" if "message" in names else "error_message"
        if error in names and body.HasField(error):
            raise cls(body.request_id, getattr(body, error), getattr(body, message))


class SendRefusedError(ClientError):
    """The broker answered SEND_ERROR: `error` (ServerError) with its `message`."""

    def __init__(self, body: pb.CommandSendError) -> None:
        name = pb.ServerError.Name(body.error)
        super().__init__(f"{name}: {body.message}")
        self.producer_id = body.producer_id
        self.sequence_id = body.sequence_id
        self.error = int(body.error)
        self.error_name = name
        self.message = body.message


LOST = (ConnectionLostError, UnreachableError, WaitTimeoutError)
_COME_AGAIN = (pb.ServiceNotReady, pb.ProducerBusy, pb.PersistenceError)


def may_pass(error: Exception) -> bool:
    """Whether a retry may succeed: a connection is lost, a topic moves, a disk fails, or the broker
    has not noticed yet that an earlier connection is gone.
    """
    return isinstance(error, LOST) or getattr(error, "error", None) in _COME_AGAIN
