"""The schemas of each topic, by version.

A schema is registered once: registering it again returns its version. Versions count from 0 and are
sent as 8 bytes, big-endian. They are stored in the catalog under the topic's name without its
domain: all partitions of a partitioned topic share them, and so do the persistent and the
non-persistent topic of a name, as in Pulsar.

Deleting a schema adds a version that says so. The versions before it are neither found nor compared
any more, and counting goes on after it. Deleting with force removes all versions.

Whether a new schema fits is decided by `schema_definitions`, in a thread, one comparison of the
whole broker at a time. Only then the catalog's turn begins. If the topic's versions have changed
meanwhile, the schema is compared again.

`SchemaRules` says which rules hold: the topic's own, its namespace's, or the broker's.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from ...ledger.store import SCHEMA_KIND
from ...metadata.schema_list import pack_schemas, unpack_schemas
from ...proto.pulsar_api_pb2 import Schema, ServerError
from ...records import record
from ...wire import TopicName
from ..cooperative import Background
from ..errors import IncompatibleSchemaError, InvalidSchemaError, RefusedError
from ..policies import pulsar_policies
from ..storage import persisting
from . import schema_definitions as definitions
from .catalog_writer import Change
from .schema_ids import SUBJECT, Reference, SchemaIds

if TYPE_CHECKING:
    from .policy_store import Policies
    from .registry import Topics
    from .topic import Topic

#: Memory of a schema without its definition, rounded up.
SCHEMA_BYTES = 1024
#: A definition that is larger is refused: it would be read while nothing else runs.
MAX_DEFINITION_BYTES = 1 << 20
MAX_VERSIONS = 1_000
#: When each version was registered, which ones are deletions, and their fingerprints: JSON.
FACTS_KIND = "schema-facts"
STORED_KINDS = (SCHEMA_KIND, FACTS_KIND)

T = TypeVar("T")
Facts = list[dict[str, Any]]
_VERSION = struct.Struct(">Q")
#: Facts stored for each version beside its schema, if it has them.
_FACTS = ("registered_ms", "is_deletion", "fingerprint", "id", "is_hidden", "text", "references")
_ALWAYS_STORED = _FACTS[:3]


def version_bytes(version: int) -> bytes:
    """A schema version in its wire format."""
    return _VERSION.pack(version)


def schema_id(name: TopicName) -> str:
    """Pulsar's name of a topic's schema: the topic without domain and partition."""
    return str(name.partitioned).partition("://")[2]


@record(frozen=True)
class SchemaVersion:
    """One version of a topic's schema; a deletion has an empty schema of type None."""

    number: int
    schema: Schema
    registered_ms: int = 0
    is_deletion: bool = False
    #: Avro's fingerprint: equal definitions have the same.
    fingerprint: str = ""
    #: The schema id of Kafka's serializers; 0: none.
    id: int = 0
    #: Whether this version alone was deleted: it is listed, but neither found nor compared.
    is_hidden: bool = False
    #: The definition as registered, if it has references; the schema's includes these.
    text: str = ""
    references: tuple[Reference, ...] = ()


class IdNumbers(dict[int, int]):
    """The present schema ids of one topic, with their versions."""


class Schemas:
    """Registered schemas; those of the most recently used topics stay in memory."""

    def __init__(self, topics: Topics) -> None:
        writer = self._writer = topics.catalog_writer
        config = self._config = topics.config
        self._run_blocking = topics.run_blocking
        self._comparing = asyncio.Lock()
        #: The rules of topics and namespaces.
        self.rules = SchemaRules(topics.policies)
        #: The most recently used topic is last.
        self._by_topic: dict[str, list[SchemaVersion]] = {}
        self._sizes_bytes: dict[str, int] = {}
        self._cached_bytes = 0
        self._background = Background()
        #: The ids of Kafka's serializers; None: nobody asks for them.
        self.ids: SchemaIds | None = None
        if config.schema_registry_port is not None:
            self.ids = SchemaIds(writer, config.kafka_namespace, config.max_registered_schemas)
            topics.before_open.append(self.opening)
        self._are_identified = False
        self._numbers: WeakValueDictionary[str, IdNumbers] = WeakValueDictionary()

    # -- asking ---------------------------------------------------------------------------------

    async def versions(self, topic: TopicName) -> list[SchemaVersion]:
        """All versions of a topic, with deletions, by number."""
        key = _key(topic)
        known = self._by_topic.get(key)
        if known is None:
            return await self._writer.in_turn(lambda: self._load(key))
        self._by_topic[key] = self._by_topic.pop(key)
        return known

    async def live(self, topic: TopicName) -> list[SchemaVersion]:
        """The versions since the last deletion."""
        return live_of(await self.versions(topic))

    async def find(self, topic: TopicName, version: bytes | None) -> SchemaVersion:
        """A topic's schema of that version (None: the latest). Raises `RefusedError`.

        As in Pulsar the latest one may be a deletion; others are found only if they are live.
        """
        versions = await self.versions(topic)
        shown = [one for one in versions if not one.is_hidden]
        if version is None and shown:
            return shown[-1]
        number = _VERSION.unpack(version)[0] if version and len(version) == _VERSION.size else -1
        for one in live_of(versions):
            if one.number == number:
                return one
        raise RefusedError(ServerError.TopicNotFound, f"Topic not found or no-schema {topic}")

    # -- registering ----------------------------------------------------------------------------

    async def register(
        self,
        name: TopicName,
        schema: Schema,
        topic: Topic | None = None,
        *,
        strategy: str | None = None,
        text: str = "",
        references: tuple[Reference, ...] = (),
    ) -> int:
        """Register a schema and return its version; durable on return. Raises `RefusedError`.

        Nothing is stored for a ``topic`` that was closed meanwhile, as it may be being deleted.
        ``strategy``: instead of the topic's. ``text``, ``references``: as in `SchemaVersion`.
        """
        strategy = strategy or self.rules.strategy(name)
        steps = definitions.Steps()
        check = partial(definitions.check_compatible, new=schema, strategy=strategy, steps=steps)
        known: int | None
        while True:
            versions = await self.versions(name)
            known = _same_bytes(live_of(versions), schema)
            if known is not None:
                return known
            if (count := len(schema.schema_data)) > MAX_DEFINITION_BYTES:
                text = f"the schema has {count} bytes; at most {MAX_DEFINITION_BYTES} are allowed"
                raise InvalidSchemaError(text)
            mark, known = await self.compare(examine, live_of(versions), schema, steps)
            if known is not None:
                return known
            if topic is not None and not self.rules.allows_update(name):
                text = "Schema not found and schema auto updating is disabled."
                raise IncompatibleSchemaError(text)
            await self.compare(check, [one.schema for one in live_of(versions)])
            new = SchemaVersion(0, _copy(schema), 0, False, mark, 0, False, text, references)
            added = partial(self._add, name, versions, new, topic)
            number = await self._writer.revising(added)
            if number is not None:
                return number

    async def version_of(self, topic: TopicName, schema: Schema) -> int | None:
        """The version of the same definition, compared by bytes as in Pulsar; None: no version."""
        return _same_bytes(await self.live(topic), schema)

    async def compare(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a comparison in a thread, one at a time."""
        async with self._comparing:
            return await self._run_blocking(function, *arguments)

    async def _add(
        self,
        name: TopicName,
        expected: list[SchemaVersion],
        new: SchemaVersion,
        topic: Topic | None,
    ) -> int | None:
        """Add a schema that was compared with these versions; None: they changed. Within a turn."""
        key = _key(name)
        versions = await self._load(key)
        if versions != expected:
            return None
        if topic is not None:
            # The deletion of a topic first closes it, and removes its schemas in a later turn.
            topic.check_is_open()
        number = len(versions)
        added = replace(new, number=number, registered_ms=self._config.clock.now_ms())
        await self._store(key, [*versions, added], versions)
        return number

    async def _store(
        self, key: str, versions: list[SchemaVersion], before: list[SchemaVersion]
    ) -> None:
        size_bytes = sum(one.schema.ByteSize() + len(one.text) for one in versions)
        for what, count, unit, most in (
            ("schemas", size_bytes, "bytes", self._config.max_schema_bytes_per_topic),
            ("schema", len(versions), "versions", MAX_VERSIONS),
        ):
            if count > most:
                text = f"the topic's {what} would have {count} {unit}, at most {most} are allowed"
                raise RefusedError(ServerError.NotAllowedError, text)
        rows: list[Change] = []
        if self.ids is not None:
            versions, rows = await self.ids.give(key, before, versions)
        packed = pack_schemas([one.schema for one in versions])
        facts = _facts_of(versions)
        await self._writer.write((SCHEMA_KIND, key, packed), (FACTS_KIND, key, facts), *rows)
        self._remember(key, versions)

    # -- producers and consumers ----------------------------------------------------------------

    async def for_producer(self, topic: Topic, schema: Schema | None) -> bytes:
        """The schema version for a new producer; b"" without a schema. Raises `RefusedError`."""
        name = topic.topic_name
        if schema is not None:
            return version_bytes(await self.register(name, schema, topic))
        if self.rules.is_enforced(name) and await self.live(name):
            raise IncompatibleSchemaError(
                "Producers cannot connect or send message without a schema to topics with a schema"
                "when SchemaValidationEnforced is enabled"
            )
        return b""

    async def for_consumer(self, topic: Topic, schema: Schema | None, *, in_use: bool) -> None:
        """Check a consumer's schema, or register it for a topic that was never used.

        Raises `RefusedError`.
        """
        if schema is None or schema.type == Schema.AutoConsume:
            return
        name = topic.topic_name
        versions = await self.live(name)
        if not versions and not in_use:
            await self.register(name, schema, topic)
            return
        strategy = self.rules.strategy(name)
        if strategy == definitions.ALWAYS_COMPATIBLE:
            return
        if not versions:
            text = "Failed to add schema to an active topic with empty(BYTES) schema: "
            raise IncompatibleSchemaError(f"{text}new schema type {definitions.kind_of(schema)}")
        check = partial(definitions.check_consumer, new=schema, strategy=strategy)
        await self.compare(check, [one.schema for one in versions])

    # -- deleting -------------------------------------------------------------------------------

    async def delete(self, topic: TopicName, *, force: bool = False) -> int:
        """Delete a topic's schema, durably; return the deletion's version, -1 with ``force``."""
        key = _key(topic)
        if force:
            await self.forget(topic)
            return -1

        async def turn() -> int:
            versions = await self._load(key)
            nothing = Schema(name="", type="None", schema_data=b"")
            now_ms = self._config.clock.now_ms()
            deletion = SchemaVersion(len(versions), nothing, now_ms, True)
            await self._store(key, [*versions, deletion], versions)
            return len(versions)

        return await self._writer.in_turn(turn)

    async def forget(
        self, topic: TopicName, check: Callable[[list[SchemaVersion]], None] = lambda _: None
    ) -> None:
        """Remove the schemas of a deleted topic, unless `check` refuses the stored versions.

        A partition has none of its own.
        """
        if topic.partition_index >= 0:
            return
        key = _key(topic)

        async def turn() -> None:
            rows: list[Change] = []
            if self.ids is not None:
                stored = await self._load(key)
                check(stored)
                _, rows = await self.ids.give(key, stored, [])
            gone: list[Change] = [(SCHEMA_KIND, key, None), (FACTS_KIND, key, None)]
            await self._writer.write(*gone, *rows, frees=True)
            self._drop(key)
            self._show_numbers(key, [])

        await self._writer.in_turn(turn)

    # -- for Kafka's serializers ------------------------------------------------------------------

    async def identified(self, name: TopicName) -> list[SchemaVersion]:
        """All versions of a topic or subject, each with its id if it should have one."""
        key, ids = _key(name), self.ids
        versions = await self.versions(name)
        if ids is None or not any(ids.lacks(key, one) for one in versions):
            return versions
        return await self.revise(name, lambda found: found)

    async def revise(
        self, name: TopicName, change: Callable[[list[SchemaVersion]], list[SchemaVersion]]
    ) -> list[SchemaVersion]:
        """Change the versions of a topic or subject with `change`; durable on return."""
        key = _key(name)

        async def turn() -> list[SchemaVersion]:
            before = await self._load(key)
            await self._store(key, change(list(before)), before)
            return self._by_topic[key]

        return await self._writer.revising(turn)

    async def with_id(self, number: int) -> list[tuple[TopicName, SchemaVersion]]:
        """The places and versions that have an id; [] if there is no such id."""
        assert self.ids is not None, "without a registry nothing has an id"
        ids = self.ids
        places = await self._writer.in_turn(lambda: ids.places(number))
        found = []
        for key, version in places:
            name = place_of(key)
            versions = await self.versions(name)
            if version < len(versions) and versions[version].id == number:
                found.append((name, versions[version]))
        return found

    async def over_all(self, read: Callable[[Iterable[tuple[str, Any]]], T]) -> T:
        """Call `read` in a thread with all schemas that Kafka's clients may see."""
        assert self.ids is not None, "without a registry nobody asks"
        prefixes = self.ids.prefixes
        if not self._are_identified:
            # Once: give ids to what was registered before there was a registry.
            for key, _ in await self._writer.in_turn(lambda: self._writer.items(FACTS_KIND)):
                if key.startswith(prefixes):
                    await self.identified(place_of(key))
            self._are_identified = True
        stored = await self._writer.in_turn(lambda: self._writer.items(FACTS_KIND))
        seen = ((key, json.loads(facts)) for key, facts in stored if key.startswith(prefixes))
        made: T = await self._run_blocking(read, seen)
        return made

    async def opening(self, topic: Topic) -> None:
        """Load the schema ids of an opening topic. Raises `RefusedError`."""
        key = _key(topic.topic_name)
        numbers = self._numbers.get(key)
        if numbers is None:
            numbers = self._numbers[key] = IdNumbers()
            with persisting():
                self._show_numbers(key, await self.identified(topic.topic_name))
        topic.schema_numbers = numbers

    def _show_numbers(self, key: str, versions: list[SchemaVersion]) -> None:
        numbers = self._numbers.get(key)
        if numbers is not None:
            numbers.clear()
            numbers.update((one.id, one.number) for one in live_of(versions) if one.id)

    # -- memory ---------------------------------------------------------------------------------

    async def _load(self, key: str) -> list[SchemaVersion]:
        """Within a turn: all stored versions of a topic."""
        known = self._by_topic.get(key)
        if known is None:
            schemas = unpack_schemas(await self._writer.read(SCHEMA_KIND, key) or b"")
            facts = json.loads(await self._writer.read(FACTS_KIND, key) or b"[]") if schemas else []
            known = _versions(schemas, facts)
            if known:
                self._remember(key, known)
            else:
                self._show_numbers(key, known)
        return known

    def _remember(self, key: str, versions: list[SchemaVersion]) -> None:
        """Keep a topic's stored versions in memory; the least recently used ones are dropped."""
        self._drop(key)
        size_bytes = sum(SCHEMA_BYTES + one.schema.ByteSize() for one in versions)
        self._show_numbers(key, versions)
        self._by_topic[key], self._sizes_bytes[key] = versions, size_bytes
        self._cached_bytes += size_bytes
        for oldest in list(self._by_topic):
            if self._cached_bytes <= self._config.max_schema_cache_bytes or oldest == key:
                return
            self._drop(oldest)

    def take(self, key: str) -> None:
        """Drop a topic's schemas that another broker has changed; they are read when needed."""
        self._drop(key)
        if key in self._numbers:
            self._background.start(self._writer.in_turn(lambda: self._load(key)))

    def _drop(self, key: str) -> None:
        self._by_topic.pop(key, None)
        self._cached_bytes -= self._sizes_bytes.pop(key, 0)


def _key(topic: TopicName) -> str:
    if topic.domain == SUBJECT:
        return str(topic)
    return f"persistent://{schema_id(topic)}"


def place_of(key: str) -> TopicName:
    """The name of the topic or subject whose schemas have this key of the catalog."""
    domain, _, rest = key.partition("://")
    return TopicName(domain, *rest.split("/", 2))


def live_of(versions: Sequence[SchemaVersion]) -> list[SchemaVersion]:
    """The versions since the last deletion, without single versions that were deleted."""
    after = max((one.number + 1 for one in versions if one.is_deletion), default=0)
    return [one for one in versions[after:] if not one.is_hidden]


def _versions(schemas: list[Schema], facts: list[dict[str, Any]]) -> list[SchemaVersion]:
    """Make the versions. Those that an earlier version of this project stored have no facts."""
    return [
        SchemaVersion(number, schema, **_restored(facts[number] if number < len(facts) else {}))
        for number, schema in enumerate(schemas)
    ]


def _restored(fact: dict[str, Any]) -> dict[str, Any]:
    found = {name: fact[name] for name in _FACTS if name in fact}
    found["references"] = tuple(Reference(*each) for each in found.get("references", ()))
    return found


def _facts_of(versions: Sequence[SchemaVersion]) -> bytes:
    rows = [
        {name: fact for name in _FACTS if (fact := getattr(one, name)) or name in _ALWAYS_STORED}
        for one in versions
    ]
    return json.dumps(rows).encode()


def _same_bytes(versions: Sequence[SchemaVersion], wanted: Schema) -> int | None:
    for one in versions:
        if one.schema.type == wanted.type and one.schema.schema_data == wanted.schema_data:
            return one.number
    return None


def examine(
    versions: Sequence[SchemaVersion], wanted: Schema, steps: definitions.Steps
) -> tuple[str, int | None]:
    """Check a schema in a thread. Return its fingerprint and the equal version, if any."""
    definitions.check_schema_data(wanted)
    mark = _fingerprint(wanted, steps)
    for one in versions:
        if not mark or one.schema.type != wanted.type:
            continue
        if mark == (one.fingerprint or _fingerprint(one.schema, steps)):
            return mark, one.number
    return mark, None


def _fingerprint(schema: Schema, steps: definitions.Steps) -> str:
    if definitions.kind_of(schema) not in definitions.AVRO_KINDS:
        return ""
    import hashlib

    try:
        compared = definitions.AvroDefinition(
            schema.schema_data, definitions.kind_of(schema), steps
        ).compared
    except InvalidSchemaError:
        return ""
    return hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()


def _copy(schema: Schema) -> Schema:
    """A copy of the schema: a reference to a part of a command keeps all of it in memory."""
    copy = Schema()
    copy.CopyFrom(schema)
    return copy


class SchemaRules:
    """The rules for the schemas of any topic, as they are now."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    def strategy(self, name: TopicName) -> str:
        """The compatibility strategy, one of `policies.pulsar_policies.STRATEGIES`."""
        levels, namespace = self._policies[pulsar_policies.COMPATIBILITY_STRATEGY], name.namespace
        older = self._policies[pulsar_policies.AUTO_UPDATE_STRATEGY].of(namespace)
        return str(
            levels.of(name)
            or levels.of(namespace)
            or pulsar_policies.AUTO_UPDATE_STRATEGIES.get(older or "")
            or levels.default
        )

    def allows_update(self, name: TopicName) -> bool:
        """Whether a producer or consumer may add a schema."""
        return bool(self._policies.applied(name, pulsar_policies.ALLOWS_AUTO_UPDATE))

    def is_enforced(self, name: TopicName) -> bool:
        """Whether a producer needs a schema where the topic has one."""
        levels = self._policies[pulsar_policies.VALIDATION_ENFORCED]
        return bool(levels.default or levels.applied(name))
