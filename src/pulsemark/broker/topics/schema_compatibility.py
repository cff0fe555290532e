"""Whether a topic takes a new schema: Pulsar's compatibility strategies.

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
refuses it also with a schema that the topic has.

The functions can take seconds: call them in a thread. `Steps` is what all comparisons of a request
may cost together.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...proto.pulsar_api_pb2 import Schema
from ..errors import IncompatibleSchemaError
from .avro_schemas import AvroDefinition, Steps, check_reads
from .schema_data import (
    KEY_VALUE,
    NATIVE,
    kind_of,
    parts_of,
    root_message,
)

__all__ = [
    "ALWAYS_COMPATIBLE",
    "check_compatible",
    "check_consumer",
]

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
    _check_kind(schemas[-1], new)
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
        raise IncompatibleSchemaError(
            f"Error during schema compatibility check with strategy {strategy}: "
            f"org.apache.avro.SchemaValidationException: Unable to read schema: \n{added}\n"
            f"using schema:\n{added}"
        )
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
