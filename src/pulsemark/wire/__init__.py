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

if TYPE_CHECKING:
    from . import commands as commands
    from .connection import DEFAULT_MAX_MESSAGE_SIZE_BYTES as DEFAULT_MAX_MESSAGE_SIZE_BYTES
    from .connection import FRAME_PADDING_BYTES as FRAME_PADDING_BYTES
    from .connection import Buffer as Buffer
    from .connection import Command as Command
    from .connection import Connection as Connection
    from .connection import Event as Event
    from .connection import FrameBuffer as FrameBuffer
    from .connection import Message as Message
    from .connection import Role as Role
    from .connection import Send as Send
    from .connection import Sends as Sends
    from .connection import Unsupported as Unsupported
    from .errors import InvalidTopicNameError as InvalidTopicNameError
    from .errors import ProtocolError as ProtocolError
    from .message_id import EARLIEST as EARLIEST
    from .message_id import LATEST as LATEST
    from .message_id import MessageId as MessageId
    from .message_id import pack_ack_set as pack_ack_set
    from .message_id import to_signed as to_signed
    from .message_id import to_unsigned as to_unsigned
    from .message_id import unpack_ack_set as unpack_ack_set
    from .topic_name import TopicName as TopicName
    from .topic_name import check_namespace as check_namespace
    from .topic_name import check_namespace_or_older as check_namespace_or_older
    from .topic_name import is_older_namespace as is_older_namespace

_NAMES = {
    "": ("commands",),
    "connection": (
        "DEFAULT_MAX_MESSAGE_SIZE_BYTES", "FRAME_PADDING_BYTES", "Buffer", "Command", "Connection",
        "Event", "FrameBuffer", "Message", "Role", "Send", "Sends", "Unsupported",
    ),
    "errors": ("InvalidTopicNameError", "ProtocolError"),
    "message_id": (
        "EARLIEST", "LATEST", "MessageId", "pack_ack_set", "to_signed", "to_unsigned",
        "unpack_ack_set",
    ),
    "topic_name": (
        "TopicName", "check_namespace", "check_namespace_or_older", "is_older_namespace",
    ),
}  # fmt: skip

__all__ = sorted(name for names in _NAMES.values() for name in names)  # noqa: PLE0605 - the table is the list

__getattr__, __dir__ = lazy_names(__name__, _NAMES)
