"""Dead-letter topics of the official client: they rely on redelivery counts."""

from __future__ import annotations

import pulsar
import pytest


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared])
def test_a_message_goes_to_the_dead_letter_topic_after_its_redeliveries(client, topic, kind):
    """One message is always refused: it comes 1 + 2 times, then it is on the other topic."""
    dead = f"{topic}-dead"
    policy = pulsar.ConsumerDeadLetterPolicy(2, dead, "kept")
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=kind,
        dead_letter_policy=policy,
        negative_ack_redelivery_delay_ms=50,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    producer = client.create_producer(topic)
    for body in (b"bad", b"good"):
        producer.send(body, partition_key=body.decode())
    counts: list[int] = []
    while len(counts) < 3:
        message = consumer.receive(10_000)
        if message.data() == b"good":
            consumer.acknowledge(message)
        else:
            counts.append(message.redelivery_count())
            consumer.negative_acknowledge(message)
    assert counts == [0, 1, 2]
    reader = client.subscribe(
        dead, "kept", consumer_type=kind, initial_position=pulsar.InitialPosition.Earliest
    )
    buried = reader.receive(10_000)
    assert buried.data() == b"bad"
    reader.acknowledge(buried)
    producer.send(b"after", partition_key="after")
    assert consumer.receive(10_000).data() == b"after"
