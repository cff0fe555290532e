"""What each route needs of its client. A route without a row here fails at import (`need_of`).

Operations and policies have Pulsar's names, which are in the answers to refused requests.
"""

from __future__ import annotations

import re

from ..security.permissions import (
    AUTHENTICATED,
    OPEN,
    SUPER_USER,
    Need,
    Scope,
    broker,
    cluster,
    namespace,
    namespace_policy,
    tenant,
    tenant_admin,
    tenants,
    topic,
    topic_policy,
)
from .table import Route

__all__ = ["need_of"]

NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
TOPICS = "/admin/v2/{domain}/{tenant}/{namespace}"
TOPIC = f"{TOPICS}/{{topic}}"
BUNDLE = f"{NAMESPACE}/{{bundle}}"
CLUSTER = "/admin/v2/clusters/{cluster}"
SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"
ALL_SUBSCRIPTIONS = f"{TOPIC}/all_subscription"
SCHEMA = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"

#: The last part of the path of a policy, and Pulsar's name of the policy.
POLICIES = {
    "allowedClusters": "ALLOW_CLUSTERS",
    "antiAffinity": "ANTI_AFFINITY",
    "autoSubscriptionCreation": "AUTO_SUBSCRIPTION_CREATION",
    "autoTopicCreation": "AUTO_TOPIC_CREATION",
    "backlogQuota": "BACKLOG",
    "backlogQuotaMap": "BACKLOG",
    "brokerEntryMetadata": "ENTRY_METADATA",
    "compactionThreshold": "COMPACTION",
    "deduplication": "DEDUPLICATION",
    "deduplicationEnabled": "DEDUPLICATION",
    "deduplicationSnapshotInterval": "DEDUPLICATION_SNAPSHOT",
    "delayedDelivery": "DELAYED_DELIVERY",
    "dispatcherPauseOnAckStatePersistent": "DISPATCHER_PAUSE_ON_ACK_STATE_PERSISTENT",
    "dispatchRate": "RATE",
    "encryptionRequired": "ENCRYPTION",
    "entryFilters": "ENTRY_FILTERS",
    "entryFormat": "ENTRY_FORMAT",
    "inactiveTopicPolicies": "INACTIVE_TOPIC",
    "isAllowAutoUpdateSchema": "SCHEMA_COMPATIBILITY_STRATEGY",
    "leaderEpochs": "LEADER_EPOCHS",
    "maxConsumers": "MAX_CONSUMERS",
    "maxConsumersPerSubscription": "MAX_CONSUMERS",
    "maxConsumersPerTopic": "MAX_CONSUMERS",
    "maxMessageSize": "MAX_MESSAGE_SIZE",
    "maxProducers": "MAX_PRODUCERS",
    "maxProducersPerTopic": "MAX_PRODUCERS",
    "maxSubscriptionsPerTopic": "MAX_SUBSCRIPTIONS",
    "maxTopicsPerNamespace": "MAX_TOPICS",
    "maxUnackedMessagesOnConsumer": "MAX_UNACKED",
    "maxUnackedMessagesOnSubscription": "MAX_UNACKED",
    "maxUnackedMessagesPerConsumer": "MAX_UNACKED",
    "maxUnackedMessagesPerSubscription": "MAX_UNACKED",
    "messageTTL": "TTL",
    "mirrorSources": "MIRROR_SOURCES",
    "offloadDeletionLagMs": "OFFLOAD",
    "offloadPolicies": "OFFLOAD",
    "offloadThreshold": "OFFLOAD",
    "offloadThresholdInSeconds": "OFFLOAD",
    "persistence": "PERSISTENCE",
    "publishRate": "RATE",
    "removeOffloadPolicies": "OFFLOAD",
    "replication": "REPLICATION",
    "replicatorDispatchRate": "REPLICATION_RATE",
    "resourcegroup": "RESOURCEGROUP",
    "retention": "RETENTION",
    "schemaAutoUpdateCompatibilityStrategy": "SCHEMA_COMPATIBILITY_STRATEGY",
    "schemaCompatibilityStrategy": "SCHEMA_COMPATIBILITY_STRATEGY",
    "schemaValidationEnforced": "SCHEMA_COMPATIBILITY_STRATEGY",
    "subscribeRate": "RATE",
    "subscriptionAuthMode": "SUBSCRIPTION_AUTH_MODE",
    "subscriptionDispatchRate": "RATE",
    "subscriptionExpirationTime": "SUBSCRIPTION_EXPIRATION_TIME",
    "subscriptionTypesEnabled": "SUBSCRIPTION_AUTH_MODE",
}

NEEDS: dict[tuple[str, str], Need] = {
    ("GET", "/"): OPEN,
    ("GET", "/metrics"): OPEN,
    ("GET", "/status.html"): OPEN,
    ("GET", "/admin/v2/clusters"): AUTHENTICATED,
    ("GET", CLUSTER): cluster("GET_CLUSTER"),
    ("PUT", CLUSTER): cluster("CREATE_CLUSTER"),
    ("POST", CLUSTER): cluster("UPDATE_CLUSTER"),
    ("DELETE", CLUSTER): cluster("DELETE_CLUSTER"),
    ("GET", f"{CLUSTER}/peers"): cluster("GET_PEER_CLUSTER"),
    ("POST", f"{CLUSTER}/peers"): cluster("UPDATE_PEER_CLUSTER"),
    ("GET", f"{CLUSTER}/migrate"): cluster("CLUSTER_MIGRATION"),
    ("GET", f"{CLUSTER}/failureDomains"): cluster("GET_FAILURE_DOMAIN"),
    ("GET", f"{CLUSTER}/failureDomains/{{name}}"): cluster("GET_FAILURE_DOMAIN"),
    ("POST", f"{CLUSTER}/failureDomains/{{name}}"): cluster("UPDATE_FAILURE_DOMAIN"),
    ("DELETE", f"{CLUSTER}/failureDomains/{{name}}"): cluster("DELETE_FAILURE_DOMAIN"),
    ("GET", "/admin/v2/brokers/health"): broker("HEALTH_CHECK"),
    ("GET", "/admin/v2/brokers/ready"): AUTHENTICATED,
    ("GET", "/admin/v2/brokers/version"): AUTHENTICATED,
    ("GET", "/admin/v2/brokers/configuration/runtime"): broker("LIST_RUNTIME_CONFIGURATIONS"),
    ("GET", "/admin/v2/brokers"): broker("LIST_BROKERS"),
    ("GET", "/admin/v2/brokers/{cluster}"): broker("LIST_BROKERS"),
    ("GET", "/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces"): broker(
        "LIST_OWNED_NAMESPACES"
    ),
    ("GET", "/admin/v2/brokers/leaderBroker"): broker("GET_LEADER_BROKER"),
    ("GET", "/admin/v2/brokers/configuration"): broker("LIST_DYNAMIC_CONFIGURATIONS"),
    ("GET", "/admin/v2/brokers/configuration/values"): broker("LIST_DYNAMIC_CONFIGURATIONS"),
    ("POST", "/admin/v2/brokers/configuration/{name}/{value}"): broker(
        "UPDATE_DYNAMIC_CONFIGURATION"
    ),
    ("DELETE", "/admin/v2/brokers/configuration/{name}"): broker("DELETE_DYNAMIC_CONFIGURATION"),
    ("GET", "/admin/v2/brokers/internal-configuration"): broker("GET_INTERNAL_CONFIGURATION_DATA"),
    ("GET", "/admin/v2/brokers/backlog-quota-check"): broker("CHECK_BACKLOG_QUOTA"),
    ("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"): topic("LOOKUP"),
    ("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}/bundle"): topic("LOOKUP"),
    # Tenants
    ("GET", "/admin/v2/tenants"): tenants("LIST_TENANTS"),
    ("GET", "/admin/v2/tenants/{tenant}"): tenants("GET_TENANT"),
    ("PUT", "/admin/v2/tenants/{tenant}"): tenants("CREATE_TENANT"),
    ("POST", "/admin/v2/tenants/{tenant}"): tenants("UPDATE_TENANT"),
    ("DELETE", "/admin/v2/tenants/{tenant}"): tenants("DELETE_TENANT"),
    # Namespaces
    ("GET", "/admin/v2/namespaces/{tenant}"): tenant("LIST_NAMESPACES"),
    ("GET", "/admin/namespaces/{tenant}/{cluster}"): tenant("LIST_NAMESPACES"),
    ("GET", NAMESPACE): namespace_policy("ALL", "READ"),
    ("PUT", NAMESPACE): tenant("CREATE_NAMESPACE"),
    ("DELETE", NAMESPACE): tenant("DELETE_NAMESPACE"),
    ("GET", f"{NAMESPACE}/topics"): namespace("GET_TOPICS"),
    ("GET", f"{NAMESPACE}/permissions"): namespace("GET_PERMISSION"),
    ("POST", f"{NAMESPACE}/permissions/{{role}}"): namespace("GRANT_PERMISSION"),
    ("DELETE", f"{NAMESPACE}/permissions/{{role}}"): namespace("REVOKE_PERMISSION"),
    ("GET", f"{NAMESPACE}/permissions/subscription"): namespace("GET_PERMISSION"),
    ("POST", f"{NAMESPACE}/permissions/subscription/{{subscription}}"): namespace(
        "GRANT_PERMISSION"
    ),
    ("DELETE", f"{NAMESPACE}/permissions/{{subscription}}/{{role}}"): namespace(
        "REVOKE_PERMISSION"
    ),
    ("GET", "/admin/v2/namespaces/{cluster}/antiAffinity/{group}"): SUPER_USER,
    ("GET", "/admin/namespaces/{cluster}/antiAffinity/{group}"): SUPER_USER,
    ("GET", f"{NAMESPACE}/persistence/bookieAffinity"): SUPER_USER,
    ("POST", f"{NAMESPACE}/persistence/bookieAffinity"): SUPER_USER,
    ("DELETE", f"{NAMESPACE}/persistence/bookieAffinity"): SUPER_USER,
    ("POST", f"{NAMESPACE}/resourcegroup/{{group}}"): namespace_policy("RESOURCEGROUP", "WRITE"),
    ("GET", f"{NAMESPACE}/properties"): tenant_admin(),
    ("PUT", f"{NAMESPACE}/properties"): tenant_admin(),
    ("DELETE", f"{NAMESPACE}/properties"): tenant_admin(),
    ("GET", f"{NAMESPACE}/property/{{key}}"): tenant_admin(),
    ("PUT", f"{NAMESPACE}/property/{{key}}/{{value}}"): tenant_admin(),
    ("DELETE", f"{NAMESPACE}/property/{{key}}"): tenant_admin(),
    ("GET", f"{NAMESPACE}/bundles"): namespace("GET_BUNDLE"),
    ("PUT", f"{BUNDLE}/split"): SUPER_USER,
    ("DELETE", BUNDLE): namespace("DELETE_BUNDLE"),
    ("GET", f"{BUNDLE}/topicHashPositions"): namespace_policy("PERSISTENCE", "READ"),
    ("PUT", f"{NAMESPACE}/unload"): SUPER_USER,
    ("PUT", f"{BUNDLE}/unload"): SUPER_USER,
    ("POST", f"{NAMESPACE}/clearBacklog"): namespace("CLEAR_BACKLOG"),
    ("POST", f"{NAMESPACE}/clearBacklog/{{subscription}}"): namespace("CLEAR_BACKLOG"),
    ("POST", f"{BUNDLE}/clearBacklog"): namespace("CLEAR_BACKLOG"),
    ("POST", f"{BUNDLE}/clearBacklog/{{subscription}}"): namespace("CLEAR_BACKLOG"),
    ("POST", f"{NAMESPACE}/unsubscribe/{{subscription}}"): namespace("UNSUBSCRIBE"),
    ("POST", f"{BUNDLE}/unsubscribe/{{subscription}}"): namespace("UNSUBSCRIBE"),
    # Topics
    ("GET", TOPICS): namespace("GET_TOPICS"),
    ("GET", f"{TOPICS}/partitioned"): namespace("GET_TOPICS"),
    ("PUT", TOPIC): namespace("CREATE_TOPIC"),
    ("DELETE", TOPIC): namespace("DELETE_TOPIC"),
    # The bundle of a namespace, for non-persistent topics.
    ("GET", TOPIC): namespace("GET_TOPICS"),
    ("GET", f"{TOPIC}/partitions"): topic("LOOKUP"),
    ("PUT", f"{TOPIC}/partitions"): topic_policy("PARTITION", "WRITE"),
    ("POST", f"{TOPIC}/partitions"): topic_policy("PARTITION", "WRITE"),
    ("DELETE", f"{TOPIC}/partitions"): namespace("DELETE_TOPIC"),
    ("GET", f"{TOPIC}/permissions"): tenant_admin(),
    ("POST", f"{TOPIC}/permissions/{{role}}"): tenant_admin(),
    ("DELETE", f"{TOPIC}/permissions/{{role}}"): tenant_admin(),
    ("GET", f"{TOPIC}/stats"): topic("GET_STATS"),
    ("GET", f"{TOPIC}/partitioned-stats"): topic("GET_STATS"),
    ("GET", f"{TOPIC}/internalStats"): topic("GET_STATS"),
    ("GET", f"{TOPIC}/messageid/{{time}}"): topic("PEEK_MESSAGES"),
    ("GET", f"{TOPIC}/lastMessageId"): topic("PEEK_MESSAGES"),
    ("PUT", f"{TOPIC}/unload"): topic("UNLOAD"),
    ("GET", f"{TOPIC}/compaction"): topic("COMPACT"),
    ("PUT", f"{TOPIC}/compaction"): topic("COMPACT"),
    ("DELETE", f"{TOPIC}/truncate"): tenant_admin(),
    ("GET", f"{TOPIC}/partitioned-internalStats"): topic("GET_STATS"),
    ("GET", f"{TOPIC}/internal-info"): topic("GET_STATS"),
    ("GET", f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}"): topic("PEEK_MESSAGES"),
    ("GET", f"{TOPIC}/examinemessage"): topic("PEEK_MESSAGES"),
    ("GET", f"{TOPIC}/backlog"): topic("GET_BACKLOG_SIZE"),
    ("PUT", f"{TOPIC}/backlogSize"): topic("GET_BACKLOG_SIZE"),
    ("GET", f"{TOPIC}/offload"): topic("OFFLOAD"),
    ("PUT", f"{TOPIC}/offload"): topic("OFFLOAD"),
    ("POST", f"{TOPIC}/trim"): topic("TRIM_TOPIC"),
    ("POST", f"{TOPIC}/terminate"): topic("TERMINATE"),
    ("POST", f"{TOPIC}/terminate/partitions"): topic("TERMINATE"),
    ("GET", f"{TOPIC}/properties"): topic("GET_METADATA"),
    ("PUT", f"{TOPIC}/properties"): topic("UPDATE_METADATA"),
    ("DELETE", f"{TOPIC}/properties"): topic("DELETE_METADATA"),
    ("POST", f"{TOPIC}/createMissedPartitions"): namespace("CREATE_TOPIC"),
    # Routes that Pulsar does not have
    ("GET", f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}/stamp"): topic("PEEK_MESSAGES"),
    ("GET", f"{TOPIC}/entries"): topic("PEEK_MESSAGES"),
    ("GET", f"{TOPIC}/timeline"): topic("PEEK_MESSAGES"),
    ("GET", f"{TOPIC}/epochs"): topic("GET_METADATA"),
    ("GET", f"{TOPIC}/audit"): topic("GET_STATS"),
    ("POST", f"{TOPIC}/audit"): topic("CONSUME"),
    ("DELETE", f"{TOPIC}/policies"): namespace("DELETE_TOPIC"),
    ("GET", f"{TOPIC}/{{subscription}}/dispatchRate"): topic_policy("RATE", "READ"),
    ("POST", f"{TOPIC}/{{subscription}}/dispatchRate"): topic_policy("RATE", "WRITE"),
    ("DELETE", f"{TOPIC}/{{subscription}}/dispatchRate"): topic_policy("RATE", "WRITE"),
    # Subscriptions
    ("GET", f"{TOPIC}/subscriptions"): topic("GET_SUBSCRIPTIONS"),
    ("PUT", SUBSCRIPTION): topic("SUBSCRIBE"),
    ("DELETE", SUBSCRIPTION): topic("UNSUBSCRIBE"),
    ("POST", f"{SUBSCRIPTION}/resetcursor/{{time}}"): topic("RESET_CURSOR"),
    ("POST", f"{SUBSCRIPTION}/resetcursor"): topic("RESET_CURSOR"),
    ("POST", f"{SUBSCRIPTION}/skip_all"): topic("SKIP"),
    ("POST", f"{SUBSCRIPTION}/skip/{{count}}"): topic("SKIP"),
    ("POST", f"{SUBSCRIPTION}/expireMessages/{{seconds}}"): topic("EXPIRE_MESSAGES"),
    ("POST", f"{SUBSCRIPTION}/expireMessages"): topic("EXPIRE_MESSAGES"),
    ("POST", f"{ALL_SUBSCRIPTIONS}/expireMessages/{{seconds}}"): topic(
        "EXPIRE_MESSAGES", all_subscriptions=True
    ),
    ("GET", f"{SUBSCRIPTION}/position/{{number}}"): topic("PEEK_MESSAGES"),
    ("GET", f"{SUBSCRIPTION}/properties"): topic("CONSUME"),
    ("PUT", f"{SUBSCRIPTION}/properties"): topic("SUBSCRIBE"),
    ("GET", f"{SUBSCRIPTION}/replicatedSubscriptionStatus"): topic(
        "GET_REPLICATED_SUBSCRIPTION_STATUS"
    ),
    ("POST", f"{SUBSCRIPTION}/replicatedSubscriptionStatus"): topic(
        "SET_REPLICATED_SUBSCRIPTION_STATUS"
    ),
    ("POST", f"{SUBSCRIPTION}/analyzeBacklog"): topic("CONSUME"),
    ("GET", f"{SUBSCRIPTION}/analyzeBacklog"): topic("CONSUME"),
    # Schemas
    ("GET", f"{SCHEMA}/schema"): topic("GET_METADATA"),
    ("GET", f"{SCHEMA}/schema/{{version}}"): topic("GET_METADATA"),
    ("POST", f"{SCHEMA}/schema"): topic("PRODUCE"),
    ("DELETE", f"{SCHEMA}/schema"): tenant_admin(),
    ("GET", f"{SCHEMA}/schemas"): topic("GET_METADATA"),
    ("GET", f"{SCHEMA}/metadata"): topic("GET_METADATA"),
    ("POST", f"{SCHEMA}/compatibility"): topic("GET_METADATA"),
    ("POST", f"{SCHEMA}/version"): topic("GET_METADATA"),
}

#: Parts of Pulsar that this broker does not have, or has for super users: their routes are for
#: administrators of the tenant, if the path names one, and for super users.
ADMINISTRATION = (
    *(f"/admin/v2/{name}/" for name in ("functions", "worker", "worker-stats", "bookies")),
    *(f"/admin/v3/{name}/" for name in ("functions", "sink", "sinks", "source", "sources")),
    *("/admin/v3/packages/", "/admin/v3/transactions/", "/admin/v2/broker-stats/"),
    *("/admin/v2/resourcegroups/", "/admin/v2/resource-quotas/"),
    f"{CLUSTER}/namespaceIsolationPolicies/",
)
#: The names that a route's path must have, so that what it is about is known.
NAMES = {
    Scope.TENANT: {"tenant"},
    Scope.TENANT_ADMIN: {"tenant"},
    Scope.NAMESPACE: {"tenant", "namespace"},
    Scope.NAMESPACE_POLICY: {"tenant", "namespace"},
    Scope.TOPIC: {"tenant", "namespace", "topic"},
    Scope.TOPIC_POLICY: {"tenant", "namespace", "topic"},
}


def _shape(template: str) -> str:
    """A template without the names in it; both domains are one."""
    for domain in ("persistent", "non-persistent"):
        template = template.replace(f"/admin/v2/{domain}/", "/admin/v2/{domain}/")
    return re.sub(r"\{[^}]*\}", "{}", template)


SHAPES = {(method, _shape(template)): need for (method, template), need in NEEDS.items()}


def need_of(route: Route) -> Need:
    """What a route needs. Raises LookupError if this is not stated, or not about what is named."""
    need = SHAPES.get((route.method, _shape(route.template))) or _by_rule(route)
    wanted = set(NAMES.get(need.scope, ()))
    if "/subscription/{" in route.template and need.scope is Scope.TOPIC:
        wanted.add("subscription")
    if not wanted <= set(route.names):
        raise LookupError(f"{route.template} must have the names {sorted(wanted)}")
    return need


def _by_rule(route: Route) -> Need:
    method, template = route.method, route.template
    owner, _, name = template.rpartition("/")
    operation = "READ" if method == "GET" else "WRITE"
    if name in POLICIES and _shape(owner) == _shape(NAMESPACE):
        return namespace_policy(POLICIES[name], operation)
    if name in POLICIES and _shape(owner) == _shape(TOPIC):
        return topic_policy(POLICIES[name], operation)
    if f"{template}/".startswith(ADMINISTRATION):
        return tenant_admin() if "{tenant}" in template else SUPER_USER
    raise LookupError(f"http/needs.py does not say what {method} {template} needs")
