"""A Spark driver that runs the writing jobs it is told, one line of its input after another.

    python campaigns/pipeline_kills/spark_driver.py

It says ``begun`` when its session has started. A line of input is a JSON list: the job's name, the
data folder, the job's folder, the broker's URL. It answers each with a line of JSON: null, or what
failed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.errors import StreamingQueryException

from pulsemark.pipeline import (
    DeltaTarget,
    IcebergTarget,
    OffloadFollower,
    OffloadResult,
    ReplayOptions,
    local_session,
    offload,
    replay,
)
from pulsemark.pipeline.session import BRIEF_SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_PER_FILE = 20
SUBSCRIPTION = "kills"


@dataclass(frozen=True, slots=True)
class Work:
    """What a job is about."""

    spark: SparkSession
    data: Path
    folder: Path
    url: str

    @property
    def out(self) -> Path:
        """Where a table goes."""
        return self.folder / "out"


Job: TypeAlias = Callable[[Work], object]


def iceberg_table(folder: Path) -> IcebergTarget:
    """The Iceberg table in a job's folder."""
    uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/w"
    return IcebergTarget("a.b", "x", {"type": "sql", "uri": uri, "warehouse": warehouse})


def _to_parquet(work: Work) -> None:
    offload(work.spark, work.data, work.out, rows_per_file=ROWS_PER_FILE)


def _to_delta(work: Work) -> None:
    offload(work.spark, work.data, DeltaTarget(work.out), rows_per_file=ROWS_PER_FILE)


def _to_iceberg(work: Work) -> None:
    offload(work.spark, work.data, iceberg_table(work.folder), rows_per_file=ROWS_PER_FILE)


def _typed_to_delta(work: Work) -> None:
    target = DeltaTarget(work.out)
    offload(work.spark, work.data, target, value_schema="latest", mode="PERMISSIVE")


def _upsert_to_delta(work: Work) -> None:
    offload(work.spark, work.data, DeltaTarget(work.out), write_mode="upsert", rows_per_file=20)


def _upsert_to_iceberg(work: Work) -> None:
    target = iceberg_table(work.folder)
    offload(work.spark, work.data, target, write_mode="upsert", rows_per_file=20)


def _replay(work: Work) -> None:
    replay(work.spark, work.data, ReplayOptions(service_url=work.url), work.folder / "checkpoint")


def _sink_batch(work: Work) -> None:
    rows = work.spark.read.format("pulsar-ledger").options(topicsPattern=".*", minPartitions="4")
    frame = rows.option("columns", "value,__key").load(str(work.data))
    frame.write.format("pulsar-ledger").mode("append").options(
        serviceUrl=work.url, topic="copy", writeId="one", batchingMaxMessages="3"
    ).save()


def _sink_stream(work: Work) -> None:
    stream = work.spark.readStream.format("pulsar-ledger").options(
        topicsPattern=".*", startingOffsets="earliest", maxOffsetsPerTrigger="200"
    )
    frame = stream.option("columns", "value,__key").load(str(work.data))
    writer = frame.writeStream.format("pulsar-ledger").options(
        serviceUrl=work.url, topic="copy", batchingMaxMessages="3"
    )
    _completed(writer, work.folder / "checkpoint")


def _completed(writer: Any, checkpoint: Path, *target: str) -> None:
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    for attempt in range(5):
        try:
            writer.start(*target).awaitTermination()
        except StreamingQueryException as error:
            # On a machine with other work Spark gives a source's process only 10 s to start.
            if attempt == 4 or "connect back" not in str(error):
                raise
        else:
            return


def _subscribed(work: Work) -> None:
    """The folder is a broker's, whose subscription follows the query."""
    stream = work.spark.readStream.format("pulsar-ledger").options(
        topicsPattern=".*", startingOffsets="earliest", maxOffsetsPerTrigger="100",
        subscriptionName=SUBSCRIPTION, adminUrl=work.url, columns="__topic,__index,value",
    )  # fmt: skip
    frame = stream.load(str(work.folder / "broker"))
    _completed(frame.writeStream.format("parquet"), work.folder / "checkpoint", str(work.out))


def _follow(work: Work) -> None:
    """Beside a broker that has the folder open, until a run has nothing to copy."""
    follower = OffloadFollower(work.spark, work.folder / "broker", work.out, every_s=0.1)
    follower.more = {"rows_per_file": ROWS_PER_FILE}

    def look(result: OffloadResult) -> None:
        if not result.files:
            follower.stop()

    follower.on_run = look
    follower.run()


SPARK_JOBS: Mapping[str, Job] = {
    "offload-parquet": _to_parquet,
    "offload-delta": _to_delta,
    "offload-iceberg": _to_iceberg,
    "typed-delta": _typed_to_delta,
    "upsert-delta": _upsert_to_delta,
    "upsert-iceberg": _upsert_to_iceberg,
    "replay": _replay,
    "sink-batch": _sink_batch,
    "sink-stream": _sink_stream,
    "stream-subscribed": _subscribed,
    "follow-offload": _follow,
}


def main() -> None:
    """Start a session, and run jobs until the input ends. Each task may fail three times."""
    conf = {**BRIEF_SETTINGS, "spark.master": "local[2,4]"}
    spark = local_session("kills", cores=2, conf=conf)
    print("begun", flush=True)
    for line in sys.stdin:
        name, data, folder, url = json.loads(line)
        failure = None
        try:
            SPARK_JOBS[name](Work(spark, Path(data), Path(folder), url))
        except Exception as error:  # noqa: BLE001 - whatever it is, the campaign shows it
            failure = f"{type(error).__name__}: {error}"[-800:]
        print(json.dumps(failure), flush=True)


if __name__ == "__main__":
    main()
