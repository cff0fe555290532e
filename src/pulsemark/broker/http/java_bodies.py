"""The Java type of each route's body, and the check that goes before the route."""

from __future__ import annotations

import json
from collections.abc import Mapping

from .java_types import (
    BOOLEAN,
    BOXED_BOOLEAN,
    BOXED_INT,
    BOXED_LONG,
    DOUBLE,
    INT,
    LONG,
    TEXT,
    Bean,
    Choice,
    JavaType,
    JavaTypeError,
    Many,
    MapOf,
    check_start,
    check_type,
)
from .messages import JSON_TYPE, HttpError, Request
from .table import Route

__all__ = ["EMPTY", "METADATA_TYPE", "check_body"]

EMPTY = "The request entity cannot be empty."
#: The content type of a number of partitions with properties.
METADATA_TYPE = "application/vnd.partitioned-topic-metadata+json"

DATA = "org.apache.pulsar.common.policies.data"
CLIENT = "org.apache.pulsar.client"
TEXTS = MapOf("java.util.LinkedHashMap")
LIST, SET = Many("java.util.ArrayList"), Many("java.util.HashSet")
ORDERED_SET = Many("java.util.LinkedHashSet")


def _bean(name: str, **fields: JavaType) -> Bean:
    return Bean(f"{DATA}.{name}", fields)


TENANT = _bean("TenantInfoImpl", adminRoles=SET, allowedClusters=SET)
RETENTION = _bean("RetentionPolicies", retentionTimeInMinutes=INT, retentionSizeInMB=LONG)
QUOTA = _bean(
    "impl.BacklogQuotaImpl",
    limit=LONG,
    limitSize=LONG,
    limitTime=INT,
    policy=Choice(f"{DATA}.BacklogQuota$RetentionPolicy"),
)
PERSISTENCE = _bean(
    "PersistencePolicies",
    bookkeeperEnsemble=INT,
    bookkeeperWriteQuorum=INT,
    bookkeeperAckQuorum=INT,
    managedLedgerMaxMarkDeleteRate=DOUBLE,
)
BUNDLES = _bean("impl.BundlesDataImpl", boundaries=LIST, numBundles=INT)
NAMESPACE_POLICIES = _bean(
    "Policies",
    bundles=BUNDLES,
    replication_clusters=SET,
    allowed_clusters=SET,
    message_ttl_in_seconds=BOXED_INT,
    retention_policies=RETENTION,
    persistence=PERSISTENCE,
    deduplicationEnabled=BOXED_BOOLEAN,
    compaction_threshold=BOXED_LONG,
    max_producers_per_topic=BOXED_INT,
    max_consumers_per_topic=BOXED_INT,
    max_consumers_per_subscription=BOXED_INT,
    encryption_required=BOOLEAN,
    properties=MapOf("java.util.HashMap"),
)
SETTINGS: Mapping[str, JavaType] = {
    "maxProducersPerTopic": INT,
    "maxConsumersPerTopic": INT,
    "maxConsumersPerSubscription": INT,
    "maxSubscriptionsPerTopic": INT,
    "maxTopicsPerNamespace": INT,
    "maxUnackedMessagesPerConsumer": INT,
    "maxUnackedMessagesPerSubscription": INT,
    "maxProducers": INT,
    "maxConsumers": INT,
    "maxMessageSize": INT,
    "maxUnackedMessagesOnConsumer": BOXED_INT,
    "maxUnackedMessagesOnSubscription": BOXED_INT,
    "subscriptionExpirationTime": INT,
    "compactionThreshold": LONG,
    "deduplicationEnabled": BOXED_BOOLEAN,
    "deduplicationSnapshotInterval": BOXED_INT,
    "deduplication": BOOLEAN,
    "encryptionRequired": BOOLEAN,
    "isAllowAutoUpdateSchema": BOOLEAN,
    "schemaValidationEnforced": BOOLEAN,
    "offloadThreshold": LONG,
    "offloadThresholdInSeconds": LONG,
    "offloadDeletionLagMs": LONG,
    "retention": RETENTION,
    "backlogQuota": QUOTA,
    "persistence": PERSISTENCE,
    "publishRate": _bean(
        "PublishRate", publishThrottlingRateInMsg=INT, publishThrottlingRateInByte=LONG
    ),
    "subscribeRate": _bean(
        "SubscribeRate", subscribeThrottlingRatePerConsumer=INT, ratePeriodInSecond=INT
    ),
    "autoTopicCreation": _bean(
        "impl.AutoTopicCreationOverrideImpl",
        allowAutoTopicCreation=BOOLEAN,
        topicType=TEXT,
        defaultNumPartitions=BOXED_INT,
    ),
    "autoSubscriptionCreation": Bean(
        f"{DATA}.impl.AutoSubscriptionCreationOverrideImpl",
        {"allowAutoSubscriptionCreation": BOOLEAN},
        made_from=(bool,),
    ),
    "inactiveTopicPolicies": _bean(
        "InactiveTopicPolicies",
        inactiveTopicDeleteMode=Choice(f"{DATA}.InactiveTopicDeleteMode"),
        maxInactiveDurationSeconds=INT,
        deleteWhileInactive=BOOLEAN,
    ),
    "delayedDelivery": _bean(
        "impl.DelayedDeliveryPoliciesImpl",
        tickTime=LONG,
        active=BOOLEAN,
        maxDeliveryDelayInMillis=LONG,
    ),
    "subscriptionTypesEnabled": Many("java.util.HashSet", Choice(f"{CLIENT}.api.SubscriptionType")),
    "schemaCompatibilityStrategy": Choice(f"{DATA}.SchemaCompatibilityStrategy"),
    "schemaAutoUpdateCompatibilityStrategy": Choice(
        f"{DATA}.SchemaAutoUpdateCompatibilityStrategy"
    ),
    "subscriptionAuthMode": Choice(f"{DATA}.SubscriptionAuthMode"),
    "offloadPolicies": _bean(
        "OffloadPoliciesImpl",
        offloadersDirectory=TEXT,
        managedLedgerOffloadDriver=TEXT,
        managedLedgerOffloadMaxThreads=BOXED_INT,
        managedLedgerOffloadReadThreads=BOXED_INT,
        managedLedgerOffloadPrefetchRounds=BOXED_INT,
        managedLedgerOffloadThresholdInBytes=BOXED_LONG,
        managedLedgerOffloadDeletionLagInMillis=BOXED_LONG,
    ),
    "entryFilters": Bean(f"{DATA}.EntryFilters", {"entryFilterNames": TEXT}, made_from=(str,)),
    "replication": LIST,
    "allowedClusters": LIST,
    **dict.fromkeys(
        ("dispatchRate", "subscriptionDispatchRate", "replicatorDispatchRate"),
        _bean(
            "impl.DispatchRateImpl",
            dispatchThrottlingRateInMsg=INT,
            dispatchThrottlingRateInByte=LONG,
            relativeToPublishRate=BOOLEAN,
            ratePeriodInSecond=INT,
        ),
    ),
}
"""The type of a policy's value, by the last part of its path."""

PLACE = Bean(
    f"{CLIENT}.impl.ResetCursorData",
    {
        "ledgerId": LONG,
        "entryId": LONG,
        "partitionIndex": INT,
        "batchIndex": INT,
        "properties": TEXTS,
    },
    wrong_text="Invalid value {} for the position. Allowed values are [latest, earliest]",
    right_texts=("latest", "earliest"),
)
MESSAGE_ID = Bean(
    f"{CLIENT}.impl.MessageIdImpl", {"ledgerId": LONG, "entryId": LONG, "partitionIndex": INT}
)
SCHEMA = Bean(
    "org.apache.pulsar.common.protocol.schema.PostSchemaPayload",
    {"type": TEXT, "schema": TEXT, "properties": TEXTS},
)
CLUSTER = _bean(
    "ClusterDataImpl",
    **dict.fromkeys(
        ("serviceUrl", "serviceUrlTls", "brokerServiceUrl", "brokerServiceUrlTls"), TEXT
    ),
    peerClusterNames=ORDERED_SET,
    brokerClientTlsEnabled=BOOLEAN,
)
ISOLATION = _bean("NamespaceIsolationDataImpl", namespaces=LIST, primary=LIST, secondary=LIST)
GROUP = _bean(
    "ResourceGroup",
    publishRateInMsgs=BOXED_INT,
    publishRateInBytes=BOXED_LONG,
    dispatchRateInMsgs=BOXED_INT,
    dispatchRateInBytes=BOXED_LONG,
)
RESOURCES = _bean(
    "ResourceQuota",
    **dict.fromkeys(("msgRateIn", "msgRateOut", "bandwidthIn", "bandwidthOut", "memory"), DOUBLE),
    dynamic=BOOLEAN,
)
BOOKIES = _bean(
    "impl.BookieAffinityGroupDataImpl",
    bookkeeperAffinityGroupPrimary=TEXT,
    bookkeeperAffinityGroupSecondary=TEXT,
)
ACTIONS = Many("java.util.HashSet", Choice(f"{DATA}.AuthAction"))

NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
ONE = f"{TOPIC}/subscription/{{subscription}}"
IN_CLUSTER = "/admin/v2/clusters/{cluster}"
SCHEMAS = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"

BODIES: Mapping[tuple[str, str], JavaType] = {
    ("PUT", "/admin/v2/tenants/{tenant}"): TENANT,
    ("POST", "/admin/v2/tenants/{tenant}"): TENANT,
    ("PUT", NAMESPACE): NAMESPACE_POLICIES,
    ("POST", f"{NAMESPACE}/messageTTL"): INT,
    ("PUT", f"{NAMESPACE}/properties"): TEXTS,
    ("PUT", f"{NAMESPACE}/{{bundle}}/split"): Many("java.util.ArrayList", BOXED_LONG),
    ("POST", f"{NAMESPACE}/permissions/{{role}}"): ACTIONS,
    ("POST", f"{NAMESPACE}/permissions/subscription/{{subscription}}"): SET,
    ("POST", f"{NAMESPACE}/persistence/bookieAffinity"): BOOKIES,
    ("PUT", TOPIC): TEXTS,
    ("PUT", f"{TOPIC}/properties"): TEXTS,
    ("PUT", f"{TOPIC}/partitions"): INT,
    ("POST", f"{TOPIC}/partitions"): INT,
    ("PUT", f"{TOPIC}/backlogSize"): MESSAGE_ID,
    ("POST", f"{TOPIC}/permissions/{{role}}"): ACTIONS,
    ("PUT", ONE): PLACE,
    ("PUT", f"{ONE}/properties"): TEXTS,
    ("POST", f"{ONE}/resetcursor"): PLACE,
    ("POST", f"{ONE}/expireMessages"): PLACE,
    ("POST", f"{ONE}/analyzeBacklog"): PLACE,
    ("POST", f"{TOPIC}/{{subscription}}/dispatchRate"): SETTINGS["dispatchRate"],
    # Pulsar reads the bodies of these, though it does not use them.
    ("DELETE", f"{NAMESPACE}/retention"): RETENTION,
    ("DELETE", f"{TOPIC}/subscribeRate"): SETTINGS["subscribeRate"],
    ("DELETE", f"{TOPIC}/schemaCompatibilityStrategy"): SETTINGS["schemaCompatibilityStrategy"],
    ("POST", f"{ONE}/replicatedSubscriptionStatus"): BOOLEAN,
    ("POST", f"{SCHEMAS}/schema"): SCHEMA,
    ("POST", f"{SCHEMAS}/compatibility"): SCHEMA,
    ("POST", f"{SCHEMAS}/version"): SCHEMA,
    ("PUT", IN_CLUSTER): CLUSTER,
    ("POST", IN_CLUSTER): CLUSTER,
    ("POST", f"{IN_CLUSTER}/peers"): ORDERED_SET,
    ("POST", f"{IN_CLUSTER}/failureDomains/{{domain_name}}"): _bean(
        "FailureDomainImpl", brokers=SET
    ),
    ("POST", f"{IN_CLUSTER}/namespaceIsolationPolicies/{{policy}}"): ISOLATION,
    ("PUT", "/admin/v2/resourcegroups/{group}"): GROUP,
    ("POST", "/admin/v2/resource-quotas"): RESOURCES,
    ("POST", "/admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}"): RESOURCES,
    ("POST", "/admin/v2/bookies/racks-info/{bookie}"): _bean(
        "impl.BookieInfoImpl", rack=TEXT, hostname=TEXT
    ),
}
#: Bodies without which Pulsar goes on: the type itself could not be null.
MAY_BE_EMPTY = frozenset({("PUT", f"{TOPIC}/partitions")})


def body_of(route: Route) -> JavaType | None:
    """The type of a route's body; None if any JSON will do, or if there is no body."""
    template = route.template.replace("/admin/v2/non-persistent/", "/admin/v2/{domain}/")
    found = BODIES.get((route.method, template))
    is_policy = route.method in ("PUT", "POST") and route.template.rpartition("/")[0] in (
        NAMESPACE,
        TOPIC,
    )
    return SETTINGS.get(route.template.rpartition("/")[2]) if found is None and is_policy else found


def check_body(request: Request, route: Route) -> None:
    """Raise `HttpError` 400 with Pulsar's text if the body cannot be read as the route's type."""
    java = body_of(route)
    if java is None or request.headers.get("content-type", "").startswith(METADATA_TYPE):
        return
    if not request.body.strip():
        if java.is_primitive and (route.method, route.template) not in MAY_BE_EMPTY:
            raise HttpError(400, EMPTY, text_type=JSON_TYPE)
        return
    text = request.body.decode(json.detect_encoding(request.body), "replace")
    try:
        try:
            request.json()
        except HttpError:
            # Jackson refuses a body of the wrong kind at its first bracket, broken or not.
            check_start(text, java)
            raise
        check_type(text, java)
    except JavaTypeError as error:
        raise HttpError(400, str(error), text_type="text/plain") from error
