"""The broker under test, as users run it: `pulsemark standalone` in its own process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self


class BrokerProcess:
    """Starts the broker on free ports, and again on the same ports after a kill.

    Attributes:
        service_url, http_url, grpc_url, kafka_url: where it serves, once started.
        start_ms: how long the last start took, to the line that says it serves.
    """

    service_url: str
    http_url: str
    grpc_url: str
    kafka_url: str
    start_ms: float

    def __init__(self, data_dir: Path, *, kafka: bool = False) -> None:
        self.data_dir = data_dir
        self._ports = {"service": "0", "http": "0", "grpc": "0"}
        if kafka:
            self._ports["kafka"] = "0"
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it serves; RuntimeError when it ends instead."""
        command = [sys.executable, "-m", "pulsemark", "standalone", "--json"]
        command += ["--data-dir", str(self.data_dir)]
        for name, port in self._ports.items():
            command += ["--port" if name == "service" else f"--{name}-port", port]
        command += ["--stampers", "broker-time,index,producer", "--audit", "producer"]
        started = time.perf_counter()
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the broker ended with {self._process.wait()} before it served")
        self.start_ms = (time.perf_counter() - started) * 1_000
        ready = json.loads(line)
        for name in self._ports:
            url = ready[f"{name}_url"]
            setattr(self, f"{name}_url", url)
            self._ports[name] = url.rsplit(":", 1)[1]

    def kill(self) -> None:
        """End it as a crash does (kill -9): nothing is flushed."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Ask it to stop, and wait; returns its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(30)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
