"""What a client may call its producers, consumers and subscriptions, and say about them.

These texts are kept as long as the producer or consumer lives, and shown in stats and logs.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...proto.pulsar_api_pb2 import KeyValue, ServerError
from ..errors import RefusedError

__all__ = ["check_name", "check_properties"]

NAME_SIZE_MAX_BYTES = 1024
PROPERTIES_SIZE_MAX_BYTES = 64 * 1024


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
