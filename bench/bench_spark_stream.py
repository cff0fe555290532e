"""A stream of a data folder: rows a second from a backlog, what a micro-batch costs, many topics.

    python bench/bench_spark_stream.py [--data DIR] [--rows N] [--topics N] [--cores N]

    backlog         all messages of a topic, some micro-batches, into Spark's sink `noop`; the peer
                    is Spark's stream of the same rows in Parquet files, a file in a micro-batch
    micro-batch     the time of a micro-batch of one message; the peer is Spark's own source of
                    rates (`rate-micro-batch`), which reads nothing
    N topics        a stream over so many topics of some messages each: rows, tasks, time of one
                    micro-batch

Ten million rows take about two minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from spark_report import Cost, Job, cost_of, fill, rows_of, show, topic_of

from pulsemark.ledger import LocalStore
from pulsemark.metadata import StamperChain
from pulsemark.pipeline import local_session
from pulsemark.testing.raw_messages import unbatched_message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHAPE = "100 B"
COLUMNS = "value,__index,__brokerPublishTime"
OF_A_TOPIC = 20
SMALL_BATCHES = 20


def ran(frame: DataFrame, checkpoint: Path) -> list[Any]:
    """Run a stream to the end of what is there; the progress of its micro-batches."""
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [each for each in query.recentProgress if each["numInputRows"]]


def stream_of(spark: SparkSession, data: Path, **options: str) -> DataFrame:
    """A stream of a folder from its beginning."""
    reader = spark.readStream.format("pulsar-ledger").options(startingOffsets="earliest")
    return reader.options(columns=COLUMNS, **options).load(str(data))


def backlog(spark: SparkSession, data: Path, out: Path, args: argparse.Namespace) -> Job:
    """All rows of a topic, in some micro-batches."""
    count = rows_of(SHAPE, args.rows)
    files = str(out / "parquet")
    reader = spark.read.format("pulsar-ledger").options(topic=topic_of(SHAPE), columns=COLUMNS)
    frame = reader.load(str(data))
    frame.repartition(args.batches).write.parquet(files)
    costs: list[Cost] = []
    for name in ("ours", "peer"):
        stream = (
            stream_of(
                spark,
                data,
                topic=topic_of(SHAPE),
                maxOffsetsPerTrigger=str(-(-count // args.batches)),
            )
            if name == "ours"
            else spark.readStream.schema(frame.schema)
            .option("maxFilesPerTrigger", "1")
            .parquet(files)
        )
        progress: list[Any] = []

        def run(stream: DataFrame = stream, name: str = name, found: list[Any] = progress) -> None:
            found += ran(stream, out / name)

        costs.append(cost_of(run))
        assert sum(each["numInputRows"] for each in progress) == count
    return Job(f"backlog, {args.batches} micro-batches", count, *costs)


def batch_ms(progress: list[Any]) -> float:
    """The median time of a micro-batch, without the first ones."""
    return float(median(each["durationMs"]["triggerExecution"] for each in progress[3:]))


def small_batches(spark: SparkSession, data: Path, out: Path) -> tuple[float, float]:
    """Milliseconds of a micro-batch of one message: ours, and one of Spark's own source."""
    ours = ran(
        stream_of(spark, data, topic="public/default/topic-0", maxOffsetsPerTrigger="1"),
        out / "small",
    )
    rates = spark.readStream.format("rate-micro-batch").options(rowsPerBatch="1").load()
    query = (
        rates.writeStream.format("noop").option("checkpointLocation", str(out / "rates")).start()
    )
    while len(query.recentProgress) < SMALL_BATCHES:
        query.awaitTermination(1)
    query.stop()
    return batch_ms(ours), batch_ms(list(query.recentProgress))


def make_topics(path: Path, count: int) -> None:
    """Topics of a few messages each."""
    with LocalStore.open(path) as store:
        for number in range(count):
            topic = store.open_topic(f"persistent://public/default/topic-{number}")
            topic.stampers = StamperChain.from_names(["broker-time", "index"])
            for each in range(OF_A_TOPIC):
                last = topic.append(unbatched_message(b"%d" % each, publish_time_ms=1))
        last.commit.wait()


def many_topics(spark: SparkSession, data: Path, out: Path, count: int) -> str:
    """A line about a stream over many topics."""
    tasks_before = next_task(spark)
    progress: list[Any] = []
    frame = stream_of(spark, data, topicsPattern="topic-.*")
    cost = cost_of(lambda: progress.extend(ran(frame, out / "topics")))
    rows = sum(each["numInputRows"] for each in progress)
    assert rows == count * OF_A_TOPIC, rows
    tasks = next_task(spark) - tasks_before - 1
    durations = progress[0]["durationMs"]
    return (
        f"| {count:,} topics, {rows:,} messages | {len(progress)} micro-batch | {tasks} tasks "
        f"| {durations['triggerExecution']} ms, of it planning {durations['latestOffset']} ms "
        f"| {cost.cpu_s:.1f} s CPU |"
    )


def next_task(spark: SparkSession) -> int:
    """The id of a task that is run now; Spark numbers them."""
    from pyspark import TaskContext

    def own_id(_: Any) -> int:
        context = TaskContext.get()
        assert context is not None
        return context.taskAttemptId()

    return int(spark.sparkContext.parallelize([0], 1).map(own_id).collect()[0]) + 1


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    parser.add_argument("--data", type=Path, help="a backlog to use, or to make and keep")
    parser.add_argument("--rows", type=int, default=10_000_000, help="messages of the backlog")
    parser.add_argument("--batches", type=int, default=5, help="micro-batches of the backlog")
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--cores", type=int, help="tasks at once (default: all cores)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        out = Path(temporary)
        data = args.data or out / "data"
        fill(data, args.rows, [SHAPE])
        make_topics(out / "topics-data", args.topics)
        spark = local_session("bench", cores=args.cores, conf={"spark.driver.memory": "2g"})
        try:
            line = many_topics(spark, out / "topics-data", out, args.topics)
            mine_ms, peer_ms = small_batches(spark, out / "topics-data", out)
            job = backlog(spark, data, out, args)
        finally:
            spark.stop()
    show("stream", [job], "Parquet files")
    print(f"| micro-batch of one message | {mine_ms:.0f} ms | {peer_ms:.0f} ms: rate-micro-batch |")
    print(line)


if __name__ == "__main__":
    main()
