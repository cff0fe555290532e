"""Topics kept in a second place: `pulsemark mirror`, and `pulsemark follow` with `promote`.

`mirror FROM TO --topics NAMES` copies topics without opening an entry. FROM and TO are brokers
(`pulsar://HOST:PORT`, pulsemark's or Apache Pulsar's), Kafkas (`kafka://HOST:PORT`) or data folders
(docs/mirror.md).
`follow SOURCE --data-dir D` keeps a second folder with the same positions, of a broker
(`grpc://HOST:PORT`) or a folder, and `promote --data-dir D` makes it a leader's (docs/follow.md).
Progress, gaps, truncations and lost connections are lines on stderr, the sum is on stdout.

Exit codes: 0: done, or without `--once` ended by SIGTERM or SIGINT; 1: messages of the source are
missing, the comparison failed, a topic cannot be followed further, `--once` was ended before it was
done, or there was no connection for too long; 2: bad input, or refused.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from dataclasses import asdict, fields
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from ..client import ClientError, ServiceUrlError
from ..finder.errors import InvalidFieldError, NotPossibleError, SeekCallError
from ..ledger import LedgerError
from ..metadata import StampError
from ..metadata.source_stamp import CLUSTER_SIZE_MAX_BYTES
from ..metadata.stampers import split_stamper_names
from ..mirror import (
    FollowReport,
    FollowRun,
    LostError,
    MirrorError,
    MirrorRun,
    NotFollowerError,
    Options,
    Pace,
    RateLimit,
    Report,
    Selection,
    compare,
    folder_of,
    open_carrier,
    open_followed,
    open_follower,
    open_source,
    open_target,
    promote,
)
from ..mirror.follow import Lag
from ..until_signal import by_topic, ended_by_signals, serve_metrics
from ..wire import InvalidTopicNameError, ProtocolError
from .options import DEFAULT_DATA_DIR, IN_DATA_DIR, JSON, declared, read_token
from .output import counted, json_line
from .parsing import CliError, Command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client import Metric

ERRORS = (
    SeekCallError,
    InvalidFieldError,
    NotPossibleError,
    MirrorError,
    ClientError,
    ServiceUrlError,
    InvalidTopicNameError,
    LedgerError,
    StampError,
    ProtocolError,
    OSError,
)
FOLLOW_ERRORS = (*ERRORS, NotFollowerError)
EXIT_INCOMPLETE = 1


def _rate_limit(text: str) -> RateLimit:
    try:
        return RateLimit.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _mirror(args: argparse.Namespace) -> int:
    """Mirror until it is done, or until a signal arrives."""
    if args.verify and not args.once:
        raise CliError("--verify needs --once")
    if _is_same(args.source, args.target):
        raise CliError(f"FROM and TO are the same: {args.source}")
    _check_names(args)
    options, selection = _options(args), _selection(args)
    report = Report(_say, interval_s=args.progress_s)
    source = open_source(args.source, options)
    target = open_target(args.target, options)
    carrier = open_carrier(args.source, target, options) if args.subscriptions else None
    stop = Event()
    with ended_by_signals(stop.set):
        mirror = MirrorRun(
            source,
            target,
            selection,
            Pace(args.rate_limit),
            report,
            once=args.once,
            reconnect_s=args.reconnect_s,
            is_stopped=stop.is_set,
            carrier=carrier,
        )
        outcome = _outcome(mirror)
    is_complete, done = bool(outcome), _is_done(args, outcome)
    _print(
        args,
        report,
        lambda topic: {
            "gaps": report.of(topic).gaps,
            "source_index": report.of(topic).source_index,
            "headers_parsed": report.headers_parsed,
            "payloads_opened": report.payloads_opened,
        },
        complete=is_complete,
    )
    if args.verify and is_complete:
        done = _verify(args, mirror.topics(), options) and done
    return 0 if done and not report.sum().gaps else EXIT_INCOMPLETE


def _selection(args: argparse.Namespace) -> Selection:
    names = (args.topics,) if args.regex else tuple(filter(None, args.topics.split(",")))
    if not names:
        raise CliError("--topics names no topic")
    return Selection(names, is_regex=args.regex)


def _outcome(run: MirrorRun | FollowRun) -> bool | None:
    """Whether a run is complete; None: it gave up, because it lost a broker for too long."""
    try:
        return run.run()
    except LostError as error:
        _say(str(error))
        return None


def _is_done(args: argparse.Namespace, outcome: bool | None) -> bool:
    """Whether a run did its task: everything, or what came until a signal."""
    return bool(outcome) or (outcome is False and not args.once)


def _options(args: argparse.Namespace) -> Options:
    """The options that the command has, which are named as here."""
    given = vars(args)
    named = {each.name: given[each.name] for each in fields(Options) if each.name in given}
    for side in ("source", "target"):
        named[f"{side}_token"] = read_token(given.get(f"{side}_token_file"))
    return Options(**named)


def _check_names(args: argparse.Namespace) -> None:
    if not 0 < len(_encoded("--source-cluster", args.source_cluster)) <= CLUSTER_SIZE_MAX_BYTES:
        raise CliError(f"--source-cluster must have 1 to {CLUSTER_SIZE_MAX_BYTES} bytes")
    if not _encoded("--subscription", args.subscription):
        raise CliError("--subscription must not be empty")


def _encoded(option: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise CliError(f"{option} {text!r} is not UTF-8") from error


def _is_same(source: str, target: str) -> bool:
    """Whether both are one folder, or one URL: such a mirror would copy its own copies."""
    here, there = folder_of(source), folder_of(target)
    if here is None or there is None:
        return source == target
    return here.resolve() == there.resolve()


def _say(line: str) -> None:
    """A line for people, on stderr."""
    print(line, file=sys.stderr, flush=True)


def _print(
    args: argparse.Namespace,
    report: Report,
    more: Callable[[str], dict[str, object]],
    *,
    complete: bool,
) -> None:
    """Print the totals, or the topics' counts as JSON with more about each."""
    if not args.json:
        print(report.line())
        return
    for topic, totals in report.topics.items():
        counts = {"entries": totals.entries, "messages": totals.messages, "bytes": totals.bytes}
        print(json_line({"topic": topic, **counts, **more(topic), "complete": complete}))


def _verify(args: argparse.Namespace, topics: Iterable[str], options: Options) -> bool:
    equal = True
    for topic in topics:
        result = compare(args.source, args.target, topic, options)
        equal &= result.is_equal
        if args.json:
            print(json_line({**asdict(result), "equal": result.is_equal}))
        else:
            verb = "is" if result.source_entries == 1 else "are"
            equality = f"{counted(result.source_entries, 'entry')} {verb} equal"
            print(f"{topic}: {result.difference or equality}")
    return equal


def _follow(args: argparse.Namespace) -> int:
    """Follow until a signal arrives, or until it is done."""
    selection = None if args.topics is None else _selection(args)
    report = FollowReport(_say, interval_s=args.progress_s)
    source = open_followed(args.source, _options(args))
    stop = Event()
    with open_follower(args.data_dir or DEFAULT_DATA_DIR) as store, ended_by_signals(stop.set):
        if args.metrics_port is not None:
            metrics = FollowMetrics(report)
            port = serve_metrics(args.metrics_host, args.metrics_port, metrics)
            _say(f"metrics: http://{args.metrics_host}:{port}/metrics")
        follower = FollowRun(
            source,
            store,
            report,
            selection,
            once=args.once,
            reconnect_s=args.reconnect_s,
            is_stopped=stop.is_set,
        )
        try:
            outcome = _outcome(follower)
        finally:
            source.close()
    _print(
        args,
        report,
        lambda topic: {
            "truncated": report.truncated.get(topic, 0),
            "lag_entries": report.lags.get(topic, Lag()).entries,
            "lag_seconds": report.lags.get(topic, Lag()).time_ms / 1000,
        },
        complete=bool(outcome),
    )
    done = _is_done(args, outcome) and not follower.problems
    return 0 if done else EXIT_INCOMPLETE


class FollowMetrics:
    """The report as Prometheus reads it."""

    def __init__(self, report: FollowReport) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        from prometheus_client.core import GaugeMetricFamily

        report, name = self._report, "pulsemark_follow"
        text = "Whether the source answered the last time"
        yield GaugeMetricFamily(f"{name}_connected", text, int(report.is_connected))
        lags, topics = report.lags.copy(), report.topics.copy()
        entries = {topic: lag.entries for topic, lag in lags.items()}
        yield by_topic(f"{name}_lag_entries", "Entries not followed yet", entries)
        text = "Broker time between the last entry of the follower and that of the source"
        seconds = {topic: lag.time_ms / 1000 for topic, lag in lags.items()}
        yield by_topic(f"{name}_lag_seconds", text, seconds)
        followed = {topic: totals.entries for topic, totals in topics.items()}
        yield by_topic(f"{name}_entries", "Entries followed", followed, "counter")
        text = "Entries cut off because the source does not have them"
        yield by_topic(f"{name}_truncated_entries", text, report.truncated.copy(), "counter")


def _promote(args: argparse.Namespace) -> int:
    folder: Path = args.data_dir or DEFAULT_DATA_DIR
    if not folder.is_dir():
        raise CliError(f"{folder} is not a folder: name the follower's with --data-dir")
    # Two leaders of one epoch are told apart by their names.
    leader = args.leader or f"{socket.gethostname()}-{os.urandom(4).hex()}"
    with open_follower(folder) as store:
        epochs = promote(store, leader)
    if args.json:
        for topic, epoch in epochs.items():
            print(json_line({"topic": topic, "epoch": epoch, "leader": leader}))
    else:
        print(f"promoted {folder}: {leader} leads {counted(len(epochs), 'topic')}")
    return 0


_WHERE = "pulsar://HOST:PORT, kafka://[USER@]HOST:PORT, or a data folder"
_REGEX = "-r, --regex  --topics is a regular expression\n"
_RUN = """
--progress-s SECONDS [10]  between lines of progress (default: 10)
--reconnect-s SECONDS [300]  how long to try again after a connection was lost (default: 300)
"""
_ACCESS = """
--{0}-token-file FILE  the {0} broker's token (of a Kafka with USER: the password)
"""
_MIRROR = declared(
    f"""
source FROM  {_WHERE}
target TO  {_WHERE}
--topics NAMES!  separated by commas, or a pattern
{_REGEX}
--source-cluster NAME [standalone]  the source's name in the target's tags, by which mirroring goes
    on (default: standalone)
--subscription NAME [pulsemark-mirror]  holds the position in a source broker (default:
    pulsemark-mirror)
--append  also into topics that have other entries
--without-deduplication  also to an Apache Pulsar that does not deduplicate
--renumber  to a Kafka: also where offsets cannot stay equal, or sets must be packed again
--stampers NAMES [broker-time,index]  stampers of a data folder's entries (default:
    broker-time,index)
--once  end when all that is there now is mirrored
--verify  with --once: compare both sides at the end
--rate-limit RATE  bytes (10M) or messages (500msg) in a second
{_RUN}{_ACCESS.format("source")}{_ACCESS.format("target")}
--trusted-certificates FILE  PEM file for pulsar+ssl and kafka+ssl (default: what the machine
    trusts)
--subscriptions  subscriptions follow, too, by their positions
--source-grpc URL  with --subscriptions: grpc://HOST:PORT of the source broker
--target-grpc URL  with --subscriptions: grpc://HOST:PORT of the target broker
{JSON}""",
    rate_limit=_rate_limit,
    stampers=split_stamper_names,
)
_FOLLOW = declared(f"""
source SOURCE  grpc://HOST:PORT, or a data folder
--data-dir PATH  the follower's folder {IN_DATA_DIR}
--topics NAMES  separated by commas, or a pattern (default: all)
{_REGEX}
--once  end when all that is there now is followed
{_RUN}{_ACCESS.format("source")}
--trusted-certificates FILE  PEM file for grpcs (default: what the machine trusts)
--metrics-port PORT  serve Prometheus metrics there
--metrics-host HOST [127.0.0.1]  address for the metrics
{JSON}""")
_PROMOTE = declared(f"""
--data-dir PATH  the follower's folder {IN_DATA_DIR}
--leader NAME  the leader that the epochs' marks name (default: the host, and a random part)
{JSON}""")
COMMANDS = {
    "mirror": Command(ERRORS, _MIRROR, _mirror),
    "follow": Command(FOLLOW_ERRORS, _FOLLOW, _follow),
    "promote": Command(FOLLOW_ERRORS, _PROMOTE, _promote),
}
