"""Changes of the catalog: in the order of the requests, durable before they are shown."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

import pulsemark.broker
from pulsemark.broker.configuration.config import BrokerConfig
from pulsemark.broker.errors import RefusedError
from pulsemark.broker.policies.own_policies import STAMPS
from pulsemark.broker.topics.catalog_writer import CatalogWriter
from pulsemark.broker.topics.registry import Topics
from pulsemark.broker.topics.schemas import Schemas
from pulsemark.ledger import CatalogError, LocalStore
from pulsemark.proto.pulsar_api_pb2 import Schema
from pulsemark.wire import TopicName

NAME = TopicName.parse("persistent://public/default/orders")


class Shuffled:
    """Runs blocking work as an unlucky pool of threads would: what waits, in any order."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._waiting: list[tuple[Any, tuple[Any, ...], asyncio.Future[Any]]] = []
        self._runner: asyncio.Task[None] | None = None
        self.fail: set[str] = set()

    async def __call__(self, function: Any, *arguments: Any) -> Any:
        """As the broker's `run_blocking`."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((function, arguments, done))
        if self._runner is None:
            self._runner = asyncio.ensure_future(self._run())
        return await done

    async def _run(self) -> None:
        while self._waiting:
            for _ in range(20):  # tasks with more to do run first
                await asyncio.sleep(0)
            place = self._random.randrange(len(self._waiting))
            function, arguments, done = self._waiting.pop(place)
            try:
                if getattr(function, "__name__", "") in self.fail:
                    raise CatalogError(Path("catalog.sqlite"), "disk is full")
                result = function(*arguments)
            except CatalogError as error:
                done.set_exception(error)
            else:
                done.set_result(result)
        self._runner = None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    """A data folder."""
    with LocalStore.open(tmp_path / "data") as opened:
        yield opened


async def start(store: LocalStore, seed: int = 0) -> tuple[Topics, Shuffled]:
    """The registry as a starting broker makes it."""
    pool = Shuffled(seed)
    writer = CatalogWriter(store, pool)
    config = BrokerConfig(stampers=(), schema_compatibility_strategy="ALWAYS_COMPATIBLE")
    topics = Topics(store, config, pool, writer)
    await topics.load()
    return topics, pool


def schema(number: int) -> Schema:
    """One of many schemas of one type."""
    return Schema(
        name="s",
        type=Schema.Json,
        schema_data=b'{"type":"record","name":"r%d","fields":[]}' % number,
    )


def schemas_of(topics):
    """The schemas of a registry, which go with their topics."""
    made = Schemas(topics)
    topics.after_delete.append(made.forget)
    return made


@pytest.mark.parametrize("seed", range(4))
def test_acknowledged_schema_versions_are_there_after_a_restart(store, seed):
    """Schemas registered at once have versions of their own, and the same ones after a restart."""

    async def run() -> None:
        topics, _ = await start(store, seed)
        topic = await topics.open(NAME, create=True)
        schemas = schemas_of(topics)
        given = await asyncio.gather(
            *(schemas.register(NAME, schema(n % 6), topic) for n in range(12))
        )
        assert set(given) == set(range(6))
        again = schemas_of((await start(store))[0])
        assert await again.versions(NAME) == await schemas.versions(NAME)
        for number in range(12):
            assert await again.register(NAME, schema(number % 6), topic) == given[number]

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(4))
def test_forgotten_schemas_do_not_come_back(store, seed):
    """A read during the deletion of a topic does not keep its deleted schemas."""

    async def run() -> None:
        topics, _ = await start(store, seed)
        topic = await topics.open(NAME, create=True)
        await schemas_of(topics).register(NAME, schema(0), topic)
        schemas = schemas_of(topics)  # nothing is known yet
        await asyncio.gather(*(schemas.versions(NAME) for _ in range(3)), schemas.forget(NAME))
        assert await schemas.versions(NAME) == []
        assert await schemas.register(NAME, schema(7), topic) == 0

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(12))
def test_a_deleted_topic_leaves_no_schema(store, seed):
    """A producer's schema during the deletion is refused, or it is deleted, too."""

    async def run() -> None:
        topics, _ = await start(store, seed)
        schemas = schemas_of(topics)
        topic = await topics.open(NAME, create=True)

        deletion = asyncio.ensure_future(topics.delete(NAME, force=True))
        is_over = False
        while not is_over:
            is_over = deletion.done()
            with suppress(RefusedError):
                await schemas.for_producer(topic, schema(0))
            await asyncio.sleep(0)
        await deletion
        assert await schemas.versions(NAME) == []
        assert store.catalog.get("schema", str(NAME)) is None

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(6))
def test_memory_and_catalog_agree_after_changes_at_once(store, seed):
    """Of many concurrent changes the last request counts, in memory and after a restart."""

    async def run() -> None:
        topics, _ = await start(store, seed)
        topic = await topics.open(NAME, create=True)
        many = TopicName.parse("persistent://public/default/many")
        changes: list[Any] = []
        for number in range(5):
            policy = {"stampers": ["broker-time"] if number % 2 else []}
            changes += [
                topics.namespaces.put_tenant("tenant", {"number": number}),
                topics.namespaces.put("public/other", {"number": number}),
                topics.policies[STAMPS].set(NAME, policy),
                topics.policies[STAMPS].set("public/default", policy),
                topics.partitioned.put(many, number + 1),
                topic.producers._store_epoch(number),
            ]
        tenants = topics.namespaces
        changes += [tenants.put_tenant("short", {}), tenants.delete_tenant("short")]
        await asyncio.gather(*changes)
        assert topics.namespaces.tenants["tenant"] == {"number": 4}
        assert topics.namespaces["public/other"] == {"number": 4}
        assert topics.partitioned.count_of(many) == 5
        assert topics.policies[STAMPS].of(NAME) == {"stampers": []}
        again, _ = await start(store)
        assert again.namespaces.tenants == topics.namespaces.tenants
        assert dict(again.namespaces) == dict(topics.namespaces)
        assert again.marks._epochs == topics.marks._epochs
        assert again.partitioned.count_of(many) == 5
        assert again.marks._epochs[str(NAME)] == 4
        for policies in (topics.policies[STAMPS], again.policies[STAMPS]):
            assert policies.of("public/default") == {"stampers": []}
            assert policies.of(NAME) == {"stampers": []}

    asyncio.run(run())


def test_change_that_cannot_be_stored_is_not_shown(store):
    """After a catalog that could not be written, memory is as it was, and as after a restart."""

    async def run() -> None:
        topics, pool = await start(store)
        schemas = schemas_of(topics)
        topic = await topics.open(NAME, create=True)
        await topics.namespaces.put("public/empty", {})
        pool.fail = {"write_since", "freeing"}
        policy = {"stampers": ["broker-time"]}
        for change in (
            lambda: topics.namespaces.put_tenant("tenant", {}),
            lambda: topics.namespaces.put("public/other", {}),
            lambda: topics.delete_namespace("public/empty"),
            lambda: topics.policies[STAMPS].set(NAME, policy),
            lambda: topics.policies[STAMPS].set("public/default", policy),
            lambda: topics.partitioned.put(NAME, 3),
            lambda: topic.producers._store_epoch(1),
            lambda: schemas.register(NAME, schema(0), topic),
        ):
            with pytest.raises(CatalogError):
                await change()
        pool.fail = set()
        again, _ = await start(store)
        assert again.namespaces.tenants == topics.namespaces.tenants
        assert dict(again.namespaces) == dict(topics.namespaces)
        assert again.marks._epochs == topics.marks._epochs
        assert (again.partitioned.count_of(NAME), topics.partitioned.count_of(NAME)) == (0, 0)
        assert topic.ledger.stampers.names == ()
        assert await schemas.versions(NAME) == []
        assert await schemas.register(NAME, schema(1), topic) == 0

    asyncio.run(run())


def test_cancelled_change_is_shown_all_the_same(store):
    """A change runs to its end without its caller, so memory and catalog always agree."""

    async def run() -> None:
        topics, _ = await start(store)
        put = topics.namespaces.put_tenant
        changes = [asyncio.ensure_future(put(f"t{n}", {})) for n in range(4)]
        await asyncio.sleep(0)
        for change in changes[1:]:
            change.cancel()
        await asyncio.gather(*changes, return_exceptions=True)
        await topics.catalog_writer.settled()
        again, _ = await start(store)
        assert again.namespaces.tenants == topics.namespaces.tenants
        assert set(topics.namespaces.tenants) == {"public", "pulsar", "t0", "t1", "t2", "t3"}

    asyncio.run(run())


def test_turn_within_a_turn_is_refused(store):
    """A turn that waits for another one would wait for itself: that is our own mistake."""

    async def run() -> None:
        writer = CatalogWriter(store, Shuffled(0))

        async def change() -> None:
            await writer.put("kind", "key", b"")

        with pytest.raises(AssertionError):
            await writer.in_turn(change)
        await writer.put("kind", "key", b"value")
        assert store.catalog.get("kind", "key") == b"value"

    asyncio.run(run())


AT_THE_START = {
    "namespaces.py:load",
    "partitioned_topics.py:finish_deletions",
    "topic_marks.py:load",
    "partitioned_topics.py:finish",
    "policy_store.py:load",
    "server.py:_next_incarnation",
}
"""Functions that change the catalog before anything runs beside them."""
OF_THE_AUDITOR = {"auditor.py:save", "auditor.py:post", "auditor.py:forget"}
"""The auditor's one thread alone changes its kinds, and reads no others."""
OF_A_TOPIC = {"participants.py:_keep"}
"""What goes with a topic is in the store of its bundle: its own kind, one change at a time."""


def test_nothing_else_in_the_broker_changes_the_catalog():
    """Every change of a running broker goes through the one writer."""
    found = set()
    for path in sorted(Path(pulsemark.broker.__file__).parent.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Attribute) and node.attr in (
                    "put",
                    "delete",
                    "write",
                    "write_since",
                ):
                    owner = ast.unparse(node.value)
                    if owner.split(".")[-1].lstrip("_") == "catalog":
                        found.add(f"{path.name}:{function.name}")
    assert found == AT_THE_START | OF_THE_AUDITOR | OF_A_TOPIC | {"catalog_writer.py:write"}
