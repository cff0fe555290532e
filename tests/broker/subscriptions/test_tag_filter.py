"""Delivery filtered by tags: which entries a subscription with `pulsemark.filter` gets."""

from __future__ import annotations

import itertools
import re

import pulsar
import pytest

from pulsemark.broker.subscriptions.subscription import InvalidFilterError, TagFilter
from pulsemark.client import RequestRefusedError
from pulsemark.metadata import messages_of
from pulsemark.metadata.compression import payloads_opened
from pulsemark.testing import running_broker

STAMPERS = ["broker-time", "index", "property-tags:region,tier", "producer"]
REGIONS, TIERS = ("eu", "us", "asia", None), ("gold", None)
_numbers = itertools.count()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("region=eu", {"region": {"eu"}}),
        (" region = eu , us ; tier=gold", {"region": {"eu", "us"}, "tier": {"gold"}}),
        ("formula=a=b", {"formula": {"a=b"}}),
    ],
)
def test_what_a_filter_says(text, wanted):
    """Conditions with their values; spaces around names and values do not count."""
    found = TagFilter.of({"pulsemark.filter": text})
    assert found is not None
    assert found.wanted == wanted
    assert TagFilter.of({"other": text}) is None


@pytest.mark.parametrize("text", ["", "region", "=eu", "region=", "a=b;", "a=b,,c", "a=b;a=c"])
def test_a_malformed_filter_is_named(text):
    """Neither nothing nor half a condition is a filter, and a tag is named once."""
    with pytest.raises(InvalidFilterError, match=re.escape(f"pulsemark.filter={text!r}")):
        TagFilter.of({"pulsemark.filter": text})


def set_up(http, topic):
    """A topic whose entries get tags."""
    path = f"/admin/v2/{topic.replace('://', '/')}"
    assert http("PUT", path).status == 204
    assert http("POST", f"{path}/brokerEntryMetadata", {"stampers": STAMPERS}).status == 204
    return path


def subscribed(http, path, name, text):
    """Create a subscription with a filter, over REST; the status."""
    body = {"ledgerId": -1, "entryId": -1, "properties": {"pulsemark.filter": text}}
    return http("PUT", f"{path}/subscription/{name}", body)


def publish(client, topic, count):
    """Messages of all regions and tiers, alone and in batches; (value, region, tier) of each."""
    sent = []
    for region, tier in itertools.product(REGIONS, TIERS):
        tags = {"region": region, "tier": tier}
        properties = {name: value for name, value in tags.items() if value is not None}
        for batching in (False, True):
            producer = client.create_producer(
                topic,
                properties=properties,
                batching_enabled=batching,
                compression_type=pulsar.CompressionType.ZLib,
            )
            for _ in range(count):
                value = b"%d" % next(_numbers)
                producer.send_async(value, None)
                sent.append((value, region, tier))
            producer.flush()
            producer.close()
    return sent


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "KeyShared"])
def test_a_subscription_gets_what_matches(broker, http, client, topic, kind):
    """Every type: the matching entries in order, nothing opened, the others acknowledged for it."""
    path = set_up(http, topic)
    assert subscribed(http, path, "s", "region=eu,us;tier=gold").status == 204
    sent = publish(client, topic, 5)
    wanted = [value for value, region, tier in sent if region in ("eu", "us") and tier == "gold"]
    consumer = client.subscribe(topic, "s", getattr(pulsar.ConsumerType, kind))
    opened = payloads_opened()
    got = []
    for _ in wanted:
        message = consumer.receive(30_000)
        got.append(message.data())
        consumer.acknowledge(message)
    assert got == wanted
    assert payloads_opened() == opened
    last = client.create_producer(topic, properties={"region": "eu", "tier": "gold"})
    last.send(b"last")
    message = consumer.receive(30_000)
    assert message.data() == b"last"
    consumer.acknowledge(message)
    shown = http("GET", f"{path}/stats").json["subscriptions"]["s"]
    rejected = len(sent) - len(wanted)
    assert shown["filterRejectedMsgCount"] == rejected
    assert shown["filterAcceptedMsgCount"] >= len(wanted) + 1
    assert shown["filterProcessedMsgCount"] == shown["filterAcceptedMsgCount"] + rejected
    metrics = http("GET", "/metrics").body.decode()
    row = f'topic="{topic}",subscription="s"}} {rejected}\n'
    assert row in metrics[metrics.index("\npulsar_subscription_filter_rejected_msg_count{") :]
    consumer.close()
    assert http("GET", f"{path}/stats").json["subscriptions"]["s"]["msgBacklog"] == 0


def test_a_subscription_of_a_client(http, client, raw, topic):
    """SUBSCRIBE's property is the filter; a malformed one is refused, and nothing is made."""
    path = set_up(http, topic)
    with pytest.raises(RequestRefusedError, match="region") as refused:
        raw.subscribe(topic, "s", subscription_properties={"pulsemark.filter": "region"})
    assert "NAME=VALUE" in str(refused.value)
    assert http("GET", f"{path}/subscriptions").json == []
    options = {"subscription_properties": {"pulsemark.filter": "producer_name=till"}}
    consumer = raw.subscribe(topic, "s", **options)
    for name in ("shop", "till"):
        client.create_producer(topic, producer_name=name).send(name.encode())
    consumer.flow(10)
    assert messages_of(consumer.receive().headers_and_payload)[0].value == b"till"


def test_the_filter_is_changed_over_rest(http, client, topic):
    """A new filter holds from then on; a malformed one is refused, and the old one stays."""
    path = set_up(http, topic)
    assert subscribed(http, path, "bad", "region").status == 400
    assert subscribed(http, path, "s", "region=eu").status == 204
    properties = f"{path}/subscription/s/properties"
    assert http("PUT", properties, {"pulsemark.filter": "region="}).status == 400
    assert http("GET", properties).json == {"pulsemark.filter": "region=eu"}
    consumer = client.subscribe(topic, "s")
    by_region = {region: client.create_producer(topic, properties={"region": region})
                 for region in ("eu", "us")}  # fmt: skip
    for region in ("us", "eu"):
        by_region[region].send(region.encode())
    assert consumer.receive(30_000).data() == b"eu"
    assert http("PUT", properties, {"pulsemark.filter": "region=us"}).status == 204
    for region in ("eu", "us"):
        by_region[region].send(region.encode())
    assert consumer.receive(30_000).data() == b"us"
    assert http("PUT", properties, {}).status == 204
    by_region["eu"].send(b"all")
    assert consumer.receive(30_000).data() == b"all"


def test_it_is_for_stored_messages(raw):
    """A topic without storage has no stamps, so a filter is refused there."""
    with pytest.raises(RequestRefusedError, match="non-persistent"):
        raw.subscribe(
            "non-persistent://public/default/n",
            "s",
            subscription_properties={"pulsemark.filter": "region=eu"},
        )


def test_filter_and_place_survive_a_restart(tmp_path):
    """What was skipped is not sent later, though the filter is gone by then."""
    topic = "persistent://public/default/t"
    properties = {"pulsemark.filter": "region=eu"}
    for restarted in (False, True):
        with running_broker(data_dir=tmp_path, stampers=STAMPERS) as running:
            client = pulsar.Client(running.service_url)
            if not restarted:
                client.create_producer(topic).close()
                body = {"ledgerId": -1, "entryId": -1, "properties": properties}
                running.admin.request("PUT", "persistent/public/default/t/subscription/s", body)
            for region in ("us", "eu"):
                client.create_producer(topic, properties={"region": region}).send(region.encode())
            consumer = client.subscribe(topic, "s")
            message = consumer.receive(30_000)
            assert message.data() == b"eu"
            consumer.acknowledge(message)
            client.close()
