"""A broker's start time and idle memory, compared with a plain Python process that listens.

    python bench/bench_startup.py [--rounds N]

A broker is healthy when a readiness check succeeds: GET /admin/v2/clusters answers ["standalone"].
The limit is a Python process that imports uvloop and protobuf, listens and answers; no broker in
Python can do less. Beside the time stands the processor time that the process took for it, which
other work on the machine hardly changes. Memory is PSS: shared pages are divided by the number of
their processes. A broker in a thread of this process is started and stopped again and again. The
programs take turns; shown are the median of the rounds, the lowest and the highest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from itertools import count
from pathlib import Path
from typing import NamedTuple

from report import Figure, lower, show
from rounds import add_rounds, in_turns

from pulsemark import BrokerConfig, BrokerThread
from pulsemark.testing import RawClient

READY_BODY = ["standalone"]
BARE = """
import asyncio, sys
import uvloop
from google.protobuf import descriptor_pb2
async def main():
    async def serve(reader, writer):
        await reader.readuntil(b"\\r\\n\\r\\n")
        body = b'["standalone"]'
        writer.write(b"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n%s"
                     % (len(body), body))
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print('{"http_url": "http://127.0.0.1:%d"}' % port, flush=True)
    await server.serve_forever()
uvloop.run(main())
"""


def pss_mib(pid: int) -> float:
    """The process's proportional share of memory."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("the kernel does not tell PSS")


def processor_ms(pid: int) -> float:
    """The processor time that the process has taken so far, all its threads together."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text(encoding="ascii").split()[0]) for each in threads) / 1e6


def start(
    command: list[str], environment: dict[str, str] | None = None
) -> tuple[subprocess.Popen[str], dict[str, str], float]:
    """Start and wait until healthy; return the process, its ready line, and milliseconds."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | (environment or {})
    )
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    with urllib.request.urlopen(f"{ready['http_url']}/admin/v2/clusters") as reply:
        if json.load(reply) != READY_BODY:
            raise SystemExit("not healthy")
    return process, ready, (time.perf_counter() - began) * 1_000


def stop(process: subprocess.Popen[str]) -> None:
    """End it."""
    process.terminate()
    process.wait(30)
    assert process.stdout is not None
    process.stdout.close()


class Start(NamedTuple):
    """What one process took."""

    taken_ms: float
    processor_ms: float
    idle_mib: float
    loaded_mib: float
    """After the durable messages, if there were any."""


def run_once(command: list[str], *, load: int = 0) -> Start:
    """Start a process, and end it after `load` durable messages."""
    process, ready, taken_ms = start(command)
    try:
        taken_processor_ms = processor_ms(process.pid)
        idle = after = pss_mib(process.pid)
        if load:
            with RawClient.from_url(ready["service_url"]) as client:
                producer = client.create_producer("persistent://public/default/startup")
                for _ in range(load):
                    producer.send(bytes(100))
            after = pss_mib(process.pid)
    finally:
        stop(process)
    return Start(taken_ms, taken_processor_ms, idle, after)


def thread_once() -> tuple[float, float]:
    """Milliseconds to start and to stop a broker in memory in a thread."""
    began = time.perf_counter()
    broker_thread = BrokerThread(BrokerConfig(storage="memory", port=0, http_port=0))
    broker_thread.start()
    started = time.perf_counter()
    broker_thread.close()
    return (started - began) * 1_000, (time.perf_counter() - started) * 1_000


def broker(*options: str) -> list[str]:
    """The command of a broker."""
    command = [sys.executable, "-m", "pulsemark", "standalone", "--json"]
    return [*command, "--port", "0", "--http-port", "0", *options]


def measure(rounds: int) -> list[Figure]:
    """All rows; the programs take turns."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = (f"{folder}/{number}" for number in count())
        thread_once()  # imports what a broker needs
        threads, in_memory, plain, with_grpc, bare = in_turns(
            rounds,
            thread_once,
            lambda: run_once(broker("--storage", "memory")),
            lambda: run_once(broker("--data-dir", next(fresh)), load=2_000),
            lambda: run_once(broker("--data-dir", next(fresh), "--grpc-port", "0")),
            lambda: run_once([sys.executable, "-c", BARE]),
        )

    limit_ms, limit_processor_ms, limit_mib, _ = zip(*bare, strict=True)
    figures = []
    for name, runs in (("in memory", in_memory), ("in a folder", plain), ("with gRPC", with_grpc)):
        taken_ms, took_processor_ms, idle_mib, loaded_mib = zip(*runs, strict=True)
        figures += [
            lower(f"start to healthy, {name}", taken_ms, limit_ms, "ms"),
            lower("the same, processor time", took_processor_ms, limit_processor_ms, "ms"),
            lower("PSS, idle", idle_mib, limit_mib, "MiB"),
        ]
        if runs is plain:
            figures.append(lower("PSS, after 2,000 messages", loaded_mib, limit_mib, "MiB"))
    starts_ms, stops_ms = zip(*threads, strict=True)
    return [
        *figures,
        lower("a broker in a thread: start", starts_ms, None, "ms"),
        lower("the same: stop", stops_ms, None, "ms"),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_rounds(parser, 7)
    show("start-up and memory", measure(parser.parse_args().rounds))


if __name__ == "__main__":
    main()
