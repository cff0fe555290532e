"""What each route needs of its client. A route without a row here fails at import (`need_of`).

Operations and policies have Pulsar's names, which stand in the answers to refused requests.
"""

from __future__ import annotations

from ..security.needs import (
    AUTHENTICATED,
    OPEN,
    Need,
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
PERSISTENT = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"
ALL_SUBSCRIPTIONS = f"{TOPIC}/all_subscription"
SCHEMA = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"

#: The last part of the path of a policy, and Pulsar's name of the policy.
POLICIES = {
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
    "replication": "REPLICATION",
    "replicatorDispatchRate": "REPLICATION_RATE",
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
    ("GET", "/metrics"): OPEN,
    ("GET", "/status.html"): OPEN,
    ("GET", "/admin/v2/clusters"): AUTHENTICATED,
    ("GET", "/admin/v2/clusters/{cluster}"): cluster("GET_CLUSTER"),
    ("GET", "/admin/v2/brokers/health"): broker("HEALTH_CHECK"),
    ("GET", "/admin/v2/brokers/ready"): AUTHENTICATED,
    ("GET", "/admin/v2/brokers/version"): AUTHENTICATED,
    ("GET", "/admin/v2/brokers/configuration/runtime"): broker("LIST_RUNTIME_CONFIGURATIONS"),
    ("GET", "/admin/v2/brokers/{cluster}"): broker("LIST_BROKERS"),
    ("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}"): topic("LOOKUP"),
    # Tenants
    ("GET", "/admin/v2/tenants"): tenants("LIST_TENANTS"),
    ("GET", "/admin/v2/tenants/{tenant}"): tenants("GET_TENANT"),
    ("PUT", "/admin/v2/tenants/{tenant}"): tenants("CREATE_TENANT"),
    ("POST", "/admin/v2/tenants/{tenant}"): tenants("UPDATE_TENANT"),
    ("DELETE", "/admin/v2/tenants/{tenant}"): tenants("DELETE_TENANT"),
    # Namespaces
    ("GET", "/admin/v2/namespaces/{tenant}"): tenant("LIST_NAMESPACES"),
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
    # Topics
    ("GET", TOPICS): namespace("GET_TOPICS"),
    ("GET", f"{TOPICS}/partitioned"): namespace("GET_TOPICS"),
    ("PUT", TOPIC): namespace("CREATE_TOPIC"),
    ("DELETE", TOPIC): namespace("DELETE_TOPIC"),
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
    # Routes that Pulsar does not have
    ("GET", f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}/stamp"): topic("PEEK_MESSAGES"),
    ("GET", f"{TOPIC}/epochs"): topic("GET_METADATA"),
    ("GET", f"{TOPIC}/audit"): topic("GET_STATS"),
    ("POST", f"{TOPIC}/audit"): topic("CONSUME"),
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
    # Schemas
    ("GET", f"{SCHEMA}/schema"): topic("GET_METADATA"),
    ("GET", f"{SCHEMA}/schema/{{version}}"): topic("GET_METADATA"),
}


def need_of(route: Route) -> Need:
    """What a route needs. Raises LookupError if this is not stated."""
    method, template = route.method, route.template
    known = NEEDS.get((method, template))
    if known is not None:
        return known
    owner, _, name = template.rpartition("/")
    operation = "READ" if method == "GET" else "WRITE"
    if name in POLICIES and owner == NAMESPACE:
        return namespace_policy(POLICIES[name], operation)
    if name in POLICIES and owner in (TOPIC, PERSISTENT):
        return topic_policy(POLICIES[name], operation)
    raise LookupError(f"http/needs.py does not say what {method} {template} needs")
