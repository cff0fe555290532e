"""Measures how long large requests block a broker's event loop.

    python campaigns/loop_stalls.py [--only NAME ...] [--scale 1.0]

Each scenario has its own broker process, whose loop is monitored. Prints a row for each scenario:
the longest time that the loop was blocked during the request, and by which handler. Then prints one
line of JSON. Exit code 1 if the loop was blocked for 50 ms or longer.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from monitored_broker import MonitoredBroker

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing import RawClient
from pulsemark.testing.raw_messages import unbatched_message
from pulsemark.wire import commands

BOUND_MS = 50
#: Stalls of at least this length are listed.
LISTED_MS = 20
NAME = "public/default/asked"
TOPIC = f"persistent://{NAME}"
URL = f"/admin/v2/persistent/{NAME}"
SHARED, KEY_SHARED = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared
BATCH = 500


class Scene:
    """A broker whose loop is monitored, and its client."""

    def __init__(self, broker: MonitoredBroker, scale: float) -> None:
        self.broker = broker
        self.scale = scale
        self.client = self.connect()
        self.stalls: list[dict[str, Any]] = []

    def connect(self) -> RawClient:
        """Another connection."""
        return RawClient.from_url(self.broker.service_url, timeout_s=120)

    def scaled(self, count: int) -> int:
        """A number, multiplied by the scale."""
        return max(1, int(count * self.scale))

    def begin(self) -> None:
        """Begin to measure: earlier stalls do not count."""
        self.client.ping()
        # The first request imports the HTTP side.
        self.ask("GET", "/metrics")
        time.sleep(0.1)
        self.broker.stalls()

    def end(self, wait_s: float = 0.3) -> None:
        """Note the stalls since `begin`."""
        self.client.ping()
        time.sleep(wait_s)
        self.stalls += [line for line in self.broker.stalls() if line["cpu_ms"] >= LISTED_MS]

    def pings(self, count: int) -> str:
        """Send so many PINGs, one after another; how long the slowest answer took."""
        slowest_s = 0.0
        for _ in range(count):
            began_s = time.monotonic()
            self.client.ping()
            slowest_s = max(slowest_s, time.monotonic() - began_s)
        return f"a PING waited {slowest_s * 1000:.0f} ms"

    def ask(self, method: str, path: str) -> int:
        """One HTTP request; the size of its answer."""
        request = urllib.request.Request(self.broker.http_url + path, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return len(answer.read())

    def unacked(self) -> int:
        """How many messages the consumers hold."""
        with urllib.request.urlopen(self.broker.http_url + URL + "/stats") as answer:
            return int(json.loads(answer.read())["subscriptions"]["s"]["unackedMessages"])

    def subscribe(
        self, client: RawClient, numbers: range, command: Callable[[int, int], bytes]
    ) -> None:
        """Open consumers, many at a time."""
        for start in range(numbers.start, numbers.stop, BATCH):
            group = range(start, min(start + BATCH, numbers.stop))
            requests = {number: client.new_id() for number in group}
            client.write(b"".join(command(number, requests[number]) for number in group))
            for request_id in requests.values():
                client.wait_response(request_id)


Open = Callable[[Scene, RawClient], str]
"""Opens many consumers, and says how many."""


def many_subscriptions(scene: Scene, client: RawClient) -> str:
    """9,000 subscriptions with a consumer each."""
    count = scene.scaled(9_000)
    scene.subscribe(
        client,
        range(count),
        lambda n, r: commands.subscribe(TOPIC, f"s{n}", n, r, SHARED),
    )
    return f"{count} subscriptions"


def many_consumers(scene: Scene, client: RawClient, sub_type: Any = SHARED) -> str:
    """20,000 consumers of one subscription."""
    count = scene.scaled(20_000)
    scene.subscribe(
        client, range(count), lambda n, r: commands.subscribe(TOPIC, "s", n, r, sub_type)
    )
    return f"{count} consumers"


def asked(scene: Scene, open_many: Open, method: str, *paths: str) -> str:
    """HTTP requests while many consumers are open."""
    with scene.connect() as client:
        note = open_many(scene, client)
        scene.begin()
        sizes = [scene.ask(method, URL + path) for path in paths]
        scene.end()
    return f"{note}, answers of {' and '.join(map(str, sizes))} bytes"


def stats_of_subscriptions(scene: Scene) -> str:
    """GET stats and internalStats with 9,000 subscriptions."""
    return asked(scene, many_subscriptions, "GET", "/stats", "/internalStats", "/stats")


def stats_of_consumers(scene: Scene) -> str:
    """GET stats with 20,000 consumers."""
    return asked(scene, many_consumers, "GET", "/stats", "/stats", "/stats")


def unload_of_subscriptions(scene: Scene) -> str:
    """PUT unload with 9,000 subscriptions."""
    return asked(scene, many_subscriptions, "PUT", "/unload")


def unload_of_consumers(scene: Scene) -> str:
    """PUT unload with 20,000 consumers."""
    return asked(scene, many_consumers, "PUT", "/unload")


def delete_of_subscriptions(scene: Scene) -> str:
    """DELETE with force=true with 9,000 subscriptions."""
    return asked(scene, many_subscriptions, "DELETE", "?force=true")


def left(scene: Scene, open_many: Open) -> str:
    """A connection with many consumers ends."""
    client = scene.connect()
    note = open_many(scene, client)
    scene.begin()
    client.close()
    scene.end(1.0)
    return note


def leave_of(scene: Scene, sub_type: Any) -> str:
    """A connection with 20,000 consumers ends; another consumer stays."""
    staying = scene.client.subscribe(TOPIC, "s", sub_type=sub_type, consumer_id=10**6)
    staying.flow(10)
    return left(scene, partial(many_consumers, sub_type=sub_type))


def shared_consumers_leave(scene: Scene) -> str:
    """20,000 consumers of a Shared subscription leave at once."""
    return leave_of(scene, SHARED)


def key_shared_consumers_leave(scene: Scene) -> str:
    """20,000 consumers of a Key_Shared subscription leave at once."""
    return leave_of(scene, KEY_SHARED)


def subscriptions_leave(scene: Scene) -> str:
    """The consumers of 9,000 subscriptions leave at once."""
    return left(scene, many_subscriptions)


def key_shared_consumers_come(scene: Scene) -> str:
    """20,000 consumers of a Key_Shared subscription are opened."""
    scene.client.create_producer(TOPIC)
    scene.begin()
    began_s = time.monotonic()
    note = many_consumers(scene, scene.client, KEY_SHARED)
    took_s = time.monotonic() - began_s
    scene.end()
    return f"{note} in {took_s:.1f} s"


def key_shared_redelivery(scene: Scene) -> str:
    """40,000 entries of a Key_Shared subscription are asked for again, and given back."""
    count = scene.scaled(40_000)
    producer = scene.client.create_producer(TOPIC)
    messages = [
        unbatched_message(b"x", publish_time_ms=1, key=f"k{n % 1000}") for n in range(count)
    ]
    for start in range(0, count, 5_000):
        producer.send_many(messages[start : start + 5_000])
    holder = scene.connect()
    consumer = holder.subscribe(TOPIC, "s", sub_type=KEY_SHARED, earliest=True)
    consumer.flow(count)
    held = consumer.receive_many(count)
    scene.begin()
    consumer.redeliver()
    consumer.flow(count)
    consumer.receive_many(count)
    consumer.redeliver(*(message.message_id for message in held))
    consumer.flow(count)
    consumer.receive_many(count)
    others = [scene.client.subscribe(TOPIC, "s", sub_type=KEY_SHARED) for _ in range(4)]
    for other in others:
        other.flow(count)
    holder.close()
    while scene.unacked() < count:
        scene.client.ping()
    scene.end()
    return f"{count} entries"


def many_topics(scene: Scene) -> str:
    """5,000 topics are opened, used, listed and deleted."""
    count = scene.scaled(5_000)
    scene.begin()
    for start in range(0, count, BATCH):
        group = range(start, min(start + BATCH, count))
        requests = {n: scene.client.new_id() for n in group}
        scene.client.write(
            b"".join(
                commands.producer(f"{TOPIC}-{n}", n, request_id)
                for n, request_id in requests.items()
            )
        )
        for request_id in requests.values():
            scene.client.wait_response(request_id)
        names = {n: scene.client.new_id() for n in group}
        scene.client.write(
            b"".join(
                commands.subscribe(f"{TOPIC}-{n}", "s", n, request_id, SHARED)
                for n, request_id in names.items()
            )
        )
        for request_id in names.values():
            scene.client.wait_response(request_id)
    size = scene.ask("GET", "/admin/v2/namespaces/public/default/topics")
    scene.ask("GET", "/metrics")
    scene.end(3.0)
    return f"{count} topics, {size} bytes of names"


def deleted_topics(scene: Scene) -> str:
    """Topics with a consumer are created and deleted: their memory is freed in steps."""
    count = scene.scaled(300)
    with scene.connect() as client:
        for n in range(count):
            client.create_producer(f"{TOPIC}-{n}")
    scene.begin()
    for n in range(count):
        scene.ask("DELETE", f"{URL}-{n}?force=true")
    scene.end()
    return f"{count} topics"


def redelivery_storm(scene: Scene) -> str:
    """A consumer asks 200 times for the same 5,000 messages."""
    count, times = scene.scaled(5_000), 200
    producer = scene.client.create_producer(TOPIC)
    messages = [unbatched_message(b"x", publish_time_ms=1) for _ in range(count)]
    producer.send_many(messages)
    with scene.connect() as client:
        consumer = client.subscribe(TOPIC, "s", sub_type=SHARED, earliest=True)
        consumer.flow(count)
        held = [message.message_id for message in consumer.receive_many(count)]
        scene.begin()
        request = commands.redeliver_unacknowledged_messages(consumer.consumer_id, held)
        grant = commands.flow(consumer.consumer_id, count)
        client.write((request + grant) * times)
        waited = scene.pings(20)
        scene.end()
    return f"{times} times {count} messages; {waited}"


def alternating_producers(scene: Scene) -> str:
    """Two producers of a connection send in turns, as fast as they may."""
    count = scene.scaled(60_000)
    with scene.connect() as client:
        ids = [client.create_producer(f"{TOPIC}-{n}").producer_id for n in range(2)]
        body = unbatched_message(b"x" * 100, publish_time_ms=1)
        frames = [b"".join(commands.send(ids[n % 2], n // 2, body)) for n in range(count)]
        scene.begin()
        for at in range(0, count, 10_000):
            client.write(b"".join(frames[at : at + 10_000]))
        waited = scene.pings(20)
        scene.end()
    return f"{count} messages; {waited}"


def idle_consumers(scene: Scene) -> str:
    """60 consumers, each with a connection that reads nothing, are granted many permits at once."""
    count, messages = 60, scene.scaled(5_000)
    producer = scene.client.create_producer(TOPIC)
    body = unbatched_message(bytes(1_000), publish_time_ms=1)
    producer.send_many([body] * messages)
    address = urlsplit(scene.broker.service_url)
    links = [socket.create_connection((address.hostname, address.port)) for _ in range(count)]
    earliest = pb.CommandSubscribe.Earliest
    for number, link in enumerate(links):
        subscribe = commands.subscribe(TOPIC, f"s{number}", 0, 1, SHARED, initial_position=earliest)
        link.sendall(commands.connect("idle") + subscribe)
        # Of the answers only the last one is awaited: SUCCESS of SUBSCRIBE.
        answers = b""
        while commands.success(1) not in answers:
            answers += link.recv(1 << 16)
    scene.begin()
    for link in links:
        link.sendall(commands.flow(0, messages))
    waited = scene.pings(20)
    scene.end()
    for link in links:
        link.close()
    return f"{count} consumers; {waited}"


SCENARIOS: dict[str, Callable[[Scene], str]] = {
    run.__name__: run
    for run in (
        many_topics,
        deleted_topics,
        stats_of_subscriptions,
        stats_of_consumers,
        unload_of_subscriptions,
        unload_of_consumers,
        delete_of_subscriptions,
        shared_consumers_leave,
        key_shared_consumers_leave,
        subscriptions_leave,
        key_shared_consumers_come,
        key_shared_redelivery,
        redelivery_storm,
        alternating_producers,
        idle_consumers,
    )
}


def play(name: str, scale: float) -> dict[str, Any]:
    """Run one."""
    with tempfile.TemporaryDirectory(prefix="pulsemark-stalls-") as folder:
        broker = MonitoredBroker(Path(folder) / "data", Path(folder) / "log", stall_ms=LISTED_MS)
        try:
            scene = Scene(broker, scale)
            note = SCENARIOS[name](scene)
            scene.client.close()
        finally:
            broker.end()
        worst = max(scene.stalls, key=lambda line: line["cpu_ms"], default=None)
        return {
            "scenario": name,
            "longest_ms": worst["cpu_ms"] if worst else 0,
            "stall": worst["stall"] if worst else "",
            "note": note,
            "errors": len(broker.uncaught()),
        }


def main() -> int:
    """Run the scenarios; return 1 if the loop was blocked for too long."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="*", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--scale", type=float, default=1.0)
    given = parser.parse_args()
    results = []
    for name in given.only:
        result = play(name, given.scale)
        results.append(result)
        print(
            f"{name:27} {result['longest_ms']:4} ms {result['stall']}; {result['note']}"
            + (f"; {result['errors']} ERRORS" if result["errors"] else ""),
            flush=True,
        )
    print(json.dumps(results))
    return 0 if all(r["longest_ms"] < BOUND_MS and not r["errors"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
