"""The metrics page: Pulsar's names and labels."""

from __future__ import annotations

import asyncio
import gzip
import re
import urllib.request

import kafka
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pulsemark.broker import Broker, BrokerConfig, cooperative
from pulsemark.broker.metrics.prometheus import current_page
from pulsemark.proto.pulsar_api_pb2 import CommandSubscribe
from pulsemark.testing import RawClient, running_broker

Shared = CommandSubscribe.Shared


def samples(broker, path="/metrics"):
    """All samples of the page: {(name, labels as a sorted tuple): value}, and the types."""
    with urllib.request.urlopen(broker.http_url + path, timeout=10) as answer:
        assert answer.headers["content-type"].startswith("text/plain")
        text = answer.read().decode()
    families = list(text_string_to_metric_families(text))
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }
    return found, {family.type for family in families}


def labels(**given):
    """Labels in the order `samples` has them."""
    return tuple(sorted({"cluster": "standalone", **given}.items()))


def test_counts_are_there_before_the_first_topic():
    """Readiness checks look for them; both spellings of the path work."""
    with running_broker() as broker:
        for path in ("/metrics", "/metrics/"):
            found, _ = samples(broker, path)
            for name in ("producers", "consumers", "subscriptions"):
                assert found[f"pulsar_{name}_count", labels()] == 0
            assert found["pulsar_topics_count", labels(namespace="public/default")] == 0


def test_the_durability_mode_is_shown():
    """0 is the promise that nothing acknowledged is lost; anything else is the exposed interval."""
    for interval_ms in (0, 50):
        with running_broker(sync_interval_ms=interval_ms) as broker:
            found, _ = samples(broker)
        assert interval_ms == found["pulsemark_durability_sync_interval_ms", labels()]


def test_kafkas_clients_are_counted_where_they_are_served():
    """Connections, groups, and what conversions cost; nothing of it without a port."""
    with running_broker(kafka_port=0) as broker:
        found, _ = samples(broker)
        assert found["pulsemark_kafka_connections", labels()] == 0
        assert found["pulsemark_kafka_compressions", labels()] == 0
    with running_broker() as broker:
        found, _ = samples(broker)
        assert not [name for name, _ in found if "kafka" in name]


@pytest.mark.parametrize("of_topics", [True, False])
def test_versions_of_kafkas_clients_are_counted_for_each_topic(of_topics):
    """By version of Produce and Fetch, as is and converted; as sums without topics' series."""
    name = "pulsemark_kafka_topic_sets_total"
    options = {"expose_topic_level_metrics_in_prometheus": of_topics}
    with running_broker(kafka_port=0, **options) as broker:
        assert not [found for found, _ in samples(broker)[0] if found == name]
        for topic in ("canary", "other"):
            url = broker.kafka_url
            with kafka.KafkaProducer(bootstrap_servers=url, api_version=(0, 10, 1)) as producer:
                producer.send(topic, b"v").get(60)
        for topic, version in (("canary", (0, 9)), ("canary", (0, 10, 0)), ("other", (2, 4))):
            consumer = kafka.KafkaConsumer(
                topic,
                bootstrap_servers=url,
                api_version=version,
                auto_offset_reset="earliest",
                consumer_timeout_ms=60_000,
                metadata_max_age_ms=1_000,  # its first metadata may leave out the topic
            )
            assert next(consumer).value == b"v"
            consumer.close()
        found, _ = samples(broker)
    got = {
        tuple(dict(of).get(label, "") for label in ("topic", "request", "version", "handling")): n
        for (which, of), n in found.items()
        if which == name
    }
    here = "persistent://public/default/{}-partition-0" if of_topics else ""
    canary, other = here.format("canary"), here.format("other")
    assert got == {
        (canary, "produce", "2", "converted"): 1 + (not of_topics),
        (other, "produce", "2", "converted"): 1 + (not of_topics),
        (canary, "fetch", "1", "converted"): 1,
        (canary, "fetch", "2", "converted"): 1,
        (other, "fetch", "11", "as_is"): 1,
    }


def test_figures_of_a_topic(topic):
    """Counts, totals, storage, backlog and histograms with Pulsar's labels."""
    with running_broker() as broker, RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(topic)
        for _ in range(10):
            producer.send(b"x" * 1000)
        consumer = client.subscribe(topic, "s", earliest=True)
        consumer.flow(4)
        sent = sum(len(m.headers_and_payload) for m in consumer.receive_many(4))
        found, types = samples(broker)
    assert types == {"counter", "gauge"}
    here = labels(namespace="public/default", topic=topic)
    figures = {
        "pulsar_producers_count": 1,
        "pulsar_consumers_count": 1,
        "pulsar_subscriptions_count": 1,
        "pulsar_in_messages_total": 10,
        "pulsar_msg_backlog": 10,
        "pulsar_rate_in": 0,
        "pulsar_throughput_out": 0,
        "pulsar_entry_size_le_2_kb": 10,
        "pulsar_entry_size_le_128": 0,
        "pulsar_entry_size_count": 10,
        "pulsar_storage_write_latency_count": 10,
        "pulsemark_damaged_entries": 0,
    }
    assert figures == {name: found[name, here] for name in figures}
    assert found["pulsar_in_bytes_total", here] < found["pulsar_storage_size", here]
    assert found["pulsar_topics_count", labels(namespace="public/default")] == 1
    connections = labels(broker="127.0.0.1", metric="broker_connection")
    assert found["pulsar_active_connections", connections] == 1
    out = labels(namespace="public/default", topic=topic, subscription="s")
    assert found["pulsar_out_messages_total", out] == 4
    # What is counted is the stored entry: the producer's bytes and the stamp.
    assert sent < found["pulsar_out_bytes_total", out] <= sent + 4 * 28
    buckets = [name for name, _ in found if name.startswith("pulsar_storage_write_latency_le_")]
    assert "pulsar_storage_write_latency_le_0_5" in buckets
    assert "pulsar_storage_write_latency_le_1000" in buckets
    assert ("pulsar_storage_write_latency_overflow", here) in found


def test_a_non_persistent_topic_is_shown():
    """It has the figures of a persistent one; those about what is stored are 0."""
    topic = "non-persistent://public/default/n"
    with running_broker() as broker, RawClient.from_url(broker.service_url) as raw:
        producer = raw.create_producer(topic)
        consumer = raw.subscribe(topic, "s")
        consumer.flow(2)
        for _ in range(3):
            producer.send(b"x")
        consumer.receive_many(2)
        found, _ = samples(broker)
    here = labels(namespace="public/default", topic=topic)
    assert found["pulsar_in_messages_total", here] == 3
    assert found["pulsar_storage_size", here] == found["pulsar_msg_backlog", here] == 0
    of_subscription = labels(namespace="public/default", topic=topic, subscription="s")
    assert found["pulsar_out_messages_total", of_subscription] == 2
    assert found["pulsar_subscription_back_log", of_subscription] == 0
    assert found["pulsar_storage_backlog_quota_limit_time", here] == -1


def test_a_page_of_many_topics_gives_way(monkeypatch):
    """While a page is made other work runs on the loop, and concurrent requests share the page."""

    async def turns_during_a_page():
        config = BrokerConfig(port=0, http_port=None)
        async with Broker(config) as broker:
            topics = broker.services.topics
            for number in range(50):
                name = topics.parse(f"persistent://public/default/t{number}")
                await topics.open(name, create=True)
            turns = 0

            async def others():
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            other = asyncio.create_task(others())
            first, second = await asyncio.gather(
                current_page(broker.services), current_page(broker.services)
            )
            other.cancel()
            return turns, first, second

    # Each piece is as long as a slice may be.
    monkeypatch.setattr(cooperative, "SLICE_S", 0)
    turns, first, second = asyncio.run(turns_during_a_page())
    assert first is second
    assert b"".join(first).count(b"pulsar_producers_count{") == 50
    assert turns >= 50


def test_labels_are_escaped():
    """Quotes and backslashes in a subscription's name are unchanged after parsing."""
    with running_broker() as broker, RawClient.from_url(broker.service_url) as raw:
        name = 'a"b\\c'
        raw.subscribe("persistent://public/default/t", name)
        found, _ = samples(broker)
        backlogs = [
            dict(labels)["subscription"]
            for metric, labels in found
            if metric == "pulsar_subscription_back_log"
        ]
        assert backlogs == [name]


def page(broker, accepted):
    """The page as a client gets it that accepts these codings, and its own coding."""
    asked = urllib.request.Request(broker.http_url + "/metrics")
    asked.add_header("Accept-Encoding", accepted)
    with urllib.request.urlopen(asked, timeout=10) as answer:
        assert answer.headers["vary"] == "Accept-Encoding"
        return answer.read(), answer.headers["content-encoding"]


def test_the_page_is_gzipped_for_those_who_accept_it():
    """Prometheus does. The page is then a tenth as long, or less, and has the same metrics."""
    with running_broker(storage="memory") as broker:
        for number in range(50):
            broker.admin.create_topic(f"topic-{number}")
        for accepted in ("gzip", "deflate, GZIP;q=0.5", "br;q=1.0, gzip;q=0.80"):
            short, coding = page(broker, accepted)
            assert coding == "gzip"
        for accepted in ("", "identity", "gzip;q=0", "gzip; q=0.000", "deflate"):
            whole, coding = page(broker, accepted)
            assert coding is None
        lines = gzip.decompress(short).count(b"\n")
        assert lines == whole.count(b"\n")
        assert len(short) < len(whole) / 10


def test_a_topic_has_metrics_of_compaction_after_one_began():
    """As in Pulsar. Of ten thousand topics these would be a tenth of the page."""
    name = "pulsar_compaction_succeed_count"
    with running_broker(storage="memory") as broker:
        broker.admin.create_topic("orders")
        here = labels(namespace="public/default", topic="persistent://public/default/orders")
        assert (name, here) not in samples(broker)[0]
        broker.admin.request("PUT", "persistent/public/default/orders/compaction")
        ended = ("SUCCESS", "ERROR")
        path = "persistent/public/default/orders/compaction"
        for _ in range(200):
            if broker.admin.request("GET", path)["status"] in ended:
                break
        else:
            pytest.fail("the compaction did not end")
        assert (name, here) in samples(broker)[0]


def test_namespaces_instead_of_topics(topic):
    """With the setting off, topics are added up, and the page does not grow with them."""
    with (
        running_broker(expose_topic_level_metrics_in_prometheus=False) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer = client.create_producer(topic)
        consumer = client.subscribe(topic, "s", earliest=True)
        consumer.flow(3)
        for _ in range(3):
            producer.send(b"x" * 1000)
        consumer.receive_many(3)
        before, _ = samples(broker)
        for number in range(20):
            client.subscribe(f"{topic}-{number}", "s")
        found, _ = samples(broker)
    assert len(found) == len(before)
    assert not [given for _, given in found if "topic" in dict(given)]
    here = labels(namespace="public/default")
    figures = {
        "pulsar_subscriptions_count": 21,
        "pulsar_producers_count": 1,
        "pulsar_in_messages_total": 3,
        "pulsar_out_messages_total": 3,
        "pulsar_msg_backlog": 3,
        "pulsar_entry_size_le_2_kb": 3,
        "pulsar_entry_size_count": 3,
    }
    assert figures == {name: found[name, here] for name in figures}
    assert found["pulsar_broker_topics_count", labels()] == 21
    assert found["pulsar_ml_NumberOfMessagesInBacklog", here] == 3
    assert ("pulsar_storage_backlog_quota_limit", here) not in found


def test_single_producers_and_consumers(topic):
    """Where the settings ask for them, with Pulsar's names; else they have no metrics."""
    on = {
        "expose_consumer_level_metrics_in_prometheus": True,
        "expose_producer_level_metrics_in_prometheus": True,
    }
    for settings in ({}, on):
        with (
            running_broker(**settings) as broker,
            RawClient.from_url(broker.service_url) as client,
        ):
            producer = client.create_producer(topic, producer_name="shop")
            consumer = client.subscribe(topic, "s", earliest=True)
            consumer.flow(5)
            producer.send(b"x")
            consumer.receive_many(1)
            found, _ = samples(broker)
        of = {"namespace": "public/default", "topic": topic}
        names = {name for name, _ in found}
        for one in ("pulsar_producer_msg_average_Size", "pulsar_consumer_available_permits"):
            assert (one in names) == bool(settings)
    (here,) = (given for name, given in found if name == "pulsar_consumer_unacked_messages")
    assert {**of, "subscription": "s"}.items() <= dict(here).items()
    assert {"consumer_name", "consumer_id"} <= dict(here).keys()
    assert found["pulsar_consumer_available_permits", here] == 4
    assert found["pulsar_out_messages_total", here] == 1
    (there,) = (given for name, given in found if name == "pulsar_producer_msg_rate_in")
    assert dict(there)["producer_name"] == "shop"


def test_consumers_with_one_name_are_one_series(topic):
    """Two clients may give their consumers one name and number: Prometheus refuses equal series."""
    with running_broker(expose_consumer_level_metrics_in_prometheus=True) as broker:
        url = broker.service_url
        with RawClient.from_url(url) as first, RawClient.from_url(url) as second:
            for client in (first, second):
                consumer = client.subscribe(topic, "s", sub_type=Shared, consumer_name="worker")
                consumer.flow(5)
            text = b"".join(broker.call(lambda running: current_page(running.services))).decode()
    (line,) = re.findall(r"pulsar_consumer_available_permits\{.*", text)
    assert line.endswith(" 10")
