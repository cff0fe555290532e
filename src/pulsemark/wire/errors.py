"""The errors in bytes from the peer. Programs read their attributes; the text is for people.

Every violation of the framing or of the order of commands ends the connection, as in Pulsar (see
also the comments of PulsarApi.proto). After a violation, it is not known where the next frame
begins, or the peer does not speak the protocol. Only an `InvalidTopicNameError` is answered.
"""

from __future__ import annotations


class ProtocolError(Exception):
    """The peer violated the protocol; the connection must be closed."""


class FrameError(ProtocolError):
    """The sizes in front of a command are wrong."""


class FrameTooLargeError(FrameError):
    """totalSize is above the limit; the frame was refused before it was buffered."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"frame of {size_bytes} bytes is above the limit of {limit_bytes}")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class CommandTooLargeError(FrameError):
    """commandSize is above the limit; the command was refused before it was buffered."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"command of {size_bytes} bytes is above the limit of {limit_bytes}")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class FrameSizeError(FrameError):
    """totalSize and commandSize contradict each other, or leave no room for a command.

    `command_size_bytes` is None if totalSize alone is already impossible.
    """

    def __init__(self, total_size_bytes: int, command_size_bytes: int | None) -> None:
        command = "" if command_size_bytes is None else f" and commandSize {command_size_bytes}"
        super().__init__(f"totalSize {total_size_bytes}{command} cannot be a frame's sizes")
        self.total_size_bytes = total_size_bytes
        self.command_size_bytes = command_size_bytes


class CommandError(ProtocolError):
    """A whole frame without a usable command; `type` (BaseCommand.Type) None: unreadable."""

    def __init__(self, type: int | None, message: str) -> None:  # noqa: A002 - the field's name
        super().__init__(message)
        self.type = type


class MalformedCommandError(CommandError):
    """The command is not the protobuf message it should be."""

    def __init__(self, type: int | None, size_bytes: int) -> None:  # noqa: A002
        super().__init__(type, f"command of {size_bytes} bytes cannot be parsed")
        self.size_bytes = size_bytes


class UnknownCommandError(CommandError):
    """The type is a number that Pulsar has never defined (`type`), or missing (None)."""

    def __init__(self, type: int | None) -> None:  # noqa: A002
        what = "command without type" if type is None else f"unknown command type {type}"
        super().__init__(type, what)


class MissingFieldError(CommandError):
    """Required fields are missing; `fields` names them, as protobuf paths."""

    def __init__(self, type: int, name: str, fields: tuple[str, ...]) -> None:  # noqa: A002
        super().__init__(type, f"{name} lacks {', '.join(fields)}")
        self.name = name
        self.fields = fields


class InvalidTextError(CommandError):
    """The string field `field` (a protobuf path) is not UTF-8."""

    def __init__(self, type: int, name: str, field: str) -> None:  # noqa: A002
        super().__init__(type, f"{name}.{field} is not UTF-8")
        self.name = name
        self.field = field


class InvalidFieldError(CommandError):
    """The field `field` has a value that no command may have."""

    def __init__(self, type: int, name: str, field: str, value: int) -> None:  # noqa: A002
        super().__init__(type, f"{name}.{field} must not be {value}")
        self.name = name
        self.field = field
        self.value = value


class LongListError(CommandError):
    """The list `field` of a request has `count` values, more than `most`."""

    def __init__(self, type: int, name: str, field: str, count: int, most: int) -> None:  # noqa: A002
        super().__init__(type, f"{name}.{field} has {count} values; at most {most} are allowed")
        self.name = name
        self.field = field
        self.count = count
        self.most = most


class UnexpectedCommandError(CommandError):
    """A valid command at the wrong time (before or after the handshake) or from the wrong side."""

    def __init__(self, type: int, name: str, reason: str) -> None:  # noqa: A002
        super().__init__(type, f"{name} {reason}")
        self.name = name
        self.reason = reason


class InvalidTopicNameError(ValueError):
    """`name` is not the name of a topic; `reason` says why, in a text for the client."""

    def __init__(self, name: str, reason: str) -> None:
        shown = name if len(name) <= 80 else f"{name[:77]}..."
        super().__init__(f"invalid topic name {shown!r}: {reason}")
        self.name = name
        self.reason = reason
