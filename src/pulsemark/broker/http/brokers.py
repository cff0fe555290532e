"""The broker itself: health, settings, metrics, and the figures of all its topics (broker-stats).

Pulsar also shows the figures of its Java process there: this broker answers with empty shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...ledger import LedgerError
from ...ledger.would_block import in_pieces
from ..configuration.dynamic_settings import dynamic_names
from ..configuration.settings import runtime_settings
from ..security import needs
from ..version import SERVER_VERSION
from .messages import HttpError, Json, Request, Response, accepts_gzip
from .paths import boundaries_of, bundle_of
from .route import Routes

if TYPE_CHECKING:
    from ..topics.topic import Topic

routes = Routes()
BROKERS = "/admin/v2/brokers"
STATS = "/admin/v2/broker-stats"

METRICS = f"{__package__.rpartition('.')[0]}.metrics"
#: A bundle without isolation policy, as Pulsar shows it.
OWNED = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}


@routes.get(BROKERS, needs.broker("LIST_BROKERS"))
@routes.get(f"{BROKERS}/{{cluster}}", needs.broker("LIST_BROKERS"))
async def brokers(request: Request, name: str = "") -> Json:
    """The active brokers, whatever cluster is asked for; without a cluster only this one."""
    if request.services.cluster is not None:
        return sorted(await request.services.cluster.brokers())
    return [_address(request)]


@routes.get(
    f"{BROKERS}/{{cluster}}/{{broker}}/ownedNamespaces", needs.broker("LIST_OWNED_NAMESPACES")
)
async def owned_namespaces(request: Request, cluster: str, broker: str) -> Json:
    """The bundles that a broker serves; of a broker alone, those of its open topics."""
    if request.services.cluster is not None:
        found = (await request.services.cluster.brokers()).get(broker)
        if found is None:
            raise HttpError(404, f"Broker id '{broker}' not found in available brokers.")
        return dict.fromkeys(sorted(found.bundles), OWNED)
    if broker != _address(request):
        raise HttpError(404, f"Broker id '{broker}' not found in available brokers.")
    topics = request.topics

    def pieces() -> Generator[None, None, dict[str, Any]]:
        found: dict[str, Any] = {}
        for name, opened in tuple(topics.open_topics.items()):
            namespace = opened.topic_name.namespace
            boundaries = boundaries_of(topics.namespaces.get(namespace, {}))
            found[f"{namespace}/{bundle_of(boundaries, name)}"] = OWNED
            yield
        return found

    return pieces()


@routes.get(f"{BROKERS}/leaderBroker", needs.broker("GET_LEADER_BROKER"))
async def leader(request: Request) -> Json:
    """The leader among the brokers; without a cluster this one."""
    if request.services.cluster is not None:
        found = await request.services.cluster.leader()
        if found is None:
            raise HttpError(404, "Couldn't find leader broker")
        return {"serviceUrl": found.http_url, "brokerId": found.broker_id}
    address = _address(request)
    return {"serviceUrl": request.services.http_url, "brokerId": address}


@routes.get(f"{BROKERS}/health", needs.broker("HEALTH_CHECK"))
async def health(request: Request) -> Response:
    """Check that the disk accepts writes, with a write to the catalog, and that all workers run."""
    cluster = request.services.cluster
    key = "health" if cluster is None else f"health {_address(request)}"
    if cluster is not None and (problems := cluster.problems()):
        raise HttpError(503, "; ".join(problems))
    try:
        await request.topics.catalog_writer.put("broker", key, b"ok")
    except (OSError, LedgerError) as error:
        raise HttpError(503, f"the broker cannot write to its data folder: {error}") from error
    return Response.of_word("ok")


@routes.get(f"{BROKERS}/ready", needs.AUTHENTICATED)
async def ready(request: Request) -> Response:
    """Answer "ok": a broker that answers is ready."""
    return Response.of_word("ok")


@routes.get(f"{BROKERS}/version", needs.AUTHENTICATED)
async def version(request: Request) -> Response:
    """The broker's version."""
    return Response.of_word(SERVER_VERSION)


@routes.get(f"{BROKERS}/configuration/runtime", needs.broker("LIST_RUNTIME_CONFIGURATIONS"))
async def configuration(request: Request) -> Json:
    """The broker's settings, by their names in a configuration file."""
    return runtime_settings(request.services.config)


@routes.get(f"{BROKERS}/configuration", needs.broker("LIST_DYNAMIC_CONFIGURATIONS"))
async def changeable_settings(request: Request) -> Json:
    """The names of settings that can be changed while the broker runs."""
    return dynamic_names()


@routes.get(f"{BROKERS}/configuration/values", needs.broker("LIST_DYNAMIC_CONFIGURATIONS"))
async def changed_settings(request: Request) -> Json:
    """The settings that were changed while the broker runs, with their values."""
    return request.services.settings.changed


@routes.post(
    f"{BROKERS}/configuration/{{name}}/{{value}}", needs.broker("UPDATE_DYNAMIC_CONFIGURATION")
)
async def change_setting(request: Request, name: str, value: str) -> Response:
    """Change a setting; the change is durable. As in Pulsar the value is a part of the path."""
    try:
        await request.services.settings.change(name, value)
    except KeyError as error:
        raise HttpError(412, "Can't update non-dynamic configuration") from error
    return Response(200)


@routes.delete(f"{BROKERS}/configuration/{{name}}", needs.broker("DELETE_DYNAMIC_CONFIGURATION"))
async def unset_setting(request: Request, name: str) -> Response:
    """Take back the change of a setting."""
    try:
        await request.services.settings.change(name, None)
    except KeyError as error:
        raise HttpError(412, "Can't delete non-dynamic configuration") from error
    return Response(200)


@routes.get(f"{BROKERS}/internal-configuration", needs.broker("GET_INTERNAL_CONFIGURATION_DATA"))
async def internal_configuration(request: Request) -> Json:
    """Where metadata are kept: in the broker's own catalog, which has no address."""
    names = (
        "zookeeperServers",
        "configurationStoreServers",
        "metadataStoreUrl",
        "configurationMetadataStoreUrl",
    )
    return {**dict.fromkeys(names, ""), "ledgersRootPath": "/ledgers"}


@routes.get(f"{BROKERS}/backlog-quota-check", needs.broker("CHECK_BACKLOG_QUOTA"))
async def backlog_quota_check(request: Request) -> None:
    """Check the backlog quotas of all open topics now."""
    await request.services.lifetimes.backlogs.check_all()


@routes.get("/admin/v2/clusters", needs.AUTHENTICATED)
async def clusters(request: Request) -> Json:
    """The name of this broker's cluster, in a list."""
    return [request.services.config.cluster]


@routes.get("/admin/v2/clusters/{cluster}", needs.cluster("GET_CLUSTER"))
async def cluster(request: Request, name: str) -> Json:
    """The URLs of this broker's cluster."""
    services = request.services
    if name != services.config.cluster:
        raise HttpError(404, "Cluster does not exist")
    urls = {
        "serviceUrl": services.http_url,
        "serviceUrlTls": services.http_url_tls,
        "brokerServiceUrl": services.service_url,
        "brokerServiceUrlTls": services.service_url_tls,
    }
    return {
        **{key: url for key, url in urls.items() if url or not key.endswith("Tls")},
        "brokerClientTlsEnabled": False,
        "tlsAllowInsecureConnection": False,
        "brokerClientTlsEnabledWithKeyStore": False,
        "brokerClientTlsTrustStoreType": "JKS",
        "brokerClientTlsKeyStoreType": "JKS",
        "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
    }


@routes.get("/status.html", needs.OPEN)
async def status(request: Request) -> Response:
    """Answer "OK", for load balancers."""
    return Response(200, b"OK")


@routes.get("/metrics", needs.OPEN)
async def metrics(request: Request) -> Response:
    """The metrics in Prometheus' text format; gzipped for clients that accept it, as in Pulsar."""
    # Imported in a thread, with the first request: most brokers are never asked.
    prometheus = await request.services.run_blocking(import_module, f"{METRICS}.prometheus")
    gzipped = accepts_gzip(request.headers.get("accept-encoding", ""))
    page = await prometheus.current_page(request.services, gzipped=gzipped)
    headers = (("vary", "Accept-Encoding"), *((("content-encoding", "gzip"),) if gzipped else ()))
    return Response(200, page[0], prometheus.CONTENT_TYPE, headers, more=page[1:])


def _address(request: Request) -> str:
    services = request.services
    return (services.http_url or services.http_url_tls).partition("://")[2]


#: The fields of a topic in broker-stats, with their names in the topic's own stats.
FIELDS = {
    "averageMsgSize": "averageMsgSize",
    "msgRateIn": "msgRateIn",
    "msgRateOut": "msgRateOut",
    "msgInCount": "msgInCounter",
    "bytesInCount": "bytesInCounter",
    "msgOutCount": "msgOutCounter",
    "bytesOutCount": "bytesOutCounter",
    "msgThroughputIn": "msgThroughputIn",
    "msgThroughputOut": "msgThroughputOut",
    "storageSize": "storageSize",
    "backlogSize": "backlogSize",
}
Rows = dict[str, Any]


@routes.get(f"{STATS}/topics", needs.SUPER_USER)
async def topics_figures(request: Request) -> Json:
    """The figures of all open topics, by namespace, bundle and domain."""
    await _import_stats(request)
    opened = tuple(request.topics.open_topics.values())
    return _rows(request, opened)


async def _import_stats(request: Request) -> None:
    """Import the module of figures, in a thread: most brokers are never asked for them."""
    await request.services.run_blocking(import_module, f"{METRICS}.stats")


def _rows(request: Request, opened: tuple[Topic, ...]) -> Generator[object, None, Rows]:
    namespaces = request.topics.namespaces
    found: Rows = {}
    boundaries: dict[str, list[int]] = {}
    for topic in opened:
        namespace = topic.topic_name.namespace
        if topic.is_open and namespace in namespaces:
            if namespace not in boundaries:
                boundaries[namespace] = boundaries_of(namespaces[namespace])
            row = yield from _row(topic)
            bundle = bundle_of(boundaries[namespace], topic.name)
            domain = found.setdefault(namespace, {}).setdefault(bundle, {})
            domain.setdefault("persistent", {})[topic.name] = row
        yield None
    return found


def _row(topic: Topic) -> Generator[object, None, Rows]:
    from ..metrics.stats import StatsOptions, topic_stats

    stats = yield from topic_stats(topic, StatsOptions())
    return {
        "publishers": stats["publishers"],
        "replication": {},
        "subscriptions": stats["subscriptions"],
        "producerCount": len(stats["publishers"]),
        **{name: stats[field] for name, field in FIELDS.items()},
        "pendingAddEntriesCount": 0,
        "filteredEntriesCount": 0,
    }


@routes.get(f"{STATS}/bookieops", needs.SUPER_USER)
async def bookie_ops(request: Request) -> Response:
    """Operations that wait for bookies, by topic: none."""
    none = {
        f"{kind}Ledger{what}Op": 0
        for kind in ("data", "cursor")
        for what in ("Open", "Close", "Create", "Delete")
    }
    found: Rows = {}
    for topic in tuple(request.topics.open_topics.values()):
        found.setdefault(topic.topic_name.namespace, {})[topic.name] = none
    return await Response.of_long_json(found, request.topics.turns)


@routes.get(f"{STATS}/metrics", needs.SUPER_USER)
async def namespace_metrics(request: Request) -> Json:
    """Figures of the whole broker, and of each namespace."""
    await _import_stats(request)
    opened = tuple(request.topics.open_topics.values())
    return _metrics(opened)


def _metrics(opened: tuple[Topic, ...]) -> Generator[object, None, list[Rows]]:
    from ..metrics.stats import storage_size_bytes

    sums: dict[str, Counter[str]] = {}
    for topic in opened:
        rates, consumers, backlog = topic.rate_meter.rates, 0, 0
        for subscription in tuple(topic.subscriptions.values()):
            consumers += len(subscription.consumers)
            backlog += yield from in_pieces(getattr, subscription, "backlog_entries")
            yield None
        figures = {
            "brk_in_rate": rates.messages_in,
            "brk_in_tp_rate": rates.bytes_in,
            "brk_msg_backlog": backlog,
            "brk_no_of_consumers": consumers,
            "brk_no_of_producers": len(topic.producers.by_name),
            "brk_no_of_subscriptions": len(topic.subscriptions),
            "brk_out_rate": rates.messages_out,
            "brk_out_tp_rate": rates.bytes_out,
            "brk_storage_size": (yield from storage_size_bytes(topic)),
        }
        sums.setdefault(topic.topic_name.namespace, Counter()).update(figures)
        yield None
    whole = {"metrics": {"brk_ml_count": len(opened)}, "dimensions": {}}
    return [
        whole,
        *({"metrics": row, "dimensions": {"namespace": name}} for name, row in sums.items()),
    ]


@routes.get(f"{STATS}/mbeans", needs.SUPER_USER)
async def mbeans(request: Request) -> Json:
    """No beans: there is no Java process."""
    return []


@routes.get(f"{STATS}/allocator-stats/{{allocator}}", needs.SUPER_USER)
async def allocator(request: Request, name: str) -> Json:
    """The memory pool of the given name, `default` or `ml-cache`: without arenas."""
    if name not in ("default", "ml-cache"):
        raise HttpError(406, f"Invalid allocator name : {name[:80]}")
    counts = (
        "numDirectArenas",
        "numHeapArenas",
        "numThreadLocalCaches",
        "normalCacheSize",
        "smallCacheSize",
        "usedDirectMemory",
        "usedHeapMemory",
    )
    return {**dict.fromkeys(counts, 0), "directArenas": [], "heapArenas": []}


@routes.get(f"{STATS}/load-report", needs.SUPER_USER)
async def load_report(request: Request) -> None:
    """The load that brokers report to each other: a broker alone reports none."""


@routes.get(f"{STATS}/broker-resource-availability/{{tenant}}/{{namespace}}", needs.tenant_admin())
async def availability(request: Request, namespace: str) -> None:
    """Refused: there is no load manager."""
    raise HttpError(409, "This broker has no load manager and does not support this operation")
