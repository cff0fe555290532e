"""The commands that ask a running broker: topics, subscriptions, namespaces, schemas, stats,
produce and consume; with a broker in this process.
"""

from __future__ import annotations

import io
import json
import sys

import kafka
import pytest

from pulsemark.testing import running_broker
from pulsemark.testing.raw_client import RawClient
from pulsemark.wire import MessageId, pack_ack_set

TOPIC = "persistent://public/default/orders"


@pytest.fixture
def broker():
    """An empty broker."""
    with running_broker(storage="memory", force_delete_namespace_allowed=True) as running:
        yield running


@pytest.fixture
def ask(pulsemark, broker):
    """Run a command that uses the admin interface."""
    return lambda *arguments: pulsemark(*arguments, "--admin-url", broker.http_url)


@pytest.fixture
def connect(pulsemark, broker):
    """Run a command that uses the binary protocol."""
    return lambda *arguments: pulsemark(*arguments, "--service-url", broker.service_url)


def test_the_life_of_a_topic(ask):
    """Created, listed, shown and deleted; a partitioned one with its partitions."""
    assert ask("topics", "create", "orders", "--partitions", "3").out == f"created {TOPIC}\n"
    assert ask("topics", "create", "plain", "--json").json() == [
        {"created": "persistent://public/default/plain"}
    ]
    assert {"topic": TOPIC, "partitions": 3} in ask("topics", "list", "--json").json()
    assert "partitions    3" in ask("topics", "show", "orders").out
    assert len(ask("topics", "show", "orders", "--json").json()[0]["partitions"]) == 3
    assert ask("topics", "delete", "orders").status == 0
    assert "orders" not in ask("topics", "list").out
    assert "404" in ask("topics", "delete", "orders").error()


def test_messages_there_and_back(connect, ask, broker):
    """What is produced is consumed, with its key and properties, and acknowledged."""
    made = connect("produce", "orders", "-m", "one", "-m", "two", "-k", "42", "-p", "shop=north")
    assert made.out == f"published 2 messages to {TOPIC}\n"
    broker.assert_published("orders", value="two", key="42", properties={"shop": "north"})
    assert ask("subscriptions", "create", "orders", "s", "--at", "earliest").status == 0
    assert "NAME=VALUE" in ask("subscriptions", "create", "orders", "f", "--filter", "x").error()
    one, two = connect("consume", "orders", "-s", "s", "-n", "2", "--json").json()
    assert (one["value"], two["value"], one["key"]) == ("one", "two", "42")
    assert one["properties"] == {"shop": "north"}
    assert broker.backlog("orders", "s") == 0
    waited = connect("consume", "orders", "-s", "s", "--timeout", "0.2").err
    assert "of 1 message came" in waited
    assert "--from earliest shows what is there" in waited
    assert "key=42" in connect("consume", "orders", "--peek", "--from", "earliest").out
    assert ask("subscriptions", "reset", "orders", "s", "-1h").status == 0
    assert broker.backlog("orders", "s") == 2
    assert ask("subscriptions", "reset", "orders", "s", "latest").status == 0
    assert broker.backlog("orders", "s") == 0
    assert ask("subscriptions", "reset", "orders", "s", "earliest").status == 0
    assert broker.backlog("orders", "s") == 2
    assert ask("subscriptions", "skip", "orders", "s").status == 0
    (row,) = ask("subscriptions", "list", "orders", "--json").json()
    assert (row["subscription"], row["backlog"]) == ("s", 0)
    assert ask("subscriptions", "delete", "orders", "s").status == 0
    assert ask("subscriptions", "list", "orders", "--json").json() == []


def test_messages_of_a_partitioned_topic(connect, ask, broker):
    """A key always goes to one partition, and all partitions are consumed."""
    ask("topics", "create", "orders", "--partitions", "4")
    for number in range(8):
        connect("produce", "orders", "-m", str(number), "-k", f"key-{number % 4}")
    places: dict[str | None, set[str]] = {each.key: set() for each in broker.messages("orders")}
    for each in broker.messages("orders"):
        places[each.key].add(each.topic)
    assert all(len(topics) == 1 for topics in places.values())
    found = connect("consume", "orders", "--peek", "--from", "earliest", "-n", "8", "--json")
    assert sorted(each["value"] for each in found.json()) == list("01234567")


def test_all_messages_of_many_batches_are_consumed(connect, broker):
    """A batch uses up a permit for each of its messages."""
    with RawClient.from_url(broker.service_url) as client:
        producer = client.create_producer(TOPIC)
        for _ in range(120):
            producer.send_batch([b"x"] * 10)
    consume = ("consume", "orders", "--peek", "--from", "earliest", "--timeout", "5", "--json")
    assert len(connect(*consume, "-n", "1200").json()) == 1200


def test_acknowledged_messages_of_a_batch_are_not_shown_again(pulsemark):
    """Another consumer has acknowledged all but one of the batch."""
    with running_broker(
        storage="memory", acknowledgment_at_batch_index_level_enabled=True
    ) as broker:
        with RawClient.from_url(broker.service_url) as client:
            consumer = client.subscribe(TOPIC, "s")
            place = client.create_producer(TOPIC).send_batch([b"one", b"two", b"three"])
            left = pack_ack_set([1])
            consumer.ack(MessageId(place.ledger_id, place.entry_id, ack_set=left))
        ran = pulsemark("consume", "orders", "-s", "s", "--json", "--url", broker.service_url)
        assert [each["value"] for each in ran.json()] == ["two"]
        assert broker.backlog("orders", "s") == 0


def test_a_batch_ends_where_enough_messages_were_shown(pulsemark):
    """The others of the batch are not acknowledged, and come next."""
    with running_broker(
        storage="memory", acknowledgment_at_batch_index_level_enabled=True
    ) as broker:
        with RawClient.from_url(broker.service_url) as client:
            client.subscribe(TOPIC, "s")
            client.create_producer(TOPIC).send_batch([b"one", b"two", b"three"])
        consume = ("consume", "orders", "-s", "s", "--json", "--url", broker.service_url)
        assert [each["value"] for each in pulsemark(*consume).json()] == ["one"]
        assert [each["value"] for each in pulsemark(*consume, "-n", "2").json()] == ["two", "three"]
        assert broker.backlog("orders", "s") == 0


def test_lines_are_messages(connect, broker, monkeypatch):
    """Without --message each line of standard input is one, with any bytes."""
    lines = io.TextIOWrapper(io.BytesIO(b"first\n\xff\xfe\n\nlast"))
    monkeypatch.setattr(sys, "stdin", lines)
    assert connect("produce", "orders").out == f"published 4 messages to {TOPIC}\n"
    values = [each.value for each in broker.messages("orders")]
    assert values == [b"first", b"\xff\xfe", b"", b"last"]


def test_delivery_times(connect, broker):
    """--deliver-at and --event-time take the times of all commands."""
    connect("produce", "orders", "-m", "x", "--event-time", "1000000000000", "--deliver-at", "+1h")
    (found,) = broker.messages("orders")
    assert found.message.event_time_ms == 1_000_000_000_000
    assert found.message.deliver_at_ms > found.broker_time_ms + 3_500_000


def test_namespaces(ask):
    """A tenant is created with its first namespace."""
    assert ask("namespaces", "create", "acme/orders").out == "created acme/orders\n"
    assert ask("namespaces", "list", "acme").out == "acme/orders\n"
    assert "public/default" in ask("namespaces", "list").out
    ask("topics", "create", "acme/orders/t")
    assert ask("namespaces", "delete", "acme/orders").status == 2
    assert ask("namespaces", "delete", "acme/orders", "--force").status == 0
    assert "acme" in ask("namespaces", "create", "acme").error()


def test_schemas(ask, tmp_path):
    """Uploaded from a file, listed, shown and deleted."""
    avro = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    (tmp_path / "r.avsc").write_text(json.dumps(avro))
    ask("topics", "create", "orders")
    upload = ("schemas", "upload", "orders", "--type", "AVRO", "--file", tmp_path / "r.avsc")
    assert ask(*upload, "--json").json() == [{"topic": TOPIC, "version": 0}]
    assert '"name": "a"' in ask("schemas", "show", "orders").out
    assert [each["type"] for each in ask("schemas", "list", "orders", "--json").json()] == ["AVRO"]
    assert ask("schemas", "delete", "orders").status == 0
    assert "404" in ask("schemas", "show", "orders").error()
    (tmp_path / "r.avsc").write_bytes(b"\xff")
    assert "not UTF-8" in ask(*upload).error()


def test_stats(ask, connect):
    """A row for each topic, as often as asked for; a named topic that is absent is an error."""
    connect("produce", "orders", "-m", "x")
    shown = ask("stats", "--interval", "1", "--count", "2", "--json").json()
    assert [row["topic"] for row in shown] == [TOPIC] * 2
    assert TOPIC in ask("stats").out
    assert "404" in ask("stats", "absent").error()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("produce", "orders", "-m", "x", "-p", "novalue"), "'novalue' is not of the form"),
        (("produce", "orders", "-n", "2"), "--num-produce needs --message"),
        (("produce", "a/b/c/d", "-m", "x"), "a/b/c/d"),
        (("produce", "orders", "-m", "x", "--event-time", "soon"), "'soon'"),
        (("consume", "orders"), "one of the arguments -s/--subscription --peek is required"),
        (("consume", "orders", "-s", "s", "--timeout", "0"), "--timeout: '0' is not"),
        (("consume", "orders", "-s", "s", "-n", "-1"), "-1"),
        (("consume", "absent", "--peek"), "does not exist"),
        (("consume", "orders", "-s", "s", "-t", "best"), "'best'"),
    ],
)
def test_wrong_arguments(connect, arguments, reason):
    """One line that names what is wrong."""
    ran = connect(*arguments)
    assert ran.status == 2
    assert reason in ran.error()


def test_no_broker(pulsemark):
    """Each command says where it looked."""
    url = "http://127.0.0.1:1"
    for command in (
        ("topics", "list"),
        ("namespaces", "list"),
        ("stats",),
        ("schemas", "show", "x"),
    ):
        assert url in pulsemark(*command, "--admin-url", url).error()
    place = "pulsar://127.0.0.1:1"
    using: tuple[tuple[str, ...], ...] = (("produce", "x", "-m", "y"), ("consume", "x", "--peek"))
    for used in using:
        assert place in pulsemark(*used, "--service-url", place).error()


def test_a_subscription_without_a_name(connect):
    """It is refused; the command would wait for messages of a subscription that no one can name."""
    for name in ("", " "):
        assert (
            "--subscription must not be empty" in connect("consume", "orders", "-s", name).error()
        )


def test_groups_of_kafkas_clients(pulsemark):
    """`subscriptions list` has those with offsets of the topic; else it says why it has none."""
    with running_broker(storage="memory", kafka_port=0) as broker:
        ask = ("subscriptions", "list", "orders", "--url", broker.http_url)
        producer = kafka.KafkaProducer(bootstrap_servers=broker.kafka_url)
        for value in (b"a", b"b", b"c"):
            producer.send("orders", value)
        producer.close()
        assert pulsemark(*ask, "--kafka", broker.kafka_url, "--json").json() == []
        consumer = kafka.KafkaConsumer(bootstrap_servers=broker.kafka_url, group_id="billing")
        place = kafka.TopicPartition("orders", 0)
        consumer.assign([place])
        consumer.commit({place: kafka.structs.OffsetAndMetadata(1, "", -1)})
        consumer.close()
        rows = pulsemark(*ask, "--kafka", broker.kafka_url, "--json").json()
        assert rows == [{"subscription": "billing", "type": "kafka", "consumers": 0, "backlog": 2}]
        wrong = pulsemark(*ask, "--kafka", "127.0.0.1:1")
        assert (wrong.status, "127.0.0.1:1" in wrong.err) == (0, True)
