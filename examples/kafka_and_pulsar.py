"""One topic for two protocols: a Kafka client and a Pulsar client write and read the same messages.

    python examples/kafka_and_pulsar.py

It needs `pip install '/path/to/checkout[kafka]'`. A broker serves both protocols. Each client
publishes two orders, and each reads all four: keys, values, headers (Pulsar's properties) and the
order are the same. The offset that Kafka's client shows is the index in the stamp of Pulsar's
entry.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import kafka
import pulsar

from pulsemark import Broker, BrokerConfig

ORDERS = "orders"


def publish_with_kafka(address: str) -> None:
    """Two orders; this creates the topic, with one partition."""
    producer = kafka.KafkaProducer(bootstrap_servers=address)
    for fruit, amount in ((b"apples", b"7"), (b"pears", b"5")):
        sent = producer.send(ORDERS, amount, key=fruit, headers=[("shop", b"kafka street")])
        print(f"Kafka's client wrote {fruit.decode()} at offset {sent.get(30).offset}")
    producer.close()


def publish_with_pulsar(client: pulsar.Client) -> None:
    """Two more."""
    producer = client.create_producer(f"{ORDERS}-partition-0", batching_enabled=False)
    for fruit, amount in (("apples", b"1"), ("plums", b"9")):
        shop = {"shop": "pulsar square"}
        place = producer.send(amount, partition_key=fruit, properties=shop)
        print(f"Pulsar's client wrote {fruit} at {place.ledger_id()}:{place.entry_id()}")


def read_with_kafka(address: str) -> list[tuple[str, str, str]]:
    """Fruit, amount and shop of all orders."""
    consumer = kafka.KafkaConsumer(
        ORDERS,
        bootstrap_servers=address,
        auto_offset_reset="earliest",
        consumer_timeout_ms=30_000,
        metadata_max_age_ms=1_000,  # kafka-python 3.0 may begin with metadata without the topic
    )
    orders = []
    for message in consumer:
        shop = dict(message.headers)["shop"].decode()
        orders.append((message.key.decode(), message.value.decode(), shop))
        print(f"  Kafka's consumer: offset {message.offset}: {orders[-1]}")
        if len(orders) == 4:
            break
    consumer.close()
    return orders


def read_with_pulsar(client: pulsar.Client) -> list[tuple[str, str, str]]:
    """The same, as Pulsar's reader gets it."""
    reader = client.create_reader(f"{ORDERS}-partition-0", pulsar.MessageId.earliest)
    orders = []
    while reader.has_message_available():
        message = reader.read_next(30_000)
        shop = message.properties()["shop"]
        orders.append((message.partition_key(), message.data().decode(), shop))
        print(f"  Pulsar's reader: {message.message_id()}: {orders[-1]}")
    return orders


def use(broker: Broker) -> None:
    """Write and read with both."""
    client = pulsar.Client(
        broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    publish_with_kafka(broker.kafka_url)
    publish_with_pulsar(client)
    by_kafka, by_pulsar = read_with_kafka(broker.kafka_url), read_with_pulsar(client)
    client.close()
    if by_kafka != by_pulsar:
        raise SystemExit("the two protocols show different orders")
    print("both clients saw the same orders, in the same order")


async def main(data_dir: Path) -> None:
    """Start a broker with both ports, and use it."""
    config = BrokerConfig(
        data_dir=data_dir, port=0, http_port=None, kafka_port=0,
        kafka_group_initial_rebalance_delay_ms=0,
    )  # fmt: skip
    async with Broker(config) as broker:
        print(f"serving {broker.service_url} and Kafka's clients at {broker.kafka_url}")
        await asyncio.to_thread(use, broker)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary) / "data"))
