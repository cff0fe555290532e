"""Exactly once: each order is settled once for committed readers, though workers are killed.

    python examples/kafka_exactly_once.py

It needs `pip install '/path/to/checkout[kafka]' confluent-kafka`. A worker reads orders, writes a
settlement for each, and commits settlements and its place in the orders together, in a transaction.
The worker is killed (SIGKILL) again and again, wherever it happens to be. A new one goes on: its
`init_transactions` aborts what the one before had begun. At the end, each order has one settlement.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

from pulsemark import Broker, BrokerConfig

ORDERS, SETTLED = "orders", "settled"
COUNT, KILLS = 100, 3


def settings(address: str, **more: str | int | bool) -> dict[str, str | int | bool]:
    """A client's settings; one that is not reached is tried again soon."""
    return {
        "bootstrap.servers": address,
        "reconnect.backoff.max.ms": 200,
        "log_level": 0,  # what matters is raised
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def publish_orders(address: str, count: int) -> None:
    """Orders 0, 1, 2 ..."""
    producer = Producer(settings(address, enable_idempotence=True))
    for number in range(count):
        producer.produce(ORDERS, str(number).encode())
    if producer.flush(30):
        raise TimeoutError("the orders were not published")


def finish(step: Callable[..., object], *arguments: object) -> None:
    """Call a step of a transaction, again as long as its error says that this helps."""
    while True:
        try:
            step(*arguments)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def settle(address: str) -> None:
    """The worker: settle orders until it is killed."""
    # First of all: afterwards no worker before this one can commit anything.
    producer = Producer(
        settings(address, transactional_id="settle-1", transaction_timeout_ms=10_000)
    )
    finish(producer.init_transactions)
    consumer = Consumer(
        settings(
            address,
            group_id="settle",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
        )
    )
    consumer.assign([TopicPartition(ORDERS, 0)])
    while True:
        orders = [each for each in consumer.consume(7, timeout=0.2) if each.error() is None]
        if not orders:
            continue
        producer.begin_transaction()
        try:
            for order in orders:
                producer.produce(SETTLED, order.value())
            place = consumer.position([TopicPartition(ORDERS, 0)])
            group = consumer.consumer_group_metadata()
            finish(producer.send_offsets_to_transaction, place, group)
            finish(producer.commit_transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            # What was read is read again from the last committed place.
            finish(producer.abort_transaction)
            before = consumer.committed([TopicPartition(ORDERS, 0)])[0]
            consumer.seek(TopicPartition(ORDERS, 0, max(before.offset, OFFSET_BEGINNING)))


def settlements(address: str, at_least: int) -> list[int]:
    """What a committed reader finds: at least so many, and then up to the end."""
    consumer = Consumer(
        settings(
            address,
            group_id="reader",
            isolation_level="read_committed",
            enable_auto_commit=False,
            enable_partition_eof=True,
        )
    )
    consumer.assign([TopicPartition(SETTLED, 0, OFFSET_BEGINNING)])
    found: list[int] = []
    while True:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append(int(message.value() or b""))
        elif message is not None and len(found) >= at_least:
            break  # the end of what is committed
    consumer.close()
    return found


def start_worker(address: str) -> subprocess.Popen[bytes]:
    """A worker in a process of its own."""
    return subprocess.Popen([sys.executable, __file__, address])


def show(address: str) -> None:
    """Publish, settle and kill, and count."""
    publish_orders(address, COUNT)
    for kill in range(1, KILLS + 1):
        worker = start_worker(address)
        settlements(address, COUNT * kill // (KILLS + 2))
        worker.kill()
        worker.wait()
        print(f"worker {kill} was killed")
    worker = start_worker(address)
    found = settlements(address, COUNT)
    worker.kill()
    worker.wait()
    assert sorted(found) == list(range(COUNT)), "an order was lost, or settled twice"
    print(f"{COUNT} orders have one settlement each")


async def main() -> None:
    """Start a broker and show it."""
    with tempfile.TemporaryDirectory() as folder:
        config = BrokerConfig(data_dir=Path(folder), port=0, http_port=None, kafka_port=0)
        async with Broker(config) as broker:
            await asyncio.to_thread(show, broker.kafka_url)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        settle(sys.argv[1])
    else:
        asyncio.run(main())
