"""The cost of a search by time through gRPC, compared with an empty call to the same server.

    python bench/bench_grpc.py [--entries N] [--calls N] [--json-only]

One server process, one client process (this one), one connection over the loopback, one call at a
time: this measures the latency for a caller, not the throughput. The echo is a unary call that
returns its request's bytes from the same event loop, so it shows the cost of gRPC itself. Searches
and echoes alternate; shown are p50 and p99 of all calls of the run. The ratio is the echo's time
divided by the search's: at 1 a search would cost nothing. The last row is the same search in the
server's own process, without gRPC and threads.

Before the measurement, every answer is compared with the time that the clock gave the entry.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from report import quantile

from pulsemark.finder import Finder, SearchMethod, SeekClient
from pulsemark.finder.service import SeekServicer, TopicSource, handler
from pulsemark.ledger import LocalStore, TopicLog
from pulsemark.maintenance.expected import LogEnds
from pulsemark.metadata import StamperChain
from pulsemark.testing.clock import SettableClock

TOPIC = "persistent://public/default/bench"
START_MS = 1_700_000_000_000
STEP_MS = 7
BODY = bytes(100)
ECHO_PATH = "/bench.Echo/Echo"
WARM_UP_CALLS = 300


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of call: ratio first, then its percentiles in microseconds."""

    ratio: float
    name: str
    p50_us: float
    p99_us: float


def fill(folder: Path, entries: int) -> LocalStore:
    """A topic whose n-th entry is stamped START_MS + n * STEP_MS."""
    clock = SettableClock(START_MS)
    store = LocalStore.open(folder, clock=clock)
    topic = store.open_topic(TOPIC)
    topic.stampers = StamperChain.from_names(["broker-time", "index"])
    for _ in range(entries):
        last = topic.append(BODY)
        clock.advance(by_ms=STEP_MS)
    last.commit.wait()
    return store


class OneTopic(TopicSource):
    """The topic source of the server, with one topic."""

    def __init__(self, log: TopicLog) -> None:
        self._log = log

    def log(self, _topic: str) -> TopicLog:
        """The topic."""
        return self._log

    def ends(self, _topic: str) -> LogEnds:
        """Where it ends."""
        return LogEnds(self._log.next_index)


async def echo(request: bytes, _context: Any) -> bytes:
    """The simplest unary call: return the request."""
    return request


async def serve(store: LocalStore) -> None:
    """Both services on one server; prints its port, ends when stdin is closed."""
    servicer = SeekServicer(OneTopic(store.open_topic(TOPIC)), executor=ThreadPoolExecutor(4))
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers((handler(servicer),))
    echoes = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", echoes),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


def run_server(folder: Path, entries: int, calls: int) -> None:
    """The server process: fill, search without gRPC, serve."""
    import uvloop

    store = fill(folder, entries)
    finder = Finder(store.open_topic(TOPIC))
    local = {
        method.name: percentiles(
            [timed(partial(finder.by_time, t, method=method)) for t in times(entries, calls)]
        )
        for method in SearchMethod
    }
    print(json.dumps(local), flush=True)
    uvloop.run(serve(store))
    store.close()


def times(entries: int, calls: int) -> list[int]:
    """The times to search, the same in every process."""
    source = random.Random(1)
    return [START_MS + source.randrange(entries * STEP_MS) for _ in range(calls)]


def timed(call: Callable[[], object]) -> int:
    """Nanoseconds of one call."""
    start = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - start


def percentiles(samples_ns: Sequence[int]) -> tuple[float, float]:
    """Median and 99th percentile in microseconds."""
    p50, p99 = (round(quantile(samples_ns, share) / 1000, 1) for share in (0.5, 0.99))
    return p50, p99


def check(client: SeekClient, entries: int) -> None:
    """Check that the answers are right."""
    for time_ms in times(entries, 200):
        expected = -((START_MS - time_ms) // STEP_MS)
        for method in SearchMethod:
            found = client.by_time(TOPIC, time_ms, method=method)
            answer = entries if found.end else found.index
            if answer != min(expected, entries):
                raise SystemExit(f"{method.name}: {time_ms} gave {found}, not entry {expected}")


def measure(
    port: int, local: dict[str, tuple[float, float]], options: argparse.Namespace
) -> list[Row]:
    """Measure all kinds of calls, alternating, over one connection each."""
    target = f"127.0.0.1:{port}"
    moments = times(options.entries, options.calls)
    with SeekClient(target) as client, grpc.insecure_channel(target) as channel:
        check(client, options.entries)
        call_echo = channel.unary_unary(ECHO_PATH)
        request = bytes(60)
        for _ in range(WARM_UP_CALLS):
            call_echo(request)
        echoes: list[int] = []
        searches: dict[SearchMethod, list[int]] = {method: [] for method in SearchMethod}
        for time_ms in moments:
            echoes.append(timed(partial(call_echo, request)))
            for method, samples in searches.items():
                samples.append(timed(partial(client.by_time, TOPIC, time_ms, method=method)))
    floor = percentiles(echoes)
    rows = [Row(1.0, "bare unary echo", *floor)]
    for method, samples in searches.items():
        p50, p99 = percentiles(samples)
        rows.append(Row(round(floor[0] / p50, 2), f"SeekByTime, {method.name.lower()}", p50, p99))
    for name, (p50, p99) in local.items():
        rows.append(Row(round(floor[0] / p50, 2), f"in process, {name.lower()}", p50, p99))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and the JSON."""
    parser = argparse.ArgumentParser(description="Measure SeekByTime beside a bare gRPC call.")
    parser.add_argument("--entries", type=int, default=200_000, help="entries searched (200000)")
    parser.add_argument("--calls", type=int, default=3_000, help="calls of each kind (3000)")
    parser.add_argument("--json-only", action="store_true", help="leave the table out")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.entries < 1 or options.calls < 2:
        parser.error("--entries must be at least 1, --calls at least 2")
    if options.serve:
        run_server(options.serve, options.entries, options.calls)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--serve", str(Path(folder) / "data")]
        command += ["--entries", str(options.entries), "--calls", str(options.calls)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None
            local = json.loads(server.stdout.readline())
            rows = measure(int(server.stdout.readline()), local, options)
    if not options.json_only:
        print(f"{'ratio':>6}  {'p50':>9}  {'p99':>9}  call")
        for row in rows:
            print(f"{row.ratio:>5.2f}x  {row.p50_us:>6.0f} us  {row.p99_us:>6.0f} us  {row.name}")
    result = {
        "benchmark": "grpc",
        "python": platform.python_version(),
        "grpcio": grpc.__version__,
        "cpus": os.cpu_count(),
        "entries": options.entries,
        "calls": options.calls,
        "rows": [asdict(row) for row in rows],
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
