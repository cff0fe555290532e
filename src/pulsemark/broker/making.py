"""Makes the parts that a broker's connections share, from its configuration and its open store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ..finder.mirror_places import MirrorPlaces
from ..ledger import CatalogError
from ..metadata import StamperChain
from ..wire import TopicName
from .audit.auditor import Auditor
from .cleaning.inactive_topics import Lifetimes
from .cleaning.worker import Cleaning
from .cleaning.worker_thread import Claims
from .configuration.config import BrokerConfig
from .configuration.dynamic_settings import put_in_force, stored_settings
from .connection.memory import InputMemory, KeptMemory, OutputMemory
from .connection.receipts import PublishBudget
from .metrics.counters import CacheMeter
from .security.authorization import Authorizer
from .security.permissions import TOPIC, forget_topic, part_of
from .security.providers import authorization_plugin
from .services import Services
from .storage import Storage, StorageHealth
from .topics.catalog_writer import CatalogWriter
from .topics.registry import Topics
from .topics.schema_rules import SchemaRules
from .topics.schemas import Schemas

__all__ = ["make_services"]

RunBlocking = Callable[..., Awaitable[Any]]


async def make_services(
    config: BrokerConfig,
    store: Storage,
    stampers: StamperChain,
    run_blocking: RunBlocking,
    *,
    broker_name: str,
) -> Services:
    """Make the shared parts of a broker, and load topics and settings from the store's catalog.

    The broker adds its URLs and its authenticator.
    """
    catalog_writer, claims = CatalogWriter(store, run_blocking), Claims()
    schemas, places = Schemas(catalog_writer, config, run_blocking), MirrorPlaces(store.catalog)
    make_topics = partial(Topics, store, config, stampers, run_blocking, catalog_writer)
    topics: Topics = make_topics(
        before_delete=lambda name: run_blocking(claims.wait_until_free, str(name)),
        after_delete=lambda name: _forget(name, topics, auditor, schemas, places, run_blocking),
        broker_name=broker_name,
    )
    schemas.use_rules(SchemaRules(config, topics.policy_store))
    auditor: Auditor = Auditor(topics, config, store.reads_are_due)
    topics.on_open.append(lambda topic: places.watch(topic.ledger))
    await topics.load()
    services = Services(
        config=config,
        topics=topics,
        schemas=schemas,
        authorizer=_authorizer(config, topics),
        **_bounds(config),
        storage=StorageHealth(partial(run_blocking, store.probe)),
        cleaning=Cleaning(topics, config, run_blocking, claims),
        lifetimes=Lifetimes(topics, config, run_blocking),
        auditor=auditor,
        mirror_places=places,
        cache=CacheMeter(store.tail_cache),
        run_blocking=run_blocking,
        incarnation=await run_blocking(_next_incarnation, store),
        dynamic=await run_blocking(stored_settings, store.catalog),
    )
    put_in_force(services)
    return services


def _bounds(config: BrokerConfig) -> dict[str, Any]:
    """What limits the memory of all connections together."""
    return {
        "budget": PublishBudget(config.max_in_flight_publish_bytes),
        "input": InputMemory(config.max_input_buffer_bytes),
        "output": OutputMemory(config.max_unsent_bytes),
        "kept": KeptMemory(config.max_kept_bytes, config.max_kept_bytes_per_connection),
    }


def _authorizer(config: BrokerConfig, topics: Topics) -> Authorizer:
    provider = authorization_plugin(config.security)
    authorizer = Authorizer(config.security, topics.namespaces, provider)
    topics.namespaces.on_change.append(authorizer.changed)
    return authorizer


async def _forget(
    name: TopicName,
    topics: Topics,
    auditor: Auditor,
    schemas: Schemas,
    places: MirrorPlaces,
    run_blocking: RunBlocking,
) -> None:
    """A topic was deleted: what was kept about it goes, too."""
    await run_blocking(places.forget, str(name))
    await auditor.forget(str(name))
    await schemas.forget(name)
    namespaces, full = topics.namespaces, str(name)
    if full in part_of(namespaces.get(name.namespace, {}), TOPIC):
        await namespaces.change(name.namespace, lambda old: forget_topic(old, full))


def _next_incarnation(store: Storage) -> int:
    while True:
        stored = store.catalog.get("broker", "incarnation")
        incarnation = int(stored) + 1 if stored is not None else 0
        try:
            store.catalog.put("broker", "incarnation", str(incarnation).encode())
        except CatalogError:
            # Another broker of a cluster may start at the same time, and have taken it.
            if store.catalog.get("broker", "incarnation") == stored:
                raise
        else:
            return incarnation
