"""Bundles of a broker and of topics in memory, and how names are written in paths."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest

from pulsemark.broker.http.messages import Request
from pulsemark.broker.http.paths import split
from pulsemark.broker.http.routing import answer
from pulsemark.testing import RawClient, running_broker

TOPIC = "/admin/v2/persistent/public/default/t"


@pytest.fixture
def asked(ask_of):
    """What asks a new broker, and the broker."""
    with running_broker() as broker:
        yield ask_of(broker), broker


@pytest.fixture
def ask(asked):
    """What asks the broker."""
    return asked[0]


def test_all_policies_of_a_topic_are_removed_at_once(ask):
    """After that none is set; a topic that does not exist is not an error, as in Pulsar."""
    assert ask("PUT", TOPIC)[0] == 204
    ask("POST", f"{TOPIC}/maxProducers", 3)
    ask("POST", f"{TOPIC}/maxConsumers?isGlobal=true", 4)
    assert ask("GET", f"{TOPIC}/maxConsumers?isGlobal=true") == (200, "4")
    assert ask("DELETE", f"{TOPIC}/policies") == (204, "")
    assert ask("GET", f"{TOPIC}/maxProducers") == (200, "")
    assert ask("GET", f"{TOPIC}/maxConsumers?isGlobal=true") == (200, "")
    assert ask("DELETE", f"{TOPIC}-absent/policies")[0] == 204


def test_bundles_with_open_topics_are_the_brokers_own(ask):
    """Of this broker only; another one is not known."""
    [address] = json.loads(ask("GET", "/admin/v2/brokers")[1])
    path = "/admin/v2/brokers/standalone/{}/ownedNamespaces"
    assert ask("GET", path.format(address)) == (200, "{}")
    ask("PUT", TOPIC)
    _, found = ask("GET", path.format(address))
    [name] = json.loads(found)
    assert name.startswith("public/default/0x")
    assert ask("GET", path.format("other:1"))[0] == 404


def test_two_bundles_split_at_once_are_both_split(asked):
    """A split that is being stored does not take back another one's."""
    ask, broker = asked

    async def split_two(running):
        request = Request("PUT", "/", b"", running.services)
        quarters = ((0, 1 << 30), (1 << 30, 2 << 30))
        await asyncio.gather(*(split(request, "public/default", *each) for each in quarters))

    broker.call(split_two)
    found = json.loads(ask("GET", "/admin/v2/namespaces/public/default/bundles")[1])
    assert found["numBundles"] == 6
    assert {"0x20000000", "0x60000000"} <= set(found["boundaries"])


@pytest.mark.parametrize("place", ["/admin/v2/namespaces/public/default", TOPIC])
def test_changes_of_a_map_at_once_are_all_made(asked, place):
    """Properties, backlog quotas and Kafka's settings are maps: who changes one member takes back
    no other's.
    """
    ask, broker = asked
    ask("PUT", TOPIC)
    quota = {"limitSize": 1000, "limitTime": 10, "policy": "producer_exception"}
    quotas = f"{place}/backlogQuota?backlogQuotaType="
    asks: list[tuple[str, str, object]]
    asks = [("PUT", f"{place}/properties", {name: "x"}) for name in ("a", "b")]
    settings = {"retention.ms": "60000", "retention.bytes": "2000000"}
    asks += [("POST", f"{place}/entryFormat", {name: settings[name]}) for name in settings]
    asks += [("POST", f"{quotas}{kind}", quota) for kind in ("destination_storage", "message_age")]

    async def ask_all(running):
        requests = [
            Request(method, path, json.dumps(body).encode(), running.services)
            for method, path, body in asks
        ]
        return await asyncio.gather(*map(answer, requests))

    assert {each.status for each in broker.call(ask_all)} == {204}
    assert json.loads(ask("GET", f"{place}/properties")[1]).items() >= {("a", "x"), ("b", "x")}
    found = json.loads(ask("GET", f"{place}/backlogQuotaMap")[1])
    assert set(found) == {"destination_storage", "message_age"}
    assert json.loads(ask("GET", f"{place}/entryFormat")[1]) == settings


def test_non_persistent_topics_of_a_bundle(asked):
    """The bundle of a topic's name has it, and no other one."""
    ask, broker = asked
    with RawClient.from_url(broker.service_url) as raw:
        raw.create_producer("non-persistent://public/default/n")
        bundles = json.loads(ask("GET", "/admin/v2/namespaces/public/default/bundles")[1])
        edges = bundles["boundaries"]
        found = [
            json.loads(ask("GET", f"/admin/v2/non-persistent/public/default/{low}_{high}")[1])
            for low, high in pairwise(edges)
        ]
    assert sorted(found) == [[], [], [], ["non-persistent://public/default/n"]]
    assert ask("GET", "/admin/v2/non-persistent/public/default/zzz")[0] == 412


def test_sizes_are_those_of_entries(asked):
    """`storageSize` has what producers sent and the stamps, not the records' headers."""
    ask, broker = asked
    with RawClient.from_url(broker.service_url) as raw:
        name = "persistent://public/default/t"
        producer = raw.create_producer(name)
        raw.subscribe(name, "s", earliest=True)
        for _ in range(3):
            producer.send(b"x")
        stats = json.loads(ask("GET", f"{TOPIC}/stats")[1])
    stamps = stats["storageSize"] - stats["bytesInCounter"]
    assert 0 < stamps <= 3 * 28
    assert stats["backlogSize"] == stats["storageSize"]


def test_an_absent_namespace_of_a_topic_is_said(ask):
    """Before anything is said of the topic."""
    for part in ("lastMessageId", "offload", "permissions", "properties", "stats"):
        found = ask("GET", f"/admin/v2/persistent/public/absent/t/{part}")
        assert found == (404, '{"reason":"Namespace not found"}')
    found = ask("GET", "/admin/v2/non-persistent/public/absent/t/stats")
    assert found == (404, '{"reason":"Namespace not found"}')


def test_what_follows_a_semicolon_is_no_part_of_a_name(ask):
    """It is a parameter of the path's segment; an encoded one is a part of the name."""
    assert ask("PUT", f"{TOPIC};x=1") == (204, "")
    assert ask("PUT", f"{TOPIC}%3Bx=1") == (204, "")
    assert json.loads(ask("GET", "/admin/v2/persistent/public/default")[1]) == [
        "persistent://public/default/t",
        "persistent://public/default/t;x=1",
    ]


def test_the_first_tenant_has_empty_lists(ask):
    """It has nothing stored; Pulsar shows its administrators as an empty list."""
    found = json.loads(ask("GET", "/admin/v2/tenants/public")[1])
    assert found == {"adminRoles": [], "allowedClusters": ["standalone"]}


def test_a_plus_in_a_topics_name_is_a_space(ask):
    """So pulsar-admin writes spaces in names of topics and subscriptions; %2B is a plus."""
    assert ask("PUT", f"{TOPIC}+a") == (204, "")
    assert ask("PUT", f"{TOPIC}%2Bb") == (204, "")
    assert ask("PUT", f"{TOPIC}%20a/subscription/s+s") == (204, "")
    assert json.loads(ask("GET", f"{TOPIC}+a/subscriptions")[1]) == ["s s"]
    found = json.loads(ask("GET", "/admin/v2/persistent/public/default")[1])
    assert set(found) == {"persistent://public/default/t a", "persistent://public/default/t+b"}
