"""Kills brokers and fills disks under clients of Kafka that are idempotent.

    python campaigns/kafka_campaigns.py kill --cycles 20 --seed 1
    python campaigns/kafka_campaigns.py full-disk --cycles 4

Producers of librdkafka and of kafka-python (acks=all, idempotent) and a consumer that commits run
through all cycles. `kill`: each cycle starts a broker on the same folder and port, and kills it
(kill -9) under load. `full-disk`: the data folder is on a file system of 16 MiB (Linux, as root),
which each cycle fills and frees again; meanwhile what is not acknowledged may fail, and nothing may
hang. What the producers send in all cycles is a third of that disk: else their own messages, which
no cycle removes, fill it for good, and the last ones wait until their producer gives up.

At the end each acknowledged message must be in the log once, no message twice, each producer's
messages in their order, and the committed offset not before the last commit that was acknowledged.
Exit code 1 if something was wrong, 3 if mounting is not allowed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import confluent_kafka
import kafka
import kafka.errors
from full_disk_campaign import DISK_BYTES, MAY_NOT_MOUNT, small_disk

TOPIC = "campaign"
GROUP = "campaign-group"
WAIT_S = 60
FILL_S = 3.0
SHARE_OF_DISK = 3


class BrokerProcess:
    """A broker process with a Kafka port."""

    def __init__(self, folder: Path, port: int, log: Path) -> None:
        command = [
            *(sys.executable, "-m", "pulsemark", "standalone", "--json", "--http-port", "0"),
            *("--port", "0", "--kafka-port", str(port), "--data-dir", str(folder)),
            *("--config", str(log.with_suffix(".conf"))),
        ]
        log.with_suffix(".conf").write_text("pulsemarkKafkaGroupInitialRebalanceDelayMs=0\n")
        with log.open("ab") as file:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the broker does not start:\n{log.read_text()[-3000:]}")
        self.url: str = json.loads(line)["kafka_url"]

    def end(self, number: int = signal.SIGKILL) -> None:
        """Send a signal and wait."""
        self.process.send_signal(number)
        self.process.wait(WAIT_S)


@dataclass
class Campaign:
    """What clients were told."""

    random: Random
    acked: dict[bytes, int | None] = field(default_factory=dict)
    """The offset of each acknowledged message; None: the broker did not say it."""
    committed: int = 0
    failed: int = 0
    problems: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    sent_bytes: int = 0
    allowed_bytes: float = math.inf
    """Producers pause above it."""

    def value(self, name: bytes, number: int) -> bytes | None:
        """The next value of a producer; None: it has to pause."""
        if self.sent_bytes >= self.allowed_bytes:
            time.sleep(0.01)
            return None
        value = (name + b"%011d" % number).ljust(self.random.choice([12, 100, 3000]), b".")
        self.sent_bytes += len(value)
        return value

    def run_librdkafka(self, url: str) -> None:
        """Send until `stop`, then wait for all answers."""
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": url, "enable.idempotence": True, "linger.ms": 2,
             "reconnect.backoff.max.ms": 500, "message.timeout.ms": 120_000, "log_level": 0}
        )  # fmt: skip

        def reported(error: Any, message: Any) -> None:
            if error is None:
                self.acked[message.value()[:12]] = message.offset()
            else:
                self.failed += 1

        for number in itertools.count():
            if self.stop.is_set():
                break
            value = self.value(b"L", number)
            if value is not None:
                with suppress(BufferError):
                    producer.produce(TOPIC, value, on_delivery=reported)
            producer.poll(0.001)
        if left := producer.flush(WAIT_S):
            self.problems.append(f"librdkafka: {left} messages have no answer")

    def run_kafka_python(self, url: str) -> None:
        """Send until `stop`, then wait for all answers."""
        producer = kafka.KafkaProducer(
            bootstrap_servers=url, linger_ms=2, reconnect_backoff_max_ms=500,
            delivery_timeout_ms=120_000, compression_type="gzip", max_block_ms=WAIT_S * 1000,
        )  # fmt: skip
        sent = []
        for number in itertools.count():
            if self.stop.is_set():
                break
            value = self.value(b"P", number)
            if value is not None:
                sent.append((value[:12], producer.send(TOPIC, value)))
            time.sleep(0.002)
        for value, future in sent:
            try:
                self.acked[value] = future.get(WAIT_S).offset
            except kafka.errors.KafkaTimeoutError:
                self.problems.append("kafka-python: a message has no answer")
                break
            except kafka.errors.KafkaError:
                self.failed += 1
        producer.close()

    def run_consumer(self, url: str) -> None:
        """Read and commit until `stop`."""
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": url, "group.id": GROUP, "auto.offset.reset": "earliest",
             "enable.auto.commit": False, "reconnect.backoff.max.ms": 500, "log_level": 0}
        )  # fmt: skip
        consumer.subscribe([TOPIC])
        while not self.stop.is_set():
            message = consumer.poll(0.05)
            if message is None or message.error() is not None:
                continue
            with suppress(confluent_kafka.KafkaException):
                done: Any = consumer.commit(message=message, asynchronous=False)
                if done[0].error is None:
                    self.committed = max(self.committed, done[0].offset)
        consumer.close()

    def check(self, url: str) -> None:
        """Read the whole log, and the committed offset."""
        consumer = confluent_kafka.Consumer({"bootstrap.servers": url, "group.id": GROUP})
        place = confluent_kafka.TopicPartition(TOPIC, 0, 0)
        kept = consumer.committed([place], WAIT_S)[0].offset
        if max(kept, 0) < self.committed:
            self.problems.append(f"offset {self.committed} was committed, {kept} is kept")
        _, end = consumer.get_watermark_offsets(place, WAIT_S)
        consumer.assign([place])
        found: dict[int, bytes] = {}
        until_s = time.monotonic() + WAIT_S
        while consumer.position([place])[0].offset < end and time.monotonic() < until_s:
            for message in consumer.consume(10_000, 0.5):
                if message.error() is None:
                    found[message.offset() or 0] = (message.value() or b"")[:12]
        consumer.close()
        counts = Counter(found.values())
        self.problems += [
            f"{value!r} is {n} times in the log" for value, n in counts.items() if n > 1
        ]
        # A broker may not know the offset any more of a message that was stored before.
        self.problems += [
            f"{value!r} was acknowledged as stored before, and is not in the log"
            for value, offset in self.acked.items()
            if offset is None and value not in counts
        ]
        self.problems += [
            f"{value!r} was acknowledged at {offset}, where {found.get(offset)!r} is"
            for value, offset in self.acked.items()
            if offset is not None and found.get(offset) != value
        ]
        for name in (b"L", b"P"):
            values = [value for _, value in sorted(found.items()) if value.startswith(name)]
            if values != sorted(values):
                self.problems.append(f"the messages of {name!r} are not in their order")


def killed(campaign: Campaign, folder: Path, log: Path, cycles: int) -> BrokerProcess:
    """Kill brokers under load; the last one is still running."""
    broker = BrokerProcess(folder / "data", 0, log)
    port = int(broker.url.rpartition(":")[2])
    threads = started(campaign, broker.url)
    for _ in range(cycles):
        before, until_s = len(campaign.acked), time.monotonic() + WAIT_S
        while len(campaign.acked) < before + 5 and time.monotonic() < until_s:
            time.sleep(0.05)
        if time.monotonic() >= until_s:
            campaign.problems.append(f"nothing was acknowledged within {WAIT_S} s of a start")
        time.sleep(campaign.random.random())
        broker.end()
        broker = BrokerProcess(folder / "data", port, log)
    ended(campaign, threads)
    return broker


def filled(campaign: Campaign, folder: Path, log: Path, cycles: int) -> BrokerProcess:
    """Fill the disk under load and free it again; the broker is still running."""
    broker = BrokerProcess(folder / "data", 0, log)
    share_bytes = DISK_BYTES / SHARE_OF_DISK / (2 * cycles)
    campaign.allowed_bytes = 0
    threads = started(campaign, broker.url)
    for cycle in range(cycles):
        campaign.allowed_bytes += share_bytes
        before, until_s = len(campaign.acked), time.monotonic() + WAIT_S
        while len(campaign.acked) < before + 5 and time.monotonic() < until_s:
            time.sleep(0.05)
        if time.monotonic() >= until_s:
            campaign.problems.append(f"cycle {cycle}: nothing acknowledged with space on the disk")
        ballast = folder / "ballast"
        with suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(64 << 10))
                file.flush()
        campaign.allowed_bytes += share_bytes
        time.sleep(FILL_S)
        ballast.unlink()
    ended(campaign, threads)
    return broker


def started(campaign: Campaign, url: str) -> list[threading.Thread]:
    """The clients, each in a thread."""
    works = (campaign.run_librdkafka, campaign.run_kafka_python, campaign.run_consumer)
    threads = [threading.Thread(target=work, args=(url,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    return threads


def ended(campaign: Campaign, threads: list[threading.Thread]) -> None:
    """Let the clients end."""
    campaign.stop.set()
    for thread in threads:
        thread.join(3 * WAIT_S)
        if thread.is_alive():
            campaign.problems.append("a client hangs")


def main() -> int:
    """Run a campaign."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("campaign", choices=["kill", "full-disk"])
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    campaign = Campaign(Random(arguments.seed))
    began_s = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = folder / "broker.log"
        if arguments.campaign == "kill":
            broker = killed(campaign, folder, log, arguments.cycles)
        else:
            (folder / "disk").mkdir()
            try:
                disk = stack.enter_context(small_disk(folder / "disk"))
            except (subprocess.CalledProcessError, FileNotFoundError) as error:
                print(f"cannot mount a file system: {error}", file=sys.stderr)
                return MAY_NOT_MOUNT
            broker = filled(campaign, disk, log, arguments.cycles)
        try:
            campaign.check(broker.url)
        finally:
            broker.end(signal.SIGTERM)
        uncaught = log.read_text().count("Traceback (most recent call last)")
    if uncaught:
        campaign.problems.append(f"{uncaught} uncaught errors in the broker's log")
    report = {
        "campaign": arguments.campaign,
        "cycles": arguments.cycles,
        "acknowledged": len(campaign.acked),
        "failed_sends": campaign.failed,
        "committed": campaign.committed,
        "problems": len(campaign.problems),
        "seconds": round(time.monotonic() - began_s, 1),
    }
    print(json.dumps({**report, "found": campaign.problems[:20]}))
    return 1 if campaign.problems else 0


if __name__ == "__main__":
    sys.exit(main())
