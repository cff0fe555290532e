"""The producers: four through the official client, and two whose clocks are wrong.

The official client stamps its machine's time, so messages with wrong client times are sent with the
test kit's RawClient, which sends exactly the given fields. All producers run at the same time, each
in its own thread, and go on when the broker is killed: the official client itself sends messages
again that were not acknowledged, and the raw senders here do the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pulsar

from pulsemark.client import ConnectionLostError
from pulsemark.testing.raw_client import RawClient
from pulsemark.testing.raw_messages import unbatched_message

from .truth import Key, Truth, make_payload, now_ms

TOPIC = "persistent://public/default/demo"
MINUTE_MS = 60_000
RAW_WINDOW = 100
RECONNECT_DELAY_S = 0.1
ACKNOWLEDGE_TIMEOUT_S = 60.0
# A producer sends this many messages, then pauses, so that a round takes about a second.
SLICES = 20
BREATH_S = 0.04


@dataclass(frozen=True, slots=True)
class Sender:
    """A producer of the official client. `share` is its part of a round, in percent."""

    name: str
    share: int
    batched: bool
    compression: pulsar.CompressionType
    keys: int
    payload_size_bytes: int


@dataclass(frozen=True, slots=True)
class WrongClock:
    """A producer whose clock is wrong by `offset_ms`."""

    name: str
    share: int
    offset_ms: int
    payload_size_bytes: int


SENDERS = (
    Sender("batched plain", 30, True, pulsar.CompressionType.NONE, 0, 120),
    Sender("batched lz4 keys", 27, True, pulsar.CompressionType.LZ4, 50, 300),
    Sender("batched zstd", 15, True, pulsar.CompressionType.ZSTD, 0, 600),
    Sender("single snappy keys", 8, False, pulsar.CompressionType.SNAPPY, 20, 200),
)
WRONG_CLOCKS = (
    WrongClock("fast clock", 10, 4 * MINUTE_MS, 150),
    WrongClock("slow clock", 10, -7 * MINUTE_MS, 150),
)


class Publishers:
    """All producers, kept open over the rounds."""

    def __init__(self, client: pulsar.Client, service_url: str, truth: Truth) -> None:
        self._client = client
        self._url = service_url
        self._truth = truth
        self._producers = {sender.name: self._open(sender) for sender in SENDERS}

    def _open(self, sender: Sender) -> pulsar.Producer:
        return self._client.create_producer(
            TOPIC,
            producer_name=sender.name,
            batching_enabled=sender.batched,
            batching_max_messages=200,
            batching_max_publish_delay_ms=5,
            compression_type=sender.compression,
            max_pending_messages=2_000,
            block_if_queue_full=True,
            send_timeout_millis=int(ACKNOWLEDGE_TIMEOUT_S * 1_000),
        )

    def start_round(self, number: int, message_count: int) -> Round:
        """Begin a round; all producers send their share of it at once."""
        return Round(self, number, message_count)

    def send_share(self, sender: Sender, number: int, count: int) -> None:
        """Send one official producer's messages of a round; acknowledgements arrive later."""
        producer, truth = self._producers[sender.name], self._truth
        for key in _in_slices(number, sender.name, count):
            payload = make_payload(key, sender.payload_size_bytes)
            truth.add(key, payload)
            partition_key = f"key-{key[2] % sender.keys}" if sender.keys else None

            def acknowledged(result: pulsar.Result, _: object, key: Key = key) -> None:
                if result == pulsar.Result.Ok:
                    truth.acknowledge(key)

            producer.send_async(payload, acknowledged, partition_key=partition_key)
        producer.flush()

    def send_wrong_share(self, clock: WrongClock, number: int, count: int) -> None:
        """Send one wrong clock's messages of a round; repeat each window until acknowledged."""
        link = _RawLink(self._url, clock.name)
        keys = list(_in_slices(number, clock.name, count, breathe=False))
        for start in range(0, count, RAW_WINDOW):
            window = keys[start : start + RAW_WINDOW]
            for key in window:
                self._truth.add(key, make_payload(key, clock.payload_size_bytes))
                self._truth.publish_times_ms[key] = now_ms() + clock.offset_ms
            link.send([self._raw_message(clock, key) for key in window])
            for key in window:
                self._truth.acknowledge(key)
            time.sleep(BREATH_S * SLICES * RAW_WINDOW / count)
        link.close()

    def _raw_message(self, clock: WrongClock, key: Key) -> bytes:
        return unbatched_message(
            self._truth.sent[key],
            publish_time_ms=self._truth.publish_times_ms[key],
            sequence_id=key[2],
            producer_name=clock.name,
        )

    def close(self) -> None:
        """Close the official client's producers."""
        for producer in self._producers.values():
            producer.close()


class Round:
    """A round that runs in the background."""

    def __init__(self, publishers: Publishers, number: int, message_count: int) -> None:
        self._pool = ThreadPoolExecutor(len(SENDERS) + len(WRONG_CLOCKS))
        self._work = [
            self._pool.submit(
                publishers.send_share, sender, number, message_count * sender.share // 100
            )
            for sender in SENDERS
        ]
        self._work += [
            self._pool.submit(
                publishers.send_wrong_share, clock, number, message_count * clock.share // 100
            )
            for clock in WRONG_CLOCKS
        ]

    def finish(self, truth: Truth) -> None:
        """Wait until everything is sent and acknowledged; raises what a producer raised."""
        for work in self._work:
            work.result()
        self._pool.shutdown()
        deadline = time.monotonic() + ACKNOWLEDGE_TIMEOUT_S
        while truth.unacknowledged():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(truth.unacknowledged())} messages not acknowledged")
            time.sleep(0.005)


class _RawLink:
    """A raw producer that reconnects when its broker has ended."""

    def __init__(self, service_url: str, name: str) -> None:
        self._url = service_url
        self._name = name
        self._client: RawClient | None = None

    def send(self, messages: list[bytes]) -> None:
        """Send all messages; after a lost connection begin again with the first."""
        deadline = time.monotonic() + ACKNOWLEDGE_TIMEOUT_S
        while True:
            try:
                if self._client is None:
                    self._client = RawClient.from_url(self._url)
                    self._producer = self._client.create_producer(TOPIC, producer_name=self._name)
                self._producer.send_many(messages, window=RAW_WINDOW)
            except (ConnectionLostError, OSError):
                if time.monotonic() > deadline:
                    raise
                self.close()
                time.sleep(RECONNECT_DELAY_S)
            else:
                return

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None


def _in_slices(number: int, sender: str, count: int, *, breathe: bool = True) -> Iterator[Key]:
    """The keys of a sender's round, with a pause after each slice."""
    every = max(1, count // SLICES)
    for n in range(count):
        if breathe and n % every == every - 1:
            threading.Event().wait(BREATH_S)
        yield number, sender, n
