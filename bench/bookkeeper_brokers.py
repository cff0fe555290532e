"""Brokers on the bookies of `bookkeeper_peer`: this package's, and Apache Pulsar's."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_produce import cpu_s

from pulsemark.coordination import connect

sys.path.append(str(Path(__file__).resolve().parent.parent / "campaigns"))
from bookkeeper_peer import BookKeeperPeer, free_port

CHROOT = "/pulsar"
SESSION_TIMEOUT_MS = 4_000
"""Of both brokers, so that their failovers can be compared. Pulsar's default is 30 s."""
START_LIMIT_S = 300
STOP_LIMIT_S = 60
SETTINGS = {
    "clusterName": "bench",
    "advertisedAddress": "127.0.0.1",
    "managedLedgerDefaultEnsembleSize": "3",
    "managedLedgerDefaultWriteQuorum": "3",
    "managedLedgerDefaultAckQuorum": "2",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "metadataStoreSessionTimeoutMillis": str(SESSION_TIMEOUT_MS),
    "brokerEntryMetadataInterceptors": (
        "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor,"
        "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"
    ),
}


@dataclass
class BrokerProcess:
    """One broker, on the same ports each time that it is started."""

    command: list[str]
    port: int
    http_port: int
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def service_url(self) -> str:
        """What clients connect to, and what lookups answer."""
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def http_url(self) -> str:
        """Where REST is served."""
        return f"http://127.0.0.1:{self.http_port}"

    def start(self) -> None:
        """Start it, and return when it is healthy."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env=os.environ | self.environment, start_new_session=True,
                stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                urllib.request.urlopen(
                    f"{self.http_url}/admin/v2/brokers/health", timeout=10
                ).read()
                return
            except OSError:
                code = self.process.poll()
                if code is not None or time.monotonic() > deadline:
                    what = "does not get healthy" if code is None else f"has ended with {code}"
                    raise SystemExit(f"{self.command[0]} {what}: {self._said()}") from None
                time.sleep(0.2)

    def _said(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-20:])

    def is_running(self) -> bool:
        """Whether its process is there."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in good order, or by SIGKILL if that takes too long."""
        if not self.is_running():
            return
        try:
            self._end(signal.SIGTERM)
        except subprocess.TimeoutExpired:
            self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, number)
        self.process.wait(STOP_LIMIT_S)

    def cpu_s(self) -> float:
        """CPU seconds of its process so far."""
        assert self.process is not None
        return cpu_s(self.process.pid)


@dataclass
class Side:
    """One of the two that are compared: its brokers, and its figures by row."""

    name: str
    make: Callable[[], BrokerProcess]
    brokers: list[BrokerProcess] = field(default_factory=list)
    figures: dict[str, list[float]] = field(default_factory=dict)

    def add_broker(self) -> None:
        """Start one more broker; if it does not start, say why, and try once on other ports."""
        for is_last in (False, True):
            broker = self.make()
            self.brokers.append(broker)
            try:
                broker.start()
                return
            except SystemExit as error:
                self.brokers.remove(broker)
                broker.stop()
                if is_last:
                    raise
                print(f"{self.name}: {error}", file=sys.stderr)

    def stop(self) -> None:
        """Stop all brokers."""
        for broker in self.brokers:
            broker.stop()

    def note(self, row: str, value: float) -> None:
        """Keep a figure."""
        self.figures.setdefault(row, []).append(value)


def pulsemark(peer: BookKeeperPeer, folder: Path) -> Side:
    """This package's brokers."""
    settings = folder / "ours.conf"
    settings.write_text("defaultRetentionTimeInMinutes=-1\ndefaultRetentionSizeInMB=-1\n")

    def make() -> BrokerProcess:
        port, http_port = free_port(), free_port()
        command = [
            sys.executable, "-m", "pulsemark", "standalone", "--store", peer.store,
            "--advertised-address", "127.0.0.1", "--config", str(settings),
            "--session-timeout-ms", str(SESSION_TIMEOUT_MS),
            "--port", str(port), "--http-port", str(http_port),
        ]  # fmt: skip
        return BrokerProcess(command, port, http_port, folder / f"ours-{port}.log")

    return Side("pulsemark", make)


def pulsar(home: Path, peer: BookKeeperPeer, folder: Path) -> Side:
    """Pulsar's brokers, whose own nodes are below a chroot of the same ZooKeeper."""
    metadata = f"zk:{peer.zookeeper}{CHROOT}"
    shared = SETTINGS | {
        "metadataStoreUrl": metadata,
        "configurationMetadataStoreUrl": metadata,
        "bookkeeperMetadataServiceUri": f"zk+hierarchical://{peer.zookeeper}/ledgers",
    }
    text = (home / "conf" / "broker.conf").read_text()

    def make() -> BrokerProcess:
        port, http_port = free_port(), free_port()
        wanted = shared | {"brokerServicePort": str(port), "webServicePort": str(http_port)}
        settings = folder / f"broker-{port}.conf"
        settings.write_text(_with_settings(text, wanted))
        environment = {
            "PULSAR_BROKER_CONF": str(settings),
            "PULSAR_LOG_DIR": str(folder / f"logs-{port}"),
            "PULSAR_LOG_APPENDER": "Console",
            "PULSAR_MEM": "-Xms512m -Xmx512m -XX:MaxDirectMemorySize=512m",
        }
        command = [str(home / "bin" / "pulsar"), "broker"]
        log = folder / f"pulsar-{port}.log"
        return BrokerProcess(command, port, http_port, log, environment)

    _initialize(home, peer, shared)
    return Side("Apache Pulsar", make)


def _with_settings(text: str, wanted: dict[str, Any]) -> str:
    for key, value in wanted.items():
        text = re.sub(rf"(?m)^#?{key}=.*$", "", text) + f"\n{key}={value}\n"
    return text


def _initialize(home: Path, peer: BookKeeperPeer, shared: dict[str, str]) -> None:
    """Make the nodes of Pulsar's cluster."""
    asyncio.run(_make_node(peer.zookeeper, CHROOT))
    metadata = shared["metadataStoreUrl"]
    # Clients get the brokers' addresses by lookups; these two are only for other clusters.
    command = [
        str(home / "bin" / "pulsar"), "initialize-cluster-metadata", "--cluster", "bench",
        "--metadata-store", metadata, "--configuration-metadata-store", metadata,
        "--existing-bk-metadata-service-uri", shared["bookkeeperMetadataServiceUri"],
        "--web-service-url", "http://127.0.0.1:1", "--broker-service-url", "pulsar://127.0.0.1:1",
    ]  # fmt: skip
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=START_LIMIT_S
    )
    if done.returncode:
        raise SystemExit(f"Pulsar's metadata: {done.stdout[-2000:]}{done.stderr[-2000:]}")


async def _make_node(zookeeper: str, path: str) -> None:
    session = await connect(zookeeper)
    if await session.exists(path) is None:
        await session.create(path)
    await session.close()
