"""Every route on what is not there, with other methods, other Accept headers, and odd paths."""

from __future__ import annotations

from ..peers import Recorder
from .registry import ADMIN, calls, scenario, unique
from .topics import prepare

#: The last parts of a topic's paths that can be asked for.
OF_A_TOPIC = (
    "autoSubscriptionCreation",
    "backlogQuotaMap",
    "compaction",
    "compactionThreshold",
    "deduplicationEnabled",
    "deduplicationSnapshotInterval",
    "delayedDelivery",
    "dispatchRate",
    "dispatcherPauseOnAckStatePersistent",
    "entryFilters",
    "inactiveTopicPolicies",
    "lastMessageId",
    "maxConsumers",
    "maxConsumersPerSubscription",
    "maxMessageSize",
    "maxProducers",
    "maxSubscriptionsPerTopic",
    "maxUnackedMessagesOnConsumer",
    "maxUnackedMessagesOnSubscription",
    "messageTTL",
    "offload",
    "offloadPolicies",
    "partitions",
    "permissions",
    "persistence",
    "properties",
    "publishRate",
    "replication",
    "replicatorDispatchRate",
    "retention",
    "schemaCompatibilityStrategy",
    "schemaValidationEnforced",
    "stats",
    "subscribeRate",
    "subscriptionDispatchRate",
    "subscriptionTypesEnabled",
    "subscriptions",
)
ACCEPTED = (
    "*/*",
    "application/json",
    "text/html",
    "text/plain",
    "application/xml",
    "text/*",
    "application/*;q=0.5, text/html",
    "zzz",
)


@scenario
def rest_options_of_topics(broker: Recorder, topic: str) -> None:
    """Which methods each path has, for both domains."""
    for domain in ("persistent", "non-persistent"):
        for part in OF_A_TOPIC:
            path = f"{ADMIN}/{domain}/public/default/{unique(topic)}/{part}"
            broker.rest("OPTIONS", path, label=f"OPTIONS {domain} {part}")


@scenario
def rest_absent_topics_and_namespaces(broker: Recorder, topic: str) -> None:
    """Each question about a topic, a namespace and a tenant that do not exist."""
    for place in ("public/default", "public/absent", "absent/absent"):
        for domain in ("persistent", "non-persistent"):
            for part in OF_A_TOPIC:
                path = f"{ADMIN}/{domain}/{place}/absent-{unique(topic)}/{part}"
                broker.rest("GET", path, label=f"GET {domain} {place} {part}")


@scenario
def rest_accept(broker: Recorder, topic: str) -> None:
    for accept in ACCEPTED:
        for method, path in (
            ("GET", "/admin/v2/clusters"),
            ("GET", "/admin/v2/absent"),
            ("GET", "/admin/v2/tenants/absent"),
            ("POST", "/admin/v2/clusters"),
            ("GET", "/lookup/v2/topic/persistent/public/default/x"),
            ("GET", "/absent"),
        ):
            broker.rest(
                method, path, label=f"{accept}: {method} {path}", headers={"Accept": accept}
            )


@scenario
def rest_odd_paths(broker: Recorder, topic: str) -> None:
    calls(
        broker,
        """
        GET /tenants/<tenant>/
        GET /namespaces/<tenant>/
        GET /namespaces/<tenant>/n2/
        PUT /persistent/<tenant>/n2/t/
        GET /persistent/<tenant>/n2/
        GET /persistent/<tenant>/n2/t/stats/
        GET /persistent/<tenant>/n2/t/stats?
        GET /persistent/<tenant>/n2/t/stats?x
        GET /persistent/<tenant>/n2//stats
        GET /persistent/<tenant>//t/stats
        GET /persistent/<tenant>/n2/%74/partitions
        PUT /persistent/<tenant>/n2/a%25b
        PUT /persistent/<tenant>/n2/a+b
        PUT /persistent/<tenant>/n2/%C3%A4
        PUT /persistent/<tenant>/n2/a%3Bb
        PUT /persistent/<tenant>/n2/a;b
        PUT /persistent/<tenant>/n2/a%5Cb
        GET /persistent/<tenant>/n2
        PUT /namespaces/<tenant>/a%2Bb
        PUT /namespaces/<tenant>/a=b:c.d_e-f
        PUT /namespaces/<tenant>/a@b
        GET /namespaces/<tenant>
        HEAD /persistent/<tenant>/n2/t/stats
        HEAD /persistent/<tenant>/n2/absent/stats
        HEAD /namespaces/<tenant>/n2
        POST /namespaces/<tenant>/n2/maxProducersPerTopic
        PATCH /namespaces/<tenant>/n2/retention {}
        PUT /namespaces/<tenant>/n2/retention {}
        GET //admin/clusters
        GET //admin/properties/public
        GET //admin/tenants
        GET /worker/drain
        PUT /worker/rebalance
        DELETE /persistent/<tenant>/n2/t/policies
        GET /persistent/<tenant>/n2/t/s/dispatchRate
        GET /non-persistent/<tenant>/n2/0x00000000_0x20000000
        GET /non-persistent/<tenant>/n2/zzz
        """,
        tenant=prepare(broker, topic),
    )
