"""Decode the values of one topic, a batch of rows at a time, into one Arrow array.

Each decoder gets the values with their schema versions and returns the decoded array, with the
reason for each value that cannot be decoded (its row is null). A value has the version that its
producer's metadata names. Without one it is decoded by the reader's schema, as in Pulsar's clients.

Avro's types become those of Spark and Arrow as Spark's own Avro source maps them:

========================================  ============================================
Avro                                      Spark
========================================  ============================================
boolean, int, long, float, double         the same
string, enum, uuid                        string
bytes, fixed                              binary
array, map, record                        array, map of strings, struct
null with one other type                  that type
int with long; float with double          the larger one
date                                      date
timestamp-millis, timestamp-micros        timestamp
local-timestamp-millis, -micros           timestamp_ntz
decimal (up to 38 digits)                 decimal
========================================  ============================================

All fields can be null. Times of day and durations are the numbers and bytes as stored. A schema is
refused if Spark has no type for it (a record that contains itself, other unions), or if a few bytes
could be decoded to any number of values (arrays of items that take no bytes).
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import Any

import fastavro
import fastavro.schema
import numpy as np
import pyarrow as pa
import pyarrow.json
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from ..decode.batches import Reasons

_OPENING, _CLOSING = ord("{"), ord("}")
_REASON_LENGTH = 200


class ArrayBuilder:
    """Builds the array of decoded values: first as stored, then with times as times."""

    def __init__(self, type_: AvroType, final: pa.DataType) -> None:
        self._raw = type_.arrow_type(times=False)
        self._timed = type_.arrow_type(times=True)
        self._final = final

    def array(self, values: Sequence[Any], reasons: Reasons) -> pa.Array:
        """The array; values that do not fit the type are noted in ``reasons``."""
        try:
            return self.finished(pa.array(values, self._raw))
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            kept = list(values)
            for row, value in enumerate(kept):
                try:
                    self.finished(pa.array([value], self._raw))
                except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                    kept[row], reasons[row] = None, reason_of_error(error)
            return self.finished(pa.array(kept, self._raw))

    def finished(self, array: pa.Array) -> pa.Array:
        """An array as stored in the type that is asked for; fields that it lacks are null."""
        for wanted in (self._timed, self._final):
            if array.type != wanted:
                array = array.cast(wanted)
        return array


class AvroDecoder:
    """Avro's binary encoding; each version is resolved against the reader's schema.

    Args:
        definitions: by version, or by another number that a value names.
        reader: the reader's schema, parsed.
        final: the Arrow type that Spark asked for.
    """

    def __init__(self, definitions: Mapping[int, str], reader: Any, final: pa.DataType) -> None:
        self._definitions = definitions
        self._reader = fastavro.parse_schema(without_times(reader))
        self._reader_definition = reader
        self._building = ArrayBuilder(avro_type(reader), final)
        self._writers: dict[int | None, Any] = {None: self._reader}

    def decode(self, values: pa.Array, versions: Sequence[int | None]) -> tuple[pa.Array, Reasons]:
        """The records of these rows."""
        decoded: list[Any] = []
        reasons: Reasons = {}
        read, reader = fastavro.schemaless_reader, self._reader
        for row, value in enumerate(values.to_pylist()):
            record = None
            if value is not None:
                try:
                    writer = self._writer(versions[row])
                    with io.BytesIO(value) as data:
                        record = read(data, writer, None if writer is reader else reader)
                except Exception as error:  # noqa: BLE001
                    # The library raises many types of errors for malformed bytes.
                    reasons[row] = reason_of_error(error)
            decoded.append(record)
        return self._building.array(decoded, reasons), reasons

    def _writer(self, version: int | None) -> Any:
        known = self._writers.get(version)
        if known is None:
            assert version is not None, "the reader's own schema is known"
            if version not in self._definitions:
                raise ValueError(f"schema version {version} is not an Avro schema that is known")
            definition = json.loads(self._definitions[version])
            if definition == self._reader_definition:
                known = self._reader
            else:
                avro_type(definition)  # refuses what must not be decoded
                known = fastavro.parse_schema(without_times(definition))
            self._writers[version] = known
        return known


class JsonDecoder:
    """JSON text, as Pulsar's JSON schema writes it; fields are found by their names.

    Fields that the reader's schema does not have are left out; missing ones are null. The version
    of a value does not matter.
    """

    def __init__(self, reader: Any, final: pa.DataType) -> None:
        self._type = type_ = avro_type(reader)
        self._building = ArrayBuilder(type_, final)
        raw = type_.arrow_type(times=False)
        # Arrow's reader knows neither maps nor base64.
        is_plain = pa.types.is_struct(raw) and type_.kinds().isdisjoint(
            {"map", "bytes", "fixed", "decimal"}
        )
        self._schema = pa.schema(list(raw)) if is_plain and raw.num_fields else None

    def decode(self, values: pa.Array, versions: Sequence[int | None]) -> tuple[pa.Array, Reasons]:
        """The records of these rows."""
        del versions
        fast = self._at_once(values)
        if fast is not None:
            return fast, {}
        decoded: list[Any] = []
        reasons: Reasons = {}
        for row, value in enumerate(values.to_pylist()):
            record = None
            if value is not None:
                try:
                    record = _of_json(self._type, json.loads(value))
                    if record is None:
                        reasons[row] = "it is JSON's null"
                except (ValueError, RecursionError) as error:
                    reasons[row] = reason_of_error(error)
            decoded.append(record)
        return self._building.array(decoded, reasons), reasons

    def _at_once(self, values: pa.Array) -> pa.Array | None:
        """All values in one call; None if one of them is not a plain object of the schema.

        The values are joined by line ends. Each begins with ``{`` and ends with ``}``. After ``}``,
        a ``{`` can only begin a new object, so no object reaches from one value into the next, and
        each value is at least one object. If there are as many objects as values, each is one.
        """
        present = values.drop_null()
        if self._schema is None or not len(present) or not _are_objects(present):
            return None
        try:
            present.cast(pa.string())  # checks UTF-8
            text = b"\n".join(present.to_pylist())
            table = pyarrow.json.read_json(
                io.BytesIO(text),
                pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
                pyarrow.json.ParseOptions(
                    explicit_schema=self._schema,
                    newlines_in_values=True,
                    unexpected_field_behavior="ignore",
                ),
            )
            if len(table) != len(present):
                return None
            (records,) = table.to_struct_array().chunks
            found = self._building.finished(records)
        except (pa.ArrowException, ValueError):
            return None
        if len(present) == len(values):
            return found
        rows = np.cumsum(values.is_valid().to_numpy(zero_copy_only=False)) - 1
        return found.take(pa.array(rows, mask=values.is_null().to_numpy(zero_copy_only=False)))


def _are_objects(values: pa.Array) -> bool:
    """Whether each value begins with an opening brace and ends with a closing one."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    offsets = offsets[values.offset : values.offset + len(values) + 1]
    data = values.buffers()[2]
    if data is None or bool((np.diff(offsets) < 2).any()):
        return False
    octets = np.frombuffer(data, np.uint8)
    opens, closes = octets[offsets[:-1]] == _OPENING, octets[offsets[1:] - 1] == _CLOSING
    return bool(opens.all() and closes.all())


_JSON: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
}
"""What JSON has for a kind; text for the others."""


def _of_json(type_: AvroType, value: Any) -> Any:
    """A parsed JSON value in the form of the type; null is one of each. Raises ValueError."""
    kind, item = type_.kind, type_.item
    if value is None:
        return None
    if kind == "record" and isinstance(value, dict):
        return {name: _of_json(each, value.get(name)) for name, each in type_.fields.items()}
    if item is not None and kind == "array" and isinstance(value, list):
        return [_of_json(item, each) for each in value]
    if item is not None and kind == "map" and isinstance(value, dict):
        return {key: _of_json(item, each) for key, each in value.items()}
    if type_.decimal is not None and isinstance(value, int | float | str):
        return Decimal(str(value))
    is_plain = kind in _PRIMITIVES and isinstance(value, _JSON.get(kind, (str,)))
    if not is_plain or (isinstance(value, bool) and kind != "boolean"):
        raise ValueError(f"{repr(value)[:60]} is not of type {kind}")
    return base64.b64decode(value, validate=True) if kind in ("bytes", "fixed") else value


def reason_of_error(error: BaseException) -> str:
    """The reason on one line, not longer than a few words of foreign data allow."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:_REASON_LENGTH]


MAX_DEPTH = 64
"""The deepest nesting of a schema that is accepted."""

MAX_SIZE = 10_000
"""The most types that a schema may consist of. Records that name each other can be very many."""

_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_TIMES: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_WIDER = ({"int", "long"}, "long"), ({"float", "double"}, "double")
_MAX_PRECISION = 38


@dataclass(frozen=True, slots=True)
class AvroType:
    """An Avro schema as a type; null is a value of every type."""

    kind: str
    logical: str = ""
    fields: Mapping[str, AvroType] = field(default_factory=dict)
    """A record's fields."""
    item: AvroType | None = None
    """The type of an array's items, or of a map's values."""
    decimal: tuple[int, int] | None = None
    """Precision and scale."""
    takes_bytes: bool = True
    """Whether each value takes at least one byte."""

    def inner(self) -> tuple[AvroType, ...]:
        """The types in it."""
        return (*self.fields.values(), *(() if self.item is None else (self.item,)))

    def spark_type(self) -> DataType:
        """Spark's type."""
        return from_arrow_type(self.arrow_type(times=True), prefer_timestamp_ntz=True)

    def arrow_type(self, *, times: bool) -> pa.DataType:
        """Arrow's type of decoded values; without ``times``, times are the numbers as stored."""
        if self.decimal is not None:
            return pa.decimal128(*self.decimal)
        if self.kind == "record":
            return pa.struct(
                [(name, each.arrow_type(times=times)) for name, each in self.fields.items()]
            )
        if self.item is not None:
            item = self.item.arrow_type(times=times)
            return pa.list_(item) if self.kind == "array" else pa.map_(pa.string(), item)
        plain = _PRIMITIVES[self.kind]
        return _TIMES.get((self.kind, self.logical), plain) if times else plain

    def kinds(self) -> set[str]:
        """All kinds and logical types of this schema and of those in it."""
        return {self.kind, self.logical}.union(*(each.kinds() for each in self.inner()))


def avro_type(definition: Any) -> AvroType:
    """The type of a parsed definition.

    Raises ValueError: Spark has no type for it, or it is malformed.
    """
    try:
        # Names become what they stand for, but for that of a record inside of itself.
        expanded = fastavro.schema.expand_schema(definition)
        return _typed(expanded, iter(range(MAX_SIZE)), 0)
    except fastavro.schema.UnknownType as error:
        raise ValueError(f"{error.name!r} is not a type") from error
    except (KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise ValueError(f"it is not an Avro schema: {error}") from error


def _typed(schema: Any, left: Iterator[int], depth: int) -> AvroType:
    """The type of an expanded schema; ``left`` has so many elements as it may have types."""
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    if next(left, None) is None:
        raise ValueError(f"it consists of more than {MAX_SIZE} types")
    if isinstance(schema, list):
        return replace(_typed(_only_branch(schema), left, depth), takes_bytes=True)
    inner = partial(_typed, left=left, depth=depth + 1)
    given: Mapping[str, Any] = {"type": schema} if isinstance(schema, str) else schema
    kind, logical = given["type"], str(given.get("logicalType", ""))
    if kind == "record":
        fields = {str(each["name"]): inner(each["type"]) for each in given["fields"]}
        takes = any(each.takes_bytes for each in fields.values())
        return AvroType(kind, logical, fields, takes_bytes=takes)
    if kind in ("array", "map"):
        item = inner(given["items" if kind == "array" else "values"])
        if kind == "array" and not item.takes_bytes:
            raise ValueError("its array has items that take no bytes")
        return AvroType(kind, logical, item=item)
    if kind not in _PRIMITIVES:
        raise ValueError(f"the record {kind!r} contains itself, or has no type in Spark")
    is_decimal = logical == "decimal" and kind in ("bytes", "fixed")
    decimal = _decimal(given) if is_decimal else None
    takes = kind != "fixed" or int(given["size"]) > 0
    return AvroType(kind, logical, decimal=decimal, takes_bytes=takes)


def _only_branch(branches: list[Any]) -> Any:
    kept = [branch for branch in branches if branch not in ("null", {"type": "null"})]
    for kinds, wider in _WIDER:
        if len(kept) == 2 and all(isinstance(b, str) and b in kinds for b in kept):
            kept = [wider]
    if len(kept) != 1:
        raise ValueError(f"a union of {len(kept)} types other than null has no type in Spark")
    return kept[0]


def _decimal(schema: Mapping[str, Any]) -> tuple[int, int]:
    precision, scale = int(schema.get("precision", 0)), int(schema.get("scale", 0))
    if not 0 < precision <= _MAX_PRECISION or not 0 <= scale <= precision:
        raise ValueError(f"decimal({precision}, {scale}) has no type in Spark")
    return precision, scale


def without_times(schema: Any) -> Any:
    """The same definition, with logical types for decimals only: decoded times stay numbers."""
    if isinstance(schema, list):
        return [without_times(branch) for branch in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {}
    for name, value in schema.items():
        if name == "logicalType" and value != "decimal":
            continue
        inner = name in ("type", "items", "values", "fields")
        kept[name] = without_times(value) if inner else value
    return kept
