"""This package's broker beside Apache Pulsar's, on the same three bookies, 3/3/2.

    python bench/bench_bookkeeper.py [HOME] [--scale small|full] [--rounds N] [--folder FOLDER]

HOME is an unpacked Apache Pulsar (default: ~/.cache/pulsar-peer/apache-pulsar-4.0.8), whose
pulsar-perf does a part of the work. ZooKeeper and the bookies are its own (`bookkeeper_peer`). Both
brokers run all the time; the rounds alternate. The table has the median, the lowest and the highest
figure of all rounds; a ratio above 1 says that pulsemark is better.

`--scale small` takes some five minutes on two cores and only shows that everything works. The full
one takes about 25 minutes with three rounds, on a machine without other work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pulsar_client_jobs
from compare_pulsar import ROWS, Side, free_port, median_ms, perf, running, table_row
from pulsar_client_jobs import SEARCHES, ClientJobs, moments

from pulsemark.coordination import connect
from pulsemark.finder import Finder
from pulsemark.ledger.bookkeeper.reader import BookKeeperReader

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))
from bookkeeper_peer import BookKeeperPeer

HOME = Path.home() / ".cache" / "pulsar-peer" / "apache-pulsar-4.0.8"
CHROOT = "/pulsar"
GOALS = {
    "perf unbatched": 0.5,
    "perf batched": 0.5,
    "perf large": 0.5,
    "perf topics": 0.5,
    "unbatched": 0.5,
    "batched": 0.5,
    "large": 0.5,
    "catch_up_large": 1,
    "search": 20,
    "search library": 20,
}
PERF_JOBS = ("unbatched", "batched", "large", "topics")
CLIENT_JOBS = ("window_1", "unbatched", "batched", "large", "catch_up_batched", "catch_up_large")
SCALES = {"small": (11, 1, 50), "full": (25, 3, 1)}
"""Seconds of a run of pulsar-perf, rounds, and by what the client's counts are divided."""
SETTINGS = {
    "clusterName": "bench",
    "advertisedAddress": "127.0.0.1",
    "managedLedgerDefaultEnsembleSize": "3",
    "managedLedgerDefaultWriteQuorum": "3",
    "managedLedgerDefaultAckQuorum": "2",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "brokerEntryMetadataInterceptors": (
        "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor,"
        "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"
    ),
}


@contextmanager
def pulsemark(peer: BookKeeperPeer, folder: Path) -> Iterator[Side]:
    """Run pulsemark's broker."""
    port, http_port = free_port(), free_port()
    (folder / "ours.conf").write_text(
        "defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n"
    )
    command = [
        sys.executable, "-m", "pulsemark", "standalone", "--store", peer.store,
        "--advertised-address", "127.0.0.1", "--config", str(folder / "ours.conf"),
        "--port", str(port), "--http-port", str(http_port),
    ]  # fmt: skip
    http_url = f"http://127.0.0.1:{http_port}"
    with running(command, http_url, {}) as pid:
        yield Side("pulsemark", f"pulsar://127.0.0.1:{port}", http_url, pid, folder)


@contextmanager
def pulsar(home: Path, peer: BookKeeperPeer, folder: Path) -> Iterator[Side]:
    """Run Pulsar's broker, whose own nodes are below a chroot of the same ZooKeeper."""
    port, http_port = free_port(), free_port()
    metadata = f"zk:{peer.zookeeper}{CHROOT}"
    ledgers = f"zk+hierarchical://{peer.zookeeper}/ledgers"
    wanted = SETTINGS | {
        "brokerServicePort": str(port),
        "webServicePort": str(http_port),
        "metadataStoreUrl": metadata,
        "configurationMetadataStoreUrl": metadata,
        "bookkeeperMetadataServiceUri": ledgers,
    }
    text = (home / "conf" / "broker.conf").read_text()
    for key, value in wanted.items():
        text = re.sub(rf"(?m)^#?{key}=.*$", "", text) + f"\n{key}={value}\n"
    settings = folder / "broker.conf"
    settings.write_text(text)
    http_url, service_url = f"http://127.0.0.1:{http_port}", f"pulsar://127.0.0.1:{port}"
    asyncio.run(make_node(peer.zookeeper, CHROOT))
    initialize = [
        str(home / "bin" / "pulsar"), "initialize-cluster-metadata", "--cluster", "bench",
        "--metadata-store", metadata, "--configuration-metadata-store", metadata,
        "--existing-bk-metadata-service-uri", ledgers,
        "--web-service-url", http_url, "--broker-service-url", service_url,
    ]  # fmt: skip
    done = subprocess.run(initialize, check=False, capture_output=True, text=True, timeout=180)
    if done.returncode:
        raise SystemExit(f"Pulsar's metadata: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    environment = {
        "PULSAR_BROKER_CONF": str(settings),
        "PULSAR_LOG_DIR": str(folder / "logs"),
        "PULSAR_MEM": "-Xms512m -Xmx512m -XX:MaxDirectMemorySize=512m",
    }
    with running([str(home / "bin" / "pulsar"), "broker"], http_url, environment) as pid:
        yield Side("Apache Pulsar", service_url, http_url, pid, folder)


async def make_node(zookeeper: str, path: str) -> None:
    """Create an empty node."""
    session = await connect(zookeeper)
    if await session.exists(path) is None:
        await session.create(path)
    await session.close()


def search(
    side: Side, store: str, jobs: ClientJobs, topic: str, first_ms: int, last_ms: int
) -> None:
    """Searches by time of one topic: from the client, over REST, and in a library."""
    side.note("seek", jobs.seek(topic, first_ms, last_ms))
    over_rest = jobs.search(topic, first_ms, last_ms)
    side.note("search", over_rest)
    if side.name != "pulsemark":
        side.note("search library", over_rest)
        return
    with BookKeeperReader.open(store) as reader:
        finder = Finder(reader.log(topic))
        times = moments(first_ms, last_ms, SEARCHES)
        side.note("search library", median_ms(finder.by_time, times))


def one_round(home: Path, side: Side, store: str, number: int, seconds: float) -> None:
    """All jobs of one round for one broker."""
    # Both brokers have ledgers on the same bookies, and topics in metadata of their own.
    topic = f"persistent://public/default/perf-{number}"
    jobs = ClientJobs(side.service_url, side.http_url, str(number))
    for name in PERF_JOBS:
        first_ms, last_ms = perf(home, side, name, f"{topic}-{name}", seconds)
        if name == "unbatched":
            search(side, store, jobs, f"{topic}-{name}", first_ms, last_ms)
    for name in CLIENT_JOBS:
        side.note(name, getattr(jobs, name)())
    jobs.close()


def table(ours: Side, peer: Side) -> Iterator[str]:
    """The lines of the table, in Markdown."""
    yield "| job | pulsemark | Apache Pulsar | ratio | at least |"
    yield "|---|---|---|---|---|"
    for name, row in ROWS.items():
        if name in ours.figures:
            yield table_row(row, ours.figures[name], peer.figures[name], GOALS.get(name))


def scaled(divisor: int) -> None:
    """Divide what the client's jobs do."""
    for name in ("UNBATCHED", "BATCHED", "LARGE", "WINDOW_1", "SEEKS"):
        value = getattr(pulsar_client_jobs, name)
        setattr(pulsar_client_jobs, name, max(3, value // divisor))


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("home", type=Path, nargs="?", default=HOME)
    parser.add_argument("--scale", choices=SCALES, default="small")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--folder", type=Path, help="of the bookies (default: a temporary one)")
    arguments = parser.parse_args()
    if not (arguments.home / "bin" / "pulsar").exists():
        print(f"skipped: no Apache Pulsar in {arguments.home}")
        return
    seconds, rounds, divisor = SCALES[arguments.scale]
    scaled(divisor)
    began_s = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bookies = BookKeeperPeer(arguments.folder or folder / "bookies")
        stack.callback(bookies.stop)
        bookies.start(3)
        ours = stack.enter_context(pulsemark(bookies, folder))
        peer = stack.enter_context(pulsar(arguments.home, bookies, folder))
        for number in range(arguments.rounds or rounds):
            for side in (ours, peer) if number % 2 == 0 else (peer, ours):
                one_round(arguments.home, side, bookies.store, number, seconds)
                took = f"{time.monotonic() - began_s:.0f} s"
                print(f"round {number} of {side.name} done after {took}", file=sys.stderr)
    print("\n".join(table(ours, peer)))
    figures = {"ours": ours.figures, "peer": peer.figures}
    print(json.dumps({"bench": "bench_bookkeeper", "scale": arguments.scale, **figures}))


if __name__ == "__main__":
    main()
