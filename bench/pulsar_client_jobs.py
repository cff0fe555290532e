"""Jobs of the official Python client, and searches, that `compare_pulsar.py` gives to a broker."""

from __future__ import annotations

import http.client
import os
import random
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import pulsar
from bench_client import connect, consume, publish, seek_ms, window_1_ms
from bench_produce import Sender, send_frame
from report import quantile

SMALL_BYTES, LARGE_BYTES = 100, 131_072
MB = 1e6
UNBATCHED, BATCHED, LARGE = 50_000, 300_000, 1_500
WINDOW_1 = 500
SEEKS, SEARCHES = 10, 150
BATCHING = {
    "max_pending_messages": 50_000,
    "batching_enabled": True,
    "batching_max_messages": 1_000,
    "batching_max_publish_delay_ms": 5,
}


class ClientJobs:
    """One client of one broker; each job returns its figure."""

    def __init__(self, service_url: str, http_url: str, name: str) -> None:
        self._client: pulsar.Client = connect(service_url)
        self._service_url = service_url
        self._http_url = http_url
        self._topic = f"persistent://public/default/client-{name}"

    def close(self) -> None:
        """Close the client."""
        self._client.close()

    def window_1(self) -> float:
        """Milliseconds of a durable send, the median."""
        return quantile(window_1_ms(self._client, f"{self._topic}-w1", WINDOW_1), 0.5)

    def unbatched(self) -> float:
        """Messages per second, 100 B, no batching."""
        topic = f"{self._topic}-unbatched"
        return publish(self._client, topic, UNBATCHED, SMALL_BYTES, batching_enabled=False)

    def batched(self) -> float:
        """Messages per second, 100 B, batches of up to 1,000."""
        return publish(self._client, f"{self._topic}-batched", BATCHED, SMALL_BYTES, **BATCHING)

    def large(self) -> float:
        """Megabytes per second, 128 KiB, 200 of them unanswered."""
        topic = f"{self._topic}-large"
        options = {"batching_enabled": False, "max_pending_messages": 200}
        return publish(self._client, topic, LARGE, LARGE_BYTES, **options) * LARGE_BYTES / MB

    def catch_up_batched(self) -> float:
        """Messages per second of a reader of what `batched` has stored."""
        return consume(self._client, f"{self._topic}-batched", BATCHED)

    def catch_up_large(self) -> float:
        """Megabytes per second of a reader of what `large` has stored."""
        return consume(self._client, f"{self._topic}-large", LARGE) * LARGE_BYTES / MB

    def seek(self, topic: str, first_ms: int, last_ms: int) -> float:
        """Milliseconds from client.seek(time) to the first message, the median."""
        return quantile(seek_ms(self._client, topic, moments(first_ms, last_ms, SEEKS)), 0.5)

    def search(self, topic: str, first_ms: int, last_ms: int) -> float:
        """Milliseconds of a search by time over REST, less those of a request that does nothing."""
        path = "/admin/v2/" + topic.replace("://", "/") + "/messageid/"
        times = moments(first_ms, last_ms, SEARCHES)
        floor = self._get_ms(["/admin/v2/clusters"] * SEARCHES)
        return max(self._get_ms([f"{path}{time_ms}" for time_ms in times]) - floor, 0.001)

    def _get_ms(self, paths: list[str]) -> float:
        link = http.client.HTTPConnection(urlsplit(self._http_url).netloc, timeout=60)
        taken_ms = []
        for path in paths:
            began = time.perf_counter()
            link.request("GET", path)
            answer = link.getresponse()
            answer.read()
            taken_ms.append((time.perf_counter() - began) * 1e3)
            if answer.status != 200:
                raise SystemExit(f"{self._http_url}{path} answered {answer.status}")
        link.close()
        return quantile(taken_ms[len(paths) // 10 :], 0.5)

    def cpu_at_rate(self, rate: int, cpu_s: Callable[[], float], seconds: float = 3.0) -> float:
        """Microseconds of the broker's CPU a message of 100 B, unbatched, one at a time."""
        topic = f"{self._topic}-rate{rate}-{os.getpid()}-{time.monotonic_ns()}"
        self._client.get_topic_partitions(topic)
        self._client.create_producer(topic).close()
        sender = Sender(self._service_url)
        sender.open_producers([topic])
        frames = [send_frame(0, number) for number in range(20_000)]
        sender.publish_at_rate(frames, rate, 1.0)
        before = cpu_s()
        sent, _ = sender.publish_at_rate(frames, rate, seconds)
        return (cpu_s() - before) / sent * 1e6


def moments(first_ms: int, last_ms: int, count: int) -> list[int]:
    """Times to search for, the same in every run."""
    chance = random.Random(1)
    return [chance.randint(first_ms, last_ms) for _ in range(count)]
