"""The policy brokerEntryMetadata: its levels, REST, effect, durability and deletion."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from pulsemark.broker.policies.own_policies import (
    MAX_STAMPERS,
    STAMPS,
    InvalidPolicyError,
    StampPolicy,
)
from pulsemark.client import SendRefusedError
from pulsemark.ledger import EARLIEST, FolderReader
from pulsemark.metadata import (
    BrokerTimeStamper,
    StamperChain,
    application_tags,
    builtin_stampers,
    peek,
)
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import unbatched_message

NAMESPACE = "/admin/v2/namespaces/public/default/brokerEntryMetadata"
ON = {"stampers": ["broker-time", "index"]}
OFF: dict[str, Any] = {"stampers": []}
INDEX = {"stampers": ["index"]}


def path_of(topic, rest="/brokerEntryMetadata"):
    """The admin interface's path of a topic's policy."""
    return f"/admin/v2/{topic.replace('://', '/')}{rest}"


@pytest.fixture(scope="module")
def broker():
    """A broker that deletes namespaces together with their topics, if it is asked to."""
    with running_broker(force_delete_namespace_allowed=True) as running:
        yield running


@pytest.fixture(autouse=True)
def _nothing_set_afterwards(http):
    """The namespace is shared by the tests of this module."""
    yield
    assert http("DELETE", NAMESPACE).status == 204


def stored_in(broker, topic):
    """The fields of each stored entry's prefix, by name; None where there is no prefix."""

    async def read(running):
        entries = running.services.topics.open_topics[topic].ledger.read(EARLIEST)
        return [
            stamp and {field.name: value for field, value in stamp.ListFields()}
            for stamp in (peek(entry.prefix) for entry in entries)
        ]

    return broker.call(read)


def indexes_in(broker, topic):
    """Each stored entry's stamped index, None without one."""
    return [None if s is None else s.get("index") for s in stored_in(broker, topic)]


# -- REST -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["namespace", "topic"])
def test_a_policys_life(http, raw, topic, level):
    """200 and an empty body while unset, 204 for every change, 200 with the value once set."""
    raw.create_producer(topic)
    path = NAMESPACE if level == "namespace" else path_of(topic)
    assert (http("GET", path).status, http("GET", path).body) == (200, b"")
    for value in (OFF, {"stampers": ["index", "property-tags:region,app"]}, ON):
        assert http("POST", path, value).status == 204
        answer = http("GET", path)
        assert (answer.status, answer.json, answer.content_type) == (200, value, "application/json")
    for _ in range(2):
        answer = http("DELETE", path)
        assert (answer.status, answer.body) == (204, b"")
        assert (http("GET", path).status, http("GET", path).body) == (200, b"")


def test_the_most_specific_level_wins(http, raw, topic):
    """applied=true answers with topic, namespace, broker, in this order."""
    raw.create_producer(topic)
    applied = path_of(topic) + "?applied=true"
    assert http("GET", applied).json == ON
    http("POST", NAMESPACE, OFF)
    assert http("GET", applied).json == OFF
    http("POST", path_of(topic), INDEX)
    assert http("GET", applied).json == INDEX
    http("DELETE", NAMESPACE)
    assert http("GET", applied).json == INDEX
    http("POST", NAMESPACE, OFF)
    http("DELETE", path_of(topic))
    assert http("GET", applied).json == OFF
    assert http("GET", path_of(topic) + "?applied=false").body == b""


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (None, "object"),
        ([], "object"),
        ("off", "object"),
        ({}, "object"),
        ({"stampers": "index"}, "list"),
        ({"stampers": [1]}, "list"),
        ({"stampers": ["index"], "stamper": []}, "object"),
        ({"stampers": ["sundial"]}, "sundial"),
        ({"stampers": ["index", "index"]}, "index"),
        ({"stampers": ["property-tags"]}, "property-tags"),
        ({"stampers": ["property-tags:"]}, "property-tags"),
        ({"stampers": ["index:1"]}, "index:1"),
        ({"stampers": ["x" * 5000]}, "xxx"),
        ({"stampers": ["tombstone:\ud800"]}, r"'tombstone:\ud800'"),
        ({"stampers": ["index", "property-tags:\x1b[31m"]}, r"'property-tags:\x1b[31m'"),
        ({"stampers": [f"property-tags:{n}" for n in range(MAX_STAMPERS + 1)]}, "33"),
    ],
)
def test_an_invalid_value_is_refused_by_name(http, raw, topic, value, named):
    """400 with a reason that names the culprit, and nothing changes."""
    raw.create_producer(topic)
    for path in (NAMESPACE, path_of(topic)):
        answer = http("POST", path, value)
        assert answer.status == 400
        assert named in answer.json["reason"]
        assert http("GET", path).body == b""
    answer = http("PUT", "/admin/v2/namespaces/public/never", {"brokerEntryMetadata": value})
    if value is not None:
        assert answer.status == 400
        assert http("GET", "/admin/v2/namespaces/public/never").status == 404
    else:
        assert http("DELETE", "/admin/v2/namespaces/public/never").status == 204


def test_bodies_that_are_no_json(http):
    """400, as everywhere."""
    assert http("POST", NAMESPACE, raw_body=b"{").status == 400
    assert http("POST", NAMESPACE, raw_body=b"").status == 400


@pytest.mark.parametrize(("method", "body"), [("GET", None), ("POST", OFF), ("DELETE", None)])
def test_policies_of_what_is_not_there(http, raw, topic, method, body):
    """404 for namespace and topic, 412 for names that cannot be and for partitions, 405, 404."""
    base = "/admin/v2/namespaces/public"
    assert http(method, f"{base}/nowhere/brokerEntryMetadata", body).status == 404
    assert http(method, f"{base}/a%00b/brokerEntryMetadata", body).status == 412
    assert http(method, path_of(topic), body).status == 404
    assert http(method, path_of("persistent://public/nowhere/t"), body).status == 404
    assert http(method, path_of("persistent://public/default/.."), body).status == 412
    assert http("PUT", path_of(topic, "/partitions"), 2).status == 204
    assert http(method, path_of(f"{topic}-partition-0"), body).status == 412
    assert http(method, path_of(topic), body).status in (200, 204)
    assert http("PUT", path_of(topic), OFF).status == 405
    assert http(method, path_of(topic).replace("persistent", "non-persistent"), body).status == 404


def test_a_namespace_can_be_made_with_it(http, raw):
    """As with Pulsar's policies in the body of the namespace, which shows it again."""
    body = {"brokerEntryMetadata": OFF}
    assert http("PUT", "/admin/v2/namespaces/public/made", body).status == 204
    assert http("GET", "/admin/v2/namespaces/public/made").json.items() >= body.items()
    assert http("GET", "/admin/v2/namespaces/public/made/brokerEntryMetadata").json == OFF
    topic = "persistent://public/made/t"
    raw.create_producer(topic)
    assert http("GET", path_of(topic) + "?applied=true").json == OFF


# -- effect ---------------------------------------------------------------------------------------


def test_switching_works_at_once_and_the_index_has_no_gap(broker, http, raw, topic):
    """The entry after the answer is stamped by the new policy; indexes count all of them."""
    producer = raw.create_producer(topic)
    steps = [(None, 0), (OFF, None), (INDEX, 2), (OFF, None), (OFF, None), (ON, 5)]
    for value, _ in steps:
        if value is not None:
            assert http("POST", path_of(topic), value).status == 204
        producer.send(b"x")
    assert indexes_in(broker, topic) == [index for _, index in steps]
    fields = [None if s is None else sorted(s) for s in stored_in(broker, topic)]
    assert fields[2] == ["index"]
    assert fields[5] == ["broker_timestamp", "index"]


def test_a_namespaces_policy_reaches_its_topics_and_no_others(broker, http, raw, topic):
    """Open ones, ones with a policy of their own, ones made later, ones of another namespace."""
    http("PUT", "/admin/v2/namespaces/public/elsewhere")
    topics = [topic, f"{topic}-own", f"{topic}-later", "persistent://public/elsewhere/t"]
    open_, own, later, elsewhere = topics
    producers = {name: raw.create_producer(name) for name in (open_, own, elsewhere)}
    http("POST", path_of(own), INDEX)
    http("POST", NAMESPACE, OFF)
    producers[later] = raw.create_producer(later)
    for producer in producers.values():
        producer.send(b"x")
    http("DELETE", NAMESPACE)
    for producer in producers.values():
        producer.send(b"x")
    assert {name: indexes_in(broker, name) for name in topics} == {
        open_: [None, 1],
        own: [0, 1],
        later: [None, 1],
        elsewhere: [0, 1],
    }


def test_partitions_follow_their_partitioned_topic(broker, http, raw, topic):
    """All of them, also one that is added later."""
    http("PUT", path_of(topic, "/partitions"), 2)
    producers = [raw.create_producer(f"{topic}-partition-{n}") for n in range(2)]
    assert http("POST", path_of(topic), OFF).status == 204
    http("POST", path_of(topic, "/partitions"), 3)
    producers.append(raw.create_producer(f"{topic}-partition-2"))
    for producer in producers:
        producer.send(b"x")
    assert [indexes_in(broker, f"{topic}-partition-{n}") for n in range(3)] == [[None]] * 3
    http("DELETE", path_of(topic))
    producers[2].send(b"x")
    assert indexes_in(broker, f"{topic}-partition-2") == [None, 1]


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_deleted_topic_takes_its_policy_along(broker, http, raw, topic, partitions):
    """A new topic of the same name has no policy, also if it is created meanwhile."""
    rest = "/partitions" if partitions else ""
    http("PUT", path_of(topic, rest), partitions or None)
    assert http("POST", path_of(topic), OFF).status == 204
    assert http("DELETE", path_of(topic, rest)).status == 204
    assert http("GET", path_of(topic)).status == 404
    http("PUT", path_of(topic, rest), partitions or None)
    assert http("GET", path_of(topic)).body == b""
    name = f"{topic}-partition-1" if partitions else topic
    raw.create_producer(name).send(b"x")
    assert indexes_in(broker, name) == [0]


def test_changes_beside_a_deletion_leave_nothing_behind(broker, http, raw, topic):
    """Set and delete at once, in any order: a new topic or namespace has no policy."""
    import asyncio

    policy = OFF
    namespace = "public/raced"
    for _ in range(10):
        http("PUT", f"/admin/v2/namespaces/{namespace}")
        raw.create_producer(topic).close()

        async def race(running):
            topics = running.services.topics
            name = topics.parse(topic)
            await asyncio.gather(
                topics.policies[STAMPS].set(name, policy),
                topics.delete(name),
                topics.policies[STAMPS].set(name, policy),
                topics.policies[STAMPS].set(namespace, policy),
                topics.delete_namespace(namespace),
                topics.policies[STAMPS].set(namespace, policy),
                return_exceptions=True,
            )
            catalog = topics.catalog
            return [catalog.get("topic-policy", topic), catalog.get("namespace", namespace)]

        assert broker.call(race) == [None, None]
        raw.create_producer(topic).close()
        assert http("GET", path_of(topic)).body == b""
        assert http("DELETE", path_of(topic, "")).status == 204


def test_deleting_one_partition_leaves_the_policy(http, raw, topic):
    """It is the partitioned topic's."""
    http("PUT", path_of(topic, "/partitions"), 2)
    http("POST", path_of(topic), OFF)
    assert http("DELETE", path_of(f"{topic}-partition-1", "")).status == 204
    assert http("GET", path_of(topic)).json == OFF


def test_a_deleted_namespace_takes_its_policies_along(http, raw):
    """The namespace's own, and those of the topics in it."""
    base = "/admin/v2/namespaces/public/gone"
    topic = "persistent://public/gone/t"
    for value in (OFF, None):
        http("PUT", base)
        raw.create_producer(topic).close()
        if value is not None:
            http("POST", f"{base}/brokerEntryMetadata", value)
            http("POST", path_of(topic), INDEX)
        else:
            assert http("GET", f"{base}/brokerEntryMetadata").body == b""
            assert http("GET", path_of(topic)).body == b""
            assert http("GET", path_of(topic) + "?applied=true").json == ON
        assert http("DELETE", f"{base}?force=true").status == 204


def test_policies_survive_restarts(tmp_path, topic):
    """Of topics and namespaces, set and unset, also by kill -9 (the folder copied while live)."""
    import shutil
    import urllib.request

    def ask(broker, method, path, value=None):
        body = None if value is None else json.dumps(value).encode()
        request = urllib.request.Request(broker.http_url + path, body, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.read()

    unset = f"{topic}-unset"
    with (
        running_broker(data_dir=tmp_path / "data") as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer = client.create_producer(topic)
        client.create_producer(unset)
        ask(broker, "POST", NAMESPACE, OFF)
        ask(broker, "POST", path_of(topic), INDEX)
        ask(broker, "POST", path_of(unset), INDEX)
        ask(broker, "DELETE", path_of(unset))
        producer.send(b"x")
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
    for folder in ("data", "copy"):
        with (
            running_broker(data_dir=tmp_path / folder) as broker,
            RawClient.from_url(broker.service_url) as client,
        ):
            assert json.loads(ask(broker, "GET", NAMESPACE)) == OFF
            assert json.loads(ask(broker, "GET", path_of(topic))) == INDEX
            assert ask(broker, "GET", path_of(unset)) == b""
            for name in (topic, unset):
                client.create_producer(name).send(b"x")
            assert indexes_in(broker, topic) == [0, 1]
            assert indexes_in(broker, unset) == [None]


def test_a_policy_left_by_a_crash_in_a_deletion_is_dropped(tmp_path, topic):
    """A new topic of that name does not get the policy."""
    with running_broker(data_dir=tmp_path, http_port=None) as broker:
        broker.broker.store.catalog.put(
            "topic-policy", topic, json.dumps({"brokerEntryMetadata": OFF}).encode()
        )
    with (
        running_broker(data_dir=tmp_path, http_port=None) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        client.create_producer(topic).send(b"x")
        assert indexes_in(broker, topic) == [0]
        assert broker.broker.store.catalog.items("topic-policy") == []


def test_off_by_configuration_and_on_by_policy(topic, tmp_path):
    """The broker's own level counts last; a folder reader sees the written stamps."""
    with (
        running_broker(data_dir=tmp_path, stampers=()) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer = client.create_producer(topic)
        producer.send(b"x")

        async def switch_on(running):
            topics = running.services.topics
            await topics.policies[STAMPS].set("public/default", ON)

        broker.call(switch_on)
        producer.send(b"x")
    with FolderReader(tmp_path) as folder:
        entries = folder.log(topic).read(EARLIEST)
    stamps = [peek(entry.prefix) for entry in entries]
    assert [stamp and stamp.index for stamp in stamps] == [None, 1]


# -- application tags, and stampers that are gone -------------------------------------------------


def test_tags_are_lifted_from_the_properties_that_the_policy_names(broker, http, raw, topic):
    """From the first entry after the change; other properties are not copied."""
    producer = raw.create_producer(topic)
    body = unbatched_message(
        b"x", publish_time_ms=1, properties={"region": "eu", "app": "till", "secret": "s"}
    )
    producer.send_raw(body)
    http("POST", path_of(topic), {"stampers": ["index", "property-tags:region,app"]})
    producer.send_raw(body)

    async def tags(running):
        entries = running.services.topics.open_topics[topic].ledger.read(EARLIEST)
        return [application_tags(peek(entry.prefix)) for entry in entries]

    assert broker.call(tags) == [{}, {"region": b"eu", "app": b"till"}]


class _Vanishing:
    """A plugin's stamper that is installed at first, and gone later."""

    name = "vanishing"

    def stamp(self, context, metadata):
        metadata.application_tags.add(key="k", value=b"v")


def test_a_stamper_that_is_gone_stops_appends_and_nothing_else(tmp_path, topic, monkeypatch):
    """Reading works, sends are refused with its name, and another policy repairs it."""
    point = EntryPoint("vanishing", f"{__name__}:_Vanishing", "pulsemark.stampers")
    monkeypatch.setattr(EntryPoint, "load", lambda _: _Vanishing)
    monkeypatch.setattr(builtin_stampers, "_installed_plugins", lambda: EntryPoints([point]))
    with (
        running_broker(data_dir=tmp_path) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer = client.create_producer(topic)
        change(broker, topic, {"stampers": ["vanishing"]})
        producer.send(b"x")
        (stored,) = stored_in(broker, topic)
        assert list(stored) == ["application_tags"]
    monkeypatch.setattr(builtin_stampers, "_installed_plugins", lambda: EntryPoints([]))
    stampers_of_before()
    with (
        running_broker(data_dir=tmp_path) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        producer = client.create_producer(topic)
        producer.post(unbatched_message(b"y", publish_time_ms=1))
        with pytest.raises(SendRefusedError, match="vanishing"):
            producer.receipts(1)
        consumer = client.subscribe(topic, "s", earliest=True)
        consumer.flow(10)
        assert consumer.receive().headers_and_payload.endswith(b"x")
        change(broker, topic, {"stampers": ["index"]})
        assert client.create_producer(topic).send(b"z")
        assert indexes_in(broker, topic) == [None, 1]


def stampers_of_before():
    """Forget the chains that were made while the plugin was there, as a new process would."""
    from pulsemark.broker.policies import own_policies

    own_policies._chain.cache_clear()


def change(broker, topic, value):
    """Set a topic's policy from inside."""

    async def work(running):
        topics = running.services.topics
        await topics.policies[STAMPS].set(topics.parse(topic), value)

    broker.call(work)


def test_values_in_themselves():
    """Equal by their names; the error has the value."""
    policy = StampPolicy.from_json(ON)
    assert policy == StampPolicy(("broker-time", "index"), StamperChain([BrokerTimeStamper()]))
    assert policy.to_json() == ON
    assert policy.chain.names == ("broker-time", "index")
    with pytest.raises(InvalidPolicyError) as caught:
        StampPolicy.from_json({"stampers": ["sundial"]})
    assert caught.value.value == {"stampers": ["sundial"]}
    assert "sundial" in caught.value.reason
