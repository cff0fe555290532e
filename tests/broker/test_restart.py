"""Stopping and starting: confirmed data is kept, and clients reconnect by themselves."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pulsar
import pytest

from pulsemark.testing import RawClient, running_broker
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import MessageId

PROGRAM = """
import asyncio, sys, pathlib
from pulsemark.broker import Broker, BrokerConfig

async def main():
    config = BrokerConfig(data_dir=pathlib.Path(sys.argv[1]), port=int(sys.argv[2]), http_port=None)
    async with Broker(config) as broker:
        print(broker.service_url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
GOOD = unbatched_message(b"x", publish_time_ms=1)


def free_port():
    """A port on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class BrokerProcess:
    """A broker in a process of its own, on one folder and one port over all its starts."""

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        self.start()

    def start(self):
        """Start, and wait until it serves."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(self.folder), str(self.port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.service_url = self.process.stdout.readline().strip()
        assert self.service_url

    def kill(self):
        """Kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def process(tmp_path):
    """A broker process, killed when the test ends."""
    broker = BrokerProcess(tmp_path / "data")
    yield broker
    if broker.process.poll() is None:
        broker.kill()


def test_a_graceful_restart_keeps_messages_places_and_the_index(tmp_path, topic):
    """Entries, subscriptions with their holes, and the gapless index go on."""
    left: list[MessageId] = []
    for generation in range(3):
        with (
            running_broker(data_dir=tmp_path / "data", http_port=None) as broker,
            RawClient.from_url(broker.service_url) as client,
        ):
            consumer = client.subscribe(topic, "s", earliest=True)
            consumer.flow(100)
            if generation:
                assert [m.headers_and_payload[-1:] for m in consumer.receive_many(2)] == [
                    b"1",
                    b"3",
                ]
                assert 4 * generation == broker.call(next_index(topic))
                consumer.ack(*left)
            producer = client.create_producer(topic)
            ids = [MessageId(*producer.send(b"%d" % n)[1:3]) for n in range(4)]
            consumer.receive_many(4)
            # Without asking for a receipt: an orderly end makes it durable all the same.
            consumer.ack(ids[0], ids[2], wait=False)
            client.ping()
            left[:] = [ids[1], ids[3]]


def next_index(topic):
    """A coroutine function for the broker's loop."""

    async def read(broker):
        return broker.services.topics.open_topics[topic].ledger.next_index

    return read


def test_nothing_confirmed_is_lost_by_kill_9(process, topic):
    """Every receipt seen before the kill has its entry afterwards, in order, once."""
    confirmed = []
    with RawClient.from_url(process.service_url) as client:
        producer = client.create_producer(topic)
        for _ in range(200):
            for _ in range(10):
                producer.post(GOOD)
            confirmed += producer.receipts(10)
        producer.post(GOOD)
        process.kill()
    process.start()
    with RawClient.from_url(process.service_url) as client:
        consumer = client.subscribe(topic, "s", earliest=True)
        consumer.flow(5000)
        found = [m.message_id for m in consumer.receive_many(len(confirmed))]
    assert [(r.ledger_id, r.entry_id) for r in confirmed] == [
        (i.ledger_id, i.entry_id) for i in found
    ]


def test_official_clients_go_on_after_kill_9(process, make_client, topic):
    """Producer and consumer reconnect by themselves; nothing confirmed is missing."""
    client = make_client(process.service_url)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, send_timeout_millis=30_000)
    results = []
    done = threading.Event()

    def on_sent(result, _):
        results.append(result)
        if len(results) == 300:
            done.set()

    for n in range(300):
        producer.send_async(b"%d" % n, on_sent)
        if n == 150:
            process.kill()
            process.start()
    assert done.wait(30)
    assert {pulsar.Result.Ok} == set(results)
    seen: set[Any] = set()
    while len(seen) < 300:
        message = consumer.receive(10_000)
        seen.add(message.data())
        consumer.acknowledge(message)
    assert {b"%d" % n for n in range(300)} == seen


def test_confirmed_acknowledgements_and_epochs_survive_kill_9(process, topic):
    """ACK_RESPONSE and an exclusive producer's epoch are sent only when they are durable."""
    with RawClient.from_url(process.service_url) as client:
        producer = client.create_producer(topic, access_mode=1)
        ids = [MessageId(*producer.send(b"x")[1:3]) for _ in range(3)]
        consumer = client.subscribe(topic, "s", earliest=True)
        consumer.flow(10)
        consumer.receive_many(3)
        consumer.ack(ids[1], cumulative=True)
        process.kill()
    process.start()
    with RawClient.from_url(process.service_url) as client:
        assert client.create_producer(topic, access_mode=1).topic_epoch == 1
        consumer = client.subscribe(topic, "s")
        consumer.flow(10)
        assert ids[2] == consumer.receive().message_id


def test_a_place_that_cannot_be_stored_does_not_keep_others_from_it(tmp_path, topic):
    """One cursor fails whenever it is persisted: the others outlive an orderly end."""
    names = [f"{topic}-{n}" for n in range(3)]

    for _ in range(2):
        with (
            running_broker(data_dir=tmp_path / "data", http_port=None) as broker,
            RawClient.from_url(broker.service_url) as client,
        ):
            consumers = [client.subscribe(name, "s", earliest=True) for name in names]
            broker.call(broken_cursor(names[0]))
            for name, consumer in zip(names, consumers, strict=True):
                receipt = client.create_producer(name).send(b"x")
                message_id = MessageId(receipt.ledger_id, receipt.entry_id)
                consumer.ack(message_id, cumulative=True, wait=False)
            client.ping()
    with (
        running_broker(data_dir=tmp_path / "data", http_port=None) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        for name in names[1:]:
            last, mark_delete = client.subscribe(name, "s").get_last_message_id()
            assert mark_delete is not None
            assert mark_delete[:2] == last[:2]


def test_the_timer_stores_other_places_beside_a_broken_one(topic):
    """Acknowledgements that ask for no receipt are stored although the first topic's cannot be."""
    names = [f"{topic}-{n}" for n in range(3)]
    with (
        running_broker(http_port=None) as broker,
        RawClient.from_url(broker.service_url) as client,
    ):
        consumers = [client.subscribe(name, "s", earliest=True) for name in names]
        broker.call(broken_cursor(names[0]))
        stored: dict[str, Any] = {}
        broker.call(noting_cursors(names[1:], stored))
        acked = {}
        for name, consumer in zip(names, consumers, strict=True):
            receipt = client.create_producer(name).send(b"x")
            message_id = MessageId(receipt.ledger_id, receipt.entry_id)
            consumer.ack(message_id, cumulative=True, wait=False)
            acked[name] = (receipt.ledger_id, receipt.entry_id + 1)
        del acked[names[0]]
        deadline = time.monotonic() + 30
        while stored != acked:
            assert time.monotonic() < deadline, stored
            time.sleep(0.05)


def noting_cursors(topics, stored):
    """A coroutine function: note the place of each topic's subscription once it is durable."""

    def noting(name, cursor):
        persist = cursor.persist

        def noted():
            commit, place = persist(), cursor.first_unacked

            def keep(error):
                if error is None:
                    stored[name] = place

            commit.add_done_callback(keep)
            return commit

        return noted

    async def arm(running):
        for name in topics:
            cursor = running.services.topics.open_topics[name].subscriptions["s"].cursor
            cursor.persist = noting(name, cursor)

    return arm


def broken_cursor(topic):
    """A coroutine function: the place of the topic's subscription cannot be stored any more."""

    async def arm(running):
        def broken():
            raise RuntimeError("this cursor cannot be stored")

        subscription = running.services.topics.open_topics[topic].subscriptions["s"]
        subscription.cursor.persist = broken

    return arm
