"""`pulsemark perf produce|consume|seek TOPIC`: measure with the official client.

    pulsemark perf produce orders --rate 1000 --size 1024 --time 30
    pulsemark perf seek orders --rate 20 --num-messages 200

The options are those of `pulsar-perf`. A line is printed every `--stats-interval-seconds`; at the
end (also after Ctrl-C) the figures of all, with percentiles and a histogram.

`produce`, `consume` and `seek` call `measured` for every message (or seek) with its latency in
microseconds. They end at their `Limits`, or with KeyboardInterrupt.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..client.errors import ClientError, ServiceUrlError
from ..extras import install_command
from .brokers import SERVICE, access_of, service_of
from .messages import SUB_TYPES
from .options import JSON, TOPIC, declared, full_topic, not_negative
from .output import Table, json_line, print_table, size_text
from .parsing import CliError

ERRORS = (ClientError, ServiceUrlError, OSError)
BAR_WIDTH = 40


def _rate(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e12:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return number


add_arguments = declared(
    f"""
-time, --time, --test-duration SECONDS [0]  end after so long; 0: no limit (default: 0)
--stats-interval-seconds N [10]  how often a line is printed (default: 10)
{SERVICE}{JSON}
produce: publish messages; latencies are those of the receipts
{TOPIC}
-r, --rate N [100]  a second; 0: no limit (default: 100)
-m, --num-messages N [0]  end after so many messages; 0: no limit (default: 0)
-s, --size BYTES [1024]  of each message (default: 1024)
-o, --max-outstanding N [1000]  messages without a receipt (default: 1000)
-db, --disable-batching  one entry for each message
consume: receive messages; latencies count from their publish times
{TOPIC}
-m, --num-messages N [0]  end after so many messages; 0: no limit (default: 0)
-ss, --subscription NAME [sub]  (default: sub)
-st, --subscription-type TYPE [exclusive]  one of {", ".join(SUB_TYPES)} (default: exclusive)
-sp, --subscription-position {{earliest,latest}} [latest]  where a new subscription begins (default:
    latest)
-q, --receiver-queue-size N [1000]  messages that the client fetches in advance (default: 1000)
seek: seek a reader to moments of the topic, and read one message there
{TOPIC}
-r, --rate N [0]  a second; 0: no limit (default: 0)
-m, --num-messages N [0]  end after so many seeks; 0: no limit (default: 0)
""",
    rate=_rate,
    time=_rate,
    num_messages=not_negative,
    size=not_negative,
    subscription_type=SUB_TYPES,
)


def run(args: argparse.Namespace) -> int:
    """Measure, and print the figures."""
    topic = full_topic(args.topic)
    limits = Limits(args.num_messages, args.time, getattr(args, "rate", 0))
    access = access_of(args)
    if access.certificate is not None:
        raise CliError("perf cannot show a certificate of its own: use a token")
    with service_of(args) as service:
        service.first()  # the official client says only that it waited for ten seconds
    ca = None if access.ca is None else str(access.ca)
    perf = PerfClient(args.url, token=access.token, ca=ca)
    figures = _Figures(args)
    try:
        WORK[args.action](perf, topic, args, limits, figures.measured)
    except KeyboardInterrupt:
        figures.finish()
        raise
    finally:
        perf.close()
    figures.finish()
    return 0


class _Figures:
    """The measurements of the interval and of the whole run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._pieces = "seeks" if args.action == "seek" else "messages"
        self._all, self._part = Histogram(), Histogram()
        self._began_s = self._part_began_s = time.monotonic()

    def measured(self, latency_us: int, size_bytes: int) -> None:
        """Count a message; a latency of -1 counts nothing."""
        if latency_us >= 0:
            self._part.add(latency_us, size_bytes)
        now_s = time.monotonic()
        if now_s - self._part_began_s >= self._args.stats_interval_seconds:
            self._print(self._part, now_s - self._part_began_s, is_total=False)
            self._all.merge(self._part)
            self._part, self._part_began_s = Histogram(), now_s

    def finish(self) -> None:
        """Print the figures of the whole run."""
        self._all.merge(self._part)
        self._print(self._all, time.monotonic() - self._began_s, is_total=True)

    def _print(self, found: Histogram, took_s: float, *, is_total: bool) -> None:
        rate, bytes_per_s = (n / took_s if took_s else 0.0 for n in (found.count, found.size_bytes))
        if self._args.json:
            fields = {
                "is_total": is_total,
                "seconds": round(took_s, 3),
                self._pieces: found.count,
                f"{self._pieces}_per_s": round(rate, 1),
                "bytes_per_s": round(bytes_per_s, 1),
                "mean_ms": _ms(found.mean),
                **{f"p{percent:g}_ms": _ms(found.percentile(percent)) for percent in PERCENTILES},
                "max_ms": _ms(found.max),
            }
            print(json_line(fields), flush=True)
            return
        per_s = f"{rate:,.1f} {self._pieces}/s, {size_text(bytes_per_s)}/s"
        if not is_total:
            print(f"{took_s:.1f} s: {per_s}; latency {_latencies(found)}", flush=True)
            return
        print(f"{found.count:,} {self._pieces} in {took_s:.1f} s: {per_s}")
        if found.count:
            _print_tables(found, self._pieces)
        sys.stdout.flush()


def _ms(value_us: float) -> float:
    return round(value_us / 1000, 3)


def _latencies(found: Histogram) -> str:
    return ", ".join(f"{name} {_ms(value):,.3f}" for name, value in _summary(found)) + " ms"


def _summary(found: Histogram) -> list[tuple[str, float]]:
    shown = [(f"{percent:g} %", float(found.percentile(percent))) for percent in PERCENTILES]
    return [("mean", found.mean), *shown, ("max", float(found.max))]


def _print_tables(found: Histogram, pieces: str) -> None:
    """The latencies, and the histogram as bars."""
    summary = _summary(found)
    values = [f"{_ms(value):,.3f}" for _, value in summary]
    headings = ["latency", *(name for name, _ in summary)]
    print()
    print_table(Table(headings, [["ms", *values]], [False] + [True] * len(values)))
    bars = list(found.bars())
    most = max(count for _, _, count in bars)
    rows = [
        [
            f"{_ms(begin):,.3f}",
            f"{_ms(end):,.3f}",
            f"{count:,}",
            "#" * -(-count * BAR_WIDTH // most),
        ]
        for begin, end, count in bars
    ]
    print()
    print_table(Table(["from ms", "to ms", pieces, ""], rows, [True, True, True, False]))


Measured = Callable[[int, int], None]
"""Called with the latency in microseconds and the bytes of the message."""

_POLL_S = 0.1
_TIMEOUT_MS = 30_000
_NO_ANSWER = ("TimeOut", "ConnectError", "Disconnected")


@dataclass(frozen=True, slots=True)
class Limits:
    """The end of a run, and its rate."""

    #: Messages or seeks; 0: no limit.
    count: int = 0
    #: Seconds; 0: no limit.
    time_s: float = 0
    #: The rate per second; 0: as fast as possible.
    rate: float = 0

    def due_times(self) -> Iterator[float]:
        """Yield the due moment (`time.monotonic`) of each piece of work, after waiting for it."""
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
    perf: PerfClient, topic: str, args: argparse.Namespace, limits: Limits, measured: Measured
) -> None:
    """Publish messages. A latency is counted from when the message was due, not only sent.

    So a broker that stops for a second is seen in the latencies of all messages of that second.
    Raises CliError.
    """
    payload = random.Random(0).randbytes(args.size)  # noqa: S311 - no secret
    places = threading.Semaphore(args.max_outstanding)
    done: queue.SimpleQueue[tuple[Any, int]] = queue.SimpleQueue()

    def sent(due_s: float, result: Any, _: Any) -> None:
        done.put((result, int((time.monotonic() - due_s) * 1e6)))
        places.release()

    def take() -> None:
        while not done.empty():
            result, latency_us = done.get()
            if result != perf.pulsar.Result.Ok:
                raise CliError(f"{topic}: a message was not acknowledged: {result.name}")
            measured(latency_us, args.size)

    with perf.errors(topic):
        producer = perf.client.create_producer(
            topic, batching_enabled=not args.disable_batching, batching_max_publish_delay_ms=1,
            max_pending_messages=args.max_outstanding, block_if_queue_full=True,
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
    perf: PerfClient, topic: str, args: argparse.Namespace, limits: Limits, measured: Measured
) -> None:
    """Receive and acknowledge. A latency counts from the publish time. Raises CliError."""
    pulsar, kind = perf.pulsar, args.subscription_type
    begin_s, number = time.monotonic(), 0
    with perf.errors(topic):
        consumer = perf.client.subscribe(
            topic, args.subscription,
            consumer_type=getattr(pulsar.ConsumerType, kind.title().replace("_", "")),
            initial_position=getattr(pulsar.InitialPosition, args.subscription_position.title()),
            receiver_queue_size=args.receiver_queue_size,
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


def seek(
    perf: PerfClient, topic: str, _: argparse.Namespace, limits: Limits, measured: Measured
) -> None:
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


WORK = {"produce": produce, "consume": consume, "seek": seek}
PERCENTILES = (50.0, 95.0, 99.0, 99.9, 99.99)
_HALF_BITS = 10
_EXACT = 2 << _HALF_BITS


class Histogram:
    """Latencies in whole microseconds, with a bounded relative error, as HdrHistogram's.

    Up to 2,047 each value has a bucket of its own; above, a power of two is divided into 1,024
    buckets. A bucket counts as its highest value, so that all figures are at most 0.1 % above the
    true ones. Adding a value is one step; the memory does not grow with their number.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.size_bytes = 0

    def add(self, value: int, size_bytes: int = 0) -> None:
        """Count a value, of so many bytes; a negative one (clocks that differ) counts as 0."""
        self._counts[_highest_equal(max(value, 0))] += 1
        self.size_bytes += size_bytes

    def merge(self, other: Histogram) -> None:
        """Count all values of another histogram, too."""
        self._counts.update(other._counts)
        self.size_bytes += other.size_bytes

    @property
    def count(self) -> int:
        """How many values there are."""
        return self._counts.total()

    @property
    def max(self) -> int:
        """0 without values."""
        return max(self._counts, default=0)

    @property
    def mean(self) -> float:
        """0 without values."""
        return sum(value * n for value, n in self._counts.items()) / max(self.count, 1)

    def percentile(self, percent: float) -> int:
        """The value that so many percent of the values do not exceed; 0 without values."""
        left = max(-(-self.count * percent // 100), 1)
        for value in sorted(self._counts):
            left -= self._counts[value]
            if left <= 0:
                return value
        return self.max

    def bars(self, rows: int = 12) -> Iterator[tuple[int, int, int]]:
        """Ranges that grow by the same factor: (from, to, count), without empty ends."""
        if not self._counts:
            return
        begin, highest, counted = min(self._counts), self.max, -1
        lowest = max(begin, 1)
        factor = (max(highest, 1) / lowest) ** (1 / rows)
        for number in range(1, rows + 1):
            edge = highest if number == rows else min(int(lowest * factor**number), highest)
            end = max(begin, edge)
            count = sum(n for value, n in self._counts.items() if counted < value <= end)
            if end > begin or count:
                yield begin, end, count
            begin = counted = end


def _highest_equal(value: int) -> int:
    """The highest value that has the same bucket."""
    if value < _EXACT:
        return value
    shift = value.bit_length() - 1 - _HALF_BITS
    return ((value >> shift) + 1 << shift) - 1
