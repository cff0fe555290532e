"""A broker in a process of its own, for clients of any language and for a real kill -9.

    with BrokerProcess() as broker:
        subprocess.run(["go", "test"], env={**os.environ, "PULSAR_URL": broker.service_url})
        broker.kill()
        broker.start()                      # the same ports, the same data

It runs `pulsemark standalone` on free ports with a temporary data folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..broker.errors import BrokerError, BrokerStateError
from ..client.errors import AdminError, UnreachableError
from ..ledger import FolderReader
from .clock import MovableClock
from .faults import TEST_PATH, Fault, Faults
from .inspection import BrokerLife, Inspection, StoredMessage, messages_in

if TYPE_CHECKING:
    from ..client.admin import AdminClient

STOP_TIMEOUT_S = 30.0


class BrokerProcessError(BrokerError):
    """The process did not get ready, or ended with an error: `status` and what it wrote."""

    def __init__(self, what: str, status: int | None, output: str) -> None:
        super().__init__(f"the broker's process {what}: {output.strip() or 'it wrote nothing'}")
        self.status = status
        self.output = output


class BrokerProcess(BrokerLife, Inspection):
    """A broker as a process, with more options of `pulsemark standalone` if they are given.

    Without `data_dir` it has a temporary folder, which `close` removes. `clock` and `faults` need
    `test_controls`; without them it is a broker as in production.
    """

    def __init__(
        self,
        *options: str,
        data_dir: str | os.PathLike[str] | None = None,
        kafka: bool = False,
        test_controls: bool = False,
    ) -> None:
        #: The command that is run.
        self.program: tuple[str, ...] = (sys.executable, "-m", "pulsemark")
        self._options = (*options, "--test-controls") if test_controls else options
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._ports = {"--port": 0, "--http-port": 0, **({"--kafka-port": 0} if kafka else {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = _Reader()
        self._ready: dict[str, Any] = {}

    # -- addresses ------------------------------------------------------------------------------

    @property
    def service_url(self) -> str:
        """`pulsar://host:port`. It stays the same over restarts, as the other addresses do."""
        return self._address("service_url")

    @property
    def http_url(self) -> str:
        """`http://host:port`."""
        return self._address("http_url")

    @property
    def grpc_url(self) -> str:
        """`host:port` of the seek service; "" without the option --grpc-port."""
        return self._address("grpc_url")

    @property
    def kafka_url(self) -> str:
        """`host:port` for Kafka's clients (bootstrap.servers); "" without `kafka`."""
        return self._address("kafka_url")

    @property
    def data_dir(self) -> Path:
        """The data folder, also for readers. Raises BrokerStateError: it is not made, or closed."""
        if self._data_dir is not None:
            return self._data_dir
        if self._temporary is None:
            raise BrokerStateError("started", "new")
        return Path(self._temporary.name)

    @property
    def pid(self) -> int:
        """The number of the running process."""
        return self._running.pid

    @property
    def admin(self) -> AdminClient:
        """A client of the broker's admin interface."""
        from ..client.admin import AdminClient

        return AdminClient(self.http_url)

    @property
    def faults(self) -> Faults:
        """The faults that a test may cause. Needs `test_controls`."""
        return _RemoteFaults(self.admin)

    @property
    def clock(self) -> RemoteClock:
        """The broker's clock. It needs `test_controls`."""
        return RemoteClock(self.admin)

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start, and return when it serves. Raises BrokerStateError, BrokerProcessError."""
        if self._process is not None:
            raise BrokerStateError("not running", "running")
        if self._data_dir is not None:
            self._start(self._data_dir)
            return
        with self._temporary_folder() as folder:
            self._start(folder)

    def _start(self, folder: Path) -> None:
        ports = [text for option, port in self._ports.items() for text in (option, str(port))]
        command = [*self.program, "standalone", "--json", *ports]
        command += [*self._place(folder), *self._options]
        self._process = process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._errors = _Reader()
        self._errors.read(process.stderr)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            status = process.wait()
            self._ended()
            raise BrokerProcessError("did not get ready", status, self._errors.text())
        self._ready = json.loads(line)
        for option, name in (("--port", "service_url"), ("--http-port", "http_url")):
            self._ports[option] = _port(self._ready[name])
        if "--kafka-port" in self._ports:
            self._ports["--kafka-port"] = _port(self._ready["kafka_url"])

    def _place(self, folder: Path) -> tuple[str, ...]:
        """The options that say where its data are."""
        return "--data-dir", str(folder)

    def stop(self) -> None:
        """Stop by SIGTERM, keeping the data. Raises BrokerProcessError if it ends otherwise."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            self.kill()
            what = f"did not stop within {STOP_TIMEOUT_S:g} s and was killed"
            raise BrokerProcessError(what, None, self._errors.text()) from error
        self._ended()
        if status != 0:
            raise BrokerProcessError(f"ended with {status}", status, self._errors.text())

    def kill(self) -> None:
        """kill -9. What was acknowledged is in the data folder."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._ended()

    # -- inspection -----------------------------------------------------------------------------

    def messages(self, topic: str) -> list[StoredMessage]:
        """All messages in order, read from the data folder: this works after `kill`, too."""
        found: list[StoredMessage] = []
        with FolderReader(self.data_dir) as reader:
            for full in self._logs_of(topic):
                found += messages_in(reader.log(full))
        return sorted(found, key=lambda each: (each.broker_time_ms, each.topic, each.index))

    def _topic_names(self) -> list[str]:
        with FolderReader(self.data_dir) as reader:
            return list(reader.topics())

    # -- inside ---------------------------------------------------------------------------------

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise BrokerStateError("running", "not running")
        return self._process

    def _address(self, name: str) -> str:
        if not self._ready:
            raise BrokerStateError("running", "new")
        return self._ready[name] or ""

    def _ended(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        self._errors.join()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


class _RemoteFaults(Faults):
    """The faults of a broker in another process, over HTTP."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def _install(self, fault: Fault) -> int:
        installed = self._admin.request("POST", f"{TEST_PATH}/faults", fault.to_json())
        return int(installed["id"])

    def _remove(self, number: int) -> None:
        try:
            self._admin.request("DELETE", f"{TEST_PATH}/faults/{number}")
        except UnreachableError:
            pass  # the fault has ended with its broker
        except AdminError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def drop_connections(self) -> int:
        return int(self._admin.request("DELETE", f"{TEST_PATH}/connections")["dropped"])

    def fence_producers(self, topic: str) -> None:
        self._admin.request("POST", f"{TEST_PATH}/fence", topic=topic)


class RemoteClock(MovableClock):
    """The clock of a broker in another process, which a test moves over HTTP."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def now_ms(self) -> int:
        """The broker's time, in milliseconds since the epoch."""
        return int(self._admin.request("GET", f"{TEST_PATH}/clock")["now_ms"])

    def _set_ms(self, now_ms: int) -> None:
        self._admin.request("PUT", f"{TEST_PATH}/clock", {"now_ms": now_ms})

    def _advance_ms(self, step_ms: int) -> None:
        self._admin.request("POST", f"{TEST_PATH}/clock/advance", {"by_ms": step_ms})


class _Reader(threading.Thread):
    """Reads what a process writes, so that its pipe does not fill up. Keeps the last part."""

    KEPT_BYTES = 64 * 1024

    def __init__(self) -> None:
        super().__init__(name="pulsemark-process-log", daemon=True)
        self._pipe: Any = None
        self._kept = b""

    def read(self, pipe: Any) -> None:
        """Begin to read."""
        self._pipe = pipe
        self.start()

    def run(self) -> None:
        """Read until the process ends."""
        while data := self._pipe.read1(self.KEPT_BYTES):
            self._kept = (self._kept + data)[-self.KEPT_BYTES :]

    def text(self) -> str:
        """The last part of what was written."""
        return self._kept.decode(errors="replace")


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])
