"""Pulsar's binary protocol without I/O: bytes in, events out; arguments in, bytes out.

    Connection   parses the peer's bytes into events and checks the protocol's rules
    commands     builders of every command that this side sends
    TopicName    names of topics
    MessageId    positions of messages

No code in this package opens a socket or reads a clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names
from .errors import InvalidTopicNameError, ProtocolError
from .topic_name import TopicName, check_namespace, check_namespace_or_older, is_older_namespace

if TYPE_CHECKING:
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
    from .message_id import (
        EARLIEST,
        LATEST,
        MessageId,
        pack_ack_set,
        to_signed,
        to_unsigned,
        unpack_ack_set,
    )

_NAMES = {
    "": ("commands",),
    "connection": (
        "DEFAULT_MAX_MESSAGE_SIZE_BYTES", "FRAME_PADDING_BYTES", "Buffer", "Command", "Connection",
        "Event", "FrameBuffer", "Message", "Role", "Send", "Sends", "Unsupported",
    ),
    "message_id": (
        "EARLIEST", "LATEST", "MessageId", "pack_ack_set", "to_signed", "to_unsigned",
        "unpack_ack_set",
    ),
}  # fmt: skip
__getattr__, __dir__ = lazy_names(__name__, _NAMES)

__all__ = [
    "DEFAULT_MAX_MESSAGE_SIZE_BYTES",
    "EARLIEST",
    "FRAME_PADDING_BYTES",
    "LATEST",
    "Buffer",
    "Command",
    "Connection",
    "Event",
    "FrameBuffer",
    "InvalidTopicNameError",
    "Message",
    "MessageId",
    "ProtocolError",
    "Role",
    "Send",
    "Sends",
    "TopicName",
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
