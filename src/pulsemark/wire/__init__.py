"""Pulsar's binary protocol without I/O: bytes in, events out; arguments in, bytes out.

    Connection   parses the peer's bytes into events and checks the protocol's rules
    commands     builders of every command that this side sends
    TopicName    names of topics
    MessageId    positions of messages

No code in this package opens a socket or reads a clock.
"""

from . import commands
from .connection import (
    DEFAULT_MAX_MESSAGE_SIZE_BYTES,
    FRAME_PADDING_BYTES,
    Buffer,
    Command,
    Connection,
    Event,
    FrameBuffer,
    Message,
    Role,
    Send,
    Sends,
    Unsupported,
)
from .errors import (
    CommandError,
    CommandTooLargeError,
    FrameError,
    FrameSizeError,
    FrameTooLargeError,
    InvalidFieldError,
    InvalidTextError,
    InvalidTopicNameError,
    LongListError,
    MalformedCommandError,
    MissingFieldError,
    ProtocolError,
    UnexpectedCommandError,
    UnknownCommandError,
)
from .message_id import (
    EARLIEST,
    LATEST,
    MessageId,
    pack_ack_set,
    to_signed,
    to_unsigned,
    unpack_ack_set,
)
from .topic_name import (
    TopicName,
    check_namespace,
    check_namespace_or_older,
    is_older_namespace,
)

__all__ = [
    "DEFAULT_MAX_MESSAGE_SIZE_BYTES",
    "EARLIEST",
    "FRAME_PADDING_BYTES",
    "LATEST",
    "Buffer",
    "Command",
    "CommandError",
    "CommandTooLargeError",
    "Connection",
    "Event",
    "FrameBuffer",
    "FrameError",
    "FrameSizeError",
    "FrameTooLargeError",
    "InvalidFieldError",
    "InvalidTextError",
    "InvalidTopicNameError",
    "LongListError",
    "MalformedCommandError",
    "Message",
    "MessageId",
    "MissingFieldError",
    "ProtocolError",
    "Role",
    "Send",
    "Sends",
    "TopicName",
    "UnexpectedCommandError",
    "UnknownCommandError",
    "Unsupported",
    "check_namespace",
    "check_namespace_or_older",
    "commands",
    "is_older_namespace",
    "pack_ack_set",
    "to_signed",
    "to_unsigned",
    "unpack_ack_set",
]
