"""kill -9 of a broker under load through the official client, over and over on one data folder.

    python tools/kill_broker_campaign.py --cycles 100 --seed 1

Each cycle starts a broker, produces through two producers (one batches) and consumes through a
subscription, kills the broker, and looks into the folder once the next one is up: every message
that was acknowledged to a producer is there, indexes have no gap. At the end the subscription is
drained: everything that was acknowledged to a producer has been received at least once. Prints a
table and one line of JSON; exit code 1 if anything was wrong.
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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pulsar

from pulsemark.ledger import EARLIEST, FolderReader, Position

TOPIC = "persistent://public/default/killed"
SUBSCRIPTION = "campaign"


class BrokerProcess:
    """A broker as a user starts it."""

    def __init__(self, folder: Path) -> None:
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pulsemark", "standalone", "--data-dir", str(folder),
             "--port", "0", "--http-port", "0", "--json", "--log-level", "error"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.service_url: str = json.loads(self.process.stdout.readline())["service_url"]
        self.ready_ms = 1000 * (time.perf_counter() - began)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it and wait until it is gone."""
        self.process.send_signal(number)
        self.process.wait(30)


def subscribe(client: pulsar.Client) -> pulsar.Consumer:
    """The campaign's one subscription."""
    return client.subscribe(
        TOPIC,
        SUBSCRIPTION,
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )


@dataclass
class Campaign:
    """What was promised, and what was found."""

    folder: Path
    acked: dict[bytes, Position] = field(default_factory=dict)
    """By what each payload begins with."""
    received: set[bytes] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    ready_ms: list[float] = field(default_factory=list)
    _checked: Position = EARLIEST
    _index: int = 0
    _unchecked: dict[Position, list[bytes]] = field(default_factory=dict)

    def cycle(self, seed: int) -> None:
        """Start, load, kill; the check of the cycle before comes with the start."""
        random = Random(seed)
        broker = BrokerProcess(self.folder)
        self.ready_ms.append(broker.ready_ms)
        self.check(seed)
        client = pulsar.Client(
            broker.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        )
        try:
            threading.Timer(0.2 + random.random() * 0.8, broker.kill).start()
            self._load(client, random, seed, broker)
        finally:
            broker.kill()
            client.shutdown()

    def _load(
        self, client: pulsar.Client, random: Random, seed: int, broker: BrokerProcess
    ) -> None:
        try:
            consumer = subscribe(client)
            producers = [
                client.create_producer(
                    TOPIC,
                    batching_enabled=batching,
                    batching_max_publish_delay_ms=2,
                    block_if_queue_full=True,
                    send_timeout_millis=2000,
                )
                for batching in (False, True)
            ]
            number = 0
            while broker.process.poll() is None:
                for _ in range(random.randint(1, 30)):
                    number += 1
                    name = b"%d-%d-" % (seed, number)
                    payload = name + random.randbytes(random.choice([0, 100, 2000]))
                    acknowledged = self._acknowledge(name, payload)
                    random.choice(producers).send_async(payload, acknowledged)
                self._receive(consumer, 20, 5)
        except pulsar.PulsarException:
            pass  # the broker is gone

    def _acknowledge(
        self, name: bytes, payload: bytes
    ) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        def acknowledged(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            if result == pulsar.Result.Ok:
                position = Position(message_id.ledger_id(), message_id.entry_id())
                self.acked[name] = position
                self._unchecked.setdefault(position, []).append(payload)

        return acknowledged

    def _receive(self, consumer: pulsar.Consumer, count: int, timeout_ms: int) -> int:
        got = 0
        try:
            for _ in range(count):
                message = consumer.receive(timeout_ms)
                got += 1
                self.received.add(b"-".join(message.data().split(b"-", 2)[:2]) + b"-")
                consumer.acknowledge(message)
        except pulsar.PulsarException:
            pass
        return got

    def check(self, seed: int) -> None:
        """Read what came into the folder since the last check, and compare."""
        with FolderReader(self.folder) as reader:
            if TOPIC not in reader.topics():
                if self.acked:
                    self.problems.append(f"seed {seed}: the topic is gone")
                return
            log = reader.log(TOPIC)
            while part := log.read(self._checked, max_entries=1000):
                for entry in part:
                    if entry.first_index != self._index:
                        self.problems.append(
                            f"seed {seed}: {entry.position} has index {entry.first_index}, "
                            f"not {self._index}"
                        )
                    self._index = entry.index + 1
                    body = bytes(entry.body)
                    for payload in self._unchecked.pop(entry.position, []):
                        if payload not in body:
                            self.problems.append(f"seed {seed}: wrong bytes at {entry.position}")
                last = part[-1].position
                self._checked = Position(last.ledger_id, last.entry_id + 1)
            for position in self._unchecked:
                self.problems.append(f"seed {seed}: acknowledged entry {position} is lost")
            self._unchecked.clear()

    def drain(self) -> None:
        """All that was acknowledged to a producer has come to the subscription."""
        broker = BrokerProcess(self.folder)
        self.check(-1)
        client = pulsar.Client(
            broker.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        )
        try:
            consumer = subscribe(client)
            while self._receive(consumer, 1000, 3000):
                pass
            for name in self.acked.keys() - self.received:
                self.problems.append(f"never received: {name!r} at {self.acked[name]}")
        finally:
            client.close()
            broker.kill(signal.SIGTERM)


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        campaign = Campaign(Path(temporary) / "data")
        for number in range(arguments.cycles):
            campaign.cycle(arguments.seed + number)
            if number % 50 == 49:
                done = f"{number + 1} cycles, {len(campaign.acked)} acknowledged"
                print(f"{done}, {len(campaign.problems)} problems", file=sys.stderr, flush=True)
        campaign.drain()
    ready_ms = sorted(campaign.ready_ms)
    report = {
        "campaign": "kill -9 of a broker under the official client",
        "cycles": arguments.cycles,
        "first_seed": arguments.seed,
        "acknowledged": len(campaign.acked),
        "received": len(campaign.received),
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
