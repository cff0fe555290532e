"""A topic's schemas as the catalog stores them: `[size u32][Schema]` each, by version from 0 on."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ..proto.pulsar_api_pb2 import Schema

_SIZE = struct.Struct(">I")


def pack_schemas(schemas: Sequence[Schema]) -> bytes:
    """The stored form."""
    parts = (schema.SerializeToString() for schema in schemas)
    return b"".join(_SIZE.pack(len(part)) + part for part in parts)


def unpack_schemas(stored: bytes) -> list[Schema]:
    """The schemas, by version."""
    schemas: list[Schema] = []
    at = 0
    while at < len(stored):
        (size,) = _SIZE.unpack_from(stored, at)
        at += _SIZE.size
        schemas.append(Schema.FromString(stored[at : at + size]))
        at += size
    return schemas
