"""A broker inside your own program: `async with Broker(config)`, and searches in its store.

    python examples/embed.py

The broker shares the program's event loop. Here the official client publishes to it from a thread,
as any other client could. Then the program searches the topic directly, in its own process, without
a connection.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import pulsar

from pulsemark import Broker, BrokerConfig, Finder

TOPIC = "persistent://public/default/orders"


def publish(service_url: str) -> int:
    """Two orders, a pause, two more; returns the time between them, in unix milliseconds."""
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(TOPIC)
    for number in range(2):
        producer.send(f"morning order {number}".encode())
    time.sleep(0.01)
    noon_ms = time.time_ns() // 1_000_000
    time.sleep(0.01)
    for number in range(2):
        producer.send(f"afternoon order {number}".encode())
    client.close()
    return noon_ms


def consume_from(service_url: str, time_ms: int) -> list[str]:
    """The messages that an official reader gets after seeking to a time."""
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    reader.seek(time_ms)
    payloads = []
    while reader.has_message_available():
        payloads.append(reader.read_next(5_000).data().decode())
    client.close()
    return payloads


async def main(data_dir: Path) -> None:
    """Start, publish, search, stop."""
    config = BrokerConfig(data_dir=data_dir, port=0, http_port=0)
    async with Broker(config) as broker:
        print(f"serving {broker.service_url}")
        noon_ms = await asyncio.to_thread(publish, broker.service_url)
        log = await asyncio.to_thread(broker.store.open_topic, TOPIC)
        found = await asyncio.to_thread(Finder(log).by_time, noon_ms)
        print(f"the first order after noon: index {found.index} at {found.position}")
        print(await asyncio.to_thread(consume_from, broker.service_url, noon_ms))
    print("stopped in order; the folder can be opened again")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "data"))
