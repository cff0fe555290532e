"""A replay without a JVM: the driver's part, and its tasks one after another in this process."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from pyspark.sql import types

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.ledger import EntryKind, FolderReader, Position
from pulsemark.pipeline.replay import ReplayOptions, ReplayResult, replay
from pulsemark.pipeline.workers import WorkSource


class TasksHere:
    """What a replay uses of a SparkSession."""

    def __init__(self, parallelism: int = 2) -> None:
        self.sparkContext = SimpleNamespace(defaultParallelism=parallelism)
        self.dataSource = SimpleNamespace(register=lambda source: None)
        self.tasks: list[tuple[int, ...]] = []

    @property
    def read(self) -> TasksHere:
        """A reader."""
        return self

    def format(self, name: str) -> Self:
        """Of work only."""
        assert name == WorkSource.name()
        return self

    def option(self, name: str, value: str) -> Self:
        """The work."""
        self._source = WorkSource({name: value})
        return self

    def load(self) -> Self:
        """Nothing runs yet."""
        return self

    def collect(self) -> list[tuple[Any, ...]]:
        """Run the tasks."""
        reader = self._source.reader(types.StructType())
        rows: list[tuple[Any, ...]] = []
        for partition in reader.partitions():
            self.tasks.append(tuple(part.number for part in partition.value))
            rows += reader.read(partition)
        return rows


def replayed(
    path: Path, url: str, checkpoint: Path, *topics: str, spark: Any = None, **arguments: Any
) -> ReplayResult:
    """Replay; arguments are those of `replay` and fields of `ReplayOptions`."""
    fields = ReplayOptions.__dataclass_fields__
    options = {name: value for name, value in arguments.items() if name in fields}
    bounds = {name: value for name, value in arguments.items() if name not in fields}
    chosen = ReplayOptions(service_url=url, **options)
    session: Any = spark or TasksHere()
    return replay(session, path, chosen, checkpoint, topics or None, **bounds)


def bodies(path: Path, topic: str) -> list[bytes]:
    """The producers' entries of a topic, read one by one."""
    with FolderReader(path) as reader:
        log, place, found = reader.log(topic), Position(0, 0), []
        while entries := log.read(place, max_entries=500, max_bytes=1 << 24):
            found += [
                bytes(e.body) for e in entries if e.kind is EntryKind.DATA and e.message_count
            ]
            last = entries[-1].position
            place = Position(last.ledger_id, last.entry_id + 1)
    return found


PROGRAM = """
import pathlib, sys, threading
from pulsemark.broker import BrokerConfig, BrokerThread
folder, port = pathlib.Path(sys.argv[1]), int(sys.argv[2])
config = BrokerConfig(data_dir=folder, port=port, http_port=0, broker_deduplication_enabled=True)
with BrokerThread(config) as broker:
    print(broker.service_url, flush=True)
    threading.Event().wait()
"""


class BrokerProcess:
    """A broker that deduplicates, in a process, on one folder and port over all its starts."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder = folder
        self.url = f"pulsar://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        """Start, and wait until it serves."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(self.folder), str(self.port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("pulsar://")

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.communicate(timeout=60)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[BrokerThread]:
    """A broker that deduplicates, with an empty folder."""
    config = BrokerConfig(
        data_dir=tmp_path / "target", port=0, http_port=0, broker_deduplication_enabled=True
    )
    with BrokerThread(config) as running:
        yield running


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[BrokerProcess]:
    """The same in a process of its own."""
    process = BrokerProcess(tmp_path / "target")
    yield process
    if process.process.poll() is None:
        process.kill()


@pytest.fixture(scope="session")
def kit() -> Any:
    """The functions above, for the test modules."""
    return SimpleNamespace(
        TasksHere=TasksHere, replayed=replayed, bodies=bodies, string=types.StringType
    )


Kit = Callable[..., Any]
