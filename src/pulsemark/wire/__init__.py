"""Pulsar's binary protocol without I/O: bytes in, events out; arguments in, bytes out.

    Connection   what the other side says, as events, under the protocol's rules
    commands     builders of everything this side says
    TopicName    names of topics; MessageId: places of messages

Nothing here opens a socket or knows a clock.
"""

from . import commands
from .connection import (
    DEFAULT_MAX_MESSAGE_SIZE_BYTES,
    Command,
    Connection,
    Event,
    Message,
    Role,
    Send,
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
    MalformedCommandError,
    MissingFieldError,
    ProtocolError,
    UnexpectedCommandError,
    UnknownCommandError,
)
from .frames import FRAME_PADDING_BYTES, Buffer, FrameBuffer
from .message_id import (
    EARLIEST,
    LATEST,
    MessageId,
    pack_ack_set,
    to_signed,
    to_unsigned,
    unpack_ack_set,
)
from .topic_name import TopicName, check_namespace

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
    "MalformedCommandError",
    "Message",
    "MessageId",
    "MissingFieldError",
    "ProtocolError",
    "Role",
    "Send",
    "TopicName",
    "UnexpectedCommandError",
    "UnknownCommandError",
    "Unsupported",
    "check_namespace",
    "commands",
    "pack_ack_set",
    "to_signed",
    "to_unsigned",
    "unpack_ack_set",
]
