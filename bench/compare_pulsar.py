"""Runs pulsar-perf against pulsemark and against Apache Pulsar, alternating, on this machine.

    python bench/compare_pulsar.py HOME [--seconds N] [--only NAME ...]

HOME is an unpacked Apache Pulsar distribution. Its pulsar-perf is the client, its standalone broker
is the peer. The peer syncs its journal before it acknowledges and stamps every entry (broker time
and index), as pulsemark does. Client and broker share the machine. Each row is the median of
pulsar-perf's ten-second figures, without the first one, in which producers and the JVM warm up.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from report import Figure, higher, show

INTERCEPTORS = "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor,"
INTERCEPTORS += "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"
SETTINGS = {
    "brokerEntryMetadataInterceptors": INTERCEPTORS,
    "journalSyncData": "true",
    "transactionCoordinatorEnabled": "false",
    "advertisedAddress": "127.0.0.1",
    "bindAddress": "127.0.0.1",
}
ROWS = {
    "unbatched": ("produce 100 B, no batching", ["-s", "100", "-db", "-r", "200000"]),
    "batched": ("produce 100 B, batching", ["-s", "100", "-r", "1000000"]),
    "large": ("produce 128 KiB, no batching", ["-s", "131072", "-db", "-r", "5000", "-o", "200"]),
    "topics": ("produce 100 B, no batching, 1,000 topics",
               ["-s", "100", "-db", "-r", "200000", "-t", "1000"]),
}  # fmt: skip
RATE = re.compile(r"Throughput produced:.*?--- *([\d.]+) msg/s")


def free_port() -> int:
    """A port on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], health_url: str, environment: dict[str, str]) -> Iterator[None]:
    """A broker's process, once it is healthy."""
    process = subprocess.Popen(
        command, env=os.environ | environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 180
        while True:
            try:
                urllib.request.urlopen(health_url, timeout=2).read()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{command[0]} does not get healthy") from None
                time.sleep(0.2)
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


@contextmanager
def pulsemark(folder: Path) -> Iterator[str]:
    """Run pulsemark; yields its service URL."""
    port, http_port = free_port(), free_port()
    command = [sys.executable, "-m", "pulsemark", "standalone", "--data-dir", str(folder / "ours"),
               "--port", str(port), "--http-port", str(http_port)]  # fmt: skip
    with running(command, f"http://127.0.0.1:{http_port}/admin/v2/brokers/health", {}):
        yield f"pulsar://127.0.0.1:{port}"


@contextmanager
def pulsar(home: Path, folder: Path) -> Iterator[str]:
    """Run the peer; yields its service URL."""
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
    with running(command, f"http://127.0.0.1:{http_port}/admin/v2/brokers/health", environment):
        yield f"pulsar://127.0.0.1:{port}"


def produce(home: Path, url: str, options: list[str], seconds: int) -> float:
    """Messages per second, as pulsar-perf reports them."""
    done = subprocess.run(
        [home / "bin" / "pulsar-perf", "produce", "-u", url, "-time", str(seconds), *options,
         f"persistent://public/default/perf-{time.monotonic_ns()}"],
        check=False, capture_output=True, text=True, timeout=seconds + 120,
    )  # fmt: skip
    rates = [float(rate) for rate in RATE.findall(done.stdout)][1:]
    if not rates:
        raise SystemExit(f"pulsar-perf said no rate:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return statistics.median(rates)


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("home", type=Path, metavar="HOME")
    parser.add_argument("--seconds", type=int, default=45, help="of each run")
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    arguments = parser.parse_args()
    figures: list[Figure] = []
    for row in arguments.only:
        name, options = ROWS[row]
        rates: list[float] = []
        for broker in (pulsemark, lambda folder: pulsar(arguments.home, folder)):
            with tempfile.TemporaryDirectory() as folder, broker(Path(folder)) as url:
                rates.append(produce(arguments.home, url, options, arguments.seconds))
        figures.append(higher(name, rates[0], rates[1], "messages/s", "Apache Pulsar"))
    show("pulsar-perf", figures)


if __name__ == "__main__":
    main()
