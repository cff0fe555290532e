"""`pulsemark follow SOURCE --data-dir D`: keep a second folder that can take the first one's place.

SOURCE is a broker's gRPC port (`grpc://HOST:PORT`) or a data folder; see docs/follow.md. Progress,
truncations and lost connections are lines on stderr, the sum is on stdout.

Exit codes: 0: ended by SIGTERM or SIGINT, or with `--once` all that was there is followed; 1:
ended, but a topic could not be followed further, `--once` was ended before it was done, or there
was no connection for too long; 2: bad input, or refused.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..finder.errors import InvalidFieldError, NotPossibleError, SeekCallError
from ..ledger import LedgerError
from ..mirror import (
    FollowReport,
    FollowRun,
    LostError,
    MirrorError,
    Options,
    Selection,
    open_followed,
    open_follower,
)
from ..wire import InvalidTopicNameError
from .mirror import EXIT_INCOMPLETE, Stop, add_run_options, say
from .options import DEFAULT_DATA_DIR, add_data_dir, add_json, port_number, read_token
from .output import json_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

ERRORS = (
    MirrorError,
    SeekCallError,
    InvalidFieldError,
    NotPossibleError,
    InvalidTopicNameError,
    LedgerError,
    OSError,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("source", metavar="SOURCE", help="grpc://HOST:PORT, or a data folder")
    add_data_dir(parser, why="the follower's folder")
    parser.add_argument(
        "--topics", metavar="NAMES", help="separated by commas, or a pattern (default: all)"
    )
    parser.add_argument(
        "-r", "--regex", action="store_true", help="--topics is a regular expression"
    )
    parser.add_argument(
        "--once", action="store_true", help="end when all that is there now is followed"
    )
    add_run_options(parser)
    parser.add_argument(
        "--source-token-file", type=Path, metavar="FILE", help="the source broker's token"
    )
    parser.add_argument(
        "--trusted-certificates",
        type=Path,
        metavar="FILE",
        help="PEM file for grpcs (default: what the machine trusts)",
    )
    parser.add_argument(
        "--metrics-port", type=port_number, metavar="PORT", help="serve Prometheus metrics there"
    )
    parser.add_argument(
        "--metrics-host", default="127.0.0.1", metavar="HOST", help="address for the metrics"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Follow until a signal arrives, or until it is done."""
    selection = None
    if args.topics is not None:
        names = (args.topics,) if args.regex else tuple(filter(None, args.topics.split(",")))
        selection = Selection(names, is_regex=args.regex)
    options = Options(
        source_token=read_token(args.source_token_file),
        trusted_certificates=args.trusted_certificates,
    )
    report = FollowReport(say, interval_s=args.progress_s)
    source = open_followed(args.source, options)
    with open_follower(args.data_dir or DEFAULT_DATA_DIR) as store, Stop() as stop:
        if args.metrics_port is not None:
            _serve_metrics(args.metrics_host, args.metrics_port, report)
        follower = FollowRun(
            source,
            store,
            report,
            selection,
            once=args.once,
            reconnect_s=args.reconnect_s,
            is_stopped=lambda: stop.asked,
        )
        try:
            is_complete = follower.run()
        except LostError as error:
            say(str(error))
            is_complete = False
            done = False
        else:
            done = is_complete or not args.once
        finally:
            source.close()
    _print(args, report, complete=is_complete)
    return 0 if done and not follower.problems else EXIT_INCOMPLETE


def _print(args: argparse.Namespace, report: FollowReport, *, complete: bool) -> None:
    if not args.json:
        print(report.line())
        return
    for topic, totals in report.topics.items():
        lag = report.lags.get(topic)
        fields = {
            "topic": topic,
            "entries": totals.entries,
            "messages": totals.messages,
            "bytes": totals.bytes,
            "truncated": report.truncated.get(topic, 0),
            "lag_entries": 0 if lag is None else lag.entries,
            "lag_seconds": 0.0 if lag is None else lag.time_ms / 1000,
            "complete": complete,
        }
        print(json_line(fields))


class _Metrics:
    """The report as Prometheus reads it."""

    def __init__(self, report: FollowReport) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        report = self._report
        text = "Whether the source answered the last time"
        yield GaugeMetricFamily("pulsemark_follow_connected", text, int(report.is_connected))
        entries = GaugeMetricFamily(
            "pulsemark_follow_lag_entries", "Entries not followed yet", labels=["topic"]
        )
        seconds = GaugeMetricFamily(
            "pulsemark_follow_lag_seconds",
            "Broker time between the last entry of the follower and that of the source",
            labels=["topic"],
        )
        for topic, lag in report.lags.copy().items():
            entries.add_metric([topic], lag.entries)
            seconds.add_metric([topic], lag.time_ms / 1000)
        followed = CounterMetricFamily(
            "pulsemark_follow_entries", "Entries followed", labels=["topic"]
        )
        for topic, totals in report.topics.copy().items():
            followed.add_metric([topic], totals.entries)
        truncated = CounterMetricFamily(
            "pulsemark_follow_truncated_entries",
            "Entries cut off because the source does not have them",
            labels=["topic"],
        )
        for topic, count in report.truncated.copy().items():
            truncated.add_metric([topic], count)
        yield from (entries, seconds, followed, truncated)


def _serve_metrics(host: str, port: int, report: FollowReport) -> None:
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(_Metrics(report))
    server, _ = start_http_server(port, host, registry)
    say(f"metrics: http://{host}:{server.server_port}/metrics")
