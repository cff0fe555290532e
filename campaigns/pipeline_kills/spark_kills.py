"""The writing jobs in a real Spark: the driver or a Python worker is killed, the job runs again."""

from __future__ import annotations

import json
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import deltalake
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.client import AdminClient
from pulsemark.ledger import FolderReader, Position
from pulsemark.pipeline.plan import indexes_of

from .jobs import facts
from .spark_driver import SPARK_JOBS, SUBSCRIPTION, iceberg_table

VICTIMS = ("driver", "worker")
BESIDE_A_BROKER = ("stream", "follow")
"""Jobs that begin so read a folder that a broker has open."""
START_S = 900
RUN_S = 900
TRIES = 4
_MESSAGES = "__topic,__index,__key,value"


class Driver:
    """A Spark driver in a process of its own, which runs what it is told."""

    def __init__(self) -> None:
        program = str(Path(__file__).with_name("spark_driver.py"))
        self._process = subprocess.Popen(
            [sys.executable, program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        line = self._line(START_S)
        if line != "begun\n":
            self.close()
            raise RuntimeError(f"no session: {line!r}")

    def begin(self, name: str, *places: str) -> None:
        """Begin a job."""
        stream = self._pipe(self._process.stdin)
        stream.write(json.dumps([name, *places]) + "\n")
        stream.flush()

    def ended(self, within_s: float) -> bool:
        """Whether the job ends within a time."""
        return bool(select.select([self._pipe(self._process.stdout)], [], [], within_s)[0])

    def outcome(self) -> str | None:
        """Wait for the job's end; what failed."""
        line = self._line(RUN_S)
        return json.loads(line) if line.endswith("\n") else f"the driver said {line!r}"

    def kill_worker(self) -> bool:
        """Kill a Python worker; False if there is none now."""
        daemons: set[int] = set()
        for child in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.Error):  # one that ends meanwhile, or has ended
                if "pyspark.daemon" not in child.cmdline():
                    continue
                daemons.add(child.pid)
                if child.ppid() in daemons:
                    child.kill()
                    return True
        return False

    def close(self) -> None:
        """Kill the driver alone; its JVM and workers notice by themselves."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(RUN_S)
        for stream in (self._process.stdin, self._process.stdout):
            self._pipe(stream).close()

    def _line(self, within_s: float) -> str:
        return self._pipe(self._process.stdout).readline() if self.ended(within_s) else ""

    @staticmethod
    def _pipe(stream: IO[str] | None) -> IO[str]:
        assert stream is not None, "the process has pipes"
        return stream


class Campaign:
    """One driver after another, and what each job takes and makes if nothing disturbs it."""

    def __init__(self, data: Path, folder: Path) -> None:
        self._data = data
        self._folder = folder
        self._driver = Driver()
        self._undisturbed: dict[str, tuple[float, list[Any]]] = {}

    def close(self) -> None:
        """End the last driver."""
        self._driver.close()

    def cycle(self, name: str, seed: int, victim: str) -> tuple[str, list[str]]:
        """Kill the driver or a worker once, run again, and compare with an undisturbed run.

        A job that ends before it could be killed begins anew in another folder, and is killed
        sooner.

        Returns:
            What was killed, and what is wrong.
        """
        if name not in self._undisturbed:
            start = time.monotonic()
            shown = self._run(name, self._folder / f"{name}-undisturbed", None)[1]
            taken_s = time.monotonic() - start
            self._undisturbed[name] = taken_s, shown
            print(f"{name}: {taken_s:.1f} s undisturbed", file=sys.stderr, flush=True)
        taken_s, wanted = self._undisturbed[name]
        share = random.Random(seed).random()
        killed, problems = False, [] if wanted else ["an undisturbed run gives nothing"]
        for number in range(TRIES):
            place = self._folder / f"{name}-{seed}-{number}"
            start = time.monotonic()
            try:
                killed, shown = self._run(name, place, (victim, share * taken_s))
            except RuntimeError as error:
                self._driver.close()
                self._driver = Driver()
                return f"{victim}, a run failed", [*problems, str(error)]
            if shown != wanted:
                problems.append(f"{len(shown)} rows, {len(wanted)} undisturbed, or other ones")
            if killed:
                break
            # The first run of a job in a session is the slowest.
            taken_s = (time.monotonic() - start) / 2
        return (f"{victim} killed" if killed else f"{victim} not killed"), problems

    def _run(
        self, name: str, folder: Path, kill: tuple[str, float] | None
    ) -> tuple[bool, list[Any]]:
        """Run a job, and after a kill once more; whether it was killed, and what it has made.

        Raises:
            RuntimeError: an undisturbed or repeated run, or one that lost a worker, failed.
        """
        folder.mkdir()
        with ExitStack() as stack:
            url, broker_data = "-", folder / "broker"
            if name.startswith(BESIDE_A_BROKER):
                shutil.copytree(self._data, broker_data)
            if name.startswith(("sink", "replay", *BESIDE_A_BROKER)):
                broker = stack.enter_context(_broker(broker_data))
                url = broker.http_url if name.startswith("stream") else broker.service_url
            job = (name, str(self._data), str(folder), url)
            self._driver.begin(*job)
            killed = kill is not None and self._kill(*kill)
            if killed and kill is not None and kill[0] == "driver":
                self._driver.close()
                self._driver = Driver()
            else:
                self._check(name, self._driver.outcome())
            if killed:
                if name.startswith("stream"):
                    _check_cursors(AdminClient(url), folder)
                self._driver.begin(*job)
                self._check(name, self._driver.outcome())
            shown = _shown(name, folder)
            if name.startswith("stream"):
                shown += [("backlog", *each) for each in _backlogs(AdminClient(url)).items()]
        return killed, shown

    def _kill(self, victim: str, wait_s: float) -> bool:
        """Kill after a time; False if the job has ended before."""
        if self._driver.ended(wait_s):
            return False
        if victim == "driver":
            return True
        while not self._driver.ended(0.01):
            if self._driver.kill_worker():
                return True
        return False

    @staticmethod
    def _check(name: str, failure: str | None) -> None:
        if failure is not None:
            raise RuntimeError(f"{name} failed: {failure}")


def _backlogs(admin: AdminClient) -> dict[str, int]:
    return {topic: admin.backlog(topic, SUBSCRIPTION) for topic in admin.topics()}


def _check_cursors(admin: AdminClient, folder: Path) -> None:
    """The subscription is not ahead of the checkpoint. Raises RuntimeError."""
    marks = {}
    for topic in admin.topics():
        cursor = admin.internal_stats(topic)["cursors"].get(SUBSCRIPTION)
        if cursor is not None:
            marks[topic] = Position(*map(int, cursor["markDeletePosition"].split(":")))
    numbers = [int(path.name) for path in (folder / "checkpoint" / "commits").glob("[0-9]*")]
    committed = {}
    if numbers:
        lines = (folder / "checkpoint" / "offsets" / str(max(numbers))).read_text().splitlines()
        committed = json.loads(lines[-1])
    with FolderReader(folder / "broker") as reader:
        for topic, mark in marks.items():
            indexes = indexes_of(reader.log(topic), mark)
            reached = committed[topic]["index"] if topic in committed else 0
            if indexes is not None and indexes[1] > reached:
                raise RuntimeError(f"{topic}: acknowledged up to {indexes[1]}, read to {reached}")


@contextmanager
def _broker(data: Path) -> Iterator[BrokerThread]:
    config = BrokerConfig(data_dir=data, port=0, http_port=0, broker_deduplication_enabled=True)
    with BrokerThread(config) as broker:
        yield broker


def _shown(name: str, folder: Path) -> list[Any]:
    """What a job has made, sorted."""
    if name == "replay":
        return _rows(folder / "broker", ".*", _MESSAGES)
    if name.startswith("sink"):
        return _rows(folder / "broker", ".*/copy", "__key,value")
    if name.endswith("iceberg"):
        table = iceberg_table(folder).catalog.load_table("a.b")
        return facts([table.scan().to_arrow()])
    if name.startswith("typed"):
        found = [folder / "out", folder / "out_rejected"]
        tables = [pa.table(deltalake.DeltaTable(str(x)).to_pyarrow_table()) for x in found]
        return facts(tables[:1], "n") + facts(tables[1:])
    if name.endswith("delta"):
        return facts([pa.table(deltalake.DeltaTable(str(folder / "out")).to_pyarrow_table())])
    files = (folder / "out").rglob("[!._]*.parquet")
    return facts(pq.read_table(path, partitioning=None) for path in files)


def _rows(data: Path, pattern: str, columns: str) -> list[tuple[object, ...]]:
    """All messages of a folder, read in this process."""
    from pulsemark.pipeline.columns import arrow_schema_of
    from pulsemark.pipeline.followed import followed
    from pulsemark.pipeline.options import ReadOptions
    from pulsemark.pipeline.tasks import TaskReader

    texts = {"path": str(data), "topicsPattern": pattern, "columns": columns}
    options = ReadOptions.parse(texts)
    schema = arrow_schema_of(options.columns)
    rows = [
        tuple(row.values())
        for task in followed(options).read()
        for batch in TaskReader(options, schema).read(task)
        for row in batch.to_pylist()
    ]
    return sorted(rows, key=repr)


__all__ = ["SPARK_JOBS", "VICTIMS", "Campaign"]
