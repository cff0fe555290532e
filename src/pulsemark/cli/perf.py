"""`pulsemark perf produce|consume|seek TOPIC`: measure with the official client.

    pulsemark perf produce orders --rate 1000 --size 1024 --time 30
    pulsemark perf seek orders --rate 20 --num-messages 200

The options are those of `pulsar-perf`. A line is printed every `--stats-interval-seconds`; at the
end (also after Ctrl-C) the figures of all, with percentiles and a histogram.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from ..client.errors import ClientError, ServiceUrlError
from .access import access_of
from .brokers import add_service, service_of
from .consume import SUB_TYPES
from .errors import CliError
from .histogram import PERCENTILES, Histogram
from .options import add_json, full_topic, json_line, not_negative, positive
from .perf_runs import Limits, PerfClient, consume, produce, seek
from .progress import size_text
from .tables import Table, print_table
from .terminal import output_console

if TYPE_CHECKING:
    from rich.console import Console

ERRORS = (ClientError, ServiceUrlError, OSError)
_BAR_WIDTH = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, what in (
        ("produce", "publish messages; latencies are those of the receipts"),
        ("consume", "receive messages; latencies count from their publish times"),
        ("seek", "seek a reader to moments of the topic, and read one message there"),
    ):
        action = actions.add_parser(name, help=what, description=f"{what.capitalize()}.")
        action.add_argument("topic", metavar="TOPIC", help="short or full name")
        if name != "consume":
            action.add_argument(
                "-r", "--rate", type=_rate, metavar="N", default=100.0 if name == "produce" else 0,
                help=f"a second; 0: no limit (default: {100 if name == 'produce' else 0})",
            )  # fmt: skip
        pieces = "seeks" if name == "seek" else "messages"
        action.add_argument(
            "-m", "--num-messages", type=not_negative, metavar="N", default=0,
            help=f"end after so many {pieces}; 0: no limit (default: 0)",
        )  # fmt: skip
        action.add_argument(
            "-time", "--time", "--test-duration", type=_rate, metavar="SECONDS", default=0,
            dest="time", help="end after so long; 0: no limit (default: 0)",
        )  # fmt: skip
        action.add_argument(
            "--stats-interval-seconds", type=positive, metavar="N", default=10,
            help="how often a line is printed (default: 10)",
        )  # fmt: skip
        add_service(action)
        add_json(action)
    _add_own(actions.choices["produce"], actions.choices["consume"])


def _add_own(producing: argparse.ArgumentParser, consuming: argparse.ArgumentParser) -> None:
    producing.add_argument(
        "-s", "--size", type=not_negative, metavar="BYTES", default=1024,
        help="of each message (default: 1024)",
    )  # fmt: skip
    producing.add_argument(
        "-o", "--max-outstanding", type=positive, metavar="N", default=1000,
        help="messages without a receipt (default: 1000)",
    )  # fmt: skip
    producing.add_argument(
        "-db", "--disable-batching", action="store_true", help="one entry for each message"
    )
    consuming.add_argument(
        "-ss", "--subscription", metavar="NAME", default="sub", help="(default: sub)"
    )
    consuming.add_argument(
        "-st", "--subscription-type", choices=SUB_TYPES, default="exclusive", metavar="TYPE",
        help=f"one of {', '.join(SUB_TYPES)} (default: exclusive)",
    )  # fmt: skip
    consuming.add_argument(
        "-sp", "--subscription-position", choices=("earliest", "latest"), default="latest",
        help="where a new subscription begins (default: latest)",
    )  # fmt: skip
    consuming.add_argument(
        "-q", "--receiver-queue-size", type=positive, metavar="N", default=1000,
        help="messages that the client fetches in advance (default: 1000)",
    )  # fmt: skip


def _rate(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e12:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return number


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
    perf = PerfClient(args.service_url, token=access.token, ca=ca)
    figures = _Figures(args)
    try:
        _work(args)(perf, topic, limits, figures.measured)
    except KeyboardInterrupt:
        figures.finish()
        raise
    finally:
        perf.close()
    figures.finish()
    return 0


def _work(args: argparse.Namespace) -> Any:
    if args.action == "produce":
        return partial(
            produce, size_bytes=args.size, max_outstanding=args.max_outstanding,
            batching=not args.disable_batching,
        )  # fmt: skip
    if args.action == "consume":
        return partial(
            consume, subscription=args.subscription, sub_type=args.subscription_type,
            earliest=args.subscription_position == "earliest", queue_size=args.receiver_queue_size,
        )  # fmt: skip
    return seek


class _Figures:
    """What was measured, of the interval and of the whole run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._pieces = "seeks" if args.action == "seek" else "messages"
        self._all, self._part = Histogram(), Histogram()
        self._bytes, self._part_bytes = 0, 0
        self._began_s = self._part_began_s = time.monotonic()

    def measured(self, latency_us: int, size_bytes: int) -> None:
        """Count a message; a latency of -1 counts nothing."""
        if latency_us >= 0:
            self._part.add(latency_us)
            self._part_bytes += size_bytes
        now_s = time.monotonic()
        if now_s - self._part_began_s >= self._args.stats_interval_seconds:
            self._print(self._part, self._part_bytes, now_s - self._part_began_s, is_total=False)
            self._end_part(now_s)

    def _end_part(self, now_s: float) -> None:
        self._all.merge(self._part)
        self._bytes += self._part_bytes
        self._part, self._part_bytes, self._part_began_s = Histogram(), 0, now_s

    def finish(self) -> None:
        """Print the figures of the whole run."""
        now_s = time.monotonic()
        self._end_part(now_s)
        self._print(self._all, self._bytes, now_s - self._began_s, is_total=True)

    def _print(self, found: Histogram, size_bytes: int, took_s: float, *, is_total: bool) -> None:
        rate = found.count / took_s if took_s else 0.0
        if self._args.json:
            fields = {
                "is_total": is_total,
                "seconds": round(took_s, 3),
                self._pieces: found.count,
                f"{self._pieces}_per_s": round(rate, 1),
                "bytes_per_s": round(size_bytes / took_s, 1) if took_s else 0.0,
                "mean_ms": _ms(found.mean),
                **{f"p{percent:g}_ms": _ms(found.percentile(percent)) for percent in PERCENTILES},
                "max_ms": _ms(found.max),
            }
            print(json_line(fields), flush=True)
            return
        per_s = f"{rate:,.1f} {self._pieces}/s, {size_text(size_bytes / took_s if took_s else 0)}/s"
        if not is_total:
            print(f"{took_s:.1f} s: {per_s}; latency {_latencies(found)}", flush=True)
            return
        print(f"{found.count:,} {self._pieces} in {took_s:.1f} s: {per_s}")
        console = output_console()
        if found.count and console is not None:
            _print_tables(found, self._pieces, console)
        elif found.count:
            print(f"latency {_latencies(found)}")
            print(_bars(found))
        sys.stdout.flush()


def _ms(value_us: float) -> float:
    return round(value_us / 1000, 3)


def _latencies(found: Histogram) -> str:
    return ", ".join(f"{name} {_ms(value):,.3f}" for name, value in _summary(found)) + " ms"


def _summary(found: Histogram) -> list[tuple[str, float]]:
    shown = [(f"{percent:g} %", float(found.percentile(percent))) for percent in PERCENTILES]
    return [("mean", found.mean), *shown, ("max", float(found.max))]


def _print_tables(found: Histogram, pieces: str, console: Console) -> None:
    """The latencies, and the histogram as bars, on a terminal."""
    summary = _summary(found)
    values = [f"{_ms(value):,.3f}" for _, value in summary]
    headings = ["latency", *(name for name, _ in summary)]
    print()
    print_table(Table(headings, [["ms", *values]], [False] + [True] * len(values)), console)
    bars = list(found.bars())
    most = max(count for _, _, count in bars)
    rows = [
        [f"{_ms(begin):,.3f}", f"{_ms(end):,.3f}", f"{count:,}", _bar(count, most)]
        for begin, end, count in bars
    ]
    print()
    print_table(Table(["from ms", "to ms", pieces, ""], rows, [True, True, True, False]), console)


def _bar(count: int, most: int) -> str:
    return "#" * -(-count * _BAR_WIDTH // most)


def _bars(found: Histogram) -> str:
    bars = list(found.bars())
    most = max(count for _, _, count in bars)
    return "\n".join(
        f"{_ms(begin):>12,.3f} to {_ms(end):>12,.3f} ms {count:>10,} {_bar(count, most)}".rstrip()
        for begin, end, count in bars
    )
