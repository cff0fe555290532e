"""The metrics page: Pulsar's names and labels."""

from __future__ import annotations

import asyncio
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from pulsemark.broker import Broker, BrokerConfig, long_work
from pulsemark.broker.statistics.metrics import current_page
from pulsemark.testing import RawClient, running_broker


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
    monkeypatch.setattr(long_work, "SLICE_S", 0)
    turns, first, second = asyncio.run(turns_during_a_page())
    assert first is second
    assert first.count(b"pulsar_producers_count{") == 50
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
