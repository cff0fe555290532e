"""The broker's errors. Each error has its facts as attributes.

Two families:

- `BrokerError`: for the program that starts or embeds the broker. ::

      BrokerError
      ├── ConfigError         (also a ValueError)  field, value, reason
      ├── PortInUseError      (also an OSError)    host, port
      ├── CannotListenError   (also an OSError)    host, port
      ├── BrokerStateError    (also a RuntimeError) needed, actual
      ├── OwnLoopError        (also a RuntimeError) call
      └── NoDataFolderError   a broker in memory was asked for its data folder

  A data folder that is locked, foreign or of a newer format raises the ledger's own typed errors;
  the broker passes them through unchanged.

- `RefusedError`: a command is answered with an ERROR (or with the error fields of its own
  response). The session that handles the command catches it.
"""

from __future__ import annotations

import errno

from google.protobuf.message import Message

from ..proto.pulsar_api_pb2 import ServerError


class BrokerError(Exception):
    """Base of the errors that a broker raises to the program that runs it."""


class ConfigError(BrokerError, ValueError):
    """A configuration value that cannot be used.

    `field` is the name in `BrokerConfig`, `value` the value given, `reason` what was expected.
    """

    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(f"{field}={value!r}: {reason}")
        self.field = field
        self.value = value
        self.reason = reason


class PortInUseError(BrokerError, OSError):
    """Another process already listens on `host`:`port`."""

    def __init__(self, host: str, port: int) -> None:
        OSError.__init__(self, errno.EADDRINUSE, f"{host}:{port} is in use by another process")
        self.host = host
        self.port = port


class CannotListenError(BrokerError, OSError):
    """The system does not let the broker listen on `host`:`port`; `errno` says why."""

    def __init__(self, host: str, port: int, cause: OSError) -> None:
        reason = cause.strerror or str(cause)
        OSError.__init__(self, cause.errno, f"cannot listen on {host} port {port}: {reason}")
        self.host = host
        self.port = port


class BrokerStateError(BrokerError, RuntimeError):
    """A call that the broker's present state does not allow (`needed`, `actual`)."""

    def __init__(self, needed: str, actual: str) -> None:
        super().__init__(f"the broker must be {needed}, but it is {actual}")
        self.needed = needed
        self.actual = actual


class OwnLoopError(BrokerError, RuntimeError):
    """A call that would wait for the broker's event loop was made on that loop (`call`)."""

    def __init__(self, call: str) -> None:
        reason = "would wait for the broker's event loop, on which it was called"
        super().__init__(f"{call} {reason}; call it from another thread")
        self.call = call


class NoDataFolderError(BrokerError):
    """The broker keeps everything in memory or in BookKeeper, and has no data folder."""

    def __init__(self) -> None:
        super().__init__("a broker in memory or in BookKeeper has no data folder")


class RefusedError(Exception):
    """A command is refused: `code` is Pulsar's ServerError, `message` the text for the client."""

    #: The class of the command's own response, which has the refusal; None: an ERROR has it.
    answer: type[Message] | None = None

    def __init__(self, code: ServerError, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def java_refusal(code: ServerError, exception: str, message: str) -> RefusedError:
    """A refusal whose text begins with the class of the exception in Pulsar's broker, as there.

    Pulsar sends these texts to clients, which log them and sometimes search in them.
    """
    kind = f"org.apache.pulsar.broker.service.BrokerServiceException${exception}"
    return RefusedError(code, f"{kind}: {message}")


class IncompatibleSchemaError(RefusedError):
    """A schema that does not fit the topic's schemas, or that may not be added to them."""

    def __init__(self, message: str) -> None:
        super().__init__(ServerError.IncompatibleSchema, message)


class InvalidSchemaError(RefusedError):
    """A schema's definition that cannot be registered; `summary` is the message without details."""

    def __init__(self, message: str, reason: str = "") -> None:
        full = f"{message} caused by {reason[:1000]}" if reason else message
        super().__init__(ServerError.IncompatibleSchema, full)
        self.summary = message


class LimitReachedError(RefusedError):
    """A policy's limit is reached: over HTTP this is a conflict (409)."""
