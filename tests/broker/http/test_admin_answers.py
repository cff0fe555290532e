"""Answers that pulsar-admin shows, as in Apache Pulsar 4.0.8: positions, policies, texts."""

from __future__ import annotations

import json

import pytest

from pulsemark.testing import running_broker

RATE = {
    "dispatchThrottlingRateInMsg": 21,
    "dispatchThrottlingRateInByte": -1,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}


@pytest.fixture
def filled(raw, topic):
    """A topic's path, with a subscription and three messages after it."""
    raw.subscribe(topic, "s").close()
    producer = raw.create_producer(topic)
    for text in (b"one", b"two", b"three"):
        producer.send(text)
    return f"/admin/v2/{topic.replace('://', '/')}"


def place(http, path, entry_id):
    """The message id of an entry of the topic."""
    ledger_id = http("GET", f"{path}/lastMessageId").json["ledgerId"]
    return {"ledgerId": ledger_id, "entryId": entry_id}


def test_a_backlog_is_analyzed_from_a_position(http, filled):
    """What is after the position counts, also if it is acknowledged."""
    url = f"{filled}/subscription/s/analyzeBacklog"
    later = http("POST", url, place(http, filled, 1)).json
    assert (later["entries"], later["messages"]) == (2, 2)
    assert later["firstMessageId"].endswith(":1")
    http("POST", f"{filled}/subscription/s/skip_all")
    assert http("POST", url).json["entries"] == 0
    assert http("POST", url, {"ledgerId": -1, "entryId": -1}).json["entries"] == 3
    assert http("POST", url, "earliest").json["entries"] == 3
    assert http("POST", url, {"ledgerId": 1 << 40, "entryId": 0}).json["entries"] == 0


def test_the_backlog_size_is_that_after_a_position(http, filled):
    """The entry at the position does not count."""
    url = f"{filled}/backlogSize"
    sizes = [http("PUT", url, place(http, filled, entry)).json for entry in (-1, 0, 1, 2)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[1] > sizes[2] > sizes[3] == 0


def test_a_cursor_is_reset_to_after_a_position(http, filled):
    """With `excluded` the subscription goes on with the next entry."""
    body = {**place(http, filled, 1), "partitionIndex": -1, "batchIndex": -1, "excluded": True}
    assert http("POST", f"{filled}/subscription/s/resetcursor", body).status == 204
    peeked = http("GET", f"{filled}/subscription/s/position/1").body
    assert peeked.endswith(b"three")
    body["excluded"] = False
    assert http("POST", f"{filled}/subscription/s/resetcursor", body).status == 204
    assert http("GET", f"{filled}/subscription/s/position/1").body.endswith(b"two")


def test_expiry_with_nothing_to_expire(http, raw, topic, filled):
    """204 with a backlog, 409 without one, and 409 for a small backlog of connected consumers."""
    expire = f"{filled}/subscription/s/expireMessages/100000"
    every = f"{filled}/all_subscription/expireMessages/100000"
    assert http("POST", expire).status == 204
    assert http("POST", every).status == 204
    assert http("GET", f"{filled}/stats").json["subscriptions"]["s"]["msgBacklog"] == 3
    consumer = raw.subscribe(topic, "s")
    assert http("POST", expire).status == 409
    consumer.close()
    http("POST", f"{filled}/subscription/s/skip_all")
    assert http("POST", expire).status == 409


def test_all_policies_of_a_topic_are_removed_at_once(http, raw, filled):
    """Also those with isGlobal; the topic's properties stay, and an absent topic is a success."""
    assert http("POST", f"{filled}/messageTTL?messageTTL=5").status == 204
    assert http("POST", f"{filled}/messageTTL?messageTTL=7&isGlobal=true").status == 204
    assert http("POST", f"{filled}/s/dispatchRate", RATE).status == 204
    assert http("PUT", f"{filled}/properties", {"a": "b"}).status == 204
    assert http("DELETE", f"{filled}/policies").status == 204
    for route in ("messageTTL", "messageTTL?isGlobal=true", "s/dispatchRate"):
        assert http("GET", f"{filled}/{route}").body == b"", route
    assert http("GET", f"{filled}/messageTTL?applied=true").json == 0
    assert http("GET", f"{filled}/properties").json["a"] == "b"
    assert http("DELETE", f"{filled}-absent/policies").status == 204


def test_a_subscription_has_a_dispatch_rate_of_its_own(http, filled):
    """It is set, shown and removed for one subscription, which need not exist."""
    url, other = f"{filled}/s/dispatchRate", f"{filled}/other/dispatchRate"
    assert http("GET", url).body == b""
    assert http("GET", f"{url}?applied=true").json["dispatchThrottlingRateInMsg"] == 0
    assert http("POST", url, RATE).status == 204
    assert http("POST", other, {"dispatchThrottlingRateInMsg": 22}).status == 204
    assert http("GET", url).json == RATE
    assert http("GET", f"{url}?applied=true").json == RATE
    assert http("GET", other).json["dispatchThrottlingRateInMsg"] == 22
    assert http("POST", url, None).status == 204
    assert http("GET", url).json == RATE
    for _ in range(2):
        assert http("DELETE", url).status == 204
        assert http("GET", url).body == b""
    assert http("GET", other).json["dispatchThrottlingRateInMsg"] == 22
    assert http("GET", f"{filled}-absent/s/dispatchRate").status == 404


def test_texts(http, raw, filled):
    """Reasons that pulsar-admin prints."""
    part = f"{filled}-p"
    assert http("PUT", f"{part}/partitions", 2).status == 204
    assert http("PUT", f"{part}/properties", {"a": "b"}).status == 204
    found = http("GET", f"{part}/partitioned-internalStats").json["metadata"]
    assert found == {"partitions": 2, "deleted": False, "properties": {"a": "b"}}
    peek = http("GET", f"{part}/subscription/s/position/1")
    assert (peek.status, peek.json["reason"]) == (
        405,
        "Peek messages on a partitioned topic is not allowed",
    )
    schema = {"type": "STRING", "schema": "", "properties": {}}
    refused = http("POST", "/admin/v2/schemas/public/absent/t/schema", schema)
    assert (refused.status, refused.json["reason"]) == (404, "Namespace does not exist")
    assert http("GET", "/admin/v2/schemas/public/absent/t/schema").status == 404
    grant = http("POST", "/admin/v2/namespaces/public/absent/permissions/r", ["consume"])
    assert grant.json["reason"] == "Namespace does not exist"
    owned = http("GET", "/admin/v2/brokers/standalone/127.0.0.1:1/ownedNamespaces")
    assert owned.status == 404
    assert owned.json["reason"] == "Broker id '127.0.0.1:1' not found in available brokers."


def test_a_refused_schema_is_answered_with_the_reason(http, topic, filled):
    """422 for a definition that cannot be read."""
    path = f"/admin/v2/schemas/{topic.partition('://')[2]}/schema"
    refused = http("POST", path, {"type": "AVRO", "schema": "{", "properties": {}})
    reason = "Invalid schema definition data for AVRO schema"
    assert (refused.status, refused.json) == (422, {"reason": reason})


def test_the_namespaces_of_a_broker(http, filled):
    """The bundles of this broker's open topics."""
    (name,) = http("GET", "/admin/v2/brokers").json
    found = http("GET", f"/admin/v2/brokers/standalone/{name}/ownedNamespaces").json
    assert {bundle.rpartition("/")[0] for bundle in found} >= {"public/default"}
    assert {json.dumps(row, sort_keys=True) for row in found.values()} == {
        '{"broker_assignment": "shared", "is_active": true, "is_controlled": false}'
    }


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("DELETE", "/admin/v2/non-persistent/public/default/never", 204),
        ("DELETE", "/admin/v2/non-persistent/public/absent/never", 204),
    ],
)
def test_a_topic_in_memory_that_is_not_there_is_deleted(http, method, path, status):
    """As by Pulsar: it is a success, also in a namespace that does not exist."""
    assert http(method, path).status == status


def test_asking_for_partitions_creates_them_if_clients_may_create_topics(http):
    """checkAllowAutoCreation=true makes the partitions that the policy says, as on the wire."""
    http("PUT", "/admin/v2/namespaces/public/asked")
    policy = {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 3,
    }
    http("POST", "/admin/v2/namespaces/public/asked/autoTopicCreation", policy)
    path = "/admin/v2/persistent/public/asked/t/partitions"
    assert http("GET", path).status == 404
    assert http("GET", f"{path}?checkAllowAutoCreation=true").json["partitions"] == 3
    assert http("GET", path).json["partitions"] == 3


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("POST", "namespaces/public/absent/permissions/subscription/s", 400, "Roles should not be"),
        ("POST", "non-persistent/public/absent/t/subscription/s/skip_all", 404, "Namespace not"),
        ("GET", "non-persistent/public/absent/t/lastMessageId", 404, "Namespace not found"),
        ("POST", "schemas/public/absent/t/compatibility", 404, "Namespace does not exist"),
        ("POST", "schemas/absent/absent/t/compatibility", 404, "Tenant does not exist"),
        ("DELETE", "schemas/absent/absent/t/schema", 404, "Tenant does not exist"),
    ],
)
def test_what_is_said_of_an_absent_place_without_a_body(http, method, path, status, reason):
    """Which of two mistakes is answered, and with which text, as by Pulsar."""
    answer = http(method, f"/admin/v2/{path}")
    answered = answer.json["reason"]
    assert (answer.status, answered[: len(reason)]) == (status, reason)


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("POST", "persistent/public/absent/t/permissions/r", 404, "Namespace not found"),
        ("DELETE", "persistent/absent/absent/t/permissions/r", 404, "Namespace not found"),
        ("POST", "persistent/public/absent/t/trim", 404, "Namespace not found"),
        ("DELETE", "persistent/public/absent/t/partitions", 404, "Namespace not found"),
    ],
)
def test_what_is_said_of_topics_in_absent_places(http, method, path, status, reason):
    """The namespace is named."""
    answer = http(method, f"/admin/v2/{path}")
    assert (answer.status, answer.json["reason"][: len(reason)]) == (status, reason)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "persistent/{}/permissions/r"),
        ("PUT", "persistent/public/absent/t/properties"),
        ("DELETE", "persistent/public/absent/t/policies"),
    ],
)
def test_nothing_to_change_is_a_success(http, filled, method, path):
    """A request without a body, or about an absent namespace, that changes nothing, is 204."""
    topic = filled.removeprefix("/admin/v2/persistent/")
    assert http(method, f"/admin/v2/{path.format(topic)}").status == 204


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/subscription/s/analyzeBacklog", 'the body must be {"ledgerId": ..., "entryId": ...}'),
        ("/s/dispatchRate", "dispatchRate: must be an object, not []"),
    ],
)
def test_a_list_is_no_value(http, filled, path, reason):
    """The answer is 400 and names the kind that the route reads."""
    answer = http("POST", f"{filled}{path}", [])
    assert answer.status == 400
    assert reason.encode() in answer.body.replace(b"\\", b"")


def test_tenants_and_namespaces_are_limited(http_of):
    """maxTenants and maxNamespacesPerTenant: Pulsar's answers; they can be changed meanwhile."""
    with running_broker(max_tenants=3, max_namespaces_per_tenant=1) as broker:
        http, info = http_of(broker), {"allowedClusters": ["standalone"]}
        assert http("PUT", "/admin/v2/tenants/a", info).status == 204
        full = http("PUT", "/admin/v2/tenants/b", info)
        assert (full.status, full.json) == (412, {"reason": "Exceed the maximum number of tenants"})
        assert http("PUT", "/admin/v2/tenants/a", info).status == 409
        assert http("PUT", "/admin/v2/namespaces/a/one", {}).status == 204
        full = http("PUT", "/admin/v2/namespaces/a/two", {})
        reason = "Exceed the maximum number of namespace in tenant :a"
        assert (full.status, full.json) == (412, {"reason": reason})
        for name in ("maxTenants", "maxNamespacesPerTenant"):
            assert http("POST", f"/admin/v2/brokers/configuration/{name}/0").status == 200
        assert http("PUT", "/admin/v2/tenants/b", info).status == 204
        assert http("PUT", "/admin/v2/namespaces/a/two", {}).status == 204
