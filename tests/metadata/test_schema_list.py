"""A topic's schemas in the catalog's form."""

from __future__ import annotations

from pulsemark.metadata.schema_list import pack_schemas, unpack_schemas
from pulsemark.proto.pulsar_api_pb2 import Schema


def test_schemas_are_read_as_they_were_written() -> None:
    """All versions, in order; none is b""."""
    schemas = [
        Schema(name="a", type=Schema.Json, schema_data=b"{}"),
        Schema(name="b", type=Schema.String, schema_data=b""),
    ]
    assert unpack_schemas(pack_schemas(schemas)) == schemas
    assert (pack_schemas([]), unpack_schemas(b"")) == (b"", [])
    assert pack_schemas(schemas).startswith(pack_schemas(schemas[:1]))
