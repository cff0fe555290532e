"""What an entry must be to be appended, and which checksum and time it brings along."""

from __future__ import annotations

from ..metadata import MessageFormatError, MessageHeader, has_prefix, verify_checksum
from .errors import AlreadyStampedError, EntryTooLargeError
from .files import Buffer
from .segment_format import BODY_CRC_OURS, BODY_CRC_PRODUCER, MAX_PREFIX_BYTES


def body_check_of(topic: str, body: Buffer) -> int:
    """Whether the producer's own checksum, verified here, guards the body, or ours is to.

    Raises AlreadyStampedError for a body with a prefix, ChecksumError.
    """
    if has_prefix(body):
        raise AlreadyStampedError(topic)
    return BODY_CRC_PRODUCER if len(body) >= 6 and verify_checksum(body) else BODY_CRC_OURS


def check_size(topic: str, prefix: bytes, body: Buffer, limit_bytes: int) -> None:
    """Raise EntryTooLargeError for an entry, or a prefix, beyond the limits."""
    size = len(prefix) + len(body)
    if size > limit_bytes:
        raise EntryTooLargeError(topic, size, limit_bytes)
    if len(prefix) > MAX_PREFIX_BYTES:
        raise EntryTooLargeError(topic, len(prefix), MAX_PREFIX_BYTES)


def time_of_entry(header: MessageHeader, now_ms: int) -> int:
    """PIP-70's time of an entry without a stamp of time: its publish time, else ``now_ms``."""
    try:
        return header.publish_time_ms()
    except MessageFormatError:
        return now_ms
