"""Topics and subscriptions: statistics, properties, single messages, as Pulsar shows them."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe, KeySharedMeta, KeySharedMode
from pulsemark.testing import running_broker
from pulsemark.testing.raw_messages import unbatched_message


def path_of(topic, rest=""):
    """The admin interface's path of a topic."""
    return f"/admin/v2/{topic.replace('://', '/')}{rest}"


def test_stats_name_the_active_consumer_of_failover(http, raw, topic):
    """Of a partition it is the consumer with the partition's number, not always the first one."""
    names = {}
    for number in range(3):
        one = f"{topic}-partition-{number}"
        for name in ("c", "a", "b"):
            raw.subscribe(one, "s", sub_type=CommandSubscribe.Failover, consumer_name=name)
        found = json.loads(http("GET", path_of(one, "/stats")).body)
        names[number] = found["subscriptions"]["s"]["activeConsumerName"]
    assert names == {0: "a", 1: "b", 2: "c"}


def test_stats_have_pulsars_fields_in_its_order(http, raw, topic):
    """The first and the last of Pulsar's fields, of topic, subscription, consumer, publisher."""
    raw.create_producer(topic).send(b"x")
    raw.subscribe(topic, "s").flow(10)
    found = json.loads(http("GET", path_of(topic, "/stats")).body)
    assert list(found)[:7] == [
        "msgRateIn",
        "msgThroughputIn",
        "msgRateOut",
        "msgThroughputOut",
        "bytesInCounter",
        "msgInCounter",
        "systemTopicBytesInCounter",
    ]
    row = found["subscriptions"]["s"]
    active = row["consumers"][0]["consumerName"]
    assert (row["type"], row["activeConsumerName"]) == ("Exclusive", active)
    assert {"msgBacklogNoDelayed", "filterProcessedMsgCount", "isReplicated"} <= set(row)
    assert list(row["consumers"][0])[:3] == ["msgRateOut", "msgThroughputOut", "bytesOutCounter"]
    assert list(found["publishers"][0])[:2] == ["accessMode", "msgRateIn"]
    assert isinstance(found["averageMsgSize"], float)
    bare = http("GET", path_of(topic, "/stats?excludePublishers=true&excludeConsumers=true")).json
    assert (bare["publishers"], bare["subscriptions"]["s"]["consumers"]) == ([], [])


def test_stats_show_when_something_was_consumed_and_acknowledged(http, raw, topic):
    """The times of a consumer and its subscription are 0 before, and set afterwards."""

    def times():
        row = http("GET", path_of(topic, "/stats")).json["subscriptions"]["s"]
        one = row["consumers"][0]
        return [
            row["lastMarkDeleteAdvancedTimestamp"] > 0,
            *(shown["lastConsumedTimestamp"] > 0 for shown in (row, one)),
            *(shown["lastAckedTimestamp"] > 0 for shown in (row, one)),
        ]

    raw.create_producer(topic).send(b"x")
    consumer = raw.subscribe(topic, "s", earliest=True)
    assert not any(times())
    consumer.flow(1)
    message = consumer.receive()
    assert times() == [False, True, True, False, False]
    consumer.ack(message.message_id)
    assert all(times())


def test_what_a_removed_subscription_sent_still_counts(http, raw, topic):
    """The topic's counters do not go back when a subscription is deleted."""
    raw.create_producer(topic).send(b"x")
    consumer = raw.subscribe(topic, "s", earliest=True)
    consumer.flow(1)
    consumer.receive()
    before = http("GET", path_of(topic, "/stats")).json
    consumer.unsubscribe()
    after = http("GET", path_of(topic, "/stats")).json
    assert (before["msgOutCounter"], after["msgOutCounter"]) == (1, 1)
    assert before["bytesOutCounter"] == after["bytesOutCounter"] > 0


def test_an_empty_topics_subscription_is_before_its_first_entry(http, raw, topic):
    """Its position names the topic's own ledger, over REST and to clients."""
    consumer = raw.subscribe(topic, "s", earliest=True)
    shown = http("GET", path_of(topic, "/internalStats")).json
    ledger_id = shown["ledgers"][0]["ledgerId"]
    cursor = shown["cursors"]["s"]
    assert cursor["markDeletePosition"] == f"{ledger_id}:-1"
    _, mark_delete = consumer.get_last_message_id()
    assert (mark_delete.ledger_id, mark_delete.entry_id) == (ledger_id, -1)
    assert not cursor["waitingReadOp"]
    consumer.flow(1)
    raw.ping()
    shown = http("GET", path_of(topic, "/internalStats")).json
    assert shown["cursors"]["s"]["waitingReadOp"]
    assert shown["waitingCursorsCount"] == 1


def test_key_shared_consumers_have_their_hashes_in_the_stats(http, raw, topic):
    """One consumer has all of them; other types have none."""
    raw.subscribe(topic, "s", sub_type=CommandSubscribe.Key_Shared)
    raw.subscribe(topic, "other")
    rows = http("GET", path_of(topic, "/stats")).json["subscriptions"]
    shown = rows["s"]["consumers"][0]
    assert (shown["keyHashRangeArrays"], shown["drainingHashes"]) == ([[1, 65535]], [])
    assert "keyHashRangeArrays" not in rows["other"]["consumers"][0]


def test_applied_backlog_quotas_are_the_brokers_without_a_policy(http, raw, topic):
    """Both types, also without a limit, as Pulsar shows them."""
    raw.create_producer(topic)
    assert http("GET", path_of(topic, "/backlogQuotaMap")).json == {}
    applied = http("GET", path_of(topic, "/backlogQuotaMap?applied=true")).json
    assert sorted(applied) == ["destination_storage", "message_age"]
    assert applied["message_age"]["policy"] == "producer_request_hold"


def test_a_backlog_counts_entries(http, client, topic):
    """A batch of three is one entry, as in Pulsar; analyzeBacklog counts both."""
    client.subscribe(topic, "s").close()
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=3, batching_max_publish_delay_ms=60_000
    )
    for number in range(3):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    row = http("GET", path_of(topic, "/stats")).json["subscriptions"]["s"]
    assert row["msgBacklog"] == 1
    found = http("POST", path_of(topic, "/subscription/s/analyzeBacklog")).json
    assert (found["entries"], found["messages"]) == (1, 3)
    assert found["firstMessageId"] == found["lastMessageId"]


def test_bytes_of_a_backlog_shrink_with_acknowledgements(http, raw, topic):
    """From all of the topic's bytes to none; the time of the first waiting entry is asked for."""
    raw.subscribe(topic, "s").close()
    producer = raw.create_producer(topic)
    for _ in range(4):
        producer.send(b"x" * 100)
    query = "/stats?getEarliestTimeInBacklog=true"
    before = http("GET", path_of(topic, query)).json
    row = before["subscriptions"]["s"]
    assert before["storageSize"] >= row["backlogSize"] == before["backlogSize"] > 400
    assert before["earliestMsgPublishTimeInBacklogs"] == row["earliestMsgPublishTimeInBacklog"] > 0
    assert http("POST", path_of(topic, "/subscription/s/skip/2")).status == 204
    half = http("GET", path_of(topic, query)).json["subscriptions"]["s"]
    assert half["backlogSize"] * 2 == row["backlogSize"]
    http("POST", path_of(topic, "/subscription/s/skip_all"))
    after = http("GET", path_of(topic, query)).json["subscriptions"]["s"]
    assert (after["backlogSize"], after["earliestMsgPublishTimeInBacklog"]) == (0, -1)


def test_the_sums_of_partitions(http, raw, topic):
    """Numbers are added; perPartition=false leaves the rows out."""
    http("PUT", path_of(topic, "/partitions"), 2)
    for index in range(2):
        raw.create_producer(f"{topic}-partition-{index}").send(b"x")
    found = http("GET", path_of(topic, "/partitioned-stats")).json
    assert (found["msgInCounter"], found["metadata"]) == (2, {"partitions": 2, "deleted": False})
    assert len(found["partitions"]) == 2
    assert "ownerBroker" not in found
    few = http("GET", path_of(topic, "/partitioned-stats?perPartition=false")).json
    assert (few["msgInCounter"], few["partitions"]) == (2, {})
    inner = http("GET", path_of(topic, "/partitioned-internalStats")).json["partitions"]
    assert [row["numberOfEntries"] for row in inner.values()] == [1, 1]
    assert http("GET", path_of(topic, "/internal-info")).json["version"] == 0


def test_a_body_that_says_nothing_changes_nothing(http, raw, topic):
    """No properties in a list, and no mark without a value: both are told to the client."""
    raw.create_producer(topic)
    http("PUT", path_of(topic, "/subscription/s"))
    marked = path_of(topic, "/subscription/s/replicatedSubscriptionStatus")
    assert http("PUT", path_of(topic, "/properties"), []).status == 400
    assert http("POST", marked).status == 400
    assert http("POST", marked, True).status == 204


def test_properties_of_topics_and_subscriptions_outlive_a_restart(tmp_path, http_of):
    """Set at creation, added, removed one by one; those of a subscription are replaced."""
    path = "/admin/v2/persistent/public/default/kept"
    with running_broker(data_dir=tmp_path) as broker:
        ask = http_of(broker)
        marked = f"{path}/subscription/s/replicatedSubscriptionStatus"
        assert ask("PUT", path, {"k": "v"}).status == 204
        assert ask("PUT", f"{path}/properties", {"k2": "v2"}).status == 204
        assert ask("DELETE", f"{path}/properties?key=k").status == 204
        start = {"ledgerId": -1, "entryId": -1, "properties": {"a": "b"}}
        assert ask("PUT", f"{path}/subscription/s", start).status == 204
        assert ask("GET", f"{path}/subscription/s/properties").json == {"a": "b"}
        assert ask("PUT", f"{path}/subscription/s/properties", {"x": "y"}).status == 204
        assert ask("POST", marked, True).status == 204
        missing = ask("GET", f"{path}/subscription/no/properties")
        assert missing.json == {
            "reason": "Subscription no not found for topic persistent://public/default/kept"
        }
    with running_broker(data_dir=tmp_path) as broker:
        ask = http_of(broker)
        assert ask("GET", f"{path}/properties").json == {"index": "-1", "k2": "v2"}
        assert ask("GET", f"{path}/subscription/s/properties").json == {"x": "y"}
        status = ask("GET", f"{path}/subscription/s/replicatedSubscriptionStatus").json
        assert status == {"persistent://public/default/kept": True}


def test_a_message_by_its_id(broker, raw, topic):
    """The payload is the body; a line break in a property makes no header of its own."""
    producer = raw.create_producer(topic)
    body = unbatched_message(
        b"hello",
        publish_time_ms=2**62,
        sequence_id=0,
        producer_name="p\r\nX-Evil: 1",
        key="k\r\nX-Evil: 1",
    )
    (receipt,) = producer.send_many([body])
    ledger, last = receipt.ledger_id, receipt.entry_id
    link = http.client.HTTPConnection(broker.http_url.removeprefix("http://"), timeout=30)
    link.request("GET", path_of(topic, f"/ledger/{ledger}/entry/{last}"))
    answer = link.getresponse()
    assert (answer.status, answer.read()) == (200, b"hello")
    assert answer.headers["X-Pulsar-Message-ID"] == f"{ledger}:{last}"
    assert answer.headers["X-Evil"] is None
    assert answer.headers["X-Pulsar-publish-time"] == str(2**62)
    link.close()


def test_reasons_of_what_is_not_there(http, topic):
    """404 and 405 with Pulsar's words."""
    http("PUT", path_of(topic))
    http("PUT", path_of(topic + "p", "/partitions"), 1)
    for method, path, body, status, reason in (
        ("GET", path_of(topic + "x", "/stats"), None, 404, f"Topic {topic}x not found"),
        ("GET", "/admin/v2/persistent/public/no/t/stats", None, 404, "Namespace not found"),
        ("GET", path_of(topic, "/ledger/99/entry/0"), None, 404, "Message id not found"),
        ("DELETE", path_of(topic + "x"), None, 404, f"Topic {topic}x not found"),
        (
            "GET",
            path_of(topic, "/partitioned-stats"),
            None,
            404,
            f"Partitioned Topic {topic} not found",
        ),
        (
            "PUT",
            path_of(topic + "p", "/backlogSize"),
            {"ledgerId": 1, "entryId": 1},
            405,
            "calculate backlog size is not allowed for partitioned-topic",
        ),
    ):
        answer = http(method, path, body)
        assert (answer.status, answer.json) == (status, {"reason": reason}), path


def test_stats_tell_what_clients_asked_for(raw, client, http, topic):
    """Deduplication, disorder on Key_Shared, and a subscription that is to be replicated."""
    producer = raw.create_producer(topic)
    meta = KeySharedMeta(keySharedMode=KeySharedMode.AUTO_SPLIT, allowOutOfOrderDelivery=True)
    key_shared = CommandSubscribe.Key_Shared
    raw.subscribe(topic, "loose", sub_type=key_shared, keySharedMeta=meta)
    client.subscribe(topic, "far", replicate_subscription_state_enabled=True)
    before = http("GET", path_of(topic, "/stats")).json
    assert before["deduplicationStatus"] == "Disabled"
    rows = before["subscriptions"]
    assert [rows[name]["allowOutOfOrderDelivery"] for name in ("loose", "far")] == [True, False]
    assert [rows[name]["isReplicated"] for name in ("loose", "far")] == [False, True]
    assert http("POST", path_of(topic, "/deduplicationEnabled"), True).status == 204
    producer.send(b"x")
    assert http("GET", path_of(topic, "/stats")).json["deduplicationStatus"] == "Enabled"


@pytest.mark.parametrize("what", ["topic", "partitioned topic", "namespace", "tenant"])
def test_of_requests_that_create_something_at_once_one_does(http, topic, what):
    """The others get 409, as if they had come later."""
    path, body = {
        "topic": (path_of(topic), {}),
        "partitioned topic": (path_of(topic), 2),
        "namespace": ("/admin/v2/namespaces/public/n", {}),
        "tenant": ("/admin/v2/tenants/t", {"allowedClusters": ["standalone"]}),
    }[what]
    end = "/partitions" if body == 2 else ""
    with ThreadPoolExecutor(8) as pool:
        for number in range(4):
            asked = [pool.submit(http, "PUT", f"{path}{number}{end}", body) for _ in range(8)]
            assert sorted(each.result().status for each in asked) == [204, *[409] * 7]


def test_partitions_that_are_added_do_not_bring_a_deleted_topic_back(http, topic):
    """A topic that was deleted while other clients add partitions is gone, and stays so."""
    path = path_of(topic, "/partitions")

    def add(count):
        return http("POST", path, count).status

    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            assert http("PUT", path, 2).status == 204
            deleted = pool.submit(http, "DELETE", f"{path}?force=true")
            statuses = set(pool.map(add, range(3, 10)))
            assert deleted.result().status == 204
            assert http("GET", path).status == 404
            assert statuses <= {204, 404, 405, 409, 422}
