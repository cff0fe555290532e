"""What statistics show of messages that wait, of consumers, and of a partitioned topic."""

from __future__ import annotations

import asyncio
import json
import time
from urllib.request import urlopen

import pulsar
import pytest

from pulsemark.broker.cooperative import Turns
from pulsemark.broker.metrics.stats import iso_time, sum_of_partitions
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe
from pulsemark.testing import RawClient, running_broker

Shared, Key_Shared = CommandSubscribe.Shared, CommandSubscribe.Key_Shared


def path_of(topic, part=""):
    """A topic's path over REST."""
    return f"/admin/v2/{topic.replace('://', '/')}{part}"


@pytest.fixture
def shown(http, topic):
    """A function: the statistics of the topic's subscription "s" now."""
    return lambda: http("GET", path_of(topic, "/stats")).json["subscriptions"]["s"]


def filled(raw, topic, count, **options):
    """A producer of a topic with messages, each with its own key."""
    producer = raw.create_producer(topic)
    for number in range(count):
        producer.send(b"x", key=f"k{number}", **options)
    return producer


@pytest.mark.parametrize("kind", [Shared, Key_Shared])
def test_delayed_messages_are_counted_apart(raw, topic, shown, drain, kind):
    """Messages that are not due are in msgDelayed, and not in msgBacklogNoDelayed."""
    consumer = raw.subscribe(topic, "s", sub_type=kind)
    later_ms = int(time.time() * 1000) + 600_000
    filled(raw, topic, 2, deliver_at_time=later_ms)
    filled(raw, topic, 1)
    consumer.flow(10)
    assert len(drain(consumer)) == 1
    row = shown()
    assert (row["msgBacklog"], row["msgBacklogNoDelayed"], row["msgDelayed"]) == (3, 1, 2)
    assert row["delayedMessageIndexSizeInBytes"] > 0


@pytest.mark.parametrize("kind", [Shared, Key_Shared])
def test_messages_given_back_are_in_replay(raw, topic, shown, drain, kind):
    """What no consumer has permits for is in msgInReplay, until it is delivered."""
    consumer = raw.subscribe(topic, "s", sub_type=kind, earliest=True)
    filled(raw, topic, 3)
    consumer.flow(3)
    assert len(drain(consumer)) == 3
    assert shown()["lastConsumedTimestamp"] > 0
    consumer.redeliver()
    drain(consumer)
    assert shown()["msgInReplay"] == 3
    consumer.flow(1)
    assert len(drain(consumer)) == 1
    assert shown()["msgInReplay"] == 2


@pytest.mark.parametrize("kind", [Shared, Key_Shared])
def test_a_cumulative_acknowledgement_is_noted_though_it_has_no_effect(
    raw, topic, shown, drain, kind
):
    """On types that share messages it acknowledges nothing, but the consumer has acknowledged."""
    consumer = raw.subscribe(topic, "s", sub_type=kind, earliest=True)
    filled(raw, topic, 2)
    consumer.flow(2)
    last = drain(consumer)[-1]
    consumer.ack(last.message_id, cumulative=True)
    row = shown()
    assert row["msgBacklog"] == 2
    assert row["lastAckedTimestamp"] == row["consumers"][0]["lastAckedTimestamp"] > 0


def test_hashes_that_moved_are_shown_until_they_are_drained(broker, raw, topic, shown, drain):
    """Keys that a second consumer took over are draining while the first one holds messages."""
    first = raw.subscribe(topic, "s", sub_type=Key_Shared, earliest=True, consumer_name="a")
    filled(raw, topic, 12)
    first.flow(100)
    held = drain(first)
    with RawClient.from_url(broker.service_url) as other:
        other.subscribe(topic, "s", sub_type=Key_Shared, consumer_name="b")
        row = shown()
        moved = row["consumers"][0]["drainingHashes"]
        assert row["drainingHashesCount"] == len(moved) > 0
        assert row["drainingHashesUnackedMessages"] == sum(one["unackMsgs"] for one in moved)
        first.ack(*(message.message_id for message in held))
        row = shown()
        assert row["drainingHashesCount"] == 0
        assert row["drainingHashesClearedTotal"] == len(moved)


def test_ranges_of_acknowledged_entries_are_shown(http, raw, topic, shown, drain):
    """An acknowledgement in the middle is a range, of the subscription and of the topic."""
    consumer = raw.subscribe(topic, "s", sub_type=Shared, earliest=True)
    filled(raw, topic, 4)
    consumer.flow(4)
    ids = [message.message_id for message in drain(consumer)]
    consumer.ack(*ids[1:3])
    whole = http("GET", path_of(topic, "/stats")).json
    assert whole["nonContiguousDeletedMessagesRanges"] == 1
    assert shown()["nonContiguousDeletedMessagesRangesSerializedSize"] > 0
    cursor = http("GET", path_of(topic, "/internalStats")).json["cursors"]["s"]
    ledger = ids[0].ledger_id
    assert cursor["individuallyDeletedMessages"] == f"[({ledger}:0..{ledger}:2]]"


def test_a_full_subscription_blocks_itself_and_not_its_consumer(http, raw, topic, shown, drain):
    """The limit of a subscription is shown as its own; that of a consumer as the consumer's."""
    filled(raw, topic, 3)
    consumer = raw.subscribe(topic, "s", sub_type=Shared, earliest=True)
    name = "/maxUnackedMessagesOnSubscription"
    assert http("POST", path_of(topic, name), 2).status == 204
    consumer.flow(10)
    drain(consumer)
    row = shown()
    assert row["blockedSubscriptionOnUnackedMsgs"]
    assert not row["consumers"][0]["blockedConsumerOnUnackedMsgs"]


def test_quotas_of_a_backlog_are_shown(http, raw, topic):
    """The limits in force are in a topic's statistics; without a policy those of a standalone."""
    filled(raw, topic, 1)
    before = http("GET", path_of(topic, "/stats")).json
    assert (before["backlogQuotaLimitSize"], before["backlogQuotaLimitTime"]) == (10 * 1024**3, -1)
    for kind, limit in (("destination_storage", "limitSize"), ("message_age", "limitTime")):
        quota = {limit: 5000, "policy": "producer_exception"}
        path = path_of(topic, f"/backlogQuota?backlogQuotaType={kind}")
        assert http("POST", path, quota).status == 204
    after = http("GET", path_of(topic, "/stats")).json
    assert (after["backlogQuotaLimitSize"], after["backlogQuotaLimitTime"]) == (5000, 5000)


def test_a_readers_backlog_is_not_the_topics(http, raw, topic):
    """Only durable subscriptions keep messages: they alone count in a topic's backlogSize."""
    filled(raw, topic, 3)
    raw.subscribe(topic, "r", durable=False, earliest=True)
    row = http("GET", path_of(topic, "/stats?getEarliestTimeInBacklog=true")).json
    assert row["backlogSize"] == row["earliestMsgPublishTimeInBacklogs"] == 0


def test_a_partitioned_topic_has_rows_for_its_clients():
    """Clients at one place of the partitions' lists are one row, without address and times."""
    consumer = {
        "consumerName": "c",
        "address": "/1",
        "availablePermits": 2,
        "unackedMessages": 1,
        "avgMessagesPerEntry": 3,
        "lastAckedTimestamp": 7,
        "lastAckedTime": "2024-01-01T00:00:00Z",
    }
    row = {
        "msgInCounter": 5,
        "msgChunkPublished": True,
        "publishers": [{"producerName": "p", "msgRateIn": 1.0}],
        "subscriptions": {
            "s": {
                "msgBacklog": 4,
                "lastAckedTimestamp": 7,
                "activeConsumerName": "c",
                "consumers": [consumer],
            }
        },
        "compaction": {"lastCompactionSucceedTimestamp": 9},
    }
    total = asyncio.run(Turns().result(sum_of_partitions([row, row])))
    assert total["msgInCounter"] == 10
    assert total["msgChunkPublished"] is False
    assert total["compaction"] == {"lastCompactionSucceedTimestamp": 0}
    assert [one["msgRateIn"] for one in total["publishers"]] == [2.0]
    found = total["subscriptions"]["s"]
    assert (found["msgBacklog"], found["lastAckedTimestamp"]) == (8, 0)
    assert "activeConsumerName" not in found
    assert found["consumers"] == [
        {
            "consumerName": "c",
            "availablePermits": 4,
            "unackedMessages": 2,
            "avgMessagesPerEntry": 0,
            "lastAckedTimestamp": 0,
            "lastAckedTime": "1970-01-01T00:00:00Z",
        }
    ]


def test_the_average_of_messages_is_that_of_sendings(raw, topic, shown, drain):
    """The first sending's average counts; each later one moves it by a tenth."""
    consumer = raw.subscribe(topic, "s", sub_type=Shared, earliest=True)
    producer = raw.create_producer(topic)
    producer.send(b"x")
    consumer.flow(100)
    drain(consumer)
    producer.send_batch([b"m"] * 5)
    drain(consumer)
    assert shown()["consumers"][0]["avgMessagesPerEntry"] == 1


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_763_000_000_120, "2025-11-13T02:13:20.12Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (2**63, "9999-12-31T23:59:59.999Z"),
        (-(2**63), "0001-01-01T00:00:00Z"),
    ],
)
def test_every_number_has_a_text(time_ms, text):
    """To the millisecond within the years 1 to 9999, and their ends for all other numbers."""
    assert iso_time(time_ms) == text


@pytest.mark.parametrize("days", [10_000 * 365, -10_000 * 365])
def test_statistics_of_a_broker_whose_clock_is_far_off(days):
    """Who sets the clock of a test broker ten thousand years away still reads statistics."""
    with running_broker() as broker:
        broker.clock.advance(days=days)
        client = pulsar.Client(broker.service_url)
        try:
            client.subscribe("far", "audit")
            client.create_producer("far").send(b"x")
            for route in ("stats", "internalStats"):
                path = f"/admin/v2/persistent/public/default/far/{route}"
                with urlopen(broker.http_url + path, timeout=20) as answer:
                    assert json.load(answer)
        finally:
            client.close()
