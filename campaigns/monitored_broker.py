"""A broker whose event loop is monitored. Campaigns against real processes start it.

    python campaigns/monitored_broker.py --data-dir D [--settings '{"max_connections": 100}']
    python campaigns/monitored_broker.py --store zk://HOST:PORT/ledgers

Prints one line of JSON with its URLs when it serves, and one line for each time that its loop was
blocked for longer than --stall-ms:
`{"stall": handler, "wall_ms": ..., "cpu_ms": ..., "held": ...}`.
Its log goes to standard error. SIGTERM and SIGINT close it in order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from pulsemark.broker import Broker, BrokerConfig, new_event_loop
from pulsemark.broker.configuration.security_config import SecurityConfig
from pulsemark.broker.gc_tuning import Collector
from pulsemark.cluster.member import bookkeeper_member

sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.support.loop_monitor import LoopMonitor, Stall


class MonitoredBroker:
    """A monitored broker as the child process of a campaign."""

    def __init__(
        self,
        folder: Path,
        log: Path,
        *,
        stall_ms: float = 50,
        store: Any = None,
        **settings: Any,
    ) -> None:
        """`store`: the address at which the broker keeps its ledgers, instead of in the folder."""
        self.log = log
        place = ["--data-dir", str(folder)] if store is None else ["--store", store]
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, __file__, *place, "--settings", json.dumps(settings),
                 "--stall-ms", str(stall_ms)],
                stdout=subprocess.PIPE, stderr=stderr,
            )  # fmt: skip
        assert self.process.stdout is not None
        self._unread = b""
        self._lines: list[dict[str, Any]] = []
        self._looked_at_byte = log.stat().st_size
        deadline = time.monotonic() + 30
        while not self._lines:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self.process.poll() is not None:
                raise RuntimeError(f"the broker does not start, see {log}")
            self._read(left_s)
        started = self._lines.pop(0)
        self.service_url: str = started["service_url"]
        self.service_url_tls: str = started["service_url_tls"]
        self.http_url: str = started["http_url"]
        self.grpc_url: str = started["grpc_url"]
        self.kafka_url: str = started["kafka_url"]
        self._store = store
        self.take_over()

    def take_over(self) -> None:
        """Have it own the topics of public/default, as lookups do, if it is one of a cluster."""
        for number in range(32 if self._store else 0):
            path = f"/lookup/v2/topic/persistent/public/default/bundle-{number}"
            # A secured broker lets in anonymous clients; one that has died is waited for.
            with urllib.request.urlopen(self.http_url + path, timeout=60) as answer:
                answer.read()

    def _read(self, timeout_s: float) -> None:
        assert self.process.stdout is not None
        number = self.process.stdout.fileno()
        if select.select([number], [], [], timeout_s)[0]:
            *whole, self._unread = (self._unread + os.read(number, 1 << 16)).split(b"\n")
            self._lines += [json.loads(line) for line in whole]

    def stalls(self) -> list[dict[str, Any]]:
        """The stalls since the last call."""
        self._read(0)
        lines, self._lines = self._lines, []
        return lines

    def uncaught(self) -> list[str]:
        """Unexpected errors in the log since the last call."""
        with self.log.open("rb") as log:
            log.seek(self._looked_at_byte)
            text = log.read()
        self._looked_at_byte += len(text)
        lines = text.decode(errors="replace").splitlines()
        return [
            "\n".join(lines[max(0, number - 1) : number + 30])
            for number, line in enumerate(lines)
            if line.startswith("Traceback (most recent call last)")
        ]

    def memory_bytes(self) -> int:
        """The process' resident memory, without the pages of mapped files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024

    def end(self, number: int = signal.SIGTERM, timeout_s: float = 30) -> float:
        """Send a signal, wait, and return the seconds. Kills the process after `timeout_s`."""
        began_s = time.monotonic()
        self.process.send_signal(number)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)
        if self.process.stdout is not None:
            self._read(0)
            self.process.stdout.close()
        return time.monotonic() - began_s


async def serve(config: BrokerConfig, stall_ms: float, store: str | None) -> None:
    """Run the broker until a signal ends it."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    member = None if store is None else bookkeeper_member(store)
    async with Broker(config, member) as broker, Collector(lambda: broker.services.is_idle):
        print(
            json.dumps(
                {
                    "service_url": broker.service_url,
                    "service_url_tls": broker.service_url_tls,
                    "http_url": broker.http_url,
                    "grpc_url": broker.grpc_url,
                    "kafka_url": broker.kafka_url,
                }
            ),
            flush=True,
        )
        monitor = LoopMonitor(stall_ms, report)
        monitor.start()
        await stop.wait()
        monitor.stop()


def report(stall: Stall) -> None:
    """One line of JSON for a stall."""
    line = {
        "stall": stall.handler,
        "wall_ms": round(stall.wall_ms),
        "cpu_ms": round(stall.cpu_ms),
        "held": stall.is_held,
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--data-dir", type=Path)
    place.add_argument("--store")
    parser.add_argument("--settings", type=json.loads, default={})
    parser.add_argument("--stall-ms", type=float, default=50)
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    settings = {"port": 0, "http_port": 0, **given.settings}
    settings["security"] = SecurityConfig(**settings.get("security", {}))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        config = BrokerConfig(data_dir=given.data_dir, **settings)
        runner.run(serve(config, given.stall_ms, given.store))


if __name__ == "__main__":
    main()
