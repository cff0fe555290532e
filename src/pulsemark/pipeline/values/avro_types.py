"""Avro's schemas as types of Spark and Arrow, as Spark's own Avro source maps them.

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

All fields can be null. Times of day and durations are the numbers and bytes as stored.

A schema is refused if Spark has no type for it (a record that contains itself, other unions), or if
a few bytes could be decoded to any number of values (arrays of items that take no bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark

MAX_DEPTH = 64
"""The deepest nesting of a schema that is accepted."""

MAX_SIZE = 10_000
"""The most types that a schema may consist of. Records that name each other can be very many."""

_PRIMITIVES: dict[str, tuple[spark.DataType, pa.DataType]] = {
    "boolean": (spark.BooleanType(), pa.bool_()),
    "int": (spark.IntegerType(), pa.int32()),
    "long": (spark.LongType(), pa.int64()),
    "float": (spark.FloatType(), pa.float32()),
    "double": (spark.DoubleType(), pa.float64()),
    "string": (spark.StringType(), pa.string()),
    "bytes": (spark.BinaryType(), pa.binary()),
    "fixed": (spark.BinaryType(), pa.binary()),
    "enum": (spark.StringType(), pa.string()),
}
_TIMES: dict[tuple[str, str], tuple[spark.DataType, pa.DataType]] = {
    ("int", "date"): (spark.DateType(), pa.date32()),
    ("long", "timestamp-millis"): (spark.TimestampType(), pa.timestamp("ms", "UTC")),
    ("long", "timestamp-micros"): (spark.TimestampType(), pa.timestamp("us", "UTC")),
    ("long", "local-timestamp-millis"): (spark.TimestampNTZType(), pa.timestamp("ms")),
    ("long", "local-timestamp-micros"): (spark.TimestampNTZType(), pa.timestamp("us")),
}
_WIDER = ({"int", "long"}, "long"), ({"float", "double"}, "double")
_MAX_PRECISION = 38


class AvroType:
    """One Avro schema, with its names resolved.

    Raises ValueError with a reason if it is refused.
    """

    def __init__(self, schema: Any, names: dict[str, Any], depth: int = 0, space: str = "") -> None:
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        self.kind = ""
        self.logical = ""
        self.schema: Any = schema
        self.fields: dict[str, AvroType] = {}
        self.item: AvroType | None = None
        self._names, self._depth, self._space = names, depth, space
        self._read(schema)
        self.size: int = 1 + sum(each.size for each in self._inner_types())
        """How many types it consists of; a type that is named twice counts twice."""
        if self.size > MAX_SIZE:
            raise ValueError(f"it consists of more than {MAX_SIZE} types")
        self.takes_bytes = isinstance(schema, list) or self._takes_bytes()
        """Whether each value takes at least one byte."""

    def _read(self, schema: Any) -> None:
        if isinstance(schema, list):
            self._read_union(schema)
        elif isinstance(schema, str):
            self._read_name(schema)
        elif isinstance(schema, Mapping):
            self._read_mapping(schema)
        else:
            raise ValueError(f"{schema!r} is not an Avro schema")

    def _read_union(self, branches: list[Any]) -> None:
        kept = [branch for branch in branches if branch not in ("null", {"type": "null"})]
        for kinds, wider in _WIDER:
            if len(kept) == 2 and all(isinstance(b, str) and b in kinds for b in kept):
                kept = [wider]
        if len(kept) != 1:
            raise ValueError(f"a union of {len(kept)} types other than null has no type in Spark")
        self._read(kept[0])

    def _read_name(self, name: str) -> None:
        if name in _PRIMITIVES:
            self.kind = name
            return
        full = name if "." in name or not self._space else f"{self._space}.{name}"
        known = self._names.get(full, self._names.get(name))
        if known is None:
            raise ValueError(f"{name!r} is not a type")
        if known is _OPEN:
            raise ValueError(f"the record {name!r} contains itself")
        self.kind, self.logical, self.schema = known.kind, known.logical, known.schema
        self.fields, self.item = known.fields, known.item

    def _read_mapping(self, schema: Mapping[str, Any]) -> None:
        kind = schema.get("type")
        self.schema = schema
        if not isinstance(kind, str):
            self._read(kind)
            return
        self.logical = str(schema.get("logicalType", ""))
        name = self._full_name(schema) if kind in ("record", "enum", "fixed") else ""
        if name:
            self._names[name] = _OPEN
        if kind == "record":
            self.kind = kind
            for field in schema["fields"]:
                self.fields[str(field["name"])] = self._inner(field["type"])
        elif kind in ("array", "map"):
            self.kind = kind
            self.item = self._inner(schema["items" if kind == "array" else "values"])
            if kind == "array" and not self.item.takes_bytes:
                raise ValueError("its array has items that take no bytes")
        else:
            self._read_name(kind)
            self.schema = schema
        if name:
            self._names[name] = self

    def _full_name(self, schema: Mapping[str, Any]) -> str:
        name, space = str(schema.get("name", "")), schema.get("namespace")
        if "." in name:
            space = name.rpartition(".")[0]
        elif space is not None:
            name = f"{space}.{name}" if space else name
        elif self._space:
            name = f"{self._space}.{name}"
        if space is not None:
            self._space = str(space)
        return name

    def _inner(self, schema: Any) -> AvroType:
        return AvroType(schema, self._names, self._depth + 1, self._space)

    def _takes_bytes(self) -> bool:
        if self.kind == "fixed":
            return int(self.schema.get("size", 0)) > 0
        if self.kind == "record":
            return any(field.takes_bytes for field in self.fields.values())
        return True

    def _decimal(self) -> tuple[int, int] | None:
        if self.logical != "decimal" or self.kind not in ("bytes", "fixed"):
            return None
        precision, scale = int(self.schema.get("precision", 0)), int(self.schema.get("scale", 0))
        if not 0 < precision <= _MAX_PRECISION or not 0 <= scale <= precision:
            raise ValueError(f"decimal({precision}, {scale}) has no type in Spark")
        return precision, scale

    def spark_type(self) -> spark.DataType:
        """Spark's type."""
        decimal = self._decimal()
        if decimal is not None:
            return spark.DecimalType(*decimal)
        if self.kind == "record":
            return spark.StructType(
                [spark.StructField(name, field.spark_type()) for name, field in self.fields.items()]
            )
        if self.item is not None:
            item = self.item.spark_type()
            if self.kind == "array":
                return spark.ArrayType(item)
            return spark.MapType(spark.StringType(), item)
        return _TIMES.get((self.kind, self.logical), _PRIMITIVES[self.kind])[0]

    def arrow_type(self, *, times: bool) -> pa.DataType:
        """Arrow's type of decoded values; without ``times``, times are the numbers as stored."""
        decimal = self._decimal()
        if decimal is not None:
            return pa.decimal128(*decimal)
        if self.kind == "record":
            return pa.struct(
                [pa.field(name, each.arrow_type(times=times)) for name, each in self.fields.items()]
            )
        if self.item is not None:
            item = self.item.arrow_type(times=times)
            return pa.list_(item) if self.kind == "array" else pa.map_(pa.string(), item)
        plain = _PRIMITIVES[self.kind]
        return (_TIMES.get((self.kind, self.logical), plain) if times else plain)[1]

    def kinds(self) -> set[str]:
        """All kinds and logical types of this schema and of those in it."""
        return {self.kind, self.logical}.union(*(each.kinds() for each in self._inner_types()))

    def _inner_types(self) -> list[AvroType]:
        return [*self.fields.values(), *([] if self.item is None else [self.item])]


_OPEN: Any = object()
"""Stands for a record whose fields are being read."""


def avro_type(definition: Any) -> AvroType:
    """The type of a parsed definition.

    Raises:
        ValueError: Spark has no type for it, or it is malformed.
    """
    try:
        return AvroType(definition, {})
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is not an Avro schema: {error}") from error


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
