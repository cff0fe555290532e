"""Avro's schema resolution as Pulsar asks for it, with a limit of steps.

This module imports `avro`; it is imported itself with the first comparison.
"""

from __future__ import annotations

from typing import Any

from avro.compatibility import (
    CompatibleResult,
    ReaderWriterCompatibilityChecker,
    SchemaCompatibilityResult,
    SchemaIncompatibilityType,
    check_fixed_size,
    incompatible,
    merge,
)
from avro.schema import EnumSchema, FixedSchema, RecordSchema, Schema

from .schema_definitions import Steps


class Resolution(ReaderWriterCompatibilityChecker):  # type: ignore[misc, unused-ignore]
    """One comparison. Records need not have the same name, and enums not the same symbols."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self._steps = steps

    def calculate_compatibility(
        self, reader: Schema, writer: Schema, location: list[str]
    ) -> SchemaCompatibilityResult:
        """Whether the reader can read what the writer writes. Raises IncompatibleSchemaError."""
        self._steps.spend(1)
        result: SchemaCompatibilityResult
        if isinstance(reader, RecordSchema) and isinstance(writer, RecordSchema):
            fields = _WriterFields(writer)
            result = self.check_reader_writer_record_fields(reader, fields, location)  # type: ignore[arg-type, unused-ignore]
        elif isinstance(reader, EnumSchema) and isinstance(writer, EnumSchema):
            result = _named(reader, writer, location)
        elif isinstance(reader, FixedSchema) and isinstance(writer, FixedSchema):
            sizes = check_fixed_size(reader, writer, location)
            result = merge(_named(reader, writer, location), sizes)
        else:
            result = super().calculate_compatibility(reader, writer, location)
        return result


class _WriterFields:
    """A writer's record whose fields by name are made once.

    The library makes them for each field of the reader: a comparison of two records with 8,000
    fields took ten seconds of processor time.
    """

    def __init__(self, record: RecordSchema) -> None:
        self._record = record
        self.fields_dict = record.fields_dict

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)


def _named(
    reader: EnumSchema | FixedSchema, writer: EnumSchema | FixedSchema, location: list[str]
) -> SchemaCompatibilityResult:
    aliases = reader.props.get("aliases")
    known = aliases if isinstance(aliases, list) else []
    if reader.fullname == writer.fullname or writer.fullname in known:
        return CompatibleResult
    kind = SchemaIncompatibilityType.name_mismatch
    return incompatible(kind, f"expected: {writer.fullname}", location)
