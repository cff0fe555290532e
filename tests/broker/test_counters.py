"""Histograms, the rates of what is used, and the tail cache's figures."""

from __future__ import annotations

import urllib.request

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pulsemark.broker.configuration.settings import parse_settings
from pulsemark.broker.counters import (
    NOTHING,
    CacheMeter,
    Flow,
    Flows,
    Histogram,
    RateMeter,
    Rates,
)
from pulsemark.ledger import MemoryStore, StoreOptions
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.clock import A_TIME_MS, SettableClock
from pulsemark.wire import commands


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5)), max_size=30))
def test_a_histogram_counts_each_value_below_its_bound(values):
    """Bounds are inclusive, and one more bucket counts larger values."""
    histogram = Histogram((5, 10, 20))
    for value, times in values:
        histogram.add(value, times)
    flat = [value for value, times in values for _ in range(times)]
    expected = [
        sum(low < value <= high for value in flat)
        for low, high in ((-1, 5), (5, 10), (10, 20), (20, 10**9))
    ]
    assert expected == histogram.buckets
    assert (len(flat), sum(flat)) == (histogram.count, histogram.total)


def test_rates_are_growth_per_second():
    """Each period by itself; a total that shrinks counts as no growth."""
    meter = RateMeter()
    meter.update((100, 1000, 50, 500, 0, 0), 10.0)
    assert Rates(10.0, 100.0, 5.0, 50.0) == meter.rates
    meter.update((100, 1000, 10, 600, 0, 0), 10.0)
    assert Rates(0.0, 0.0, 0.0, 10.0) == meter.rates


def test_rates_are_those_of_the_last_period():
    """Growth divided by the period; what had no traffic has no meter, what left is forgotten."""
    flows = Flows()
    flows.update([("producer", 10, 100), ("idle", 0, 0), ("consumer", 4, 40)], 2.0)
    assert flows.of("producer") == Flow(5.0, 50.0, 10, 100)
    assert flows.of("consumer") == Flow(2.0, 20.0, 4, 40)
    assert flows.of("idle") is NOTHING
    flows.update([("producer", 11, 100)], 1.0)
    assert flows.of("producer").messages_per_s == 1.0
    assert flows.of("consumer") is NOTHING


async def _end_period(broker):
    for topic in broker.services.topics.open_topics.values():
        topic.update_rates(2.0)


def test_clients_see_their_rates():
    """CONSUMER_STATS has a consumer's rates of the last period, and msgBacklog counts entries."""
    with running_broker() as broker, RawClient.from_url(broker.service_url) as raw:
        name = "persistent://public/default/rates"
        producer = raw.create_producer(name)
        consumer = raw.subscribe(name, "s", earliest=True)
        for _ in range(3):
            producer.send(b"12345")
        consumer.flow(2)
        consumer.receive_many(2)
        broker.call(_end_period)
        stats = raw.request(lambda number: commands.consumer_stats(consumer.consumer_id, number))
        assert (stats.msgRateOut, stats.msgBacklog) == (1.0, 3)
        assert stats.msgThroughputOut > 5.0


def cache_figures(broker):
    """Name without what all have in common, and value."""
    with urllib.request.urlopen(broker.http_url + "/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        sample.name.partition("_ml_")[2]: sample.value
        for family in families
        for sample in family.samples
        if "_ml_" in sample.name
    }


def test_consumers_at_the_end_are_served_from_memory(topic):
    """What they are sent is counted as hits, and all that the cache got is accounted for."""
    with running_broker() as broker, RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(topic)
        consumers = [client.subscribe(topic, name) for name in ("a", "b")]
        for consumer in consumers:
            consumer.flow(100)
        for _ in range(10):
            producer.send(b"x" * 1000)
        for consumer in consumers:
            consumer.receive_many(10)
        figures = cache_figures(broker)
    assert figures["count"] == 1
    assert figures["cache_hits_total"] + figures["cache_misses_total"] == 20
    assert figures["cache_hits_total"] >= 18
    assert figures["cache_inserted_entries_total"] >= 9
    gone = figures["cache_inserted_entries_total"] - figures["cache_entries"]
    assert figures["cache_evicted_entries_total"] == gone
    assert 0 <= figures["cache_used_size"] <= figures["cache_max_size"] == 32 << 20
    assert {"cache_hits_rate", "cache_misses_throughput", "cache_evictions"} <= set(figures)


def test_the_setting_switches_it_off(topic):
    """managedLedgerCacheSizeMB=0: all is read from the disk, and delivered."""
    options = StoreOptions(**parse_settings({"managedLedgerCacheSizeMB": "0"}).of("store_options"))
    with (
        running_broker(store_options=options) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        consumer = client.subscribe(topic, "a")
        consumer.flow(100)
        client.create_producer(topic).send(b"x")
        consumer.receive_many(1)
        figures = cache_figures(broker)
    assert figures["cache_misses_total"] == 1
    assert figures["cache_inserted_entries_total"] == figures["cache_max_size"] == 0


def test_rates_are_of_the_last_period():
    """Not since the start."""
    store = MemoryStore.open(clock=SettableClock(A_TIME_MS))
    meter, cache = CacheMeter(store), store.tail_cache
    for hits in (120, 0):
        cache.hit_entries += hits
        cache.missed_bytes += hits * 100
        meter.update(60.0)
        figures = {name: value for name, _, value in meter.figures()}
        assert figures["pulsar_ml_cache_hits_rate"] == hits / 60
        assert figures["pulsar_ml_cache_misses_throughput"] == hits * 100 / 60
    store.close()
