"""How brokers of one machine talk to their supervisor's tree: lines of JSON on a Unix socket.

    {"id": 1, "do": "get", "path": "/a"}            {"id": 1, "is": ["ZGF0YQ==", 0]}
    {"id": 2, "do": "set", "path": "/b", ...}       {"id": 2, "error": "NodeMissingError", ...}
                                                    {"watch": 7}

Bytes are base64. Both sides are of one version: they belong to one run of one program.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

from . import errors
from .protocol import Check, Create, Delete, Operation, Set

MAX_LINE_BYTES = 64 * 1024 * 1024
KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Create, Set, Delete, Check)}


def line_of(message: dict[str, Any]) -> bytes:
    """A message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def text_of(data: bytes) -> str:
    """Bytes as text."""
    return b64encode(data).decode()


def bytes_of(text: str) -> bytes:
    """The bytes of such a text."""
    return b64decode(text)


def packed(operation: Operation) -> list[Any]:
    """An operation of a transaction as a list."""
    fields = [getattr(operation, name) for name in operation.__slots__]
    return [
        type(operation).__name__,
        *(["b", text_of(one)] if isinstance(one, bytes) else one for one in fields),
    ]


def unpacked(values: list[Any]) -> Operation:
    """The operation of such a list."""
    kind, *fields = values
    made: Operation = KINDS[kind](
        *(bytes_of(one[1]) if isinstance(one, list) else one for one in fields)
    )
    return made


def error_of(name: str, path: str, reason: str) -> errors.CoordinationError:
    """The error that the other side has raised."""
    kind: type[errors.CoordinationError] = getattr(errors, name, errors.CoordinationError)
    return kind(path, reason)
