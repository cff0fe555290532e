"""What a Fetch costs with and without a fetch session (KIP-227), over many partitions.

    python bench/bench_kafka_sessions.py [--partitions N] [--fetches N]

One client fetches from N partitions, of which one gets a record before each fetch. Without a
session each request and each answer names all partitions, with one only those with news. Shown are
the bytes of a request and its answer, the broker's CPU time, and the time until the answer, as the
means of all fetches of one run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench_kafka import Side, create, produce, pulsemark
from kafka.protocol.consumer import FetchRequest, FetchResponse
from report import Figure, lower, show

from pulsemark.testing.raw_kafka import RawKafka, fetch_fields

VERSION = 11


class Client:
    """Fetches from all partitions, with a session or without."""

    def __init__(self, raw: RawKafka, topic: str, partitions: int, *, has_session: bool) -> None:
        self._raw, self._topic, self._has_session = raw, topic, has_session
        self._offsets = [0] * partitions
        self._changed = set(range(partitions))
        self._session, self._epoch = 0, 0 if has_session else -1
        self.sent_bytes = self.received_bytes = 0

    def fetch(self) -> int:
        """One Fetch: how many partitions its answer has."""
        indexes = sorted(self._changed) if self._epoch > 0 else range(len(self._offsets))
        asked = [(self._topic, index, self._offsets[index], 1 << 20, -1) for index in indexes]
        fields = fetch_fields([], 0, 1, 1 << 20)
        topic = FetchRequest.FetchTopic
        parts = [part for one in fetch_fields(asked, 0, 1, 1)["topics"] for part in one.partitions]
        fields["topics"] = [topic(topic=self._topic, partitions=parts)] if parts else []
        fields["session_id"], fields["session_epoch"] = self._session, self._epoch
        made = FetchRequest(version=VERSION, **fields)
        made.with_header(1, "bench")
        data = made.encode(header=True, framed=True)
        self._raw.send_bytes(data)
        frame = self._raw.receive_frame()
        self.sent_bytes += len(data)
        self.received_bytes += len(frame)
        return self._taken(FetchResponse.decode(frame, version=VERSION, header=True))

    def _taken(self, answer: Any) -> int:
        if answer.error_code:
            raise SystemExit(f"a fetch was refused with {answer.error_code}")
        self._session = answer.session_id
        self._epoch += self._has_session
        self._changed.clear()
        found = [part for topic in answer.responses for part in topic.partitions]
        for part in found:
            if part.records:
                self._offsets[part.partition_index] = part.high_watermark
                self._changed.add(part.partition_index)
        return len(found)


def measure(side: Side, partitions: int, fetches: int, *, has_session: bool) -> tuple[float, ...]:
    """CPU and time of a fetch in microseconds, bytes of its request and of its answer."""
    topic = f"sessions-{has_session}"
    create(side, topic, partitions)
    with RawKafka.from_url(side.url) as raw:
        client = Client(raw, topic, partitions, has_session=has_session)
        client.fetch()
        client.sent_bytes = client.received_bytes = 0
        cpu_s = spent_s = 0.0
        for number in range(fetches):
            if not number % 50:
                produce(side, topic, 100, 1, 1)
            before_s, began_s = side.cpu_s(), time.perf_counter()
            for _ in range(20):
                client.fetch()
            cpu_s += side.cpu_s() - before_s
            spent_s += time.perf_counter() - began_s
    count = fetches * 20
    return (
        cpu_s / count * 1e6, spent_s / count * 1e6,
        client.sent_bytes / count, client.received_bytes / count,
    )  # fmt: skip


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--fetches", type=int, default=100, help="in twenties")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        side = stack.enter_context(pulsemark(folder))
        rows = [
            measure(side, arguments.partitions, arguments.fetches, has_session=has_session)
            for has_session in (False, True)
        ]
    names = ("broker's CPU", "time", "request", "answer")
    units = ("us/fetch", "us/fetch", "bytes", "bytes")
    figures: list[Figure] = [
        lower(f"with a session: {name}", with_session, without, unit, "without")
        for name, unit, without, with_session in zip(names, units, *rows, strict=True)
    ]
    show(f"Fetch from {arguments.partitions} partitions", figures)


if __name__ == "__main__":
    main()
