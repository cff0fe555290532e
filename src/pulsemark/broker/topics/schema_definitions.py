"""Schemas' definitions: how they are read and shown, and whether one may follow another.

A KEY_VALUE definition is `[size u32][key's definition][size u32][value's definition]`; the types of
both are in its properties. Over REST it is JSON: `{"key": ..., "value": ...}`.

AVRO, JSON and PROTOBUF definitions of Pulsar's clients are all Avro's. Pulsar asks Avro's
`SchemaValidator`, which is more generous than `SchemaCompatibility`: the names of two records need
not be equal, and an enum's reader may lack symbols of its writer. `avro_resolution` has these two
rules. The library is imported with the first definition.

Definitions come from clients. So their size and depth are limited, and the steps of one request:
one for each value of a definition that it reads, and one for each pair of reader and writer that it
compares, over all versions of the topic. It runs in a thread of the caller's, and pauses for as
long as it works, so that the event loop gets the interpreter.

Whether a topic takes a new schema: Pulsar's compatibility strategies.

==================  ==========================================================================
BACKWARD            the new schema reads what was written with the latest one
FORWARD             the latest one reads what is written with the new schema
FULL                both
..._TRANSITIVE      the same, with every version of the topic instead of the latest one
ALWAYS_COMPATIBLE   every schema, also of another type
ALWAYS_INCOMPATIBLE only schemas that the topic has already
==================  ==========================================================================

UNDEFINED means the broker's strategy. AVRO and JSON are compared by Avro's rules, PROTOBUF_NATIVE
by the name of its message, KEY_VALUE by key and value. Of PROTOBUF and of the primitive types only
the type counts: Pulsar's default settings have no check of their definitions. As in Pulsar, a
consumer is checked with BACKWARD and the latest version, except with BACKWARD_TRANSITIVE,
FULL_TRANSITIVE and ALWAYS_COMPATIBLE, which apply to it as they are, and ALWAYS_INCOMPATIBLE, which
refuses it also with a schema that the topic has. The functions can take seconds.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.message import DecodeError

from ...proto.pulsar_api_pb2 import KeyValue, Schema
from ..errors import IncompatibleSchemaError, InvalidSchemaError

if TYPE_CHECKING:
    from avro.schema import Schema as AvroSchema


#: The deepest nesting of a definition's JSON.
MAX_DEPTH = 100
#: The most JSON values of a definition.
MAX_NODES = 50_000
#: The most steps of one request.
MAX_STEPS = 500_000
#: Steps after which a request pauses, and how long for each: about as long as it has worked.
STEPS_AT_ONCE = 200
PAUSE_S = 0.000_005
#: Parts of a definition that do not decide about reading.
IGNORED = ("doc", "logicalType")
#: A definition in a message is cut after so many characters.
SHOWN_CHARACTERS = 16_384


class Steps:
    """The steps that one request may still take."""

    def __init__(self) -> None:
        self.left = MAX_STEPS
        self._not_paused = 0
        self._new: dict[bytes, AvroDefinition] = {}

    def spend(self, count: int) -> None:
        """Count steps. Raises `IncompatibleSchemaError` if they are too many."""
        self.left -= count
        if self.left < 0:
            text = f"comparing the schemas takes more than {MAX_STEPS} steps"
            raise IncompatibleSchemaError(text)
        self._not_paused += count
        if self._not_paused >= STEPS_AT_ONCE:
            time.sleep(self._not_paused * PAUSE_S)
            self._not_paused = 0

    def definition_of_new(self, data: bytes, kind: str) -> AvroDefinition:
        """The parsed definition of the new schema, cached, as many others are compared with it."""
        found = self._new.get(data)
        if found is None:
            found = self._new[data] = AvroDefinition(data, kind, self)
        return found


class AvroDefinition:
    """A parsed definition: `parsed` is the library's object, `json` the JSON value.

    Raises `InvalidSchemaError` with ``kind``, Pulsar's name of the schema's type, and as `Steps`.
    """

    def __init__(self, data: bytes, kind: str, steps: Steps | None = None) -> None:
        what = f"Invalid schema definition data for {kind} schema"
        try:
            # Pulsar, too, replaces what is not UTF-8; it is refused if it is not JSON after that.
            self.json = json.loads(data.decode(errors="replace"))
        except (ValueError, RecursionError) as error:
            raise InvalidSchemaError(what, str(error)) from error
        (steps or Steps()).spend(_check_size(self.json, what))
        self.parsed = _parse(self.json, what)
        #: A key that equal definitions share: texts and aliases do not count.
        self.compared = _compared(self.json)

    def __str__(self) -> str:
        return json.dumps(self.json, indent=2, ensure_ascii=False)[:SHOWN_CHARACTERS]


def check_reads(
    reader: AvroDefinition, writer: AvroDefinition, strategy: str, steps: Steps | None = None
) -> None:
    """Raise `IncompatibleSchemaError` if ``reader`` cannot read what ``writer`` has written."""
    from avro.compatibility import SchemaCompatibilityType

    from .avro_resolution import Resolution

    try:
        result = Resolution(steps or Steps()).get_compatibility(reader.parsed, writer.parsed)
    except RecursionError as error:
        raise IncompatibleSchemaError("the schema is nested too deep to be compared") from error
    if result.compatibility is SchemaCompatibilityType.incompatible:
        raise _unreadable(reader, writer, strategy)


def _unreadable(
    reader: AvroDefinition, writer: AvroDefinition, strategy: str
) -> IncompatibleSchemaError:
    return IncompatibleSchemaError(
        f"Error during schema compatibility check with strategy {strategy}: "
        f"org.apache.avro.SchemaValidationException: Unable to read schema: \n{writer}\n"
        f"using schema:\n{reader}"
    )


def _check_size(value: Any, what: str) -> int:
    """Count the values without recursion. Checks the depth, too."""
    nodes, level, depth = 0, [value], 0
    while level:
        nodes += len(level)
        depth += 1
        if depth > MAX_DEPTH:
            raise InvalidSchemaError(what, f"it is nested more than {MAX_DEPTH} deep")
        if nodes > MAX_NODES:
            raise InvalidSchemaError(what, f"it has more than {MAX_NODES} values")
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below += one.values()
            elif isinstance(one, list):
                below += one
        level = below
    return nodes


def _parse(value: Any, what: str) -> AvroSchema:
    from avro.errors import AvroException
    from avro.schema import UnionSchema, make_avsc_object

    try:
        parsed = make_avsc_object(_without(value, IGNORED), None)
    except (AvroException, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidSchemaError(what, str(error)) from error
    except RecursionError as error:
        raise InvalidSchemaError(what, "it is nested too deep") from error
    if isinstance(parsed, UnionSchema):
        raise InvalidSchemaError("Avro schema typed [UNION] is not supported")
    return parsed


def _without(value: Any, names: tuple[str, ...]) -> Any:
    """A copy without properties of these names. Defaults are data, and stay as they are."""
    if isinstance(value, list):
        return [_without(one, names) for one in value]
    if isinstance(value, dict):
        return {
            name: one if name == "default" else _without(one, names)
            for name, one in value.items()
            if name not in names
        }
    return value


def _compared(value: Any) -> Any:
    """The part of a definition that decides about equality."""
    if isinstance(value, dict) and set(value) == {"type"} and isinstance(value["type"], str):
        return value["type"]
    if isinstance(value, dict):
        return {
            name: one if name == "default" else _compared(one)
            for name, one in value.items()
            if name not in ("doc", "aliases")
        }
    return [_compared(one) for one in value] if isinstance(value, list) else value


ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
TRANSITIVE = "_TRANSITIVE"
APPLIED_TO_CONSUMERS = ("BACKWARD_TRANSITIVE", "FULL_TRANSITIVE")
#: Types whose definitions are compared by Avro's rules.
COMPARED_AS_AVRO = ("AVRO", "JSON")


def check_compatible(
    schemas: Sequence[Schema], new: Schema, strategy: str, steps: Steps | None = None
) -> None:
    """Raise `IncompatibleSchemaError` if ``new`` must not follow ``schemas``, oldest first."""
    if not schemas or strategy == ALWAYS_COMPATIBLE:
        return
    steps = steps or Steps()
    compared = schemas if strategy.endswith(TRANSITIVE) else schemas[-1:]
    for existing in reversed(compared):
        _check_kind(existing, new)
        if existing.schema_data != new.schema_data or strategy.endswith(TRANSITIVE):
            _check_pair(existing, new, strategy, steps)


def check_consumer(
    schemas: Sequence[Schema], new: Schema, strategy: str, steps: Steps | None = None
) -> None:
    """Raise `IncompatibleSchemaError` if a consumer with ``new`` must not read the topic."""
    if not schemas or strategy == ALWAYS_COMPATIBLE:
        return
    if strategy == ALWAYS_INCOMPATIBLE:
        _check_kind(schemas[-1], new)
        _check_pair(schemas[-1], new, strategy, steps or Steps())
    else:
        applies = strategy in APPLIED_TO_CONSUMERS
        check_compatible(schemas, new, strategy if applies else "BACKWARD", steps)


def _check_kind(existing: Schema, new: Schema) -> None:
    if existing.type != new.type:
        raise IncompatibleSchemaError(
            f"Incompatible schema: exists schema type {kind_of(existing)}, "
            f"new schema type {kind_of(new)}"
        )


def _check_pair(existing: Schema, new: Schema, strategy: str, steps: Steps) -> None:
    kind = kind_of(new)
    if kind in COMPARED_AS_AVRO:
        _check_avro(existing, new, strategy, steps)
    elif kind == NATIVE:
        _check_native(existing, new, strategy)
    elif kind == KEY_VALUE:
        _check_key_value(existing, new, strategy, steps)
    elif strategy == ALWAYS_INCOMPATIBLE:
        raise IncompatibleSchemaError(f"Schema compatibility strategy is {ALWAYS_INCOMPATIBLE}")


def _check_avro(existing: Schema, new: Schema, strategy: str, steps: Steps) -> None:
    kind = kind_of(new)
    old = AvroDefinition(existing.schema_data, kind, steps)
    added = steps.definition_of_new(new.schema_data, kind)
    if strategy == ALWAYS_INCOMPATIBLE:
        raise _unreadable(added, added, strategy)
    if strategy.startswith(("FORWARD", "FULL")):
        check_reads(old, added, strategy, steps)
    if strategy.startswith(("BACKWARD", "FULL")):
        check_reads(added, old, strategy, steps)


def _check_native(existing: Schema, new: Schema, strategy: str) -> None:
    if strategy == ALWAYS_INCOMPATIBLE:
        raise IncompatibleSchemaError("Unknown SchemaCompatibilityStrategy.")
    before, after = root_message(existing), root_message(new)
    if before != after:
        raise IncompatibleSchemaError(
            f"Protobuf root message change is not allowed under the '{strategy}' strategy. "
            f"Original message name: '{before}', new message name: '{after}'."
        )


def _check_key_value(existing: Schema, new: Schema, strategy: str, steps: Steps) -> None:
    before, after = parts_of(existing), parts_of(new)
    if before.key.type != after.key.type or before.value.type != after.value.type:
        raise IncompatibleSchemaError(
            "Key schemas or Value schemas are different schema type, "
            f"from key schema type is {kind_of(before.key)} and to key schema is "
            f"{kind_of(after.key)}, from value schema is {kind_of(before.value)} and to value "
            f"schema is {kind_of(after.value)}"
        )
    _check_pair(before.key, after.key, strategy, steps)
    _check_pair(before.value, after.value, strategy, steps)


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
    """Raise `InvalidSchemaError` if a broker must not register this definition. Takes 100 ms."""
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
            text = f"Invalid schema definition data for string schema : '{shown}'"
            raise InvalidSchemaError(text)
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
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

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
    """The stored form of REST's ``text``. Raises `InvalidSchemaError`."""
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
    """The definition in REST's form."""
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
