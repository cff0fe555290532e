"""The stamp on an entry: prefix codec, stampers, clock, and a message's own header.

What an entry is made of, and what each part may hold, is told in docs/entry-format.md.
"""

from __future__ import annotations

from ..proto.broker_entry_pb2 import BrokerEntryMetadata
from ..proto.pulsar_api_pb2 import MessageMetadata
from .buffers import Buffer
from .clock import Clock, SystemClock, next_stamp_ms
from .crc import crc32c
from .errors import (
    ChecksumError,
    DoubleStampError,
    DuplicateStamperError,
    MessageFormatError,
    PrefixError,
    StamperLoadError,
    StampError,
    StampingError,
    UnknownStamperError,
)
from .message import (
    MESSAGE_MAGIC,
    MESSAGE_METADATA_SIZE_MAX_BYTES,
    compression_of,
    entry_time_ms,
    has_checksum,
    message_count_of,
    partition_key_of,
    payload_of,
    read_message_metadata,
    verify_checksum,
)
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
from .stampers import (
    BrokerTimeStamper,
    IndexStamper,
    PropertyTagsStamper,
    StampContext,
    Stamper,
    StamperChain,
    load_stampers,
)
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
    "DoubleStampError",
    "DuplicateStamperError",
    "IndexStamper",
    "MessageFormatError",
    "MessageMetadata",
    "PrefixError",
    "PropertyTagsStamper",
    "StampContext",
    "StampError",
    "Stamper",
    "StamperChain",
    "StamperLoadError",
    "StampingError",
    "SystemClock",
    "UnknownStamperError",
    "add_application_tags",
    "application_tags",
    "compression_of",
    "crc32c",
    "entry_time_ms",
    "has_checksum",
    "has_prefix",
    "load_stampers",
    "message_count_of",
    "next_stamp_ms",
    "pack",
    "pack_for_client",
    "pack_stamp",
    "partition_key_of",
    "payload_of",
    "peek",
    "prefix_size_bytes",
    "read_message_metadata",
    "split",
    "strip",
    "verify_checksum",
]
