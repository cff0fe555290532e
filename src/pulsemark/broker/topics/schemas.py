"""The schemas of each topic, by version.

A schema is registered once: registering it again returns its version. Versions count from 0 and are
sent as 8 bytes, big-endian. They are stored in the catalog under the topic's name; all partitions
of a partitioned topic share them.

There is one check: a topic's schema type never changes (IncompatibleSchema). Whether two Avro or
JSON definitions are compatible is not checked: every definition of the topic's type is accepted, as
with Pulsar's strategy ALWAYS_COMPATIBLE.
"""

from __future__ import annotations

import struct

from ...metadata.schema_list import pack_schemas, unpack_schemas
from ...proto.pulsar_api_pb2 import Schema, ServerError
from ...wire import TopicName
from ..configuration.config import BrokerConfig
from ..errors import RefusedError
from .catalog_writer import CatalogWriter
from .topic import Topic

__all__ = ["Schemas", "version_bytes"]

SCHEMA_KIND = "schema"
#: Memory of a schema without its definition, rounded up.
SCHEMA_BYTES = 1024

_VERSION = struct.Struct(">Q")

#: Types that take any data, or follow the topic: they are never registered.
UNTYPED = (Schema.Type.Value("None"), Schema.AutoConsume)


def version_bytes(version: int) -> bytes:
    """A schema version in its wire format."""
    return _VERSION.pack(version)


class Schemas:
    """Registered schemas, read from the catalog when a topic needs them.

    The schemas of the most recently used topics stay in memory, at most `max_schema_cache_bytes`.
    A topic without schemas takes no memory.
    """

    def __init__(self, writer: CatalogWriter, config: BrokerConfig) -> None:
        self._writer = writer
        self._max_cache_bytes = config.max_schema_cache_bytes
        self._max_topic_bytes = config.max_schema_bytes_per_topic
        #: The most recently used topic is last.
        self._by_topic: dict[str, list[Schema]] = {}
        self._sizes_bytes: dict[str, int] = {}
        self._cached_bytes = 0

    async def versions(self, topic: TopicName) -> list[Schema]:
        """All schemas of a topic, by version."""
        key = str(topic.partitioned)
        known = self._by_topic.get(key)
        if known is None:
            return await self._writer.in_turn(lambda: self._load(key))
        self._by_topic[key] = self._by_topic.pop(key)
        return known

    async def _load(self, key: str) -> list[Schema]:
        """Within a turn: all stored schemas of a topic."""
        known = self._by_topic.get(key)
        if known is None:
            known = unpack_schemas(await self._writer.read(SCHEMA_KIND, key) or b"")
            if known:
                self._remember(key, known)
        return known

    def _remember(self, key: str, schemas: list[Schema]) -> None:
        """Keep a topic's stored schemas in memory; the least recently used ones are dropped."""
        self._drop(key)
        size_bytes = sum(SCHEMA_BYTES + schema.ByteSize() for schema in schemas)
        self._by_topic[key], self._sizes_bytes[key] = schemas, size_bytes
        self._cached_bytes += size_bytes
        for oldest in list(self._by_topic):
            if self._cached_bytes <= self._max_cache_bytes or oldest == key:
                return
            self._drop(oldest)

    def _drop(self, key: str) -> None:
        self._by_topic.pop(key, None)
        self._cached_bytes -= self._sizes_bytes.pop(key, 0)

    async def find(self, topic: TopicName, version: bytes | None) -> tuple[Schema, bytes]:
        """A topic's schema of that version (None: the latest), with its version."""
        schemas = await self.versions(topic)
        number = len(schemas) - 1
        if version:
            number = _VERSION.unpack(version)[0] if len(version) == _VERSION.size else -1
        if not 0 <= number < len(schemas):
            raise RefusedError(ServerError.TopicNotFound, "Topic not found or no-schema")
        return schemas[number], version_bytes(number)

    async def register(self, topic: Topic, schema: Schema, *, may_be_first: bool = True) -> bytes:
        """Register a schema and return its version; durable on return. Raises `RefusedError`.

        Nothing is stored for a topic that was closed meanwhile, since it may be being deleted.
        """
        key = str(topic.topic_name.partitioned)
        known = _version_in(self._by_topic.get(key, []), schema)
        if known is None:
            known = await self._writer.in_turn(lambda: self._add(topic, schema, may_be_first))
        return version_bytes(known)

    async def _add(self, topic: Topic, schema: Schema, may_be_first: bool) -> int:
        """Within a turn: return the version of a schema; add it if it is new."""
        key = str(topic.topic_name.partitioned)
        schemas = await self._load(key)
        known = _version_in(schemas, schema)
        if known is not None:
            return known
        if not schemas and not may_be_first:
            raise RefusedError(
                ServerError.IncompatibleSchema, "Topic does not have a schema to check"
            )
        if schemas and schemas[-1].type != schema.type:
            raise RefusedError(
                ServerError.IncompatibleSchema,
                f"the topic's schema is {_type_name(schemas[-1])}, not {_type_name(schema)}",
            )
        grown = [*schemas, _copy(schema)]
        size_bytes = sum(known.ByteSize() for known in grown)
        if size_bytes > self._max_topic_bytes:
            raise RefusedError(
                ServerError.NotAllowedError,
                f"the topic's schemas would have {size_bytes} bytes, at most "
                f"{self._max_topic_bytes} are allowed",
            )
        # The deletion of a topic first closes it, and removes its schemas in a later turn.
        topic.check_is_open()
        await self._writer.write((SCHEMA_KIND, key, pack_schemas(grown)))
        self._remember(key, grown)
        return len(schemas)

    async def for_producer(self, topic: Topic, schema: Schema | None) -> bytes:
        """The schema version for a new producer; b"" without a schema."""
        if schema is None or schema.type in UNTYPED:
            return b""
        return await self.register(topic, schema)

    async def for_consumer(self, topic: Topic, schema: Schema | None) -> None:
        """Check a consumer's schema. It becomes the topic's if the topic was never used."""
        if schema is None or schema.type in UNTYPED:
            return
        in_use = (
            topic.producers.by_name
            or topic.ledger.last_position is not None
            or any(subscription.consumers for subscription in tuple(topic.subscriptions.values()))
        )
        await self.register(topic, schema, may_be_first=not in_use)

    async def forget(self, topic: TopicName) -> None:
        """Forget the schemas of a deleted topic."""
        key = str(topic)
        await self._writer.put(SCHEMA_KIND, key, None, lambda: self._drop(key))


def _copy(schema: Schema) -> Schema:
    """A copy of the schema: a reference to a part of a command keeps all of it in memory."""
    copy = Schema()
    copy.CopyFrom(schema)
    return copy


def _version_in(schemas: list[Schema], wanted: Schema) -> int | None:
    for number, schema in enumerate(schemas):
        if schema.type == wanted.type and schema.schema_data == wanted.schema_data:
            return number
    return None


def _type_name(schema: Schema) -> str:
    return Schema.Type.Name(schema.type)
