"""The work of `pulsemark perf`, with the official client: publishing, receiving and seeking.

Each run calls `measured` for every message (or seek) with its latency in microseconds. A run ends
after `limit` of them, at `deadline_s`, or with KeyboardInterrupt.
"""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..extras import install_command
from .errors import CliError

__all__ = ["Limits", "Measured", "PerfClient", "consume", "produce", "seek"]

Measured = Callable[[int, int], None]
"""Called with the latency in microseconds and the bytes of the message."""

_POLL_S = 0.1
_TIMEOUT_MS = 30_000
_NO_ANSWER = ("TimeOut", "ConnectError", "Disconnected")


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run ends, and how fast it may be."""

    #: Messages or seeks; 0: no limit.
    count: int = 0
    #: Seconds; 0: no limit.
    time_s: float = 0
    #: In a second; 0: as fast as possible.
    rate: float = 0

    def due_times(self) -> Iterator[float]:
        """The moments (of `time.monotonic`) of all pieces of work; waits for each one."""
        begin_s, number = time.monotonic(), 0
        while not self.count or number < self.count:
            now_s = time.monotonic()
            due_s = begin_s + number / self.rate if self.rate else now_s
            if self.time_s and max(due_s, now_s) - begin_s >= self.time_s:
                return
            if due_s > now_s:
                time.sleep(due_s - now_s)
            yield due_s
            number += 1


class PerfClient:
    """The official client, whose errors become CliError."""

    def __init__(self, service_url: str, *, token: str | None, ca: str | None) -> None:
        try:
            import pulsar
        except ImportError as error:
            raise CliError(
                f"perf needs the official client: {install_command('perf')} (or pulsar-client)"
            ) from error
        self.pulsar = pulsar
        self._service_url = service_url
        settings: dict[str, Any] = {
            "logger": pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
            "operation_timeout_seconds": 10,
        }
        if token is not None:
            settings["authentication"] = pulsar.AuthenticationToken(token)
        if ca is not None:
            settings["tls_trust_certs_file_path"] = ca
        with self.errors("the client"):
            self.client = pulsar.Client(service_url, **settings)

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Turn the client's errors into CliError."""
        try:
            yield
        except (self.pulsar.PulsarException, ValueError) as error:
            text = str(error).removeprefix("Pulsar error: ") or type(error).__name__
            hint = "; is there a broker?" if text in _NO_ANSWER else ""
            raise CliError(f"{what} at {self._service_url}: {text}{hint}") from error

    def close(self) -> None:
        """Close all connections."""
        with self.errors("closing"):
            self.client.close()


def produce(
    perf: PerfClient,
    topic: str,
    limits: Limits,
    measured: Measured,
    *,
    size_bytes: int,
    max_outstanding: int,
    batching: bool,
) -> None:
    """Publish messages. A latency is counted from when the message was due, not only sent.

    So a broker that stops for a second is seen in the latencies of all messages of that second.
    Raises CliError.
    """
    payload = random.Random(0).randbytes(size_bytes)  # noqa: S311 - no secret
    places = threading.Semaphore(max_outstanding)
    done: queue.SimpleQueue[tuple[Any, int]] = queue.SimpleQueue()

    def sent(due_s: float, result: Any, _: Any) -> None:
        done.put((result, int((time.monotonic() - due_s) * 1e6)))
        places.release()

    def take() -> None:
        while not done.empty():
            result, latency_us = done.get()
            if result != perf.pulsar.Result.Ok:
                raise CliError(f"{topic}: a message was refused: {result.name}")
            measured(latency_us, size_bytes)

    with perf.errors(topic):
        producer = perf.client.create_producer(
            topic, batching_enabled=batching, batching_max_publish_delay_ms=1,
            max_pending_messages=max_outstanding, block_if_queue_full=True,
        )  # fmt: skip
        for due_s in limits.due_times():
            while not places.acquire(timeout=_POLL_S):
                take()
            producer.send_async(payload, partial(sent, due_s))
            take()
        producer.flush()
        producer.close()
        take()


def consume(
    perf: PerfClient,
    topic: str,
    limits: Limits,
    measured: Measured,
    *,
    subscription: str,
    sub_type: str,
    earliest: bool,
    queue_size: int,
) -> None:
    """Receive and acknowledge messages. A latency is counted from the publish time.

    Raises CliError.
    """
    pulsar = perf.pulsar
    position = pulsar.InitialPosition
    begin_s, number = time.monotonic(), 0
    with perf.errors(topic):
        consumer = perf.client.subscribe(
            topic, subscription, consumer_type=_consumer_type(pulsar, sub_type),
            initial_position=position.Earliest if earliest else position.Latest,
            receiver_queue_size=queue_size,
        )  # fmt: skip
        while not limits.count or number < limits.count:
            if limits.time_s and time.monotonic() - begin_s >= limits.time_s:
                break
            try:
                message = consumer.receive(int(_POLL_S * 1000))
            except pulsar.Timeout:
                measured(-1, 0)  # time passes: the caller shows what there is
                continue
            consumer.acknowledge(message)
            latency_us = time.time_ns() // 1000 - message.publish_timestamp() * 1000
            measured(max(latency_us, 0), len(message.data()))
            number += 1
        consumer.close()


def _consumer_type(pulsar: Any, name: str) -> Any:
    types = {
        "exclusive": pulsar.ConsumerType.Exclusive,
        "shared": pulsar.ConsumerType.Shared,
        "failover": pulsar.ConsumerType.Failover,
        "key_shared": pulsar.ConsumerType.KeyShared,
    }
    return types[name]


def seek(perf: PerfClient, topic: str, limits: Limits, measured: Measured) -> None:
    """Seek a reader to moments between a topic's first and last message, and read there.

    A latency is counted from the seek's beginning to the message. The moments are producers' times,
    and brokers search by their own: after the last message of a producer whose clock is fast there
    may be none to read. Then the latency is that of the seek alone. Raises CliError.
    """
    with perf.errors(topic):
        reader = perf.client.create_reader(topic, perf.pulsar.MessageId.earliest)
        first = _next(perf, topic, reader) if reader.has_message_available() else None
        last = _last(perf, topic)
        if first is None or last is None:
            raise CliError(f"{topic} has no messages to seek to")
        low_ms, high_ms = sorted((first.publish_timestamp(), last.publish_timestamp()))
        moments = random.Random(0)  # noqa: S311 - no secret
        for due_s in limits.due_times():
            reader.seek(moments.randint(low_ms, high_ms))
            sought_s = time.monotonic()
            message = _next(perf, topic, reader)
            end_s = sought_s if message is None else time.monotonic()
            measured(int((end_s - due_s) * 1e6), 0 if message is None else len(message.data()))
        reader.close()


def _next(perf: PerfClient, topic: str, reader: Any) -> Any:
    """The next message; None at the end of the topic. Ctrl-C ends the wait. Raises CliError."""
    for _ in range(round(_TIMEOUT_MS / 1000 / _POLL_S)):
        try:
            return reader.read_next(int(_POLL_S * 1000))
        except perf.pulsar.Timeout:
            if not reader.has_message_available():
                return None
    raise CliError(f"{topic}: the broker has messages, but sent none in {_TIMEOUT_MS // 1000} s")


def _last(perf: PerfClient, topic: str) -> Any:
    """The last message (of one partition), or None."""
    reader = perf.client.create_reader(
        topic, perf.pulsar.MessageId.latest, start_message_id_inclusive=True
    )
    try:
        # The question moves the reader to the last message.
        return _next(perf, topic, reader) if reader.has_message_available() else None
    finally:
        reader.close()
