"""Figures of the tail cache on the metrics page."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from pulsemark.broker.configuration.settings import parse_settings
from pulsemark.broker.statistics.cache_figures import CacheMeter
from pulsemark.ledger import StoreOptions
from pulsemark.ledger.tail_cache import TailCache
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.clock import A_TIME_MS, SettableClock


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
    options = StoreOptions(
        **parse_settings({"managedLedgerCacheSizeMB": "0"}).parts["store_options"]
    )
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
    cache = TailCache(1 << 20, SettableClock(A_TIME_MS))
    meter = CacheMeter(cache)
    for hits in (120, 0):
        cache.hit_entries += hits
        cache.missed_bytes += hits * 100
        meter.update(60.0)
        figures = {name: value for name, _, value in meter.figures()}
        assert figures["pulsar_ml_cache_hits_rate"] == hits / 60
        assert figures["pulsar_ml_cache_misses_throughput"] == hits * 100 / 60
