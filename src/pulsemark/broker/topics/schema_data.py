"""What a schema consists of: Pulsar's names of types, valid definitions, pairs of key and value.

A KEY_VALUE definition is `[size u32][key's definition][size u32][value's definition]`; the types of
both are in its properties. Over REST it is JSON: `{"key": ..., "value": ...}`.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from typing import Any, NamedTuple

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError

from ...proto.pulsar_api_pb2 import KeyValue, Schema
from ..errors import InvalidSchemaError
from .avro_schemas import AvroDefinition

__all__ = [
    "AVRO_KINDS",
    "CLIENT_SIDE",
    "KEY_VALUE",
    "NATIVE",
    "Parts",
    "check_schema_data",
    "kind_of",
    "parse_kind",
    "parts_of",
    "root_message",
    "shown_data",
    "stored_data",
]

#: The admin interface's names of schema types, for names that are not only upper-cased.
NAMES = {
    "ProtobufNative": "PROTOBUF_NATIVE",
    "KeyValue": "KEY_VALUE",
    "LocalDate": "LOCAL_DATE",
    "LocalTime": "LOCAL_TIME",
    "LocalDateTime": "LOCAL_DATE_TIME",
    "AutoConsume": "AUTO_CONSUME",
    "Bool": "BOOLEAN",
}
TYPES = {NAMES.get(name, name.upper()): value for name, value in Schema.Type.items()}
KINDS = {value: name for name, value in TYPES.items()}
#: Types that are never registered. (BYTES has no number on the wire: it is stored as NONE.)
CLIENT_SIDE = ("AUTO", "AUTO_CONSUME", "AUTO_PUBLISH", "EXTERNAL")
KEY_VALUE = "KEY_VALUE"
NATIVE = "PROTOBUF_NATIVE"
#: Types whose definitions are Avro's.
AVRO_KINDS = ("AVRO", "JSON", "PROTOBUF")
#: Top-level types of a JSON schema of Jackson's, which clients before Pulsar 2.1 registered.
JACKSON_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null", "any"}
_SIZE = struct.Struct(">i")


class Parts(NamedTuple):
    """The schemas of key and value."""

    key: Schema
    value: Schema


def kind_of(schema: Schema) -> str:
    """Pulsar's name of the schema's type."""
    return KINDS[schema.type]


def parse_kind(name: str) -> int | None:
    """The type's number on the wire; None for an unknown name or a type of clients only."""
    if name in CLIENT_SIDE:
        return None
    return TYPES.get("NONE" if name == "BYTES" else name)


def check_schema_data(schema: Schema) -> None:
    """Raise `InvalidSchemaError` if a broker must not register this definition.

    It can take some 100 ms: call it in a thread.
    """
    kind = kind_of(schema)
    if kind in CLIENT_SIDE:
        raise InvalidSchemaError(f"Schema {kind} is a client-side schema type")
    if kind in AVRO_KINDS:
        check_definition(schema)
    elif kind == NATIVE:
        root_message(schema)
    elif kind == KEY_VALUE:
        for part in parts_of(schema):
            check_schema_data(part)
    elif kind == "STRING":
        # The official C++ and Python clients send the JSON value null.
        if schema.schema_data not in (b"", b"null"):
            shown = schema.schema_data[:100].decode(errors="replace")
            raise InvalidSchemaError(
                f"Invalid schema definition data for string schema : '{shown}'"
            )
    elif kind != "NONE" and schema.schema_data:
        raise InvalidSchemaError(
            "Invalid schema definition data for primitive schemas :length of schema data should "
            f"be zero, but {len(schema.schema_data)} bytes is found"
        )


def check_definition(schema: Schema) -> None:
    """Check an Avro definition; a JSON schema may be one of Jackson's instead."""
    kind = kind_of(schema)
    try:
        AvroDefinition(schema.schema_data, kind)
    except InvalidSchemaError:
        if kind != "JSON" or not _is_jackson(schema.schema_data):
            raise


def _is_jackson(data: bytes) -> bool:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("type") in JACKSON_TYPES


def root_message(schema: Schema) -> str:
    """The full name of a PROTOBUF_NATIVE schema's message. Raises `InvalidSchemaError`."""
    failure = "deserialize ProtobufNative Schema failed"
    try:
        value = json.loads(schema.schema_data)
        packed = base64.b64decode(value["fileDescriptorSet"], validate=True)
        files = FileDescriptorSet.FromString(packed)
        root, file_name = value["rootMessageTypeName"], value["rootFileDescriptorName"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidSchemaError(failure, repr(error)) from error
    except (DecodeError, binascii.Error) as error:
        raise InvalidSchemaError(failure, str(error)) from error
    for file in files.file:
        if file.name == file_name:
            prefix = f"{file.package}." if file.package else ""
            names, messages = root.removeprefix(prefix).split("."), file.message_type
            for name in names:
                found = next((one for one in messages if one.name == name), None)
                if found is None:
                    raise InvalidSchemaError(failure, f"{file_name} has no message {root!r}")
                messages = found.nested_type
            return str(root)
    raise InvalidSchemaError(failure, f"there is no file {file_name!r}")


# -- key and value ------------------------------------------------------------------------------


def parts_of(schema: Schema) -> Parts:
    """The schemas of a KEY_VALUE schema's key and value. Raises `InvalidSchemaError`."""
    properties = {pair.key: pair.value for pair in schema.properties}
    key, rest = _cut(schema.schema_data)
    value, rest = _cut(rest)
    if rest:
        raise InvalidSchemaError(f"KEY_VALUE schema has {len(rest)} bytes too many")
    return Parts(_part("key", key, properties), _part("value", value, properties))


def _cut(data: bytes) -> tuple[bytes, bytes]:
    if len(data) < _SIZE.size:
        raise InvalidSchemaError("KEY_VALUE schema ends before the size of its key or value")
    size = max(_SIZE.unpack_from(data)[0], 0)
    end = _SIZE.size + size
    if end > len(data):
        raise InvalidSchemaError(f"KEY_VALUE schema ends before its {size} bytes of key or value")
    return data[_SIZE.size : end], data[end:]


def _part(which: str, data: bytes, properties: dict[str, str]) -> Schema:
    # Without properties both are bytes, as in Pulsar.
    name = properties.get(f"{which}.schema.type", "BYTES")
    number = parse_kind(name)
    if number is None or name == KEY_VALUE:
        raise InvalidSchemaError(f"{which} schema of a KEY_VALUE schema has the type {name[:40]!r}")
    part = Schema(name=properties.get(f"{which}.schema.name", ""), schema_data=data)
    part.type = number  # type: ignore[assignment]
    try:
        more = json.loads(properties.get(f"{which}.schema.properties") or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"properties of the {which} schema are not JSON") from error
    if isinstance(more, dict):
        part.properties.extend(KeyValue(key=k, value=str(v)) for k, v in more.items())
    return part


def stored_data(kind: int, text: str) -> bytes:
    """The definition that REST got as ``text``. Raises `InvalidSchemaError`."""
    if kind != Schema.KeyValue:
        return text.encode(errors="surrogateescape")
    try:
        both = json.loads(text)
        parts = [both["key"], both["value"]]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"KEY_VALUE schema needs a key and a value: {error!r}") from error
    packed = [
        (one if isinstance(one, str) else json.dumps(one, separators=(",", ":"))).encode()
        for one in parts
    ]
    return b"".join(_SIZE.pack(len(one)) + one for one in packed)


def shown_data(schema: Schema) -> str:
    """The definition as REST shows it."""
    if kind_of(schema) != KEY_VALUE:
        return schema.schema_data.decode(errors="replace")
    try:
        parts = parts_of(schema)
    except InvalidSchemaError:
        return schema.schema_data.decode(errors="replace")
    shown = {"key": _shown(parts.key), "value": _shown(parts.value)}
    return json.dumps(shown, separators=(",", ":"), ensure_ascii=False)


def _shown(part: Schema) -> Any:
    text = part.schema_data.decode(errors="replace")
    try:
        return json.loads(text) if text else ""
    except (ValueError, RecursionError):
        return text
