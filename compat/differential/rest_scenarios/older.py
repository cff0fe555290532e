"""Names and paths of Pulsar 1: topics and namespaces with a cluster, and the paths before v2."""

from __future__ import annotations

from pulsemark.wire import commands

from ..peers import Recorder
from ..wire_scenarios.common import message, send
from .registry import REST_SCENARIOS, Scenario, calls, scenario, unique

OF_A_TOPIC = (
    ("GET", ""),
    ("GET", "/partitions"),
    ("GET", "/stats"),
    ("GET", "/internalStats"),
    ("GET", "/internal-info"),
    ("GET", "/partitioned-stats"),
    ("GET", "/partitioned-internalStats"),
    ("GET", "/permissions"),
    ("GET", "/subscriptions"),
    ("GET", "/lastMessageId"),
    ("GET", "/backlog"),
    ("GET", "/compaction"),
    ("GET", "/offload"),
    ("GET", "/examinemessage"),
    ("GET", "/maxProducers"),
    ("GET", "/properties"),
    ("GET", "/subscription/s/position/1"),
    ("GET", "/ledger/0/entry/0"),
    ("PUT", ""),
    ("PUT", "/partitions"),
    ("PUT", "/unload"),
    ("PUT", "/compaction"),
    ("PUT", "/subscription/s"),
    ("POST", "/partitions"),
    ("POST", "/terminate"),
    ("POST", "/permissions/r"),
    ("POST", "/subscription/s/skip/1"),
    ("POST", "/subscription/s/skip_all"),
    ("POST", "/subscription/s/resetcursor/1"),
    ("POST", "/subscription/s/resetcursor"),
    ("POST", "/subscription/s/expireMessages/1"),
    ("POST", "/all_subscription/expireMessages/1"),
    ("POST", "/zzz"),
    ("PATCH", "/stats"),
    ("OPTIONS", "/partitions"),
    ("DELETE", "/partitions"),
    ("DELETE", "/permissions/r"),
    ("DELETE", "/subscription/s"),
    ("DELETE", ""),
)
OF_A_NAMESPACE = (
    ("GET", ""),
    ("GET", "/topics"),
    ("GET", "/destinations"),
    ("GET", "/bundles"),
    ("GET", "/permissions"),
    ("GET", "/replication"),
    ("GET", "/messageTTL"),
    ("GET", "/retention"),
    ("GET", "/persistence"),
    ("GET", "/backlogQuotaMap"),
    ("GET", "/dispatchRate"),
    ("GET", "/maxProducersPerTopic"),
    ("GET", "/compactionThreshold"),
    ("GET", "/schemaCompatibilityStrategy"),
    ("GET", "/zzz"),
    ("POST", "/retention"),
    ("POST", "/messageTTL"),
    ("POST", "/clearBacklog"),
    ("POST", "/unsubscribe/s"),
    ("PUT", "/unload"),
    ("PUT", "/0x00000000_0x40000000/unload"),
    ("DELETE", "/0x00000000_0x40000000"),
    ("DELETE", ""),
)


def names_of(topic: str) -> tuple[str, ...]:
    """Topic names with a cluster, and names that look like it."""
    return (
        f"persistent://public/standalone/default/{unique(topic)}",
        f"persistent://public/absent/default/{unique(topic)}",
        f"persistent://absent/standalone/default/{unique(topic)}",
        f"non-persistent://public/standalone/default/{unique(topic)}",
        f"persistent://public/standalone/default/{unique(topic)}/with/slashes",
        f"persistent://public/standalone/default/{unique(topic)}-partition-0",
        "persistent://public/standalone/default/",
        "persistent://public/standalone/default/ ",
        "persistent://public//default/x",
        "persistent:///standalone/default/x",
        "persistent://public/standalone//x",
        "persistent://public/a b/default/x",
        "persistent://public/standalone/a b/x",
        "absent://public/standalone/default/x",
        "public/standalone/default/x",
        "public/x",
        "persistent://public/x",
    )


def _ask_all(broker: Recorder, name: str) -> None:
    link = broker.connect()
    link.say("partitions", commands.partitioned_metadata(name, 1))
    plain = commands.partitioned_metadata(name, 2, metadata_auto_creation_enabled=False)
    link.say("no creation", plain)
    link.say("lookup", commands.lookup(name, 3))
    link.say("producer", commands.producer(name, 1, 4))
    link.say("send", send(1, 0, message(0)))
    if link.closed:
        link = broker.connect()
    link.say("subscribe", commands.subscribe(name, "s", 1, 5))
    link.say("flow", commands.flow(1, 10))
    if link.closed:
        link = broker.connect()
    link.say("schema", commands.get_schema(name, 6))
    link.close()


@scenario
def older_names(broker: Recorder, topic: str) -> None:
    """Topic names with a cluster on the wire, of namespaces that do not exist."""
    for name in names_of(topic):
        broker.record("name", name.replace(unique(topic), "T"))
        _ask_all(broker, name)


@scenario
def older_namespaces(broker: Recorder, topic: str) -> None:
    """A namespace with a cluster, made over REST, and what can be done in it."""
    tenant = f"o{unique(topic)}"
    calls(
        broker,
        """
        PUT /tenants/<tenant> {"allowedClusters":["standalone"]}
        PUT //admin/namespaces/<tenant>/standalone/n
        PUT //admin/namespaces/<tenant>/standalone/n
        PUT //admin/namespaces/<tenant>/absent/n
        PUT //admin/namespaces/absent-<tenant>/standalone/n
        PUT //admin/namespaces/<tenant>/standalone/a%20b
        PUT //admin/namespaces/<tenant>/global/n
        GET //admin/namespaces/<tenant>
        GET //admin/namespaces/<tenant>/standalone
        GET //admin/namespaces/<tenant>/absent
        GET //admin/namespaces/absent-<tenant>/standalone
        GET /namespaces/<tenant>
        GET //admin/namespaces/<tenant>/standalone/n
        """,
        tenant=tenant,
    )
    _ask_all(broker, f"persistent://{tenant}/standalone/n/t")
    calls(
        broker,
        """
        GET //admin/namespaces/<tenant>/standalone/n/topics
        GET //admin/namespaces/<tenant>/standalone/n/destinations
        GET //admin/persistent/<tenant>/standalone/n
        GET //admin/persistent/<tenant>/standalone/n/t/stats
        DELETE //admin/namespaces/<tenant>/standalone/n
        """,
        tenant=tenant,
    )
    broker.rest("DELETE", f"/admin/namespaces/{tenant}/standalone/n?force=true", quiet=True)


def _of_topics(domain: str, place: str) -> Scenario:
    def run(broker: Recorder, topic: str) -> None:
        for method, part in OF_A_TOPIC:
            path = f"/admin/{domain}/{place}/{unique(topic)}{part}"
            broker.rest(method, path, label=f"{method} {part or '/'}")

    return run


def _of_namespaces(place: str) -> Scenario:
    def run(broker: Recorder, topic: str) -> None:
        for method, part in OF_A_NAMESPACE:
            broker.rest(method, f"/admin/namespaces/{place}{part}", label=f"{method} {part or '/'}")

    return run


for _name, _place in {
    "cluster": "public/standalone/absent",
    "absent_cluster": "public/absent/absent",
    "absent_tenant": "absent/standalone/absent",
}.items():
    REST_SCENARIOS[f"older_topics_{_name}"] = _of_topics("persistent", _place)
    REST_SCENARIOS[f"older_topics_in_memory_{_name}"] = _of_topics("non-persistent", _place)
    REST_SCENARIOS[f"older_namespaces_{_name}"] = _of_namespaces(_place)


@scenario
def older_lookups(broker: Recorder, topic: str) -> None:
    """Lookups of Pulsar 1 and 2, good and bad."""
    calls(
        broker,
        """
        GET //lookup/v2/destination/persistent/public/standalone/default/<topic>
        GET //lookup/v2/destination/persistent/public/standalone/default/<topic>/bundle
        GET //lookup/v2/destination/persistent/public/default/<topic>
        GET //lookup/v2/destination/non-persistent/public/standalone/default/<topic>
        GET //lookup/v2/destination/zzz/public/standalone/default/<topic>
        GET //lookup/v2/destination
        GET //lookup/v2/topic/persistent/public/default/<topic>
        GET //lookup/v2/topic/persistent/public/default/<topic>/bundle
        GET //lookup/v2/topic/non-persistent/public/default/<topic>
        GET //lookup/v2/topic/persistent/public/absent/<topic>
        GET //lookup/v2/topic/persistent/absent/absent/<topic>
        GET //lookup/v2/topic/persistent/public/absent/<topic>/bundle
        GET //lookup/v2/topic/persistent/absent/absent/<topic>/bundle
        GET //lookup/v2/topic/persistent/public/default/
        GET //lookup/v2/topic/persistent/public/default
        GET //lookup/v2/topic/persistent/public/default/<topic>?listenerName=x
        GET //lookup/v2/topic/persistent/public/default/<topic>?authoritative=true
        GET //lookup/v2/topic/persistent/public/default/<topic>?authoritative=zzz
        GET //lookup/v2/topic/persistent/public/default/<topic>%2Fx
        GET //lookup/v2/topic/persistent/public/a%20b/<topic>
        POST //lookup/v2/topic/persistent/public/default/<topic>
        DELETE //lookup/v2/topic/persistent/public/default/<topic>
        OPTIONS //lookup/v2/topic/persistent/public/default/<topic>
        GET //lookup/v2
        GET //lookup
        GET //lookup/v2/topic
        GET //ws/v2/producer/persistent/public/default/<topic>
        GET //admin
        GET //admin/
        GET //admin/v2
        GET //admin/v2/
        GET //admin/v3
        GET //admin/v4/clusters
        GET //admin/persistent
        GET //admin/persistent/public
        GET //admin/persistent/public/standalone
        GET //admin/persistent/public/standalone/absent
        GET //admin/persistent/public/standalone/absent/partitioned
        GET //admin/non-persistent/public/standalone/absent
        GET //admin/non-persistent/public/standalone/absent/partitioned
        GET //admin/namespaces
        GET //admin/namespaces/absent
        GET //admin/namespaces/public/standalone
        GET //admin/namespaces/public/absent
        GET //admin/properties/absent
        GET //admin/clusters
        GET //admin/clusters/standalone
        GET //admin/clusters/absent
        GET //admin/brokers/standalone
        GET //admin/brokers/health
        GET //admin/brokers/ready
        GET //admin/broker-stats/topics
        GET //admin/resource-quotas
        GET //admin/resource-quotas/public/standalone/absent/0x00000000_0xffffffff
        GET //admin/schemas/public/standalone/absent/<topic>/schema
        GET //admin/schemas/public/standalone/absent/<topic>/schemas
        GET //admin/schemas/public/standalone/absent/<topic>/schema/0
        GET //admin/schemas/public/default/<topic>/schema
        GET //admin/tenants
        GET //admin/worker/cluster
        GET //admin/functions/public/default
        GET //admin/bookies/all
        GET //admin/zzz
        """,
        topic=unique(topic),
    )
