"""Kills a broker (kill -9) under load of the official client, many times on one data folder.

    python campaigns/kill_broker_campaign.py --cycles 100 --seed 1 [--only LANE ...]

One client runs through all cycles. It has a producer and consumers for each lane: a topic with a
kind of subscription and of messages (`LANES`). Each cycle starts a broker, lets the client
reconnect, and kills the broker some time after its first acknowledgement. Then, for each lane:

1. every acknowledged message is in the folder, where its receipt said, and indexes have no gap;
2. stamps do not decrease;
3. a message is not delivered again, unless it was acknowledged within ACK_LOSS_S before a kill
   (acknowledgements without a receipt are stored every second, as in Pulsar) or while the client
   was not connected;
4. with deduplication each message is stored once; with Key_Shared the messages of a key arrive in
   order; a delayed message does not arrive early.

At the end the consumers read everything: each acknowledged message must have been received, with
its bytes. Prints a table and one line of JSON. Exit code 1 if something was wrong.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pulsar

from pulsemark.ledger import EARLIEST, Entry, FolderReader, Position

SUBSCRIPTION = "campaign"
#: Chunks are of this size, so that a chunked message is small.
SETTINGS = "maxMessageSize=65536\n"
#: Acknowledgements are sent after up to 0.1 s by the client, and stored every second by the broker.
ACK_LOSS_S = 3.0
#: After the first receipt of a new broker all consumers are connected again within this time.
RECONNECT_S = 5.0
#: Pulsar may deliver a delayed message so much early.
DELAY_TOLERANCE_S = 1.1
PATH = "public/default/"


class BrokerProcess:
    """A broker process, started as a user would start it."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        began = time.perf_counter()
        config = folder.parent / "broker.conf"
        config.write_text(SETTINGS)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pulsemark", "standalone", "--data-dir", str(folder),
             "--config", str(config), "--port", str(port), "--http-port", "0", "--json",
             "--log-level", "error"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        self.service_url: str = said["service_url"]
        self.http_url: str = said["http_url"]
        self.ready_ms = 1000 * (time.perf_counter() - began)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill it and wait until it has ended."""
        self.process.send_signal(number)
        self.process.wait(30)

    def ask(self, method: str, path: str, body: bytes) -> None:
        """A change over REST."""
        request = urllib.request.Request(
            f"{self.http_url}/admin/v2/persistent/{PATH}{path}", body, method=method,
            headers={"Content-Type": "application/json"},
        )  # fmt: skip
        urllib.request.urlopen(request, timeout=30).read()

    def left(self, topic: str) -> tuple[int, int]:
        """What the subscription has not acknowledged, and what of it its consumers have."""
        url = f"{self.http_url}/admin/v2/{topic.replace('://', '/')}/stats"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found = json.loads(answer.read())["subscriptions"][SUBSCRIPTION]
        return found["msgBacklog"], found["unackedMessages"]


Outages = list[tuple[float, float]]
"""Times between which acknowledgements can be lost."""


@dataclass(frozen=True)
class Kind:
    """What a lane's messages, producers and consumers are like."""

    consumer_type: Any = pulsar.ConsumerType.Shared
    consumers: int = 1
    #: The options of each producer.
    producers: tuple[dict[str, Any], ...] = ({"batching_enabled": False},)
    sizes: tuple[int, ...] = (0, 100, 2000)
    partitions: int = 0
    keys: int = 0
    deduplicates: bool = False
    is_delayed: bool = False


BATCHING = {"batching_enabled": True, "batching_max_publish_delay_ms": 2}
LANES = {
    "shared": Kind(producers=({"batching_enabled": False}, BATCHING)),
    "exclusive": Kind(consumer_type=pulsar.ConsumerType.Exclusive, producers=(BATCHING,)),
    "key-shared": Kind(consumer_type=pulsar.ConsumerType.KeyShared, consumers=2, keys=7),
    "chunks": Kind(
        producers=({"batching_enabled": False, "chunking_enabled": True},),
        sizes=(100, 100_000, 200_000),
        # Without it a producer that sends again stores chunks twice, and the client may not get a
        # whole message from them.
        deduplicates=True,
    ),
    "deduplicated": Kind(
        producers=({"batching_enabled": False, "producer_name": "once"},
                   {**BATCHING, "producer_name": "once-batched"}),
        deduplicates=True,
    ),
    "delayed": Kind(is_delayed=True),
    "partitioned": Kind(producers=({"batching_enabled": False}, BATCHING), partitions=3),
}  # fmt: skip


@dataclass
class LogCheck:
    """What was read of one stored topic, and what its receipts promised."""

    topic: str
    promised: dict[Position, list[bytes]] = field(default_factory=dict)
    _due: dict[Position, list[bytes]] = field(default_factory=dict)
    _at: Position = EARLIEST
    _index: int = 0
    _time_ms: int = 0
    _read: dict[Position, bytes] = field(default_factory=dict)
    _read_before: dict[Position, bytes] = field(default_factory=dict)

    def begin(self) -> None:
        """The receipts so far are of the broker that was killed: `check` looks for them."""
        self._due, self.promised = self.promised, {}

    def check(self, reader: FolderReader) -> list[str]:
        """Read what came into the folder since the last check, and compare."""
        if self.topic not in reader.topics():
            return [f"{self.topic} is gone"] if self._due else []
        problems = []
        log = reader.log(self.topic)
        while part := log.read(self._at, max_entries=1000):
            for entry in part:
                if entry.first_index != self._index:
                    wrong = f"index {entry.first_index}, not {self._index}"
                    problems.append(f"{self.topic} {entry.position} has {wrong}")
                if entry.time_ms < self._time_ms:
                    problems.append(f"{self.topic} {entry.position} is stamped earlier")
                self._time_ms = max(self._time_ms, entry.time_ms)
                self._index = entry.index + 1
                self._read[entry.position] = bytes(entry.body)
            last = part[-1].position
            self._at = Position(last.ledger_id, last.entry_id + 1)
        for position, names in self._due.items():
            body = self._read.get(position, self._read_before.get(position))
            if body is None:
                problems.append(f"{self.topic}: acknowledged entry {position} is lost")
            elif any(name not in body for name in names):
                problems.append(f"{self.topic}: wrong bytes at {position}")
        # The client goes on meanwhile: what is read before its receipt has come is kept.
        self._read_before, self._read = self._read, {}
        return problems


def entries_of(reader: FolderReader, topic: str) -> Iterator[Entry]:
    """All entries that are stored of a topic."""
    at, log = EARLIEST, reader.log(topic)
    while part := log.read(at, max_entries=1000):
        yield from part
        at = Position(part[-1].position.ledger_id, part[-1].position.entry_id + 1)


class Lane:
    """One topic's producers and consumers, and what they know."""

    def __init__(self, name: str, kind: Kind) -> None:
        self.name = name
        self.kind = kind
        self.topic = f"persistent://{PATH}{name}"
        stored = [f"{self.topic}-partition-{n}" for n in range(kind.partitions)] or [self.topic]
        self.logs = [LogCheck(topic) for topic in stored]
        self.problems: list[str] = []
        self.sent: dict[bytes, int] = {}
        """Checksums by name: what a payload begins with."""
        self.acked: set[bytes] = set()
        self.duplicates: set[bytes] = set()
        """Names whose receipt said that the broker had stored them before."""
        self.received: dict[bytes, tuple[int, ...]] = {}
        """By name: the id of the message that had it first."""
        self.again = 0
        self._acked_at_s: dict[tuple[int, ...], float] = {}
        self._last_of_key: dict[str, int] = {}
        self._due_s: dict[bytes, float] = {}

    def prepare(self, broker: BrokerProcess) -> None:
        """Make the topic."""
        if self.kind.partitions:
            broker.ask("PUT", f"{self.name}/partitions", str(self.kind.partitions).encode())
        elif self.kind.deduplicates:
            broker.ask("PUT", self.name, b"")
            broker.ask("POST", f"{self.name}/deduplicationEnabled", b"true")

    def open(self, client: pulsar.Client) -> None:
        """Open producers and consumers."""
        # Each partition has its own consumer. The client's consumer of all partitions keeps what it
        # has received while it reconnects, so it hands out the same messages again.
        self.consumers = [
            client.subscribe(
                log.topic,
                SUBSCRIPTION,
                self.kind.consumer_type,
                initial_position=pulsar.InitialPosition.Earliest,
            )
            for log in self.logs
            for _ in range(self.kind.consumers)
        ]
        options = {"max_pending_messages": 100_000, "send_timeout_millis": 0}
        self.producers = [
            client.create_producer(self.topic, **{**options, **more})
            for more in self.kind.producers
        ]

    def send(self, random: Random, cycle: int) -> None:
        """Send one message."""
        number = len(self.sent)
        name = b"%d-%d-" % (cycle, number)
        payload = name + random.randbytes(random.choice(self.kind.sizes))
        self.sent[name] = zlib.crc32(payload)
        # A chunk has only a part of the payload.
        is_whole = len(payload) < 50_000

        def acknowledged(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            if result == pulsar.Result.Ok:
                self.acked.add(name)
                position = Position(message_id.ledger_id(), message_id.entry_id())
                if position.entry_id < 0:
                    self.duplicates.add(name)
                else:
                    log = self.logs[max(message_id.partition(), 0)]
                    log.promised.setdefault(position, []).append(name if is_whole else b"")

        more: dict[str, Any] = {}
        if self.kind.keys:
            more["partition_key"] = f"k{random.randrange(self.kind.keys)}"
        if self.kind.is_delayed:
            delay_s = random.choice([0.5, 1.5, 3.0])
            more["deliver_after"] = timedelta(seconds=delay_s)
            self._due_s[name] = time.time() + delay_s
        random.choice(self.producers).send_async(payload, acknowledged, **more)

    def name_missing(self, folder: Path, broker: BrokerProcess) -> None:
        """Say which acknowledged messages were never received, and where they are stored."""
        missing = self.acked - self.received.keys()
        if missing:
            left = {log.topic: broker.left(log.topic) for log in self.logs}
            self.problems.insert(0, f"{self.name}: backlog and unacknowledged: {left}")
        places: dict[bytes, str] = {}
        with FolderReader(folder) as reader:
            for log in self.logs if missing else ():
                for entry in entries_of(reader, log.topic):
                    body, place = bytes(entry.body), str(entry.position)
                    places.update({name: place for name in missing if name in body})
        for name in sorted(missing):
            text = "acknowledged as a duplicate, " if name in self.duplicates else ""
            text += f"stored at {places[name]}" if name in places else "not stored"
            self.problems.insert(0, f"{self.name}: never received: {name!r}, {text}")

    def receive(self, count: int, timeout_ms: int, outages: Outages) -> int:
        """Receive and acknowledge up to so many messages of each consumer."""
        got = 0
        for consumer in self.consumers:
            try:
                for _ in range(count):
                    message = consumer.receive(timeout_ms)
                    self._take(message, outages)
                    consumer.acknowledge(message)
                    got += 1
            except pulsar.PulsarException:
                pass
        return got

    def _take(self, message: pulsar.Message, outages: Outages) -> None:
        data, now_s = message.data(), time.monotonic()
        name = b"-".join(data.split(b"-", 2)[:2]) + b"-"
        if zlib.crc32(data) != self.sent.get(name):
            self.problems.append(f"{self.name}: {name!r} arrived with other bytes")
        found = message.message_id()
        key = found.partition(), found.ledger_id(), found.entry_id(), found.batch_index()
        before_s = self._acked_at_s.get(key)
        if before_s is not None:
            self.again += 1
            if not any(begin_s <= before_s <= end_s for begin_s, end_s in outages):
                text = f"acknowledged {now_s - before_s:.1f} s before"
                self.problems.append(f"{self.name}: {name!r} again, {text}")
        self._acked_at_s[key] = now_s
        first = self.received.setdefault(name, key)
        if self.kind.deduplicates and first != key:
            self.problems.append(f"{self.name}: {name!r} is stored twice, {first} and {key}")
        if self.kind.is_delayed and time.time() < self._due_s[name] - DELAY_TOLERANCE_S:
            self.problems.append(f"{self.name}: {name!r} arrived early")
        if self.kind.keys and before_s is None and first == key:
            number = int(name.split(b"-")[1])
            if number < self._last_of_key.get(message.partition_key(), -1):
                self.problems.append(f"{self.name}: {name!r} after a later one of its key")
            self._last_of_key[message.partition_key()] = number


@dataclass
class Campaign:
    """The lanes, and what was measured."""

    folder: Path
    lanes: list[Lane]
    port: int = 0
    """The one that the first broker picked: the client looks for the later ones there."""
    client: pulsar.Client | None = None
    ready_ms: list[float] = field(default_factory=list)
    outages: Outages = field(default_factory=list)
    _problems: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """All that was wrong."""
        of_lanes = (text for lane in self.lanes for text in lane.problems[:100])
        return [*self._problems, *of_lanes]

    @property
    def acknowledged(self) -> int:
        """Messages with a receipt, of all lanes."""
        return sum(len(lane.acked) for lane in self.lanes)

    def start(self) -> BrokerProcess:
        """The next broker, after a check of what the one before has left."""
        for lane in self.lanes:
            for log in lane.logs:
                log.begin()
        broker = BrokerProcess(self.folder, self.port)
        self.port = int(broker.service_url.rpartition(":")[2])
        self.ready_ms.append(broker.ready_ms)
        with FolderReader(self.folder) as reader:
            for lane in self.lanes:
                for log in lane.logs:
                    lane.problems += log.check(reader)
        return broker

    def cycle(self, seed: int) -> None:
        """Start, load, kill; the check of the cycle before comes with the start."""
        random = Random(seed)
        broker = self.start()
        try:
            if self.client is None:
                logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
                self.client = pulsar.Client(broker.service_url, logger=logger)
                for lane in self.lanes:
                    lane.prepare(broker)
                    lane.open(self.client)
            self._publish(random, seed, broker)
        finally:
            self.kill(broker)

    def kill(self, broker: BrokerProcess) -> None:
        """Kill -9. From some time before, until the client is back, acknowledgements are lost."""
        if broker.process.poll() is None:
            self.outages.append((time.monotonic() - ACK_LOSS_S, float("inf")))
        broker.kill()

    def _publish(self, random: Random, seed: int, broker: BrokerProcess) -> None:
        """Send until the broker is killed, some time after it has begun to acknowledge."""
        before = self.acknowledged
        killer: threading.Timer | None = None
        give_up_at_s = time.monotonic() + 60
        while broker.process.poll() is None:
            for lane in self.lanes:
                for _ in range(random.randint(1, 8)):
                    lane.send(random, seed)
                lane.receive(10, 2, self.outages)
            if killer is None and self.acknowledged > before:
                self._connected()
                killer = threading.Timer(random.random() * 1.5, self.kill, (broker,))
                killer.start()
            elif killer is None and time.monotonic() > give_up_at_s:
                self._problems.append(f"seed {seed}: nothing was acknowledged within 60 s")
                return
        if killer is not None:
            killer.join()

    def _connected(self) -> None:
        if self.outages:
            self.outages[-1] = (self.outages[-1][0], time.monotonic() + RECONNECT_S)

    def _receive_all(self) -> None:
        quiet_since_s = time.monotonic()
        while time.monotonic() < quiet_since_s + 8:
            if sum(lane.receive(1000, 50, self.outages) for lane in self.lanes):
                quiet_since_s = time.monotonic()

    def drain(self) -> None:
        """Check that the subscriptions received every acknowledged message."""
        broker = self.start()
        assert self.client is not None
        for lane in self.lanes:
            for producer in lane.producers:
                producer.flush()
        self._connected()
        self._receive_all()
        for lane in self.lanes:
            # The client may keep chunks whose message did not become whole, unacknowledged.
            if lane.name == "chunks" and lane.acked - lane.received.keys():
                lane.consumers[0].redeliver_unacknowledged_messages()
                self._connected()
        self._receive_all()
        for lane in self.lanes:
            lane.name_missing(self.folder, broker)
        self.client.close()
        broker.kill(signal.SIGTERM)


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=LANES, default=list(LANES))
    arguments = parser.parse_args()
    began = time.monotonic()
    lanes = [Lane(name, LANES[name]) for name in arguments.only]
    with tempfile.TemporaryDirectory() as temporary:
        campaign = Campaign(Path(temporary) / "data", lanes)
        for number in range(arguments.cycles):
            campaign.cycle(arguments.seed + number)
            if number % 50 == 49:
                done = f"{number + 1} cycles, {campaign.acknowledged} acknowledged"
                print(f"{done}, {len(campaign.problems)} problems", file=sys.stderr, flush=True)
        campaign.drain()
    ready_ms = sorted(campaign.ready_ms)
    print("| lane | acknowledged | received | delivered again after a kill |\n|---|---|---|---|")
    for lane in lanes:
        print(f"| {lane.name} | {len(lane.acked)} | {len(lane.received)} | {lane.again} |")
    report = {
        "campaign": "kill -9 of a broker under the official client",
        "cycles": arguments.cycles,
        "first_seed": arguments.seed,
        "acknowledged": campaign.acknowledged,
        "received": sum(len(lane.received) for lane in lanes),
        "delivered_again": sum(lane.again for lane in lanes),
        "problems": len(campaign.problems),
        "ready_ms_median": round(ready_ms[len(ready_ms) // 2], 1),
        "ready_ms_max": round(ready_ms[-1], 1),
        "seconds": round(time.monotonic() - began, 1),
    }
    for name, value in report.items():
        print(f"{name:18} {value}")
    for problem in campaign.problems[:20]:
        print(problem, file=sys.stderr)
    print(json.dumps({**report, "found": campaign.problems[:20]}))
    return 1 if campaign.problems else 0


if __name__ == "__main__":
    sys.exit(main())
