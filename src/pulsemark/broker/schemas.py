"""The schemas of each topic, by version.

A schema is registered once: the same one again gives its old version. Versions count from 0 and
travel as 8 bytes, big-endian. They live in the catalog under the topic's name, which partitions
share.

What is checked: a topic's schema type never changes (IncompatibleSchema). Whether two Avro or
JSON definitions of one type can read each other is not judged here: every definition of the
topic's type is accepted, as under Pulsar's strategy ALWAYS_COMPATIBLE.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from typing import Any

from ..ledger import LocalStore
from ..proto.pulsar_api_pb2 import Schema, ServerError
from ..wire import TopicName
from .errors import RefusedError
from .topic import Topic

__all__ = ["Schemas", "version_bytes"]

_SIZE = struct.Struct(">I")
_VERSION = struct.Struct(">Q")

#: Types that take any data, or follow the topic: they are never registered.
UNTYPED = (Schema.Type.Value("None"), Schema.AutoConsume)


def version_bytes(version: int) -> bytes:
    """A schema version as it travels."""
    return _VERSION.pack(version)


class Schemas:
    """Registered schemas, read from the catalog when a topic first needs them."""

    def __init__(self, store: LocalStore, run_blocking: Callable[..., Awaitable[Any]]) -> None:
        self._store = store
        self._run_blocking = run_blocking
        self._by_topic: dict[str, list[Schema]] = {}

    async def versions(self, topic: TopicName) -> list[Schema]:
        """All schemas of a topic, by version."""
        key = str(topic.partitioned)
        if key not in self._by_topic:
            stored = await self._run_blocking(self._store.catalog.get, "schema", key)
            self._by_topic.setdefault(key, _unpack(stored or b""))
        return self._by_topic[key]

    async def find(self, topic: TopicName, version: bytes | None) -> tuple[Schema, bytes]:
        """A topic's schema of that version (None: the latest), with its version."""
        schemas = await self.versions(topic)
        number = len(schemas) - 1
        if version:
            number = _VERSION.unpack(version)[0] if len(version) == _VERSION.size else -1
        if not 0 <= number < len(schemas):
            raise RefusedError(ServerError.TopicNotFound, "Topic not found or no-schema")
        return schemas[number], version_bytes(number)

    async def register(self, topic: TopicName, schema: Schema) -> bytes:
        """The version of a schema, registered if it is new. Raises `RefusedError`."""
        known = _version_in(await self.versions(topic), schema)
        if known is not None:
            return version_bytes(known)
        schemas = await self.versions(topic)
        if schemas and schemas[-1].type != schema.type:
            raise RefusedError(
                ServerError.IncompatibleSchema,
                f"the topic's schema is {_type_name(schemas[-1])}, not {_type_name(schema)}",
            )
        grown = [*schemas, schema]
        self._by_topic[str(topic.partitioned)] = grown
        try:
            await self._run_blocking(
                self._store.catalog.put, "schema", str(topic.partitioned), _pack(grown)
            )
        except BaseException:
            self._by_topic.pop(str(topic.partitioned), None)
            raise
        return version_bytes(len(grown) - 1)

    async def for_producer(self, topic: TopicName, schema: Schema | None) -> bytes:
        """The schema version a producer writes with; b"" without schema."""
        if schema is None or schema.type in UNTYPED:
            return b""
        return await self.register(topic, schema)

    async def for_consumer(self, topic: Topic, schema: Schema | None) -> None:
        """Check a consumer's schema; it becomes the topic's where the topic is untouched."""
        if schema is None or schema.type in UNTYPED:
            return
        in_use = (
            topic.producers.by_name
            or topic.ledger.last_position is not None
            or any(subscription.consumers for subscription in topic.subscriptions.values())
        )
        if not await self.versions(topic.topic_name) and in_use:
            raise RefusedError(
                ServerError.IncompatibleSchema, "Topic does not have a schema to check"
            )
        await self.register(topic.topic_name, schema)

    async def forget(self, topic: TopicName) -> None:
        """The topic was deleted, and its schemas with it."""
        self._by_topic.pop(str(topic), None)
        await self._run_blocking(self._store.catalog.delete, "schema", str(topic))


def _version_in(schemas: list[Schema], wanted: Schema) -> int | None:
    for number, schema in enumerate(schemas):
        if schema.type == wanted.type and schema.schema_data == wanted.schema_data:
            return number
    return None


def _type_name(schema: Schema) -> str:
    return Schema.Type.Name(schema.type)


def _pack(schemas: list[Schema]) -> bytes:
    parts = (schema.SerializeToString() for schema in schemas)
    return b"".join(_SIZE.pack(len(part)) + part for part in parts)


def _unpack(stored: bytes) -> list[Schema]:
    schemas: list[Schema] = []
    at = 0
    while at < len(stored):
        (size,) = _SIZE.unpack_from(stored, at)
        at += _SIZE.size
        schemas.append(Schema.FromString(stored[at : at + size]))
        at += size
    return schemas
