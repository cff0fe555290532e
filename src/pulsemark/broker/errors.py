"""What can go wrong in the broker, each error with its facts as attributes.

Two families:

- `BrokerError`: for whoever starts or embeds the broker. ::

      BrokerError
      ├── ConfigError         (also a ValueError)  field, value, reason
      ├── PortInUseError      (also an OSError)    host, port
      ├── BrokerStateError    (also a RuntimeError) needed, actual
      └── NoDataFolderError   a broker in memory was asked for its data folder

  A data folder that is locked, foreign or of a newer format raises the ledger's own typed errors;
  the broker passes them through unchanged.

- `RefusedError`: a command that is answered with an ERROR (or the error fields of its own
  response). It never leaves the session that handles the command.
"""

from __future__ import annotations

import errno

from ..proto.pulsar_api_pb2 import ServerError

__all__ = [
    "BrokerError",
    "BrokerStateError",
    "ConfigError",
    "NoDataFolderError",
    "PortInUseError",
    "RefusedError",
]


class BrokerError(Exception):
    """Base of the errors a broker raises towards its own process."""


class ConfigError(BrokerError, ValueError):
    """A configuration value that cannot be used.

    `field` is the name in `BrokerConfig`, `value` what was given, `reason` what was expected.
    """

    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(f"{field}={value!r}: {reason}")
        self.field = field
        self.value = value
        self.reason = reason


class PortInUseError(BrokerError, OSError):
    """Another process listens on `host`:`port` already."""

    def __init__(self, host: str, port: int) -> None:
        OSError.__init__(self, errno.EADDRINUSE, f"{host}:{port} is in use by another process")
        self.host = host
        self.port = port


class BrokerStateError(BrokerError, RuntimeError):
    """The broker was asked for something that its present state cannot give."""

    def __init__(self, needed: str, actual: str) -> None:
        super().__init__(f"the broker must be {needed}, and is {actual}")
        self.needed = needed
        self.actual = actual


class NoDataFolderError(BrokerError):
    """The broker keeps everything in memory, and has no data folder."""

    def __init__(self) -> None:
        super().__init__("a broker with storage='memory' has no data folder")


class RefusedError(Exception):
    """A command is refused: `code` is Pulsar's ServerError, `message` the text for the client."""

    def __init__(self, code: ServerError, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
