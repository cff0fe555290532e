"""Failovers under transactions: Kafka's and Pulsar's clients on several brokers on BookKeeper.

    python campaigns/transaction_failovers.py [--failovers 10] [--brokers 3] [--seed 1]
        [--store zk://HOST:PORT/ledgers] [--logs FOLDER]

Each transaction writes to four topics, and one of Pulsar's clients also acknowledges an input. Some
are committed, others aborted. Meanwhile brokers are killed (SIGKILL), ended (SIGTERM), or paused
for longer than their session (SIGSTOP), the coordinator's broker as often as any. At the end:

1. all of a committed transaction is there once, and nothing of an aborted one;
2. of one whose end the client does not know, all is there, or nothing;
3. an input is acknowledged if the outputs of a transaction with it are there, and only then;
4. no transaction is left open: readers reach the end.

Without --store a ZooKeeper and three bookies are started (campaigns/bookkeeper_peer.py).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from bookkeeper_peer import free_port
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from failover_campaign import PAUSE_S, BrokerProcess, parser_of, run

from pulsemark.client.errors import ClientError, RequestRefusedError, WaitTimeoutError
from pulsemark.metadata import payload_of
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing import RawClient
from tests.support.transaction_client import COORDINATOR, TransactionClient

INPUT = "persistent://public/default/in"
OUTPUTS = [f"persistent://public/default/out-{number}" for number in range(4)]
KAFKA_TOPIC, PARTITIONS = "records", 4
COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"
END_LIMIT_S = 90.0
SILENCE_S = 4.0
"""After so long without a message a topic has no more: bookies are read meanwhile."""


class Load(threading.Thread):
    """Transactions, one after the other, and what the client knows of their ends."""

    def __init__(self, seed: int) -> None:
        super().__init__(daemon=True)
        self.outcomes: dict[str, str] = {}
        self._random = random.Random(seed)
        self._over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Until `stop`."""
        try:
            while not self._over.is_set():
                name = f"{self.kind}-{len(self.outcomes)}"
                self.outcomes[name] = UNKNOWN
                self.outcomes[name] = self.one(name, commits=self._random.random() < 0.7)
                time.sleep(0.02)
        except BaseException as error:
            self.error = error
            raise

    kind = ""

    def one(self, name: str, *, commits: bool) -> str:
        """One transaction, and its outcome."""
        raise NotImplementedError

    def stop(self) -> None:
        """Let the present transaction be the last."""
        self._over.set()
        self.join(END_LIMIT_S)
        if self.is_alive() or self.error is not None:
            raise SystemExit(f"{self.kind}: the last transaction has not ended: {self.error!r}")


def again(step: Callable[[], Any]) -> Any:
    """Repeat a step of confluent-kafka while it may be repeated."""
    until_s = time.monotonic() + END_LIMIT_S
    while True:
        try:
            return step()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > until_s:
                raise


class KafkaLoad(Load):
    """Records in all partitions of a topic."""

    kind = "kafka"

    def __init__(self, servers: str, seed: int) -> None:
        super().__init__(seed)
        self._settings = {
            "bootstrap.servers": servers,
            "transactional.id": f"campaign-{seed}",
            "topic.metadata.refresh.interval.ms": 500,
            "reconnect.backoff.max.ms": 200,
        }
        self._open()

    def _open(self) -> None:
        self._producer = Producer(self._settings)
        again(lambda: self._producer.init_transactions(10))

    def one(self, name: str, *, commits: bool) -> str:
        """Whatever fails before the commit is asked for ends with an abort."""
        is_asked = False
        producer = self._producer
        try:
            producer.begin_transaction()
            for index in range(PARTITIONS):
                producer.produce(KAFKA_TOPIC, name, partition=index)
            producer.flush(END_LIMIT_S)
            is_asked = commits
            end = producer.commit_transaction if commits else producer.abort_transaction
            again(lambda: end(10))
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                with suppress(KafkaException):
                    again(lambda: producer.abort_transaction(10))
                    return ABORTED
            self._open()
            return UNKNOWN if is_asked else ABORTED
        return COMMITTED if commits else ABORTED


class PulsarLoad(Load):
    """Messages in four topics, and an acknowledgement; each step asks the topic's broker."""

    kind = "pulsar"

    def __init__(self, brokers: list[BrokerProcess], seed: int) -> None:
        super().__init__(seed)
        self._brokers = brokers
        self._links: dict[str, RawClient] = {}
        self.inputs: dict[str, bytes] = {}
        """What each transaction has acknowledged."""
        self.sent: list[bytes] = []

    def at(self, topic: str) -> TransactionClient:
        """A client of the broker that serves a topic. Raises OSError, ClientError."""
        path = f"/lookup/v2/topic/{topic.replace('://', '/')}"
        for broker in self._random.sample(self._brokers, len(self._brokers)):
            url = f"http://127.0.0.1:{broker.http_port}{path}"
            with suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:
                found = json.loads(answer.read())["brokerUrl"]
                break
        else:
            raise ConnectionError(f"no broker looks {topic} up")
        return TransactionClient(RawClient.from_url(found, timeout_s=5))

    def _ask(self, topic: str, ask: Callable[[TransactionClient], Any]) -> Any:
        client = self.at(topic)
        try:
            return ask(client)
        finally:
            client.raw.close()

    def _until(self, topic: str, ask: Callable[[TransactionClient], Any]) -> Any:
        until_s = time.monotonic() + END_LIMIT_S
        while True:
            try:
                return self._ask(topic, ask)
            except RequestRefusedError as refusal:
                if refusal.error in (
                    pb.ServerError.TransactionNotFound,
                    pb.ServerError.InvalidTxnStatus,
                ):
                    raise
                last: Exception = refusal
            except (OSError, ClientError) as error:
                last = error
            if time.monotonic() > until_s:
                raise last
            time.sleep(0.2)

    def one(self, name: str, *, commits: bool) -> str:
        """Whatever fails before its end is asked for ends with an abort."""
        txn = self._until(COORDINATOR, lambda client: client.begin(timeout_ms=30_000))
        try:
            self._work(name, txn)
        except (OSError, ClientError):
            commits = False
        try:
            self._until(COORDINATOR, lambda client: client.end(txn, committed=commits))
        except RequestRefusedError:
            return UNKNOWN  # an answer was lost; or its time was over
        return COMMITTED if commits else ABORTED

    def _work(self, name: str, txn: Any) -> None:
        def send_input(client: TransactionClient) -> None:
            client.raw.subscribe(INPUT, "s", sub_type=pb.CommandSubscribe.Shared, earliest=True)
            client.raw.create_producer(INPUT).send(name.encode())
            self.sent.append(name.encode())

        def acknowledge(client: TransactionClient) -> None:
            consumer = client.raw.subscribe(
                INPUT, "s", sub_type=pb.CommandSubscribe.Shared, earliest=True
            )
            consumer.flow(1)
            message = consumer.receive()
            self.inputs[name] = bytes(payload_of(message.headers_and_payload))
            client.ack(consumer, message.message_id, txn)

        def create(topic: str, client: TransactionClient) -> None:
            client.raw.create_producer(topic)

        def send(topic: str, client: TransactionClient) -> None:
            producer = client.raw.create_producer(topic)
            client.send(producer, name.encode(), txn)

        self._ask(INPUT, send_input)
        for topic in OUTPUTS:
            self._ask(topic, partial(create, topic))
        self._ask(COORDINATOR, lambda client: client.add(txn, *OUTPUTS))
        for topic in OUTPUTS:
            self._ask(topic, partial(send, topic))
        self._ask(INPUT, acknowledge)

    def read(self, topic: str, name: str) -> list[bytes]:
        """All that a new subscription gets, or what is left of one that there is."""

        def drain(client: TransactionClient) -> list[bytes]:
            consumer = client.raw.subscribe(
                topic, name, sub_type=pb.CommandSubscribe.Shared, earliest=True
            )
            consumer.flow(100_000)
            found = []
            with suppress(WaitTimeoutError):
                while True:
                    message = consumer.receive(timeout_s=SILENCE_S)
                    found.append(bytes(payload_of(message.headers_and_payload)))
            return found

        found: list[bytes] = self._until(topic, drain)
        return found


def read_kafka(servers: str, wanted: int) -> list[list[str]]:
    """The committed records of each partition, to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    found: list[list[str]] = []
    for index in range(PARTITIONS):
        consumer.assign([TopicPartition(KAFKA_TOPIC, index, 0)])
        values: list[str] = []
        until_s = time.monotonic() + END_LIMIT_S
        while time.monotonic() < until_s:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                values.append((message.value() or b"").decode())
            elif message is not None and len(values) >= wanted:
                break
        found.append(values)
    consumer.close()
    return found


def wrong_in(outcomes: dict[str, str], places: list[list[str]]) -> list[str]:
    """What is not as the outcomes say."""
    counts = [Counter(values) for values in places]
    wrong = []
    for name, outcome in outcomes.items():
        seen = {count[name] for count in counts}
        allowed = {COMMITTED: ({1},), ABORTED: ({0},), UNKNOWN: ({0}, {1})}[outcome]
        if seen not in allowed:
            wrong.append(f"{name}, {outcome}: {[count[name] for count in counts]}")
    return wrong


def event(chance: random.Random, brokers: list[BrokerProcess]) -> str:
    """One broker ends, and is there again."""
    chosen, kind = chance.choice(brokers), chance.choice(["kill", "kill", "end", "pause", "pause"])
    number = {"kill": signal.SIGKILL, "end": signal.SIGTERM, "pause": signal.SIGSTOP}[kind]
    chosen.signal(number)
    if kind == "pause":
        time.sleep(PAUSE_S)
        chosen.signal(signal.SIGCONT)
    else:
        chosen.ended()
        chosen.start()
    return f"{kind} of {chosen.number}"


def campaign(arguments: argparse.Namespace, store: str, folder: Path) -> dict[str, Any]:
    """The whole run."""
    os.environ["PULSEMARK_TRANSACTION_COORDINATOR_ENABLED"] = "true"
    os.environ["PULSEMARK_KAFKA_DEFAULT_PARTITIONS"] = str(PARTITIONS)
    chance = random.Random(arguments.seed)
    ports = [free_port() for _ in range(arguments.brokers)]
    brokers = [
        BrokerProcess(number, store, folder, "--kafka-port", str(port))
        for number, port in enumerate(ports)
    ]
    servers = ",".join(f"127.0.0.1:{port}" for port in ports)
    with ExitStack() as at_end:
        for one in brokers:
            one.start()
            at_end.callback(one.kill)
        loads = [KafkaLoad(servers, arguments.seed), PulsarLoad(brokers, arguments.seed)]
        for load in loads:
            load.start()
        for _ in range(arguments.failovers):
            time.sleep(chance.uniform(1.0, 4.0))
            print(event(chance, brokers), flush=True)
        time.sleep(3)
        for load in loads:
            load.stop()
        kafka, pulsar = loads
        assert isinstance(pulsar, PulsarLoad)
        committed = sum(each == COMMITTED for each in kafka.outcomes.values())
        places = [[each.decode() for each in pulsar.read(topic, "all")] for topic in OUTPUTS]
        wrong = wrong_in(kafka.outcomes, read_kafka(servers, committed))
        wrong += wrong_in(pulsar.outcomes, places)
        wrong += wrong_inputs(pulsar, {*places[0]})
        return {
            "outcomes": {load.kind: Counter(load.outcomes.values()) for load in loads},
            "wrong": wrong,
        }


def wrong_inputs(load: PulsarLoad, visible: set[str]) -> list[str]:
    """Inputs that are neither acknowledged by one transaction that counts, nor there."""
    taken = Counter(load.inputs[name] for name in visible)
    left = Counter(load.read(INPUT, "s"))
    return [
        f"input {each!r}: acknowledged {taken[each]} times, {left[each]} left"
        for each in load.sent
        if taken[each] + left[each] != 1
    ]


if __name__ == "__main__":
    sys.exit(run(parser_of(__doc__), campaign))
