"""The pipeline on a cluster: Spark's standalone master and two workers, on this machine.

    python bench/bench_spark_cluster.py [--rows 1000000 10000000] [--topics 1 100 1000] [--rounds N]
        [--jobs scan audit offload stream]

Master and workers are processes of their own, from pyspark's jars; each worker has one core and one
executor. The data folder is their shared file system. For each number of messages (in one topic),
and the fewest messages in each number of topics, some jobs run one after another:

    scan      sum(length(value)), sum(__index), max(__brokerPublishTime)
    audit     the job
    offload   the job, to Parquet, five columns
    stream    Trigger.AvailableNow over all topics, into Spark's sink `noop`

A row of Markdown for each gives the seconds of each job: the median of some rounds after a first
one, with the lowest and the highest. Then it gives the most memory that was seen meanwhile, in MiB:
of the driver (its JVM and its Python processes), of an executor's JVM, and of all Python workers of
one executor. What processes share is divided among them (PSS). The JVMs have heaps of 1 GiB.
The defaults are several minutes of work for two quiet cores.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyspark
from rounds import Sample, add_rounds, in_turns, seconds_of
from spark_report import processes

from pulsemark.ledger import LocalStore
from pulsemark.metadata import StamperChain
from pulsemark.pipeline import audit, local_session, offload
from pulsemark.pipeline.session import BRIEF_JVM, find_java
from pulsemark.testing.raw_messages import unbatched_message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SILENT_S = 300
"""Spark's processes may start slowly beside other work, but they say something all the time."""
DAEMON_OPTIONS = ("-Dspark.master.rest.enabled=false", "-Dspark.worker.timeout=600")
MESSAGE_BYTES = 100
JOBS = ("scan", "audit", "offload", "stream")
PARTS = ("driver", "executor", "workers")
NARROW = ("value", "__key", "__publishTime", "__index", "__brokerPublishTime")
#: Entries that are appended at once.
RUN = 1_000
SUMS = ["sum(length(value))", "sum(__index)", "max(__brokerPublishTime)"]


class Daemon(NamedTuple):
    """A process of Spark's."""

    log: Path
    process: subprocess.Popen[bytes]


@contextmanager
def cluster(folder: Path, workers: int) -> Iterator[str]:
    """A master and its workers; yields the master's URL. They end with the block."""
    with ExitStack() as stack:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        url = f"spark://127.0.0.1:{port}"
        master = "org.apache.spark.deploy.master.Master"
        log = folder / "master.log"
        started = [stack.enter_context(_running(log, master, "--port", str(port)))]
        _await(log, "I have been elected leader", 1, started)
        worker = "org.apache.spark.deploy.worker.Worker"
        for number in range(workers):
            each = _running(
                folder / f"worker-{number}.log",
                *(worker, "--cores", "1", "--memory", "1500m"),
                *("--work-dir", str(folder / f"work-{number}"), url),
            )
            started.append(stack.enter_context(each))
        _await(log, "Registering worker", workers, started)
        yield url


@contextmanager
def _running(log: Path, *arguments: str) -> Iterator[Daemon]:
    """A process of Spark's. It ends with the block."""
    settings = log.with_suffix(".properties")
    settings.write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.console.ref = console\n"
        "appender.console.type = Console\nappender.console.name = console\n"
        "appender.console.layout.type = PatternLayout\n"
        "appender.console.layout.pattern = %d{HH:mm:ss} %m%n\n"
    )
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": " ".join(
            [f"-Dlog4j2.configurationFile={settings}", BRIEF_JVM, *DAEMON_OPTIONS]
        ),
        "SPARK_DAEMON_MEMORY": "256m",
    }
    with log.open("w") as out:
        process = subprocess.Popen(
            [
                *(str(home / "bin" / "spark-class"), *arguments),
                *("--host", "127.0.0.1", "--webui-port", "0"),
            ],
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            yield Daemon(log, process)
        finally:
            process.terminate()
            process.wait(60)


def _await(log: Path, line: str, times: int, daemons: Sequence[Daemon]) -> None:
    """Wait for lines of a log, as long as each process lives and one of them goes on."""
    size, changed = -1, time.monotonic()
    while log.read_text().count(line) < times:
        for each in daemons:
            if each.process.poll() is not None:
                raise SystemExit(f"{each.log} has ended:\n{each.log.read_text()[-2000:]}")
        written = sum(each.log.stat().st_size for each in daemons)
        if written != size:
            size, changed = written, time.monotonic()
        if time.monotonic() - changed > SILENT_S:
            said = "\n".join(f"{each.log}:\n{each.log.read_text()[-1000:]}" for each in daemons)
            raise SystemExit(f"{log} does not say {line!r}\n{said}")
        time.sleep(0.2)


def session(url: str) -> SparkSession:
    """A session on the cluster, whose executors find this Python's packages."""
    conf = {
        "spark.master": url,
        "spark.executor.memory": "1g",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "spark.driver.memory": "1g",
        # Beside other work, a process that is late is not lost.
        "spark.network.timeout": "600s",
        "spark.executor.heartbeatInterval": "60s",
    }
    return local_session("cluster bench", cores=2, conf=conf)


def fill(path: Path, rows: int, topics: int) -> None:
    """So many messages, in so many topics."""
    bodies = [
        unbatched_message(os.urandom(MESSAGE_BYTES), publish_time_ms=1_700_000_000_000 + number)
        for number in range(50_000)
    ]
    with LocalStore.open(path) as store:
        for number in range(topics):
            topic = store.open_topic(f"persistent://public/default/topic-{number}")
            topic.stampers = StamperChain.from_names(["broker-time", "index"])
            left = rows // topics
            while left:
                start = left % len(bodies)
                run = bodies[start : start + min(left, RUN)]
                last, added = topic.append_run(run, [1] * len(run))
                left -= added
        last.commit.wait()


def jobs_of(spark: SparkSession, data: Path, out: Path) -> dict[str, Callable[[], int]]:
    """The jobs; each returns the number of messages that it has seen."""

    def scan() -> int:
        reader = spark.read.format("pulsar-ledger").option("topicsPattern", ".*")
        frame = reader.option("columns", "value,__index,__brokerPublishTime").load(str(data))
        return int(frame.selectExpr("count(*)", *SUMS).collect()[0][0])

    def counted() -> int:
        return sum(row["count"] for row in audit(spark, data).select("count").collect())

    def copied() -> int:
        return offload(spark, data, out / "table", columns=NARROW).rows

    def streamed() -> int:
        reader = spark.readStream.format("pulsar-ledger").option("topicsPattern", ".*")
        frame = reader.options(startingOffsets="earliest", columns="value,__index").load(str(data))
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(out / "checkpoint")).start()
        query.awaitTermination()
        return sum(each["numInputRows"] for each in query.recentProgress)

    return {"scan": scan, "audit": counted, "offload": copied, "stream": streamed}


def run_s(job: Callable[[], int], out: Path, expected: int) -> float:
    """The seconds of a job in an empty folder."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()

    def run() -> None:
        seen = job()
        assert seen == expected, f"{seen} messages, not {expected}"

    return seconds_of(run)


class Memory:
    """The most memory that each part of the cluster has had, looked for twice a second."""

    def __init__(self) -> None:
        self.most_bytes: dict[str, int] = {}
        threading.Thread(target=self._look, daemon=True).start()

    def text(self) -> str:
        """The cells of a row."""
        parts = [
            max(
                (size for name, size in self.most_bytes.items() if name.startswith(part)), default=0
            )
            for part in PARTS
        ]
        return " | ".join(f"{size >> 20:,}" for size in parts)

    def _look(self) -> None:
        while True:
            parents = {pid: parent for pid, parent, _ in processes()}
            found: dict[str, int] = {}
            for pid in parents:
                part = _part_of(pid, parents)
                found[part] = found.get(part, 0) + (_bytes_of(pid) if part else 0)
            for part, size in found.items():
                self.most_bytes[part] = max(size, self.most_bytes.get(part, 0))
            time.sleep(0.5)


def _part_of(pid: int, parents: Mapping[int, int]) -> str:
    """The part that a process belongs to: one of `PARTS` with its executor; empty: none of them."""
    above = pid
    while above in parents and above != os.getpid():
        command = _read(f"/proc/{above}/cmdline")
        if "CoarseGrainedExecutorBackend" in command:
            return f"{'executor' if above == pid else 'workers'} {above}"
        if "org.apache.spark.deploy.master" in command or "deploy.worker.Worker" in command:
            return ""
        above = parents[above]
    return "driver" if above == os.getpid() else ""


def _read(path: str) -> str:
    """The text of a file; empty if its process has ended."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _bytes_of(pid: int) -> int:
    """The memory of a process, with its share of what it has in common with others (PSS)."""
    lines = _read(f"/proc/{pid}/smaps_rollup").splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def main() -> None:
    """Parse arguments, start, measure, print, stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="for data and tables; default: temporary")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--topics", type=int, nargs="+", default=[1, 100, 1000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=JOBS, metavar="JOB")
    add_rounds(parser)
    args = parser.parse_args()
    sizes = [(rows, 1) for rows in args.rows]
    sizes += [(min(args.rows), topics) for topics in args.topics if topics > 1]
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary, ExitStack() as stack:
        folder = Path(temporary)
        spark = session(stack.enter_context(cluster(folder, args.workers)))
        stack.callback(spark.stop)
        memory = Memory()
        heads = ("messages", "topics", *args.jobs, *PARTS)
        print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
        for rows, topics in sizes:
            data, expected = folder / f"data-{rows}-{topics}", rows // topics * topics
            fill(data, rows, topics)
            memory.most_bytes.clear()
            jobs = jobs_of(spark, data, folder / "out")
            runs = [partial(run_s, jobs[name], folder / "out", expected) for name in args.jobs]
            in_turns(1, *runs)  # the first one starts Python's processes
            cells = [Sample.of(taken).text(" s") for taken in in_turns(args.rounds, *runs)]
            print(f"| {rows:,} | {topics:,} | {' | '.join(cells)} | {memory.text()} |", flush=True)
            shutil.rmtree(data)


if __name__ == "__main__":
    main()
