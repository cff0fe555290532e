"""Measures pulsemark and Apache Pulsar in turns, in one run, and prints a table for the docs.

    python bench/compare_pulsar.py HOME [--rounds 3] [--seconds 16] [--only NAME ...]

HOME is an unpacked Apache Pulsar distribution. Its standalone broker is the peer; it syncs its
journal before it acknowledges and stamps every entry (broker time and index), as pulsemark does.
Loads are HOME's pulsar-perf, the official Python client, and requests to REST and gRPC. Both
brokers run all the time, and only one is loaded. Clients and brokers share the machine.

pulsar-perf's rate is that of the time after its first ten seconds, in which the JVM warms up. A
broker's CPU is that of its process, divided by the messages. Searches go through the topic that
pulsar-perf has just filled without batching, some 0.5 to 1 million entries. Shown are the medians
of all rounds with the lowest and highest values. A run of all rows takes some eleven minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench_produce import cpu_s
from pulsar_client_jobs import SEARCHES, ClientJobs, moments
from report import Figure, higher, lower, quantile, write_json
from rounds import add_rounds

from pulsemark.finder import Finder, SeekClient
from pulsemark.ledger import FolderReader

INTERCEPTORS = "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor,"
INTERCEPTORS += "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"
SETTINGS = {
    "brokerEntryMetadataInterceptors": INTERCEPTORS,
    "journalSyncData": "true",
    "transactionCoordinatorEnabled": "false",
    "brokerDeleteInactiveTopicsEnabled": "false",
    # What was acknowledged is searched and read again.
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "advertisedAddress": "127.0.0.1",
    "bindAddress": "127.0.0.1",
}
PERF = {
    "unbatched": ["-s", "100", "-db", "-r", "200000"],
    "bounded": ["-s", "100", "-db", "-r", "200000", "-o", "1000"],
    "batched": ["-s", "100", "-r", "1000000"],
    "large": ["-s", "131072", "-db", "-r", "5000", "-o", "200"],
    "topics": ["-s", "100", "-db", "-r", "200000", "-t", "1000"],
}
#: The loads whose topics pulsar-perf reads again, for so many subscriptions that it stays busy.
CONSUMED = ("unbatched", "batched")
SUBSCRIPTIONS = 8
CLIENT = ("window_1", "unbatched", "batched", "large", "catch_up_batched", "catch_up_large")
RATES = (15_000, 3_000)
JOBS = [
    *(f"perf-{name}" for name in PERF),
    *(f"consume-{name}" for name in CONSUMED),
    "client",
    "search",
    "cpu",
]
WARM_UP_S = 10.0
LARGE_MB = 131_072 / 1e6


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: what it is, its unit, and whether more is better.

    ``goal`` is the ratio that is wanted.
    """

    title: str
    unit: str
    is_higher_better: bool = True
    goal: float | None = None


ROWS = {
    "perf unbatched": Row("pulsar-perf produce 100 B, no batching", "/s", True, 1.5),
    "perf bounded": Row("the same, at most 1,000 messages unanswered", "/s", True, 1.1),
    "perf batched": Row("pulsar-perf produce 100 B, batching", "/s", True, 1.2),
    "perf large": Row("pulsar-perf produce 128 KiB, no batching", " MB/s", True, 2),
    "perf topics": Row("pulsar-perf produce 100 B, no batching, 1,000 topics", "/s", True, 1.5),
    "cpu unbatched": Row("broker's CPU a message, pulsar-perf 100 B, no batching", " us", False),
    "cpu bounded": Row("broker's CPU a message, the same with 1,000 unanswered", " us", False),
    "cpu batched": Row("broker's CPU a message, batching", " us", False),
    "cpu large": Row("broker's CPU a message, 128 KiB", " us", False),
    "cpu topics": Row("broker's CPU a message, 1,000 topics", " us", False),
    "consume unbatched": Row("pulsar-perf consume 100 B, no batching", "/s", True, 1),
    "consume batched": Row("pulsar-perf consume 100 B, batches", "/s", True, 1),
    "cpu consume unbatched": Row("broker's CPU a delivery, no batching", " us", False),
    "cpu consume batched": Row("broker's CPU a delivery, batches", " us", False),
    "window_1": Row("Python client: durable send, window 1, p50", " ms", False, 5),
    "unbatched": Row("Python client: produce 100 B, no batching", "/s"),
    "batched": Row("Python client: produce 100 B, batching", "/s"),
    "large": Row("Python client: produce 128 KiB", " MB/s", True, 2),
    "catch_up_batched": Row("Python client: catch-up, batches of 100 B", "/s", True, 1),
    "catch_up_large": Row("Python client: catch-up, 128 KiB", " MB/s", True, 5),
    "seek": Row("Python client: client.seek(time) to the first message, p50", " ms", False, 1),
    "search": Row("search by time over REST, less an empty request, p50", " ms", False),
    "search grpc": Row("search by time: gRPC, the whole call; Pulsar's REST, p50", " ms", False),
    "search library": Row("search by time: library; Pulsar's REST, p50", " ms", False, 200),
    "rate 15000": Row("broker's CPU a message, 100 B unbatched, 15,000/s", " us", False, 2),
    "rate 3000": Row("broker's CPU a message, 100 B unbatched, 3,000/s", " us", False, 2),
}
WARMED_UP = re.compile(r"Throughput (?:produced|received): *(\d+) msg")
AGGREGATED = re.compile(
    r"Aggregated throughput stats --- *(\d+) records (?:sent|received) --- *([\d.]+) msg/s"
)


@dataclass
class Side:
    """A running broker, and its figures by row."""

    name: str
    service_url: str
    http_url: str
    pid: int
    folder: Path
    grpc_url: str = ""
    figures: dict[str, list[float]] = field(default_factory=dict)

    def note(self, row: str, value: float) -> None:
        """Keep a figure."""
        self.figures.setdefault(row, []).append(value)

    def cpu_s(self) -> float:
        """CPU seconds of the broker's process so far."""
        return cpu_s(self.pid)


def free_port() -> int:
    """A port on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], http_url: str, environment: dict[str, str]) -> Iterator[int]:
    """A broker's process id, once it is healthy."""
    process = subprocess.Popen(
        command, env=os.environ | environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 180
        while True:
            try:
                urllib.request.urlopen(f"{http_url}/admin/v2/brokers/health", timeout=2).read()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{command[0]} does not get healthy") from None
                time.sleep(0.2)
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


@contextmanager
def pulsemark(folder: Path) -> Iterator[Side]:
    """Run pulsemark."""
    ports = {name: str(free_port()) for name in ("--port", "--http-port", "--grpc-port")}
    (folder / "broker.conf").write_text("defaultRetentionTimeInMinutes=-1\n"
                                        "defaultRetentionSizeInMB=-1\n")  # fmt: skip
    command = [sys.executable, "-m", "pulsemark", "standalone", "--data-dir", str(folder / "ours"),
               "--config", str(folder / "broker.conf"),
               *(part for pair in ports.items() for part in pair)]  # fmt: skip
    http_url = f"http://127.0.0.1:{ports['--http-port']}"
    with running(command, http_url, {}) as pid:
        url = f"pulsar://127.0.0.1:{ports['--port']}"
        grpc_url = f"127.0.0.1:{ports['--grpc-port']}"
        yield Side("pulsemark", url, http_url, pid, folder / "ours", grpc_url)


@contextmanager
def pulsar(home: Path, folder: Path) -> Iterator[Side]:
    """Run the peer."""
    port, http_port = free_port(), free_port()
    wanted = SETTINGS | {"brokerServicePort": str(port), "webServicePort": str(http_port)}
    text = (home / "conf" / "standalone.conf").read_text()
    for key, value in wanted.items():
        text = re.sub(rf"(?m)^#?{key}=.*$", "", text) + f"\n{key}={value}\n"
    (folder / "standalone.conf").write_text(text)
    command = [
        str(home / "bin" / "pulsar"), "standalone", "-nfw", "-nss", "-a", "127.0.0.1",
        "--bookkeeper-dir", str(folder / "bk"), "--metadata-dir", str(folder / "meta"),
        "--zookeeper-dir", str(folder / "zk"), "--bookkeeper-port", str(free_port()),
    ]  # fmt: skip
    environment = {
        "PULSAR_STANDALONE_CONF": str(folder / "standalone.conf"),
        "PULSAR_STANDALONE_USE_ZOOKEEPER": "0",
        "PULSAR_LOG_DIR": str(folder / "logs"),
    }
    http_url = f"http://127.0.0.1:{http_port}"
    with running(command, http_url, environment) as pid:
        yield Side("Apache Pulsar", f"pulsar://127.0.0.1:{port}", http_url, pid, folder)


class LoadFailedError(Exception):
    """A load ended without a figure."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of pulsar-perf did: messages, rate after the warm-up, broker's CPU a message."""

    messages: int
    rate: float
    cpu_us: float


def perf(home: Path, side: Side, job: str, topic: str, options: list[str], seconds: float) -> Run:
    """Run a job of pulsar-perf for some seconds."""
    before_s = side.cpu_s()
    command = [str(home / "bin" / "pulsar-perf"), job, "-u", side.service_url, *options]
    try:
        done = subprocess.run(
            [*command, "-time", str(int(seconds)), topic],
            check=False, capture_output=True, text=True, timeout=seconds + 120,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise LoadFailedError(f"pulsar-perf did not end: {error}") from error
    warm, total = WARMED_UP.search(done.stdout), AGGREGATED.search(done.stdout)
    if warm is None or total is None or not float(total[2]):
        raise LoadFailedError(f"pulsar-perf said no rate: {done.stdout[-500:]}{done.stderr[-500:]}")
    count = int(total[1])
    measured_s = count / float(total[2]) - WARM_UP_S
    rate = (count - int(warm[1])) / measured_s
    return Run(count, rate, (side.cpu_s() - before_s) / count * 1e6)


def produce(home: Path, side: Side, name: str, topic: str, seconds: float) -> Run:
    """Fill a topic."""
    run = perf(home, side, "produce", topic, PERF[name], seconds)
    side.note(f"perf {name}", run.rate * LARGE_MB if name == "large" else run.rate)
    side.note(f"cpu {name}", run.cpu_us)
    return run


def consume(home: Path, side: Side, name: str, topic: str, stored: int, seconds: float) -> None:
    """Read a filled topic from its begin, for some subscriptions at once."""
    options = ["-sp", "Earliest", "-ns", str(SUBSCRIPTIONS)]
    run = perf(home, side, "consume", topic, options, seconds)
    if run.messages >= stored * SUBSCRIPTIONS:
        raise LoadFailedError("pulsar-perf had read all messages before its time was over")
    side.note(f"consume {name}", run.rate)
    side.note(f"cpu consume {name}", run.cpu_us)


def search(side: Side, jobs: ClientJobs, topic: str, first_ms: int, last_ms: int) -> None:
    """Searches by time of one topic: from the client, over REST, over gRPC, in a library."""
    side.note("seek", jobs.seek(topic, first_ms, last_ms))
    over_rest = jobs.search(topic, first_ms, last_ms)
    side.note("search", over_rest)
    if not side.grpc_url:
        side.note("search grpc", over_rest)
        side.note("search library", over_rest)
        return
    times = moments(first_ms, last_ms, SEARCHES)
    with SeekClient(side.grpc_url) as client:
        side.note("search grpc", median_ms(lambda at: client.by_time(topic, at), times))
    with FolderReader(side.folder) as folder:
        finder = Finder(folder.log(topic))
        side.note("search library", median_ms(finder.by_time, times))


def median_ms(call: object, times: list[int]) -> float:
    """The median time of a call."""
    taken = []
    for time_ms in times:
        began = time.perf_counter()
        call(time_ms)  # type: ignore[operator]
        taken.append((time.perf_counter() - began) * 1e3)
    return quantile(taken[len(times) // 10 :], 0.5)


def one_round(home: Path, side: Side, number: int, only: list[str], seconds: float) -> None:
    """All jobs of one round for one broker."""
    topic = f"persistent://public/default/perf-{number}"
    jobs = ClientJobs(side.service_url, side.http_url, str(number))
    for name in PERF:
        if f"perf-{name}" not in only:
            continue
        began_ms = int(time.time() * 1000)
        try:
            filled = produce(home, side, name, f"{topic}-{name}", seconds)
            # It sends for all the seconds, but the JVM has to start before.
            first_ms, last_ms = began_ms + 5_000, began_ms + int(seconds * 1000)
            if f"consume-{name}" in only:
                consume(home, side, name, f"{topic}-{name}", filled.messages, seconds)
        except LoadFailedError as error:
            print(f"round {number} of {side.name}, {name}: {error}", file=sys.stderr)
            continue
        if name == "unbatched" and "search" in only:
            search(side, jobs, f"{topic}-unbatched", first_ms, last_ms)
    if "client" in only:
        for name in CLIENT:
            side.note(name, getattr(jobs, name)())
    if "cpu" in only:
        for rate in RATES:
            side.note(f"rate {rate}", jobs.cpu_at_rate(rate, side.cpu_s))
    jobs.close()


def show(ours: Side, peer: Side) -> None:
    """Print the table, in Markdown, and the JSON."""
    print("| job | pulsemark | Apache Pulsar | ratio | at least |")
    print("|---|---|---|---|---|")
    figures = []
    for name, row in ROWS.items():
        if name in ours.figures and name in peer.figures:
            compare = higher if row.is_higher_better else lower
            figures.append(compare(row.title, ours.figures[name], peer.figures[name], row.unit))
            print(table_row(row, figures[-1], row.goal))
    write_json("compare_pulsar", figures)


def table_row(row: Row, figure: Figure, goal: float | None) -> str:
    """A line of the table: the rounds of both, their ratio, the ratio that is wanted."""
    assert figure.peer is not None
    cells = [figure.name, figure.ours.text(row.unit), figure.peer.text(row.unit)]
    cells += [f"{figure.ratio:.3g}x", f"{goal:g}x" if goal else ""]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("home", type=Path, metavar="HOME")
    parser.add_argument("--seconds", type=int, default=16, help="of each run of pulsar-perf")
    add_rounds(parser)
    parser.add_argument("--only", nargs="+", choices=JOBS, default=JOBS)
    arguments = parser.parse_args()
    if arguments.seconds <= WARM_UP_S:
        parser.error(f"--seconds must be above {WARM_UP_S:g}: so long pulsar-perf warms up")
    if "search" in arguments.only and "perf-unbatched" not in arguments.only:
        parser.error("search needs perf-unbatched, which fills the topic")
    for name in CONSUMED:
        if f"consume-{name}" in arguments.only and f"perf-{name}" not in arguments.only:
            parser.error(f"consume-{name} needs perf-{name}, which fills the topic")
    began_s = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ours = stack.enter_context(pulsemark(folder))
        peer = stack.enter_context(pulsar(arguments.home, folder))
        for number in range(arguments.rounds):
            for side in (ours, peer) if number % 2 == 0 else (peer, ours):
                one_round(arguments.home, side, number, arguments.only, arguments.seconds)
                took = f"{time.monotonic() - began_s:.0f} s"
                print(f"round {number} of {side.name} done after {took}", file=sys.stderr)
    show(ours, peer)


if __name__ == "__main__":
    main()
