"""The supervisor of several workers: it starts them, restarts one that dies or hangs, and ends
them.

It serves the workers' shared settings, and no clients. The first worker has the configured ports,
the next one ports that are higher by 1, and so on; with port 0 each gets free ones, and keeps them
when it is restarted.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import pickle
import shutil
import sqlite3
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from ..broker import BrokerConfig
from ..broker.server import PORTS, TLS_PORTS, with_ports, with_used_ports
from ..coordination import Create, Delete
from ..coordination.local import LOOKS, SESSION_TIMEOUT_MS, SILENT_LOOKS, LocalServer, Silence
from ..coordination.memory import DurableTree, MemoryCoordination
from ..ledger.local.io.files import Files, write_file_durably
from ..ledger.local.io.folder import make_folder_durably
from .placement import AWAY
from .worker import WorkerSpec

log = logging.getLogger(__name__)

# The data folder of several workers.
#
#     workers.json          how many workers there are; it never changes
#     workers.lock          held by the supervisor while it runs
#     shared.sqlite         settings that all workers share, and who owns what
#     worker-0/ ...         a data folder for each worker
#
# A topic's data are in the folder of its bundle's worker, so the number of workers cannot change:
# with another number topics would be looked for where they are not.


FACTS = "workers.json"
LOCK = "workers.lock"
SHARED = "shared.sqlite"
MAX_WORKERS = 4
"""A namespace has four bundles, and each is one worker's."""


class WorkersError(Exception):
    """The workers cannot run: with these settings, on this folder, or at all."""


class WorkersFolder:
    """The folder with the data of all workers, locked until it is closed."""

    def __init__(self, folder: Path, workers: int) -> None:
        """Check and lock the folder; make it if it is missing. Raises WorkersError, OSError."""
        if not 1 <= workers <= MAX_WORKERS:
            raise WorkersError(f"--workers {workers}: there can be 1 to {MAX_WORKERS} workers")
        self.folder = folder
        make_folder_durably(Files(), folder)  # the workers find it made
        facts = folder / FACTS
        # A crash may have left a part of the file of facts beside it.
        others = [p.name for p in folder.iterdir() if not p.name.startswith((FACTS, LOCK))]
        if not facts.exists() and others:
            raise WorkersError(
                f"{folder} has data of a broker without workers ({min(others)}): "
                "give the workers a folder of their own"
            )
        self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take(facts, workers)
        except BaseException:
            self.close()
            raise

    def _take(self, facts: Path, workers: int) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WorkersError(f"{self.folder} is in use by other workers") from error
        if facts.exists():
            stored = _stored(facts)
            if stored != workers:
                raise WorkersError(
                    f"{self.folder} has the topics of {stored} workers, and cannot be used with "
                    f"{workers}: start it with --workers {stored}"
                )
            return
        write_file_durably(Files(), facts, json.dumps({"workers": workers}).encode())

    @property
    def shared(self) -> Path:
        """The file of the workers' shared settings."""
        return self.folder / SHARED

    def of_worker(self, number: int) -> Path:
        """A worker's data folder."""
        return self.folder / f"worker-{number}"

    def close(self) -> None:
        """Unlock the folder."""
        os.close(self._lock)


def _stored(facts: Path) -> int:
    try:
        return int(json.loads(facts.read_text())["workers"])
    except (ValueError, KeyError, TypeError) as error:
        raise WorkersError(f"{facts} is damaged: {error!r}") from error


START_LIMIT_S = 60.0
END_GRACE_S = 10.0
RESTART_DELAYS_S = (0.1, 0.5, 2.0, 5.0)
"""Delays before the first restart, the second ...; after a minute without a failure the first."""
STEADY_S = 60.0
SILENT_S = SESSION_TIMEOUT_MS / 1000 * SILENT_LOOKS / LOOKS
"""After this silence a worker counts as hanging."""


class Supervisor:
    """Runs the workers during an `async with` block."""

    def __init__(self, config: BrokerConfig, workers: int, *, log_level: str = "warning") -> None:
        """Raises WorkersError for settings that several workers cannot have."""
        _check(config, workers)
        assert config.data_dir is not None
        self.config = config
        self.workers = workers
        self._log_level = log_level
        self._folder = WorkersFolder(Path(config.data_dir), workers)
        self._runtime: Path | None = None
        self._tree: DurableTree | None = None
        self._server: LocalServer | None = None
        self._session: MemoryCoordination | None = None
        self._running: list[_Running] = []
        self._is_ending = False

    @property
    def facts(self) -> list[dict[str, Any]]:
        """The facts that each worker reports: URLs, process id, data folder."""
        return [running.facts for running in self._running]

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _start(self) -> None:
        # Not in the data folder, whose path may be too long for a socket's.
        self._runtime = Path(tempfile.mkdtemp(prefix="pulsemark-workers-"))
        self._tree = DurableTree(self._folder.shared)
        self._session = self._tree.session()
        self._tree.make_parents(f"{AWAY}/0")
        self._server = LocalServer(
            self._tree, self._runtime / "shared", on_silence=self._heard_nothing
        )
        await self._server.start()
        self._running = [
            _Running(number, self._config_of(number), self) for number in range(self.workers)
        ]
        await asyncio.gather(*(running.start() for running in self._running))
        for running in self._running:
            running.watch()

    def _heard_nothing(self, pid: int, silence: Silence) -> None:
        for running in self._running:
            if running.is_process(pid):
                running.heard_nothing(silence)

    def show(self, number: int, reason: str | None) -> None:
        """Tell all workers why one of them cannot be used; None: it can."""
        assert self._tree is not None
        assert self._session is not None
        path = f"{AWAY}/{number}"
        is_shown = self._tree.stat(path) is not None
        if is_shown == (reason is not None):
            return
        change = Delete(path) if reason is None else Create(path, reason.encode(), True)
        try:
            self._tree.apply([change], self._session.session_id)
        except sqlite3.Error:
            log.exception("the workers could not be told about worker %d", number)

    def _config_of(self, number: int) -> BrokerConfig:
        config = replace(self.config, data_dir=self._folder.of_worker(number))
        return with_ports(config, lambda _, port: port + number if port else port)

    def spec_file(self, number: int, config: BrokerConfig) -> Path:
        """Write the file with a worker's configuration."""
        assert self._runtime is not None
        spec = WorkerSpec(config, self._runtime / "shared", number, self.workers, self._log_level)
        file = self._runtime / f"worker-{number}"
        file.write_bytes(pickle.dumps(spec))
        return file

    async def close(self) -> None:
        """End all workers in good order, then the coordination. A second call does nothing."""
        if self._is_ending:
            return
        self._is_ending = True
        limit_s = self.config.shutdown_timeout_ms / 1000 + END_GRACE_S
        await asyncio.gather(*(running.end(limit_s) for running in self._running))
        if self._server is not None:
            await self._server.close()
        if self._tree is not None:
            self._tree.close()
        if self._runtime is not None:
            shutil.rmtree(self._runtime, ignore_errors=True)
        self._folder.close()


class _Running:
    """One worker: its process, and the processes that replace it."""

    def __init__(self, number: int, config: BrokerConfig, supervisor: Supervisor) -> None:
        self.number = number
        self.facts: dict[str, Any] = {}
        self._config = config
        self._supervisor = supervisor
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._is_ending = False

    async def start(self) -> None:
        """Start the process, and return when it is ready. Raises WorkersError."""
        file = self._supervisor.spec_file(self.number, self._config)
        command = [sys.executable, "-m", "pulsemark.cluster.worker", str(file)]
        self._process = process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            # Its signals come from the supervisor alone, also those of a terminal.
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_LIMIT_S):
                line = await process.stdout.readline()
        except TimeoutError:
            process.kill()
            raise WorkersError(
                f"worker {self.number} is not ready after {START_LIMIT_S:.0f} s"
            ) from None
        if not line:
            code = await process.wait()
            raise WorkersError(f"worker {self.number} ended at its start, with {code}: see the log")
        self.facts = json.loads(line)
        # The next process gets the same ports, so that clients find it again.
        self._config = with_used_ports(self._config, self.facts.__getitem__)
        self._supervisor.show(self.number, None)

    def watch(self) -> None:
        """Restart the process whenever it dies."""
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        deaths, began_s = 0, loop.time()
        while True:
            assert self._process is not None
            code = await self._process.wait()
            if self._is_ending:
                return
            deaths = 0 if loop.time() - began_s > STEADY_S else deaths
            self._supervisor.show(self.number, "has died, and is restarted")
            delay_s = RESTART_DELAYS_S[min(deaths, len(RESTART_DELAYS_S) - 1)]
            deaths += 1
            log.error(
                "worker %d has died (%s); it is restarted in %s s", self.number, code, delay_s
            )
            await asyncio.sleep(delay_s)
            began_s = loop.time()
            try:
                await self.start()
            except (WorkersError, OSError) as error:
                log.error("worker %d was not restarted: %s", self.number, error)
            else:
                log.warning("worker %d runs again", self.number)

    def is_process(self, pid: int) -> bool:
        """Whether the process with that id is this worker's, and runs."""
        process = self._process
        return process is not None and process.pid == pid and process.returncode is None

    def heard_nothing(self, silence: Silence) -> None:
        """Log that the worker is silent, or is heard again. Kill it after too long a silence."""
        name = f"worker {self.number} (process {self._process.pid})" if self._process else ""
        if silence is Silence.OVER:
            log.warning("%s was heard again", name)
            self._supervisor.show(self.number, None)
        elif silence is Silence.BEGAN:
            log.warning("%s has said nothing for %g s", name, SILENT_S)
            self._supervisor.show(self.number, f"has said nothing for {SILENT_S:g} s")
        elif self._process is not None:
            limit_s = SESSION_TIMEOUT_MS / 1000
            log.error("%s has said nothing for %g s, and is killed", name, limit_s)
            self._process.kill()

    async def end(self, limit_s: float) -> None:
        """Send SIGTERM, and SIGKILL after a while."""
        self._is_ending = True
        process = self._process
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(limit_s):
                    await process.wait()
            except TimeoutError:
                log.error("worker %d did not end in time, and is killed", self.number)
                process.kill()
                await process.wait()
        if self._watching is not None:
            self._watching.cancel()


def _check(config: BrokerConfig, workers: int) -> None:
    if config.storage != "files" or config.data_dir is None:
        raise WorkersError("--workers needs a data folder: workers share no memory")
    ports = [getattr(config, name) for name in PORTS]
    ports += [getattr(config.security, name) for name in TLS_PORTS]
    used = [port + number for port in ports if port for number in range(workers)]
    if len(used) != len(set(used)):
        text = f"ports {sorted(filter(None, ports))}: each of {workers} workers needs its own, "
        raise WorkersError(f"{text}from these on")
