"""What members of consumer groups have subscribed to.

The metadata of a member with the protocol type "consumer" says it, in a format that all of Kafka's
clients share. A broker needs it for OffsetDelete only.
"""

from __future__ import annotations

import struct

from kafka.protocol.consumer import ConsumerProtocolSubscription

from .member import Member

__all__ = ["CONSUMER", "subscribes"]

CONSUMER = "consumer"
"""The protocol type of groups whose members' metadata is such a subscription."""

_DECODE_ERRORS = (struct.error, IndexError, ValueError, OverflowError, MemoryError, TypeError)


def subscribes(member: Member, topic: str) -> bool:
    """Whether a member of a consumer group reads a topic; true if its metadata cannot be read."""
    for _, metadata in member.joining.protocols:
        try:
            topics = ConsumerProtocolSubscription.decode(metadata).topics
        except _DECODE_ERRORS:
            return True
        if topic in (topics or ()):
            return True
    return False
