"""One pass over each subject of the REST interface."""

from __future__ import annotations

import time

from pulsemark.wire import commands

from ..peers import Recorder
from ..wire_scenarios import batch, fill, message, send, subscribe
from .registry import ADMIN, path_of, scenario, unique


@scenario
def rest_clusters_and_brokers(broker: Recorder, topic: str) -> None:
    for path in (
        "/clusters",
        "/clusters/standalone",
        "/clusters/absent",
        "/brokers/standalone",
        "/brokers/health",
        "/brokers/ready",
        "/brokers/version",
        "/brokers/leaderBroker",
        "/brokers/configuration",
        "/brokers/internal-configuration",
        "/broker-stats/destinations",
        "/absent/route",
    ):
        broker.rest("GET", ADMIN + path)
    for path in ("/status.html", "/metrics/", "/"):
        status, _ = broker.rest("GET", path, quiet=True)
        broker.record(f"GET {path}", status)
    broker.rest("DELETE", f"{ADMIN}/clusters/absent")
    broker.rest("POST", f"{ADMIN}/brokers/health")


@scenario
def rest_tenants(broker: Recorder, topic: str) -> None:
    tenant = f"{ADMIN}/tenants/{unique(topic)}"
    good = {"adminRoles": ["a"], "allowedClusters": ["standalone"]}
    broker.rest("GET", tenant, label="absent")
    broker.rest("PUT", tenant, good, label="create")
    broker.rest("PUT", tenant, good, label="create again")
    broker.rest("GET", tenant, label="get")
    broker.rest(
        "POST", tenant, {"adminRoles": [], "allowedClusters": ["standalone"]}, label="update"
    )
    broker.rest("GET", tenant, label="get updated")
    broker.rest("POST", tenant, {"allowedClusters": ["nowhere"]}, label="wrong cluster")
    broker.rest("PUT", f"{tenant}x", b"{no json", label="no json")
    broker.rest("PUT", f"{tenant}x", {"unknown": 1}, label="unknown field")
    broker.rest("PUT", f"{ADMIN}/tenants/a%20b", good, label="name with a space")
    broker.rest("DELETE", tenant, label="delete")
    broker.rest("DELETE", tenant, label="delete again")
    broker.rest("PATCH", tenant, label="wrong method")


@scenario
def rest_namespaces(broker: Recorder, topic: str) -> None:
    name = f"{ADMIN}/namespaces/public/{unique(topic)}"
    broker.rest("GET", name, label="absent")
    broker.rest("PUT", name, label="create")
    broker.rest("PUT", name, label="create again")
    broker.rest("PUT", f"{ADMIN}/namespaces/absent/ns", label="absent tenant")
    broker.rest("GET", name, label="policies")
    broker.rest("GET", f"{name}/topics", label="topics")
    for policy in (
        "retention",
        "messageTTL",
        "backlogQuotaMap",
        "deduplication",
        "schemaCompatibilityStrategy",
        "schemaValidationEnforced",
        "compactionThreshold",
        "permissions",
        "maxProducersPerTopic",
        "maxConsumersPerTopic",
        "maxConsumersPerSubscription",
        "maxSubscriptionsPerTopic",
        "maxTopicsPerNamespace",
        "maxUnackedMessagesPerConsumer",
        "maxUnackedMessagesPerSubscription",
        "delayedDelivery",
        "inactiveTopicPolicies",
        "autoTopicCreation",
        "autoSubscriptionCreation",
        "dispatchRate",
        "subscribeRate",
        "publishRate",
        "subscriptionDispatchRate",
        "isAllowAutoUpdateSchema",
        "subscriptionTypesEnabled",
        "deduplicationSnapshotInterval",
        "subscriptionExpirationTime",
        "encryptionRequired",
        "bundles",
        "properties",
        "replication",
    ):
        broker.rest("GET", f"{name}/{policy}", label=f"get {policy}")
    broker.rest(
        "POST",
        f"{name}/retention",
        {"retentionTimeInMinutes": 10, "retentionSizeInMB": 5},
        label="set retention",
    )
    broker.rest("GET", f"{name}/retention", label="retention")
    broker.rest(
        "POST",
        f"{name}/retention",
        {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5},
        label="one zero",
    )
    broker.rest("POST", f"{name}/messageTTL", 30, label="set TTL")
    broker.rest("GET", f"{name}/messageTTL", label="TTL")
    broker.rest("POST", f"{name}/messageTTL", -1, label="negative TTL")
    broker.rest("PUT", f"{name}/compactionThreshold", 1000, label="set threshold")
    broker.rest(
        "PUT", f"{name}/schemaCompatibilityStrategy", "FULL_TRANSITIVE", label="set strategy"
    )
    broker.rest("GET", f"{name}/schemaCompatibilityStrategy", label="strategy")
    broker.rest("POST", f"{name}/maxProducersPerTopic", 3, label="set producers")
    broker.rest("POST", f"{name}/maxProducersPerTopic", -3, label="negative producers")
    broker.rest("POST", f"{name}/permissions/role-a", ["produce", "consume"], label="grant")
    broker.rest("GET", f"{name}/permissions", label="permissions")
    broker.rest("DELETE", f"{name}/permissions/role-a", label="revoke")
    broker.rest("PUT", f"{name}/unload", label="unload")
    broker.rest("GET", name, label="policies then")
    broker.rest("DELETE", name, label="delete")
    broker.rest("DELETE", name, label="delete again")
    _, names = broker.rest("GET", f"{ADMIN}/namespaces/public", quiet=True)
    broker.record("is listed", f"public/{unique(topic)}" in names)


@scenario
def rest_topics(broker: Recorder, topic: str) -> None:
    path = path_of(topic)
    broker.rest("GET", f"{path}/stats", label="stats of absent")
    broker.rest("PUT", path, label="create")
    broker.rest("PUT", path, label="create again")
    broker.rest("GET", f"{path}/stats", label="stats")
    broker.rest("GET", f"{path}/internalStats", label="internal stats")
    broker.rest("GET", f"{path}/partitions", label="partitions")
    broker.rest("GET", f"{path}/lastMessageId", label="last id")
    broker.rest("GET", f"{path}/subscriptions", label="subscriptions")
    broker.rest("PUT", f"{path}/subscription/s", label="create subscription")
    broker.rest("PUT", f"{path}/subscription/s", label="create subscription again")
    broker.rest("GET", f"{path}/subscriptions", label="subscriptions then")
    link = broker.connect()
    fill(link, topic, 5, batches=1)
    broker.rest("GET", f"{path}/stats", label="stats with messages")
    broker.rest("GET", f"{path}/internalStats", label="internal stats with messages")
    broker.rest("GET", f"{path}/lastMessageId", label="last id with messages")
    broker.rest("GET", f"{path}/messageid/0", label="id by time")
    broker.rest("GET", f"{path}/messageid/9999999999999", label="id by late time")
    broker.rest("GET", f"{path}/backlogSize", label="backlog size by GET")
    broker.rest("GET", f"{path}/subscription/s/position/1", label="peek one")
    broker.rest("GET", f"{path}/subscription/s/position/99", label="peek past the end")
    broker.rest(
        "GET", f"{path}/examinemessage?initialPosition=earliest&messagePosition=1", label="examine"
    )
    broker.rest("POST", f"{path}/subscription/s/skip/2", label="skip two")
    broker.rest("POST", f"{path}/subscription/absent/skip/2", label="skip absent")
    broker.rest("POST", f"{path}/subscription/s/expireMessages/1", label="expire")
    broker.rest("POST", f"{path}/subscription/s/resetcursor/0", label="reset")
    broker.rest("POST", f"{path}/subscription/s/skip_all", label="skip all")
    broker.rest("DELETE", path, label="delete in use")
    subscribe(link, topic, 10)
    broker.rest("DELETE", f"{path}/subscription/s", label="delete connected subscription")
    link.close()
    time.sleep(1.0)  # until the brokers have noticed it
    broker.rest("DELETE", f"{path}/subscription/s", label="delete subscription")
    broker.rest("DELETE", f"{path}/subscription/s", label="delete subscription again")
    broker.rest("PUT", f"{path}/compaction", label="compact")
    broker.rest("GET", f"{path}/compaction", label="compaction status")
    broker.rest("POST", f"{path}/terminate", label="terminate")
    broker.rest("POST", f"{path}/terminate", label="terminate again")
    broker.rest("PUT", f"{path}/unload", label="unload")
    broker.rest("DELETE", f"{path}/truncate", label="truncate")
    broker.rest("DELETE", path, label="delete")
    broker.rest("DELETE", path, label="delete again")


@scenario
def rest_terminated(broker: Recorder, topic: str) -> None:
    link = broker.connect()
    fill(link, topic, 2)
    subscribe(link, topic, 10)
    link.say("flow", commands.flow(10, 10))
    broker.rest("POST", f"{path_of(topic)}/terminate", label="terminate")
    link.listen("end of topic", quiet_s=1.0)
    link.say("send", send(1, 9, message(9)))
    link.say("producer", commands.producer(topic, 2, link.next_request()))


@scenario
def rest_partitions(broker: Recorder, topic: str) -> None:
    path = path_of(topic)
    broker.rest("PUT", f"{path}/partitions", 0, label="zero partitions")
    broker.rest("PUT", f"{path}/partitions", 2, label="create")
    broker.rest("PUT", f"{path}/partitions", 2, label="create again")
    broker.rest("GET", f"{path}/partitions", label="get")
    broker.rest("POST", f"{path}/partitions", 4, label="grow")
    broker.rest("POST", f"{path}/partitions", 3, label="shrink")
    broker.rest("GET", f"{path}/partitioned-stats", label="stats")
    broker.rest("DELETE", path, label="delete as plain")
    broker.rest("POST", f"{path}/terminate", label="terminate")
    broker.rest("PUT", f"{path}/partitions", b"x", label="no number")
    link = broker.connect()
    for name in (topic, f"{topic}-partition-1", f"{topic}-partition-7"):
        link.say("producer", commands.producer(name, 1, link.next_request()))
        link.say("send", send(1, 0, batch(0, 2), num_messages=2, highest_sequence_id=1))
        if link.closed:
            link = broker.connect()
        link.say("close", commands.close_producer(1, link.next_request()))
    broker.rest("DELETE", f"{path}/partitions", label="delete")
    broker.rest("DELETE", f"{path}/partitions", label="delete again")


@scenario
def rest_topic_policies(broker: Recorder, topic: str) -> None:
    path = path_of(topic)
    broker.rest("PUT", path, label="create")
    for policy, value in (
        ("retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 5}),
        ("messageTTL", None),
        ("maxProducers", 2),
        ("maxConsumers", 2),
        ("deduplicationEnabled", True),
        ("maxMessageSize", 1000),
        ("compactionThreshold", 100),
        ("delayedDelivery", None),
        ("backlogQuotaMap", None),
        ("schemaCompatibilityStrategy", None),
    ):
        broker.rest("GET", f"{path}/{policy}", label=f"get {policy}")
        if value is not None:
            broker.rest("POST", f"{path}/{policy}", value, label=f"set {policy}")
            broker.rest("GET", f"{path}/{policy}", label=f"get {policy} then")
            broker.rest("DELETE", f"{path}/{policy}", label=f"remove {policy}")


@scenario
def rest_schemas(broker: Recorder, topic: str) -> None:
    schema = f"{ADMIN}/schemas/{topic.partition('://')[2]}"
    broker.rest("GET", f"{schema}/schema", label="absent")
    body = {
        "type": "AVRO",
        "schema": '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}',
        "properties": {},
    }
    broker.rest("POST", f"{schema}/schema", body, label="upload")
    broker.rest("GET", f"{schema}/schema", label="get")
    broker.rest("GET", f"{schema}/schema/0", label="get version 0")
    broker.rest("GET", f"{schema}/schema/9", label="get version 9")
    broker.rest("GET", f"{schema}/schemas", label="all")
    broker.rest("POST", f"{schema}/compatibility", body, label="compatibility")
    broker.rest("POST", f"{schema}/version", body, label="version")
    broker.rest("DELETE", f"{schema}/schema", label="delete")


@scenario
def rest_lookup(broker: Recorder, topic: str) -> None:
    name = topic.replace("://", "/")
    broker.rest("GET", f"/lookup/v2/topic/{name}", label="lookup")
    broker.rest("GET", f"/lookup/v2/topic/{name}/bundle", label="bundle")
    broker.rest("GET", "/lookup/v2/topic/persistent/public/absent/t", label="absent namespace")
