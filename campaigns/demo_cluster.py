"""A small cluster from the registries, and what it promises, checked with Pulsar's own client.

    python campaigns/demo_cluster.py [--messages 20000] [--folder .demo-cluster]

Starts ZooKeeper, three bookies and AutoRecovery (`bookkeeper_peer`), and two brokers on them. Then:
publishes messages; kills a bookie (SIGKILL) while it publishes; finds moments by broker time; kills
the broker that has the topic (SIGKILL), so that the other one takes it over; checks that every
acknowledged message is there, once and in order, that index and time go on without a gap, and that
the finder reads the same from the bookies without a broker. Exit code 1 when a check fails.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pulsar
from bookkeeper_peer import BookKeeperPeer, PeerError

from pulsemark.finder import Finder
from pulsemark.ledger import EARLIEST
from pulsemark.ledger.bookkeeper.reader import BookKeeperReader

TOPIC = "persistent://public/default/orders"
WAIT_MS = 30_000


class DemoError(Exception):
    """A check failed."""


class BrokerProcess:
    """`pulsemark standalone --store`, on free ports."""

    def __init__(self, store: str, log: Path) -> None:
        began = time.monotonic()
        command = [sys.executable, "-m", "pulsemark", "standalone", "--store", store, "--json"]
        command += ["--port", "0", "--http-port", "0", "--stampers", "broker-time,index"]
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise DemoError(f"the broker did not start: see {log}")
        said = json.loads(line)
        self.url, self.http_url = said["service_url"], said["http_url"]
        self.ready_s = time.monotonic() - began

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it in order."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()


def check(what: str, is_right: bool) -> None:
    """Print a line, or raise DemoError."""
    if not is_right:
        raise DemoError(what)
    print(f"  ok: {what}", flush=True)


def publish(url: str, first: int, count: int) -> list[bytes]:
    """Publish numbered messages; those that were acknowledged, in order."""
    acknowledged: list[bytes] = []
    refused: list[object] = []
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        producer = client.create_producer(TOPIC, block_if_queue_full=True, batching_enabled=True)

        def sent(body: bytes) -> object:
            return lambda result, _: (
                acknowledged.append(body) if result == pulsar.Result.Ok else refused.append(result)
            )

        for number in range(first, first + count):
            body = b"message %d" % number
            producer.send_async(body, sent(body))
        producer.flush()
    finally:
        client.close()
    check(f"{len(acknowledged)} messages acknowledged, none refused", not refused)
    return acknowledged


def consume(url: str, count: int, from_ms: int | None = None) -> list[bytes]:
    """The first messages of the topic, or the first ones from a moment on."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        if from_ms is not None:
            reader.seek(from_ms)
        return [reader.read_next(WAIT_MS).data() for _ in range(count)]
    finally:
        client.close()


def check_bookies_alone(store: str, expected: int) -> None:
    """Read the topic from the bookies, without a broker."""
    with BookKeeperReader.open(store) as reader:
        log = reader.log(TOPIC)
        position, next_index, time_ms = EARLIEST, 0, 0
        while entries := log.read(position, max_entries=1000):
            for entry in entries:
                check_quietly(entry.first_index == next_index, "the index has no gap")
                check_quietly(entry.time_ms >= time_ms, "broker time never goes back")
                next_index, time_ms = entry.index + 1, entry.time_ms
            position = entries[-1].position.following
        check(f"without a broker: {next_index} messages, index and time unbroken", True)
        check("no acknowledged message is missing there", next_index >= expected)
        found = Finder(log).by_time(time_ms)
        check(f"a search by time takes {found.reads} small reads", found.reads < 200)


def check_quietly(is_right: bool, what: str) -> None:
    """Raise DemoError."""
    if not is_right:
        raise DemoError(what)


def owner_of(brokers: list[BrokerProcess]) -> BrokerProcess:
    """The broker that has the topic, by a look-up at the first one."""
    path = TOPIC.replace("://", "/")
    with urllib.request.urlopen(f"{brokers[0].http_url}/lookup/v2/topic/{path}") as answer:
        url = json.load(answer)["brokerUrl"]
    return next(broker for broker in brokers if broker.url == url)


def story(peer: BookKeeperPeer, brokers: list[BrokerProcess], messages: int) -> None:
    """What happens, step by step. Raises DemoError."""
    url = brokers[0].url
    acknowledged = publish(url, 0, messages)
    moment_ms = int(time.time() * 1000) + 1
    time.sleep(0.05)
    print(f"{peer.bookies[0]} is killed while messages are published")
    killer = threading.Timer(0.1, peer.kill, (peer.bookies[0],))
    killer.start()
    second = publish(url, messages, messages)
    killer.join()
    acknowledged += second
    check("a seek by broker time finds the moment", consume(url, 1, moment_ms) == second[:1])
    owner = owner_of(brokers)
    left = next(broker for broker in brokers if broker is not owner)
    print("the broker that has the topic is killed, and the other one takes it over")
    owner.kill()
    began = time.monotonic()
    got = consume(left.url, len(acknowledged))
    check("every acknowledged message is there, once and in order", got == acknowledged)
    print(f"  {time.monotonic() - began:.1f} s from the kill until all were read")
    peer.run(peer.bookies[0])
    acknowledged += publish(left.url, 2 * messages, 100)
    # Bookies tell a reader of the last entry's confirmation with the next entry.
    publish(left.url, 2 * messages + 100, 1)
    check_bookies_alone(peer.store, len(acknowledged))


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, default=Path(".demo-cluster"))
    arguments = parser.parse_args()
    shutil.rmtree(arguments.folder, ignore_errors=True)
    arguments.folder.mkdir(parents=True)
    peer = BookKeeperPeer(arguments.folder / "peer")
    brokers: list[BrokerProcess] = []
    began = time.monotonic()
    try:
        peer.start(3, autorecovery=True)
        print(f"ZooKeeper and {len(peer.bookies)} bookies run: {peer.store}", flush=True)
        for _ in range(2):
            brokers.append(BrokerProcess(peer.store, arguments.folder / "broker.log"))
            print(f"a broker is ready after {brokers[-1].ready_s:.1f} s", flush=True)
        story(peer, brokers, arguments.messages)
    except (DemoError, PeerError) as error:
        print(f"demo-cluster: FAILED: {error}", file=sys.stderr)
        return 1
    finally:
        for broker in brokers:
            broker.stop()
        peer.stop()
    print(f"demo-cluster: every check passed, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
