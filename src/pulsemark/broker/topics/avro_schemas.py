"""Avro schemas: reading a definition, and whether one can read what was written with another.

AVRO, JSON and PROTOBUF definitions of Pulsar's clients are all Avro's. Pulsar asks Avro's
`SchemaValidator`, which is more generous than Avro's `SchemaCompatibility`: the names of two
records need not be equal, and an enum's reader may lack symbols of its writer. The resolution is
that of `avro.compatibility`; `avro_resolution` changes these two rules, and counts the steps.

Definitions come from clients. So their size and depth are limited, and the steps of one request:
one for each value of a definition that it reads, and one for each pair of reader and writer that it
compares, over all versions of the topic. Above that the request is refused. It runs in a thread of
the caller's, and pauses for as long as it works, so that the event loop gets the interpreter.

The library is imported with the first definition. A broker without schemas does not load it.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from ..errors import IncompatibleSchemaError, InvalidSchemaError

if TYPE_CHECKING:
    from avro.schema import Schema as AvroSchema

__all__ = ["AvroDefinition", "Steps", "TooManyStepsError", "check_reads"]

#: Nested JSON values of a definition.
MAX_DEPTH = 100
#: JSON values of a definition.
MAX_NODES = 50_000
#: Steps of one request.
MAX_STEPS = 500_000
#: Steps after which a request pauses, and how long for each: about as long as it has worked.
STEPS_AT_ONCE = 200
PAUSE_S = 0.000_005
#: Parts of a definition that do not decide about reading.
IGNORED = ("doc", "logicalType")
#: A definition in a message is cut after so many characters.
SHOWN_CHARACTERS = 16_384


class TooManyStepsError(IncompatibleSchemaError):
    """A request reads and compares more than it may."""

    def __init__(self, most: int) -> None:
        super().__init__(f"comparing the schemas takes more than {most} steps")


class Steps:
    """What one request may still cost."""

    def __init__(self) -> None:
        self.most = self.left = MAX_STEPS
        self._not_paused = 0
        self._new: dict[bytes, AvroDefinition] = {}

    def spend(self, count: int) -> None:
        """Count steps. Raises `TooManyStepsError`."""
        self.left -= count
        if self.left < 0:
            raise TooManyStepsError(self.most)
        self._not_paused += count
        if self._not_paused >= STEPS_AT_ONCE:
            time.sleep(self._not_paused * PAUSE_S)
            self._not_paused = 0

    def definition_of_new(self, data: bytes, kind: str) -> AvroDefinition:
        """The definition of the schema that is compared with many others: it is read once."""
        found = self._new.get(data)
        if found is None:
            found = self._new[data] = AvroDefinition(data, kind, self)
        return found


class AvroDefinition:
    """A parsed definition. `parsed` is the library's object, `json` the JSON value,
    `compared` is equal for definitions that are the same to Avro.

    Raises `InvalidSchemaError` with ``kind``, Pulsar's name of the schema's type, and
    `TooManyStepsError`.
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
        #: What equal definitions have in common: texts and aliases do not count.
        self.compared = _compared(self.json)

    def __str__(self) -> str:
        """As Avro's Java library prints it."""
        return _pretty(self.json, 0)[:SHOWN_CHARACTERS]


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
        raise IncompatibleSchemaError(
            f"Error during schema compatibility check with strategy {strategy}: "
            f"org.apache.avro.SchemaValidationException: Unable to read schema: \n{writer}\n"
            f"using schema:\n{reader}"
        )


def _check_size(value: Any, what: str) -> int:
    """The number of values, counted without recursion. Checks the depth, too."""
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
    """What two equal definitions have in common."""
    if isinstance(value, dict) and set(value) == {"type"} and isinstance(value["type"], str):
        return value["type"]
    if isinstance(value, dict):
        return {
            name: one if name == "default" else _compared(one)
            for name, one in value.items()
            if name not in ("doc", "aliases")
        }
    return [_compared(one) for one in value] if isinstance(value, list) else value


#: The order in which Avro's Java library prints the properties of a type and of a field.
TYPE_ORDER = ("type", "name", "namespace", "doc")
FIELD_ORDER = ("name", "type", "doc", "default", "order", "aliases")


def _ordered(value: dict[str, Any]) -> dict[str, Any]:
    is_type = not {"fields", "symbols", "size"}.isdisjoint(value)
    order = TYPE_ORDER if is_type or "name" not in value else FIELD_ORDER
    known = {name: value[name] for name in order if name in value}
    return {**known, **{name: one for name, one in value.items() if name not in known}}


def _pretty(value: Any, indent: int) -> str:
    """JSON in the manner of Jackson's default printer."""
    if isinstance(value, dict) and value:
        if "type" in value:
            value = _ordered(value)
        inner = " " * (indent + 2)
        members = (
            f"{inner}{json.dumps(name, ensure_ascii=False)} : {_pretty(one, indent + 2)}"
            for name, one in value.items()
        )
        return "{\n" + ",\n".join(members) + "\n" + " " * indent + "}"
    if isinstance(value, dict):
        return "{ }"
    if isinstance(value, list):
        return "[ " + ", ".join(_pretty(one, indent) for one in value) + " ]" if value else "[ ]"
    return json.dumps(value, ensure_ascii=False)
