"""The policy `entryFormat`: phases of KIP-31 on one topic, over REST and the command line."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import kafka
import pytest
from kafka.protocol.metadata import MetadataRequest

from pulsemark import cli
from pulsemark.broker.policies.pulsar_policies import COMPACTION_THRESHOLD
from pulsemark.compaction.cleaner import CleanerRules
from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_kafka import RawKafka

WAIT_S = 60


@pytest.fixture(scope="module")
def both():
    """A broker for clients of both protocols."""
    with running_broker(kafka_port=0) as running:
        yield running


def asked(both, topic, value=None, method="POST"):
    """The status and body of a request for a topic's policy."""
    request = urllib.request.Request(
        f"{both.http_url}/admin/v2/persistent/public/default/{topic}/entryFormat",
        data=None if value is None else json.dumps(value).encode(),
        headers={"content-type": "application/json"},
        method="GET" if value is None and method == "POST" else method,
    )
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            body = answer.read()
            return answer.status, json.loads(body) if body else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def sent(both, topic, value, version=(2, 4)):
    """Send one message with a client of some version; its offset."""
    producer = kafka.KafkaProducer(
        bootstrap_servers=both.kafka_url, api_version=version, enable_idempotence=False
    )
    try:
        return producer.send(topic, value, key=b"k").get(WAIT_S).offset
    finally:
        producer.close()


def read(both, topic, count, version):
    """The first messages, with a client of some version."""
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=both.kafka_url,
        api_version=version,
        auto_offset_reset="earliest",
        consumer_timeout_ms=WAIT_S * 1000,
        metadata_max_age_ms=1_000,  # its first metadata may leave out the topic
    )
    try:
        return [
            (message.offset, message.value) for message in (next(consumer) for _ in range(count))
        ]
    finally:
        consumer.close()


def stored_magics(both, topic, count):
    """In which magic the first entries are stored."""
    with RawKafka.from_url(both.kafka_url) as client:
        return [client.fetch(topic, offset, max_bytes=1).records[16] for offset in range(count)]


def test_phases_canary_rollback_and_forward_again(both, topic_name, capsys):
    """Old and new clients read everything in every phase; offsets go on without a gap."""

    def phase(version):
        setting = f"message.format.version={version}"
        done = cli.main(
            ["policies", "set", topic_name, "entryFormat", "--setting", setting,
             "--admin-url", both.http_url]
        )  # fmt: skip
        assert done == 0, capsys.readouterr().err

    offsets, expected = [sent(both, topic_name, b"new")], [(0, b"new")]
    for version in ("0.9.0", "0.10.0", "0.9.0", "2.8"):
        phase(version)
        for client in ((0, 9), (0, 10, 0), (2, 4)):
            value = f"{version} {client}".encode()
            offsets.append(sent(both, topic_name, value, client))
            expected.append((offsets[-1], value))
        for client in ((0, 9), (0, 10, 0), (2, 4)):
            assert read(both, topic_name, len(expected), client) == expected
    assert offsets == list(range(13))
    assert stored_magics(both, topic_name, 13) == [2, *[0] * 3, *[1] * 3, *[0] * 3, *[2] * 3]
    assert (
        cli.main(["policies", "get", topic_name, "entryFormat", "--admin-url", both.http_url]) == 0
    )
    assert capsys.readouterr().out == "message.format.version=2.8\n"


_names = iter(range(1_000))


@pytest.fixture
def topic_name():
    """A topic that no other test uses."""
    return f"format{next(_names)}"


def test_a_topic_of_pulsars_has_no_such_policy_until_it_is_set(both, topic_name):
    """Settings are merged; null removes one; the policy itself stays."""
    with RawClient.from_url(both.service_url) as client:
        client.create_producer(f"persistent://public/default/{topic_name}")
    assert asked(both, topic_name) == (200, None)
    assert asked(both, topic_name, {"retention.ms": "60000"}) == (204, None)
    assert asked(both, topic_name, {"message.format.version": "0.10.0"}) == (204, None)
    assert asked(both, topic_name, {"retention.ms": None}) == (204, None)
    assert asked(both, topic_name) == (200, {"message.format.version": "0.10.0"})
    assert sent(both, topic_name, b"v") == 0
    assert asked(both, topic_name, method="DELETE")[0] == 405


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "must be an object"),
        ({"retention.ms": 5}, "settings as text"),
        ({"retention.ms": "x"}, "retention.ms"),
        ({"no.such": "x"}, "no.such"),
    ],
)
def test_wrong_values_are_named(both, topic_name, value, says):
    """400, and nothing has changed."""
    sent(both, topic_name, b"v")
    status, text = asked(both, topic_name, value)
    assert status == 400
    assert says in text
    assert asked(both, topic_name) == (200, {})


def test_only_existing_topics_have_it(both, topic_name):
    """404 for an unknown one, 412 for a partition."""
    assert asked(both, topic_name, {})[0] == 404
    sent(both, topic_name, b"v")
    assert asked(both, f"{topic_name}-partition-0", {})[0] == 412


def test_the_cleanup_policy_gives_a_topic_rules_for_its_cleaner(both, topic_name):
    """cleanup.policy=compact has Kafka's defaults; with delete the retention holds for it too."""
    sent(both, topic_name, b"first")
    services = both.broker.services
    topic = services.topics.open_topics[f"persistent://public/default/{topic_name}-partition-0"]
    assert topic.cleaner_rules is None
    assert asked(both, topic_name, {"cleanup.policy": "compact"}) == (204, None)
    assert topic.cleaner_rules == CleanerRules()
    assert services.topics.policies.applied(topic.topic_name, COMPACTION_THRESHOLD) == 0
    assert services.cleaning.retention_of(topic.topic_name).is_unlimited
    wanted = {
        "cleanup.policy": "compact,delete",
        "retention.ms": "600000",
        "min.cleanable.dirty.ratio": "0.1",
        "min.compaction.lag.ms": "1",
        "max.compaction.lag.ms": "2",
        "delete.retention.ms": "3",
        "file.delete.delay.ms": "4",
    }
    assert asked(both, topic_name, wanted) == (204, None)
    assert topic.cleaner_rules == CleanerRules(0.1, 1, 2, 3, 4, 600_000, None)
    assert services.cleaning.retention_of(topic.topic_name).time_ms == 600_000


def test_other_settings_leave_a_retention_as_an_operator_has_set_it(both, topic_name):
    """On a topic of Pulsar's and then of both; a setting of retention replaces it."""
    with RawClient.from_url(both.service_url) as client:
        client.create_producer(f"persistent://public/default/{topic_name}")
    topics = both.broker.services.topics
    name = topics.parse(f"persistent://public/default/{topic_name}")

    def policies():
        stored = topics.policies.policies_of_topic(name)
        minutes = stored["retention_policies"]["retentionTimeInMinutes"]
        return minutes, stored.get("compaction_threshold")

    admin = ["--admin-url", both.http_url]
    own = ["policies", "set", topic_name]
    assert cli.main([*own, "retention", "--time", "10m", "--size", "-1", *admin]) == 0
    assert cli.main([*own, "compactionThreshold", "--bytes", "1000", *admin]) == 0
    for version in ("0.9.0", "0.10.0"):
        assert asked(both, topic_name, {"message.format.version": version}) == (204, None)
        assert policies() == (10, 1_000)
    assert asked(both, topic_name, {"retention.ms": "60000"}) == (204, None)
    assert policies() == (1, 1_000)
    assert asked(both, topic_name, {"cleanup.policy": ""}) == (204, None)
    assert policies() == (-1, 1_000)


def test_a_namespace_and_the_broker_have_defaults_for_new_topics() -> None:
    """Topics that Kafka clients create get them, if these say nothing else; others keep theirs."""
    with (
        running_broker(
            kafka_port=0, storage="memory", kafka_message_format_version="0.9.0"
        ) as broker,
        RawKafka.from_url(broker.kafka_url) as raw,
    ):
        admin = ["--admin-url", broker.http_url]

        def formats(*names: str) -> list[str]:
            shown = []
            for name in names:
                topics = [MetadataRequest.MetadataRequestTopic(name=name)]
                raw.call(MetadataRequest, 4, topics=topics, allow_auto_topic_creation=True)
                store = broker.broker.services.topics.policies
                name = f"persistent://public/default/{name}"  # noqa: PLW2901 - in full
                shown.append(store.of_topics[name]["kafka"].get("message.format.version", "-"))
            return shown

        assert formats("a") == ["0.9.0"]
        own = ["policies", "set", "public/default", "entryFormat", "--setting"]
        assert cli.main([*own, "message.format.version=0.10.0", *admin]) == 0
        assert formats("a", "b") == ["0.9.0", "0.10.0"]
        assert cli.main([*own, "message.format.version=9", *admin]) != 0
        assert cli.main(["policies", "get", "public/default", "entryFormat", *admin]) == 0
        assert cli.main(["policies", "unset", "public/default", "entryFormat", *admin]) == 0
        assert formats("b", "c") == ["0.10.0", "0.9.0"]


def test_a_default_producer_ends_when_its_topic_goes_back(both):
    """Its sets have a producer's id, which formats 0 and 1 cannot carry: 43, as from Kafka 2.8."""

    def send(producer):
        return producer.send("goes-back", b"v").get(WAIT_S).offset

    def switch(version):
        assert asked(both, "goes-back", {"message.format.version": version})[0] == 204

    with kafka.KafkaProducer(bootstrap_servers=both.kafka_url) as producer:
        assert send(producer) == 0
        switch("0.10.0")
        with pytest.raises(kafka.errors.KafkaError, match="UnsupportedForMessageFormat"):
            send(producer)
        assert sent(both, "goes-back", b"v") == 1
        switch("3.0")
        with pytest.raises(kafka.errors.KafkaError):
            send(producer)
    with kafka.KafkaProducer(bootstrap_servers=both.kafka_url) as producer:
        assert send(producer) == 2
