"""Values of Protobuf: a descriptor as an Avro definition, and messages as rows of that type.

One language for types serves all of them (see `decoding`). Protobuf's types become:

========================================  ============================================
Protobuf                                  Avro
========================================  ============================================
int32, sint32, sfixed32                   int
uint32, fixed32, int64, sint64, sfixed64  long
uint64, fixed64                           decimal(20, 0)
float, double, bool, string, bytes        the same
enum                                      string: the value's name, or its number if it has none
message, group                            record; `google.protobuf.Timestamp`: timestamp-micros
repeated                                  array
map                                       map; its keys are text
========================================  ============================================

A field that keeps track of its presence is null if it was not set; others have their default.
Messages are read by the reader's descriptor, since Protobuf finds fields by number. A version that
gives a number another type is refused: such a field would be dropped without a word.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from ..decode.batches import Reasons
from .decoding import ArrayBuilder, avro_type, reason_of_error
from .types import merged_type

_TIMESTAMP = "google.protobuf.Timestamp"
_UNSIGNED = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0}
_KINDS: Mapping[int, Any] = {
    FieldDescriptor.CPPTYPE_INT32: "int",
    FieldDescriptor.CPPTYPE_UINT32: "long",
    FieldDescriptor.CPPTYPE_INT64: "long",
    FieldDescriptor.CPPTYPE_UINT64: _UNSIGNED,
    FieldDescriptor.CPPTYPE_FLOAT: "float",
    FieldDescriptor.CPPTYPE_DOUBLE: "double",
    FieldDescriptor.CPPTYPE_BOOL: "boolean",
    FieldDescriptor.CPPTYPE_ENUM: "string",
}


def native_descriptor(schema_data: str) -> Descriptor:
    """The message of a PROTOBUF_NATIVE schema. Raises ValueError for a malformed one."""
    try:
        value = json.loads(schema_data)
        packed = base64.b64decode(value["fileDescriptorSet"], validate=True)
        return descriptor_of(FileDescriptorSet.FromString(packed), value["rootMessageTypeName"])
    except (KeyError, TypeError, binascii.Error, DecodeError) as error:
        raise ValueError(f"it is not a PROTOBUF_NATIVE schema: {error!r}") from error


def descriptor_of(files: FileDescriptorSet, name: str) -> Descriptor:
    """A message of some files, which may be in any order. Raises ValueError."""
    pool, left = DescriptorPool(), {file.name: file for file in files.file}

    def add(file: FileDescriptorProto) -> None:
        for needed in file.dependency:
            if needed in left:
                add(left.pop(needed))
        pool.Add(file)

    try:
        while left:
            add(left.pop(next(iter(left))))
        found: Descriptor = pool.FindMessageTypeByName(name)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it has no message {name!r}: {error}") from error
    return found


def avro_definition(message: Descriptor, known: set[str] | None = None) -> Any:
    """The same type in Avro's words; a message is defined where it is used first."""
    if message.full_name == _TIMESTAMP:
        return {"type": "long", "logicalType": "timestamp-micros"}
    known = set() if known is None else known
    if message.full_name in known:
        return message.full_name
    known.add(message.full_name)
    fields = [{"name": f.name, "type": _field_definition(f, known)} for f in message.fields]
    return {"type": "record", "name": message.full_name, "fields": fields}


def _field_definition(field: FieldDescriptor, known: set[str]) -> Any:
    if (value := _map_value(field)) is not None:
        return {"type": "map", "values": _single(value, known)}
    single = _single(field, known)
    return {"type": "array", "items": single} if field.is_repeated else single


def _single(field: FieldDescriptor, known: set[str]) -> Any:
    if field.message_type is not None:
        return avro_definition(field.message_type, known)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return "bytes" if field.type == FieldDescriptor.TYPE_BYTES else "string"
    return _KINDS[field.cpp_type]


def _map_value(field: FieldDescriptor) -> FieldDescriptor | None:
    """The values of a map; None: the field is no map."""
    entry = field.message_type
    is_map = field.is_repeated and entry is not None and entry.GetOptions().map_entry
    return entry.fields_by_name["value"] if entry is not None and is_map else None


def _reader_of(message: Descriptor) -> Callable[[Message], Any]:
    """A function that gives a message the form of its Avro type."""
    if message.full_name == _TIMESTAMP:
        return lambda found: found.seconds * 1_000_000 + found.nanos // 1000  # type: ignore[attr-defined]
    fields = [(field.name, field.has_presence, _field_reader(field)) for field in message.fields]

    def read(found: Message) -> dict[str, Any]:
        return {
            name: value_of(getattr(found, name))
            for name, has_presence, value_of in fields
            if not has_presence or found.HasField(name)
        }

    return read


def _field_reader(field: FieldDescriptor) -> Callable[[Any], Any]:
    if (value := _map_value(field)) is not None:
        value_of = _single_reader(value)
        return lambda found: [(_text(key), value_of(found[key])) for key in found]
    single = _single_reader(field)
    return (lambda found: [single(item) for item in found]) if field.is_repeated else single


def _text(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _single_reader(field: FieldDescriptor) -> Callable[[Any], Any]:
    if field.message_type is not None:
        return _reader_of(field.message_type)
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return Decimal
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number) or str(number)
    return lambda value: value


class ProtobufDecoder:
    """Protobuf's binary encoding.

    Args:
        definitions: by version, or by another number that a value names: a PROTOBUF_NATIVE schema.
        reader: the one whose fields are read.
        final: the Arrow type that is asked for.
    """

    def __init__(self, definitions: Mapping[int, str], reader: str, final: pa.DataType) -> None:
        message = native_descriptor(reader)
        type_ = avro_type(avro_definition(message))
        self._definitions = definitions
        self._type = type_.arrow_type(times=True)
        self._building = ArrayBuilder(type_, final)
        self._message = GetMessageClass(message)
        self._read = _reader_of(message)
        self._problems: dict[int | None, str | None] = {None: None}

    def decode(self, values: pa.Array, versions: Sequence[int | None]) -> tuple[pa.Array, Reasons]:
        """The messages of these rows."""
        decoded: list[Any] = []
        reasons: Reasons = {}
        parse, read = self._message.FromString, self._read
        for row, value in enumerate(values.to_pylist()):
            record = None
            if value is not None:
                problem = self._problem(versions[row])
                try:
                    record = None if problem else read(parse(value))
                except (DecodeError, ValueError) as error:
                    problem = reason_of_error(error)
                if problem:
                    reasons[row] = problem
            decoded.append(record)
        return self._building.array(decoded, reasons), reasons

    def _problem(self, version: int | None) -> str | None:
        """Why a version's messages cannot be read by the reader's descriptor."""
        if version not in self._problems:
            assert version is not None, "without a version, messages are the reader's"
            problem: str | None = f"schema version {version} is not a Protobuf schema that is known"
            if version in self._definitions:
                try:
                    own = avro_definition(native_descriptor(self._definitions[version]))
                    merged_type(self._type, avro_type(own).arrow_type(times=True))
                    problem = None
                except ValueError as error:
                    problem = f"schema version {version} does not fit: {error}"
            self._problems[version] = problem
        return self._problems[version]
