"""What a client may call its producers, consumers and subscriptions, and say about them.

These texts are kept as long as the producer or consumer lives, and shown in stats and logs. What
they take in memory is counted for the connection (`memory.KeptMemory`).
"""

from __future__ import annotations

from collections.abc import Iterable

from ...proto.pulsar_api_pb2 import CommandProducer, CommandSubscribe, KeyValue, ServerError
from ..errors import RefusedError

__all__ = ["check_name", "check_properties", "consumer_state_bytes", "producer_state_bytes"]

NAME_SIZE_MAX_BYTES = 1024
PROPERTIES_SIZE_MAX_BYTES = 64 * 1024

#: What a producer or consumer takes in memory without its texts, measured and rounded up.
STATE_BYTES = 2 * 1024
#: What a property takes beside its characters: two strings and a place in a dictionary.
PROPERTY_BYTES = 200
#: What a Key_Shared hash range takes, measured and rounded up.
HASH_RANGE_BYTES = 64
#: Python holds a text in up to four bytes a character.
BYTES_PER_CHARACTER = 4


def check_name(what: str, name: str) -> None:
    """Refuse a name that is too long."""
    size_bytes = len(name.encode())
    if size_bytes > NAME_SIZE_MAX_BYTES:
        raise RefusedError(
            ServerError.NotAllowedError,
            f"the {what} has {size_bytes} bytes, at most {NAME_SIZE_MAX_BYTES} are allowed",
        )


def check_properties(what: str, pairs: Iterable[KeyValue]) -> None:
    """Refuse properties that are too large together."""
    size_bytes = sum(pair.ByteSize() for pair in pairs)
    if size_bytes > PROPERTIES_SIZE_MAX_BYTES:
        raise RefusedError(
            ServerError.NotAllowedError,
            f"the {what} have {size_bytes} bytes, at most {PROPERTIES_SIZE_MAX_BYTES} are allowed",
        )


def producer_state_bytes(command: CommandProducer) -> int:
    """What a producer makes the broker keep in memory, at most."""
    texts = (command.topic, command.producer_name)
    return STATE_BYTES + _texts_bytes(texts) + _properties_bytes(command.metadata)


def consumer_state_bytes(command: CommandSubscribe) -> int:
    """What a consumer makes the broker keep in memory, at most."""
    texts = (command.topic, command.subscription, command.consumer_name)
    return (
        STATE_BYTES
        + _texts_bytes(texts)
        + _properties_bytes(command.metadata)
        + _properties_bytes(command.subscription_properties)
        + HASH_RANGE_BYTES * len(command.keySharedMeta.hashRanges)
    )


def _texts_bytes(texts: Iterable[str]) -> int:
    return sum(BYTES_PER_CHARACTER * len(text) for text in texts)


def _properties_bytes(pairs: Iterable[KeyValue]) -> int:
    return sum(PROPERTY_BYTES + _texts_bytes((pair.key, pair.value)) for pair in pairs)
