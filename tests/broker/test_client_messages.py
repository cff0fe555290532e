"""The official client end to end: received messages equal sent messages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pulsar
import pytest

from pulsemark.broker.subscriptions.consumer import failover_ring

COMPRESSIONS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]
EARLIEST = pulsar.InitialPosition.Earliest


def receive_all(consumer, count):
    """`count` messages, each acknowledged."""
    messages = []
    for _ in range(count):
        messages.append(consumer.receive(5000))
        consumer.acknowledge(messages[-1])
    return messages


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_payloads_keys_properties_and_times_arrive_unchanged(client, topic, compression, batching):
    """Every compression, batched or not, keeps payload, key, properties and event time."""
    producer = client.create_producer(
        topic,
        compression_type=compression,
        batching_enabled=batching,
        batching_max_publish_delay_ms=20,
    )
    sent = [
        (bytes([i]) * (1 + i * 37), f"k{i}", {"n": str(i), "é": "ü"}, 1000 + i) for i in range(20)
    ]
    for payload, key, properties, time_ms in sent:
        producer.send_async(
            payload,
            lambda *_: None,
            partition_key=key,
            properties=properties,
            event_timestamp=time_ms,
        )
    producer.flush()
    messages = receive_all(client.subscribe(topic, "s", initial_position=EARLIEST), 20)
    assert sent == [
        (m.data(), m.partition_key(), m.properties(), m.event_timestamp()) for m in messages
    ]


def test_a_chunked_message_is_put_together_again(client, topic):
    """A message far above the maximum size is sent in chunks and arrives complete."""
    payload = bytes(range(256)) * 50_000
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    producer.send(payload)
    message = client.create_reader(topic, pulsar.MessageId.earliest).read_next(10_000)
    assert payload == message.data()


def test_message_ids_have_entries_and_batch_indexes(client, topic):
    """Ids given to the producer are those the consumer sees, in order."""
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"x") for _ in range(5)]
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    received = [message.message_id() for message in receive_all(consumer, 5)]
    assert [(i.ledger_id(), i.entry_id()) for i in ids] == [
        (i.ledger_id(), i.entry_id()) for i in received
    ]
    assert sorted((i.ledger_id(), i.entry_id()) for i in ids) == [
        (i.ledger_id(), i.entry_id()) for i in ids
    ]


def test_a_subscription_goes_on_where_it_was_left(client, topic):
    """The next consumer gets exactly the messages that were not acknowledged."""
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    for i in range(6):
        producer.send(b"%d" % i)
    receive_all(consumer, 3)
    consumer.close()
    again = client.subscribe(topic, "s")
    assert [m.data() for m in receive_all(again, 3)] == [b"3", b"4", b"5"]


def test_cumulative_acknowledgement_covers_everything_before(client, topic):
    """After a cumulative acknowledgement in the middle, only later messages come again."""
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    for i in range(6):
        producer.send(b"%d" % i)
    messages = [consumer.receive(5000) for _ in range(6)]
    consumer.acknowledge_cumulative(messages[3])
    consumer.close()
    again = client.subscribe(topic, "s")
    assert [m.data() for m in receive_all(again, 2)] == [b"4", b"5"]


def test_initial_position_latest_sees_only_what_comes(client, topic):
    """A new subscription at the end gets nothing that was there before."""
    producer = client.create_producer(topic)
    producer.send(b"before")
    consumer = client.subscribe(topic, "s")
    producer.send(b"after")
    assert consumer.receive(5000).data() == b"after"


def test_shared_consumers_divide_the_messages(client, topic):
    """Two consumers of a Shared subscription get every message once between them."""
    consumers = [
        client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared) for _ in range(2)
    ]
    producer = client.create_producer(topic, batching_enabled=False)
    for i in range(100):
        producer.send_async(b"%d" % i, lambda *_: None)
    producer.flush()
    seen = []
    for consumer in consumers:
        seen.append(0)
        while True:
            try:
                consumer.acknowledge(consumer.receive(300))
            except pulsar.Timeout:
                break
            seen[-1] += 1
    assert sum(seen) == 100
    assert all(seen)


def test_negative_acknowledgement_counts_redeliveries(client, topic):
    """A negatively acknowledged message comes again with its redelivery count plus one."""
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
    )
    client.create_producer(topic).send(b"x")
    counts = []
    for _ in range(3):
        message = consumer.receive(5000)
        counts.append(message.redelivery_count())
        consumer.negative_acknowledge(message)
    assert counts == [0, 1, 2]


def test_dead_letters_go_to_their_topic(client, topic):
    """After the allowed redeliveries the client moves a message to the dead letter topic."""
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1, topic + "-dlq", "audit"),
    )
    dead = client.subscribe(topic + "-dlq", "s")
    client.create_producer(topic).send(b"poison")
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(5000))
    assert dead.receive(10_000).data() == b"poison"


@dataclass(frozen=True)
class Ranked:
    """A consumer, as the ring sees it."""

    name: str
    priority_level: int = 0


def test_a_failover_subscription_changes_over(client, topic):
    """The active consumer gets everything; after its close the other one does.

    On a topic without partitions, hashes of the names decide which consumer is active.
    """
    consumers = {}
    ring: Any = failover_ring(topic)
    for name in ("a", "b"):
        consumers[name] = client.subscribe(
            topic, "s", consumer_type=pulsar.ConsumerType.Failover, consumer_name=name
        )
        ring.add(Ranked(name))
    first = consumers.pop(ring[0].name)
    (second,) = consumers.values()
    producer = client.create_producer(topic)
    producer.send(b"1")
    message = first.receive(5000)
    first.acknowledge(message)
    first.close()
    producer.send(b"2")
    assert (message.data(), second.receive(5000).data()) == (b"1", b"2")


def test_a_second_exclusive_consumer_is_refused(client, topic):
    """An Exclusive subscription has one consumer: the second one gets ConsumerBusy."""
    client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")


def test_unsubscribe_forgets_the_place(client, topic):
    """After an unsubscribe, a subscription of the same name starts as a new one."""
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    producer.send(b"1")
    consumer.receive(5000)
    consumer.unsubscribe()
    again = client.subscribe(topic, "s")
    producer.send(b"2")
    assert again.receive(5000).data() == b"2"


def test_a_receiver_queue_of_zero_gets_one_message_at_a_time(client, topic):
    """receive() with queue size 0 asks for single messages."""
    producer = client.create_producer(topic, batching_enabled=False)
    for i in range(3):
        producer.send(b"%d" % i)
    consumer = client.subscribe(topic, "s", receiver_queue_size=0, initial_position=EARLIEST)
    assert [consumer.receive().data() for _ in range(3)] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("inclusive", [False, True])
def test_a_reader_starts_at_an_id(client, topic, inclusive):
    """A reader's start id is the first message, or the last one left out."""
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"%d" % i) for i in range(5)]
    reader = client.create_reader(topic, ids[2], start_message_id_inclusive=inclusive)
    expected = [b"2", b"3", b"4"] if inclusive else [b"3", b"4"]
    assert expected == [reader.read_next(5000).data() for _ in expected]
    assert not reader.has_message_available()


def test_a_reader_at_latest_waits_for_what_comes(client, topic):
    """Nothing is available to a reader at the end until something is published."""
    producer = client.create_producer(topic)
    producer.send(b"old")
    reader = client.create_reader(topic, pulsar.MessageId.latest)
    assert not reader.has_message_available()
    producer.send(b"new")
    assert reader.has_message_available()
    assert reader.read_next(5000).data() == b"new"


def test_an_inclusive_reader_at_latest_gets_the_last_message(client, topic):
    """Inclusive at the end means the last message there is."""
    producer = client.create_producer(topic, batching_enabled=False)
    producer.send(b"1")
    producer.send(b"2")
    reader = client.create_reader(topic, pulsar.MessageId.latest, start_message_id_inclusive=True)
    assert reader.has_message_available()
    assert reader.read_next(5000).data() == b"2"


def test_the_last_message_id_of_a_batch_names_its_last_member(client, topic):
    """get_last_message_id counts batch members."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=50
    )
    for i in range(4):
        producer.send_async(b"%d" % i, lambda *_: None)
    producer.flush()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    count = 0
    while reader.has_message_available():
        last = reader.read_next(5000).message_id()
        count += 1
    assert count == 4
    assert last.batch_index() == 3


@pytest.mark.parametrize("partitions", [1, 3])
def test_partitioned_topics_work_over_all_partitions(client, http, topic, partitions):
    """Produced round robin, consumed through one consumer, nothing lost."""
    path = topic.replace("://", "/")
    assert http("PUT", f"/admin/v2/{path}/partitions", partitions).status == 204
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )
    for i in range(12):
        producer.send(b"%d" % i)
    received = receive_all(consumer, 12)
    assert {b"%d" % i for i in range(12)} == {m.data() for m in received}
    assert partitions == len({m.topic_name() for m in received})


def test_lookup_over_http_serves_like_the_binary_one(broker, make_client, topic):
    """A client with an http:// service URL produces and consumes."""
    client = make_client(broker.http_url)
    client.create_producer(topic).send(b"x")
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert consumer.receive(5000).data() == b"x"
    assert [topic] == client.get_topic_partitions(topic)


def test_a_pattern_subscribes_to_all_topics_that_match(client, topic):
    """A regular expression finds the namespace's topics."""
    for suffix in ("a", "b"):
        client.create_producer(f"{topic}-{suffix}").send(suffix.encode())
    consumer = client.subscribe(re.compile(f"{topic}-.*"), "s", initial_position=EARLIEST)
    assert {b"a", b"b"} == {m.data() for m in receive_all(consumer, 2)}


def test_a_string_schema_is_registered_and_handed_out(client, topic):
    """A producer with a schema gets it a version; a consumer with the same schema reads."""
    producer = client.create_producer(topic, schema=pulsar.schema.StringSchema())
    producer.send("grüße")
    consumer = client.subscribe(
        topic, "s", schema=pulsar.schema.StringSchema(), initial_position=EARLIEST
    )
    assert consumer.receive(5000).value() == "grüße"
