"""The columns of a table: those of the source, and those of its topics' type.

A value that is a record is a column for each of its fields. A field with the name of a column of
the source, or of a partition, gets ``value_`` in front. A value of another type is the column
``value``.

The type of a typed table grows with its topics' schemas: fields are added, and numbers become wider
where the format can do so. A field that a schema does not have any more stays, and is null.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from ...metadata import crc32c
from ..columns import COLUMNS, VALUE_BYTES, VALUE_ERROR, arrow_schema_of
from ..errors import OptionError, SchemaConflictError
from ..options import DecodeMode, ReadOptions
from ..values.form import Reader, ValueForm, readers_of, schema_key
from ..values.registry import registered_schemas
from ..values.types import merged_type
from .manifest import PERIODS_MS, Layout
from .table import OffloadTable

ERRORS = pa.field("__error", pa.string())
TOPIC = "topic"
BUCKET = "bucket"
DELETED = "deleted"
KEY = "__key"
_PREFIX = "value_"
_TAKEN = {*map(str.lower, COLUMNS), TOPIC, BUCKET, DELETED, *PERIODS_MS}


def _is_taken(name: str) -> bool:
    return name.lower() in _TAKEN or (name.startswith(_PREFIX) and _is_taken(name[len(_PREFIX) :]))


def column_of(field: str) -> str:
    """The column for a field of a value."""
    return _PREFIX + field if _is_taken(field) else field


def _field_of(column: str) -> str:
    return column[len(_PREFIX) :] if _is_taken(column) else column


def partition_fields(layout: Layout) -> list[pa.Field]:
    """The columns by which a table is partitioned."""
    fields = [pa.field(TOPIC, pa.string())]
    if layout.partition_by in PERIODS_MS:
        fields.append(pa.field(layout.partition_by, pa.timestamp("us", "UTC")))
    elif layout.buckets:
        fields.append(pa.field(BUCKET, pa.int32()))
    return fields


def raw_schema(layout: Layout) -> pa.Schema:
    """The columns of a table of binary values."""
    return pa.schema([*arrow_schema_of(layout.columns), *partition_fields(layout)])


def rejected_schema(columns: Sequence[str]) -> pa.Schema:
    """The columns of the table of rejected rows: the value's bytes, and what is wrong."""
    fields = [*arrow_schema_of(columns), ERRORS, *partition_fields(Layout(()))]
    return pa.schema(fields)


def rows_schema(columns: Sequence[str], typed: pa.Schema | None, *, errors: bool) -> pa.Schema:
    """The schema of the rows read from the messages.

    Args:
        columns: those of the source.
        typed: the table's columns, if values are typed.
        errors: whether to read also why values could not be decoded, and their bytes.
    """
    if typed is None:
        return arrow_schema_of(columns)
    kept = [name for name in columns if name != "value"]
    fields = [*arrow_schema_of(kept), pa.field("value", _value_type(typed, columns))]
    return pa.schema([*fields, *arrow_schema_of([VALUE_BYTES, VALUE_ERROR] if errors else [])])


def _value_type(typed: pa.Schema, columns: Sequence[str]) -> pa.DataType:
    """The type of values that a table has columns for."""
    if "value" in typed.names:
        return typed.field("value").type
    known = {*columns, TOPIC, BUCKET, DELETED, *PERIODS_MS}
    fields = [field for field in typed if field.name not in known]
    return pa.struct([(_field_of(field.name), field.type) for field in fields])


def _typed_fields(type_: pa.DataType) -> list[pa.Field]:
    if not pa.types.is_struct(type_):
        return [pa.field("value", type_)]
    return [pa.field(column_of(field.name), field.type) for field in type_]


def typed_form(
    options: ReadOptions, topics: Collection[str], table: OffloadTable, layout: Layout
) -> tuple[pa.Schema, ValueForm]:
    """The columns that a typed table has from now on, and how values become them.

    With ``mode=PERMISSIVE`` a topic whose newest schema does not fit is read by the newest one that
    does: the values that are not of that one are rejected.

    Raises:
        OptionError: a topic has no such schema, or the table has no columns of the source.
        SchemaConflictError: the table cannot take a topic's schema.
    """
    assert options.value_schema is not None, "values are typed"
    place, registry = options.registry_schemas, None
    if place is not None:
        registry = tuple(registered_schemas(place))
    fixed = [*arrow_schema_of([x for x in layout.columns if x != "value"])]
    partitions = partition_fields(layout)
    schema = table.schema()
    if schema is not None and not {*fixed, *partitions} <= {*schema}:
        raise OptionError("target", table.name, f"is a {table.format} table of other columns")
    readers: dict[str, Reader] = {}
    for topic in sorted(topics):
        key = schema_key(topic)
        if key in readers:
            continue
        candidates = readers_of(str(options.path), topic, options.value_schema, registry)
        if options.mode is DecodeMode.FAILFAST:
            candidates = candidates[:1]
        conflict: ValueError | None = None
        for candidate in candidates:
            fields = [*fixed, *_typed_fields(candidate.arrow_type()), *partitions]
            try:
                schema = _merged(schema, fields, table)
            except ValueError as error:
                conflict = conflict or error
            else:
                readers[key] = candidate
                break
        else:
            raise SchemaConflictError(table.name, topic, str(conflict)) from conflict
    if schema is None:
        raise OptionError("valueSchema", options.value_schema, "there is no topic with a schema")
    return schema, ValueForm(str(options.path), options.value_schema, readers, registry)


def _merged(schema: pa.Schema | None, fields: Sequence[pa.Field], table: OffloadTable) -> pa.Schema:
    """The columns of both. Raises ValueError."""
    if schema is None:
        return pa.schema(fields)
    merged = merged_type(pa.struct(list(schema)), pa.struct(fields), widens=table.widens)
    return pa.schema(list(merged))


def without_partitions(schema: pa.Schema, layout: Layout) -> pa.Schema:
    """The columns of files whose partition is only in their names."""
    names = {field.name for field in partition_fields(layout)}
    return pa.schema([field for field in schema if field.name not in names])


def latest(changes: pa.Table) -> pa.Table:
    """The last row of each key (and topic, if rows have it), of rows in order."""
    names = [name for name in (TOPIC, KEY) if name in changes.column_names]
    numbered = changes.select(names).append_column("row", pa.array(range(len(changes))))
    last = numbered.group_by(names).aggregate([("row", "max")])
    return changes.take(pa.array(sorted(last["row_max"].to_pylist()), pa.int64()))


def with_partitions(changes: pa.Table, topic: str, layout: Layout) -> pa.Table:
    """A topic's rows with the columns by which a table of the latest rows is partitioned."""
    rows = changes.append_column(TOPIC, pa.repeat(pa.scalar(topic), len(changes)))
    if layout.buckets:
        numbers = [crc32c(key) % layout.buckets for key in rows[KEY].to_pylist()]
        rows = rows.append_column(BUCKET, pa.array(numbers, pa.int32()))
    return rows
