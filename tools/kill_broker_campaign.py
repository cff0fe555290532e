"""Kills a broker (kill -9) under load of the official client, many times on one data folder.

    python tools/kill_broker_campaign.py --cycles 100 --seed 1

One client runs through all cycles, with two producers (one sends batches) and a consumer. Each
cycle starts a broker, lets the client reconnect, and kills the broker some time after its first
acknowledgement. After the next start it reads the folder: every acknowledged message must exist,
and indexes must have no gap. At the end the consumer reads the whole subscription: it must have
received every acknowledged message at least once. Prints a table and one line of JSON. Exit code 1
if something was wrong.
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
    """A broker process, started as a user would start it."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pulsemark", "standalone", "--data-dir", str(folder),
             "--port", str(port), "--http-port", "0", "--json", "--log-level", "error"],
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


class Load:
    """One client for the whole campaign: it must reconnect after each kill."""

    def __init__(self, service_url: str) -> None:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        self.client = pulsar.Client(service_url, logger=logger)
        self.consumer = self.client.subscribe(
            TOPIC,
            SUBSCRIPTION,
            pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        self.producers = [
            self.client.create_producer(
                TOPIC,
                batching_enabled=batching,
                batching_max_publish_delay_ms=2,
                max_pending_messages=100_000,
            )
            for batching in (False, True)
        ]


@dataclass
class Campaign:
    """The acknowledged messages, and the problems found."""

    folder: Path
    port: int = 0
    """The one that the first broker picked: the client looks for the later ones there."""
    load: Load | None = None
    acked: dict[bytes, Position] = field(default_factory=dict)
    """By what each payload begins with."""
    received: set[bytes] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    ready_ms: list[float] = field(default_factory=list)
    _checked: Position = EARLIEST
    _index: int = 0
    _promised: dict[Position, list[bytes]] = field(default_factory=dict)
    """Payloads that were acknowledged since the last check."""
    _read: dict[Position, bytes] = field(default_factory=dict)
    _read_before: dict[Position, bytes] = field(default_factory=dict)
    """Entries read by the last two checks: receipts may come before or after a check."""

    def cycle(self, seed: int) -> None:
        """Start, load, kill; the check of the cycle before comes with the start."""
        random = Random(seed)
        promised, self._promised = self._promised, {}
        broker = BrokerProcess(self.folder, self.port)
        self.port = int(broker.service_url.rpartition(":")[2])
        self.ready_ms.append(broker.ready_ms)
        self.check(seed, promised)
        if self.load is None:
            self.load = Load(broker.service_url)
        try:
            self._publish(self.load, random, seed, broker)
        finally:
            broker.kill()

    def _publish(self, load: Load, random: Random, seed: int, broker: BrokerProcess) -> None:
        """Send until the broker is killed, some time after it has begun to acknowledge."""
        number, acked_before = 0, len(self.acked)
        killer: threading.Timer | None = None
        give_up_at_s = time.monotonic() + 30
        while broker.process.poll() is None:
            for _ in range(random.randint(1, 30)):
                number += 1
                name = b"%d-%d-" % (seed, number)
                payload = name + random.randbytes(random.choice([0, 100, 2000]))
                acknowledged = self._acknowledge(name, payload)
                random.choice(load.producers).send_async(payload, acknowledged)
            self._receive(load.consumer, 20, 5)
            if killer is None and len(self.acked) > acked_before:
                killer = threading.Timer(random.random(), broker.kill)
                killer.start()
            elif killer is None and time.monotonic() > give_up_at_s:
                self.problems.append(f"seed {seed}: nothing was acknowledged within 30 s")
                return

    def _acknowledge(
        self, name: bytes, payload: bytes
    ) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        def acknowledged(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            if result == pulsar.Result.Ok:
                position = Position(message_id.ledger_id(), message_id.entry_id())
                self.acked[name] = position
                self._promised.setdefault(position, []).append(payload)

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

    def check(self, seed: int, promised: dict[Position, list[bytes]]) -> None:
        """Read what came into the folder since the last check, and compare.

        The client is at it again meanwhile: what is read before its receipt has come is kept.
        """
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
                    self._read[entry.position] = bytes(entry.body)
                last = part[-1].position
                self._checked = Position(last.ledger_id, last.entry_id + 1)
        for position, payloads in promised.items():
            body = self._read.get(position, self._read_before.get(position))
            if body is None:
                self.problems.append(f"seed {seed}: acknowledged entry {position} is lost")
            elif any(payload not in body for payload in payloads):
                self.problems.append(f"seed {seed}: wrong bytes at {position}")
        self._read_before, self._read = self._read, {}

    def drain(self) -> None:
        """Check that the subscription received every acknowledged message."""
        promised, self._promised = self._promised, {}
        broker = BrokerProcess(self.folder, self.port)
        self.check(-1, promised)
        assert self.load is not None
        for producer in self.load.producers:
            producer.flush()
        while self._receive(self.load.consumer, 1000, 3000):
            pass
        for name in self.acked.keys() - self.received:
            self.problems.append(f"never received: {name!r} at {self.acked[name]}")
        self.load.client.close()
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
