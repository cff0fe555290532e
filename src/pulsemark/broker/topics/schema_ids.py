"""Schema ids, by which Kafka's serializers name schemas, and the subjects that have them.

An id belongs to a definition with its type and references. Wherever the same one is registered
again, under whatever subject, it keeps its id. Ids are never given twice. The catalog has them
under `IDS_KIND`:

    "<id>"           JSON: [[key, version], ...], which versions have it
    "sha256:<mark>"  the id of the definition with this mark
    "next"           JSON: [the next id, how many there are]

They are changed in the same transaction as the schemas. A reference to a version that is gone, or
has another id, is ignored; so a deletion may be cut short by a crash.

The subject `T-value` is the schema of the topic T in the namespace of Kafka's clients
(TopicNameStrategy). Every other subject, and definitions that no type of Pulsar's has (JSON Schema,
Protobuf), are stored under names with the domain `SUBJECT`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ...proto.pulsar_api_pb2 import Schema, ServerError
from ...wire import TopicName
from ..errors import RefusedError

if TYPE_CHECKING:
    from .catalog_writer import CatalogWriter, Change
    from .schemas import SchemaVersion

IDS_KIND = "schema-ids"
#: The domain of schemas that are no topic's.
SUBJECT = "subject"
VALUE = "-value"
NEXT = "next"
#: The property with the registry's name of a type that Pulsar lacks.
TYPE_PROPERTY = "schemaType"


class Reference(NamedTuple):
    """A schema that a definition uses: its name there, subject and version."""

    name: str
    subject: str
    version: int


def subject_place(namespace: str, subject: str) -> TopicName:
    """The name under which a subject's schemas are stored, if it is no topic's."""
    tenant, _, local = namespace.partition("/")
    return TopicName(SUBJECT, tenant, local, subject)


def registry_type(schema: Schema) -> str:
    """The registry's name of a schema's type; "" if it has none."""
    if schema.type == Schema.Avro:
        return "AVRO"
    return next((p.value for p in schema.properties if p.key == TYPE_PROPERTY), "")


def mark_of(version: SchemaVersion) -> str:
    """The hash that is equal for definitions with the same id."""
    text = version.text.encode() or version.schema.schema_data
    if registry_type(version.schema) != "PROTOBUF":
        try:
            text = json.dumps(json.loads(text), separators=(",", ":")).encode()
        except (ValueError, RecursionError):
            text = text.strip()  # Pulsar's Avro is what is left of text that is not UTF-8
    import hashlib

    parts = registry_type(version.schema), [list(each) for each in version.references]
    return "sha256:" + hashlib.sha256(json.dumps(parts).encode() + text).hexdigest()


class SchemaIds:
    """The ids of schemas that Kafka's clients can see. All calls are in turns of the catalog."""

    def __init__(self, writer: CatalogWriter, namespace: str, most: int) -> None:
        self._writer = writer
        self.prefixes = f"persistent://{namespace}/", f"{SUBJECT}://{namespace}/"
        self._most = most

    def lacks(self, key: str, version: SchemaVersion) -> bool:
        """Whether a version should have an id, and has none."""
        return (
            not version.id
            and key.startswith(self.prefixes)
            and bool(version.schema.schema_data and registry_type(version.schema))
        )

    async def give(
        self, key: str, before: Sequence[SchemaVersion], after: Sequence[SchemaVersion]
    ) -> tuple[list[SchemaVersion], list[Change]]:
        """Give ids to versions without one, and free the ids of removed versions.

        Return the versions, and the changes to be written. Raises RefusedError at the limit.
        """
        changes: dict[str, str | None] = {}
        kept = {one.number for one in after if one.id}
        for one in before:
            if one.id and one.number not in kept:
                await self._free(key, one, changes)
        numbered = [
            replace(one, id=await self._number(key, one, changes)) if self.lacks(key, one) else one
            for one in after
        ]
        rows = [
            (IDS_KIND, name, None if value is None else value.encode())
            for name, value in changes.items()
        ]
        return numbered, rows

    async def _number(self, key: str, one: SchemaVersion, changes: dict[str, str | None]) -> int:
        mark = mark_of(one)
        number = int(await self._read(mark, changes) or 0)
        if not number:
            number, count = json.loads(await self._read(NEXT, changes) or "[1, 0]")
            if count >= self._most:
                text = f"{count} schemas have numbers, and the limit is {self._most} "
                text += "(pulsemarkMaxRegisteredSchemas)"
                raise RefusedError(ServerError.NotAllowedError, text)
            changes[NEXT] = json.dumps([number + 1, count + 1])
            changes[mark] = str(number)
        places = json.loads(await self._read(str(number), changes) or "[]")
        changes[str(number)] = json.dumps([*places, [key, one.number]])
        return number

    async def _free(self, key: str, one: SchemaVersion, changes: dict[str, str | None]) -> None:
        name = str(one.id)
        places = json.loads(await self._read(name, changes) or "[]")
        left = [place for place in places if place != [key, one.number]]
        changes[name] = json.dumps(left) if left else None
        if not left:
            changes[mark_of(one)] = None
            following, count = json.loads(await self._read(NEXT, changes) or f"[{one.id + 1}, 1]")
            changes[NEXT] = json.dumps([following, count - 1])

    async def places(self, number: int) -> list[tuple[str, int]]:
        """The keys and versions that have an id."""
        stored = await self._read(str(number), {}) or "[]"
        return [(key, version) for key, version in json.loads(stored)]

    async def highest(self) -> int:
        """The highest id that was given."""
        return int(json.loads(await self._read(NEXT, {}) or "[1, 0]")[0]) - 1

    async def _read(self, name: str, changes: dict[str, str | None]) -> str | None:
        if name in changes:
            return changes[name]
        stored = await self._writer.read(IDS_KIND, name)
        return None if stored is None else stored.decode()
