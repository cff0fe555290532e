"""The writing jobs in Spark drivers of their own, which are killed, or one of their workers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil

START_S = 900
RUN_S = 900
WORKER_S = 60
_PLACES = "__topic,__ledgerId,__entryId,__batchIndex,__index,__key,value"

_HEAD = """
import json, sys
from pathlib import Path
from pulsemark.pipeline import (
    DeltaTarget, IcebergTarget, ReplayOptions, compact_to_table, local_session, migrate, offload,
    replay,
)
data, folder, url = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
spark = local_session("kills", cores=2, conf={"spark.master": "local[2,4]"})
rows = spark.read.format("pulsar-ledger").option("topicsPattern", ".*")
rows = rows.option("columns", "value,__key,__topic,__index").option("minPartitions", "4")
catalog = {
    "type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/w"
}
print("begun", flush=True)
"""

SPARK_JOBS: Mapping[str, str] = {
    "offload-parquet": "offload(spark, data, folder / 'out', rows_per_file=20)",
    "offload-delta": "offload(spark, data, DeltaTarget(folder / 'out'), rows_per_file=20)",
    "offload-iceberg": (
        "offload(spark, data, IcebergTarget('a.b', 'x', catalog), rows_per_file=20)"
    ),
    "compact-parquet": (
        "(folder / 'out').exists() or compact_to_table(spark, data, folder / 'out')"
    ),
    "compact-delta": "compact_to_table(spark, data, DeltaTarget(folder / 'out'))",
    "migrate": """
(folder / "out").exists() or migrate(spark, data, folder / "out", entry_format="plain")
""",
    "replay": """
replay(spark, data, ReplayOptions(service_url=url), folder / "checkpoint")
""",
    "sink-batch": """
frame = rows.load(str(data)).selectExpr("value", "__key")
frame.write.format("pulsar-ledger").mode("append").options(
    serviceUrl=url, topic="copy", writeId="one", batchingMaxMessages="3"
).save()
""",
    "sink-stream": """
stream = spark.readStream.format("pulsar-ledger").option("topicsPattern", ".*")
stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "100")
stream = stream.option("columns", "value,__key").load(str(data))
stream.writeStream.format("pulsar-ledger").options(
    serviceUrl=url, topic="copy", batchingMaxMessages="3"
).option("checkpointLocation", str(folder / "checkpoint")).trigger(
    availableNow=True
).start().awaitTermination()
""",
}

_SHOWN = """
import pyarrow as pa, pyarrow.parquet as pq
if sys.argv[4].endswith("iceberg"):
    tables = [IcebergTarget("a.b", "x", catalog).catalog.load_table("a.b").scan().to_arrow()]
elif sys.argv[4].endswith("delta"):
    import deltalake
    tables = [pa.table(deltalake.DeltaTable(str(folder / "out")).to_pyarrow_table())]
else:
    tables = [pq.read_table(p, partitioning=None) for p in (folder / "out").rglob("[!._]*.parquet")]
names = ["__topic", "__index"]
print(json.dumps(sorted(list(r.values()) for t in tables for r in t.select(names).to_pylist())))
"""


class Driver:
    """A Spark driver in a process group of its own."""

    def __init__(self, program: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def await_begin(self) -> None:
        """Wait until its session has started."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line != "begun\n":
            said = self._process.communicate(timeout=START_S)[1]
            raise RuntimeError(f"no session: {said[-500:]}")

    def kill_worker(self) -> bool:
        """Kill a Python worker; False if there is none now."""
        with suppress(psutil.Error):
            children = psutil.Process(self._process.pid).children(recursive=True)
            daemons = [child for child in children if "pyspark.daemon" in child.cmdline()]
            workers = [child for child in daemons if child.ppid() in {d.pid for d in daemons}]
            if workers:
                workers[-1].kill()
                return True
        return False

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself."""
        return self._process.poll() is not None

    def kill(self) -> bool:
        """Kill the driver alone; its JVM and workers notice by themselves. False: it had ended."""
        alive = not self.ended
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate(timeout=RUN_S)
        return alive

    def finish(self) -> str | None:
        """Wait for its end; what it says of a failure."""
        try:
            _, err = self._process.communicate(timeout=RUN_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            return "did not end in time"
        return None if self._process.returncode == 0 else err.strip()[-500:]


def spark_cycle(name: str, data: Path, folder: Path, made: random.Random) -> tuple[str, list[str]]:
    """Kill the driver or a worker once, run again, and compare with the data folder.

    Returns:
        What was killed, and what is wrong.
    """
    with ExitStack() as stack:
        url, broker_data = "-", folder / "broker"
        if name.startswith(("sink", "replay")):
            url = stack.enter_context(_broker(broker_data))
        program, arguments = _HEAD + SPARK_JOBS[name], (str(data), str(folder), url)
        killed = _disturbed(Driver(program, *arguments), made)
        last = Driver(program, *arguments)
        last.await_begin()
        failure = last.finish()
        if failure is not None:
            return killed, [f"the last run failed: {failure}"]
        if name == "migrate":
            return killed, _compare_folder(data, folder / "out", _PLACES)
        if url == "-":
            return killed, _compare_table(name, data, folder)
    if name == "replay":
        return killed, _compare_folder(data, broker_data, "__topic,__index,__key,value")
    return killed, _compare_topic(data, broker_data)


def _disturbed(driver: Driver, made: random.Random) -> str:
    """Kill a driver, or one of its workers, after a while; says which."""
    driver.await_begin()
    time.sleep(made.random() * 6)
    if made.random() < 0.5:
        return "driver killed" if driver.kill() else "driver had ended"
    deadline = time.monotonic() + WORKER_S
    while not driver.kill_worker():
        if driver.ended or time.monotonic() > deadline:
            driver.finish()
            return "no worker to kill"
        time.sleep(0.01)
    driver.finish()
    return "worker killed"


def _broker(data: Path) -> Any:
    from contextlib import contextmanager

    from pulsemark.broker import BrokerConfig, BrokerThread

    @contextmanager
    def running() -> Any:
        config = BrokerConfig(data_dir=data, port=0, http_port=0, broker_deduplication_enabled=True)
        with BrokerThread(config) as broker:
            yield broker.service_url

    return running()


def _rows(data: Path, pattern: str, columns: str) -> list[tuple[object, ...]]:
    """All messages of a folder, read in this process."""
    from pulsemark.pipeline.columns import arrow_schema_of
    from pulsemark.pipeline.options import ReadOptions
    from pulsemark.pipeline.plan import plan
    from pulsemark.pipeline.tasks import LedgerPartition, messages_of

    texts = {"path": str(data), "topicsPattern": pattern, "columns": columns}
    options = ReadOptions.parse(texts)
    schema = arrow_schema_of(options.columns)
    rows = [
        tuple(row.values())
        for task in plan(options).tasks
        for batch in messages_of(LedgerPartition(task), options, schema)
        for row in batch.to_pylist()
    ]
    return sorted(rows, key=repr)


def _compare_topic(data: Path, broker_data: Path) -> list[str]:
    found, wanted = (
        _rows(folder, pattern, "__key,value")
        for folder, pattern in ((broker_data, ".*/copy"), (data, ".*"))
    )
    return [] if found == wanted else [f"{len(found)} messages, {len(wanted)} were written"]


def _compare_folder(data: Path, other: Path, columns: str) -> list[str]:
    found, wanted = _rows(other, ".*", columns), _rows(data, ".*", columns)
    return [] if found == wanted else [f"{len(found)} messages of {len(wanted)}, or other ones"]


def _compare_table(name: str, data: Path, folder: Path) -> list[str]:
    """The table of a run that nobody disturbed, beside this one."""
    other = folder / "undisturbed"
    other.mkdir()
    shown = []
    for place in (folder, other):
        program = _HEAD + (SPARK_JOBS[name] if place is other else "") + _SHOWN
        process = subprocess.run(
            [sys.executable, "-c", program, str(data), str(place), "-", name],
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=True,
        )
        shown.append(json.loads(process.stdout.splitlines()[-1]))
    same = shown[0] == shown[1]
    return [] if same and shown[0] else [f"{len(shown[0])} rows, {len(shown[1])} undisturbed"]
