"""How long a topic takes no messages after its broker was killed."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from itertools import pairwise
from typing import Any

import pulsar
from bookkeeper_brokers import BrokerProcess, Side

INTERVAL_S = 0.01
"""Between two messages."""
BEFORE_S = 1.0
LIMIT_S = 120.0


class Load:
    """A producer that sends a message every few milliseconds, and when each was acknowledged."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self._producer = client.create_producer(
            topic, batching_enabled=False, send_timeout_millis=0, max_pending_messages=50_000
        )
        self._lock = threading.Lock()
        self._acknowledged: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            sent_s = time.monotonic()
            self._producer.send_async(b"x", lambda result, _, at=sent_s: self._done(result, at))

    def _done(self, result: pulsar.Result, sent_s: float) -> None:
        if result == pulsar.Result.Ok:
            with self._lock:
                self._acknowledged.append((sent_s, time.monotonic()))

    def gap_s(self, event_s: float) -> float | None:
        """The longest time without an acknowledgement since an event.

        None: no message that was sent after it has been acknowledged yet.
        """
        with self._lock:
            seen = list(self._acknowledged)
        if not any(sent_s > event_s for sent_s, _ in seen):
            return None
        times = [event_s, *sorted(done_s for _, done_s in seen if done_s > event_s)]
        return max(after - before for before, after in pairwise(times))

    def stop(self) -> None:
        """Send no more."""
        self._stop.set()
        self._thread.join()
        self._producer.close()


def failovers(side: Side, count: int) -> None:
    """Kill the broker that owns a topic, again and again; notes each pause.

    Raises TimeoutError: a topic took no messages for two minutes.
    """
    while len(side.brokers) < 2:
        side.add_broker()
    urls = ",".join(broker.service_url.removeprefix("pulsar://") for broker in side.brokers)
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(f"pulsar://{urls}", logger=logger, operation_timeout_seconds=60)
    topic = "persistent://public/default/failover"
    load = Load(client, topic)
    try:
        for left in reversed(range(count)):
            time.sleep(BEFORE_S)
            owner = owner_of(side.brokers, topic)
            event_s = time.monotonic()
            owner.kill()
            side.note("failover", _pause_s(load, event_s))
            if left:
                owner.start()
    finally:
        load.stop()
        client.close()


def _pause_s(load: Load, event_s: float) -> float:
    while time.monotonic() - event_s < LIMIT_S:
        time.sleep(0.05)
        if (gap_s := load.gap_s(event_s)) is not None:
            return gap_s
    raise TimeoutError(f"no message was acknowledged for {LIMIT_S:g} s after the owner's end")


def owner_of(brokers: list[BrokerProcess], topic: str) -> BrokerProcess:
    """The broker that has a topic."""
    path = f"/lookup/v2/topic/{topic.replace('://', '/')}"
    limit_s = time.monotonic() + LIMIT_S
    while time.monotonic() < limit_s:
        asked = next(broker for broker in brokers if broker.is_running())
        try:
            with urllib.request.urlopen(asked.http_url + path, timeout=30) as answer:
                found: dict[str, Any] = json.loads(answer.read())
        except OSError:
            time.sleep(0.2)  # its bundle is on the way to another broker
            continue
        for broker in brokers:
            if broker.service_url == found["brokerUrl"]:
                return broker
    raise TimeoutError(f"{topic} has no owner")
