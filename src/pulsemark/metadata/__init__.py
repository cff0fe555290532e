"""The stamp on an entry: prefix codec, stampers, clock, and a message's own header.

docs/entry-format.md describes the parts of an entry and what each part may hold.
"""

from __future__ import annotations

from ..proto.broker_entry_pb2 import BrokerEntryMetadata
from ..proto.pulsar_api_pb2 import MessageMetadata
from .buffers import Buffer
from .builtin_stampers import BrokerTimeStamper, IndexStamper, PropertyTagsStamper
from .clock import Clock, SystemClock
from .control import Control, control_metadata, control_of
from .crc import crc32c
from .errors import (
    ChecksumError,
    ControlError,
    DoubleStampError,
    DuplicateStamperError,
    MessageFormatError,
    PrefixError,
    StamperFieldError,
    StamperLoadError,
    StampError,
    StampingError,
    UnknownStamperError,
)
from .message import (
    MESSAGE_MAGIC,
    MESSAGE_METADATA_SIZE_MAX_BYTES,
    MessageHeader,
    compression_of,
    entry_time_ms,
    has_checksum,
    headers_parsed,
    message_count_of,
    pack_message,
    partition_key_of,
    payload_of,
    read_message_metadata,
    verify_checksum,
)
from .message_index import message_index
from .messages import Message, messages_of
from .prefix import (
    PREFIX_HEADER_SIZE_BYTES,
    PREFIX_MAGIC,
    PREFIX_METADATA_SIZE_MAX_BYTES,
    has_prefix,
    pack,
    pack_for_client,
    pack_stamp,
    peek,
    prefix_size_bytes,
    split,
    strip,
)
from .prefix_fields import (
    FieldValue,
    client_prefix,
    field_number_of,
    field_numbers,
    prefix_fields,
    printable,
    tags_of,
)
from .stamp_context import Sender, StampContext, Stamper
from .stamper_plugins import load_stampers
from .stampers import StamperChain
from .tags import add_application_tags, application_tags

__all__ = [
    "MESSAGE_MAGIC",
    "MESSAGE_METADATA_SIZE_MAX_BYTES",
    "PREFIX_HEADER_SIZE_BYTES",
    "PREFIX_MAGIC",
    "PREFIX_METADATA_SIZE_MAX_BYTES",
    "BrokerEntryMetadata",
    "BrokerTimeStamper",
    "Buffer",
    "ChecksumError",
    "Clock",
    "Control",
    "ControlError",
    "DoubleStampError",
    "DuplicateStamperError",
    "FieldValue",
    "IndexStamper",
    "Message",
    "MessageFormatError",
    "MessageHeader",
    "MessageMetadata",
    "PrefixError",
    "PropertyTagsStamper",
    "Sender",
    "StampContext",
    "StampError",
    "Stamper",
    "StamperChain",
    "StamperFieldError",
    "StamperLoadError",
    "StampingError",
    "SystemClock",
    "UnknownStamperError",
    "add_application_tags",
    "application_tags",
    "client_prefix",
    "compression_of",
    "control_metadata",
    "control_of",
    "crc32c",
    "entry_time_ms",
    "field_number_of",
    "field_numbers",
    "has_checksum",
    "has_prefix",
    "headers_parsed",
    "load_stampers",
    "message_count_of",
    "message_index",
    "messages_of",
    "pack",
    "pack_for_client",
    "pack_message",
    "pack_stamp",
    "partition_key_of",
    "payload_of",
    "peek",
    "prefix_fields",
    "prefix_size_bytes",
    "printable",
    "read_message_metadata",
    "split",
    "strip",
    "tags_of",
    "verify_checksum",
]
