"""A stream of a data folder: rows a second from a backlog, what a micro-batch costs, many topics.

    python bench/bench_spark_stream.py [--data DIR] [--rows N] [--topics N] [--cores N] [--rounds N]

    backlog         all messages of a topic, some micro-batches, into Spark's sink `noop`; the peer
                    is Spark's stream of the same rows in Parquet files, a file in a micro-batch
    micro-batch     the time of a micro-batch of one message, the median of a stream's; the peer is
                    Spark's own source of rates (`rate-micro-batch`), which reads nothing
    N topics        a stream over so many topics of some messages each: rows, tasks, time of one
                    micro-batch

Each stream runs in some rounds, ours and its peer in turns; shown are their median, the lowest and
the highest. The defaults are several minutes of work for two quiet cores.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from itertools import count as numbers
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rounds import Sample, add_rounds, in_turns
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
CHECKPOINTS = numbers()


def ran(frame: DataFrame, checkpoint: Path) -> list[Any]:
    """Run a stream to the end of what is there; the progress of its micro-batches."""
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return [each for each in query.recentProgress if each["numInputRows"]]


def fresh(out: Path) -> Path:
    """A folder for a checkpoint that no stream has used."""
    return out / f"checkpoint-{next(CHECKPOINTS)}"


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
    of_a_batch = str(-(-count // args.batches))
    ours = stream_of(spark, data, topic=topic_of(SHAPE), maxOffsetsPerTrigger=of_a_batch)
    peer = spark.readStream.schema(frame.schema).option("maxFilesPerTrigger", "1").parquet(files)

    def run(stream: DataFrame) -> None:
        progress = ran(stream, fresh(out))
        assert sum(each["numInputRows"] for each in progress) == count

    sides = (partial(cost_of, partial(run, stream)) for stream in (ours, peer))
    name = f"backlog, {args.batches} micro-batches"
    return Job(name, count, *in_turns(args.rounds, *sides))


def batch_ms(progress: list[Any]) -> float:
    """The median time of a stream's micro-batches, without the first ones."""
    return Sample.of([each["durationMs"]["triggerExecution"] for each in progress[3:]]).median


def small_batches(spark: SparkSession, data: Path, out: Path, rounds: int) -> list[list[float]]:
    """Milliseconds of a micro-batch of one message: ours, and one of Spark's own source."""

    def ours() -> float:
        topic = "public/default/topic-0"
        return batch_ms(
            ran(stream_of(spark, data, topic=topic, maxOffsetsPerTrigger="1"), fresh(out))
        )

    def rates() -> float:
        source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch="1").load()
        writer = source.writeStream.format("noop").option("checkpointLocation", str(fresh(out)))
        query = writer.start()
        while len(query.recentProgress) < SMALL_BATCHES:
            query.awaitTermination(1)
        query.stop()
        return batch_ms(list(query.recentProgress))

    return in_turns(rounds, ours, rates)


def make_topics(path: Path, count: int) -> None:
    """Topics of a few messages each."""
    with LocalStore.open(path) as store:
        for number in range(count):
            topic = store.open_topic(f"persistent://public/default/topic-{number}")
            topic.stampers = StamperChain.from_names(["broker-time", "index"])
            for each in range(OF_A_TOPIC):
                last = topic.append(unbatched_message(b"%d" % each, publish_time_ms=1))
        last.commit.wait()


def many_topics(spark: SparkSession, data: Path, out: Path, count: int, rounds: int) -> str:
    """A line about a stream over many topics."""
    rows = count * OF_A_TOPIC
    tasks: list[int] = []
    batches: list[int] = []
    durations: list[Any] = []

    def one_round() -> Cost:
        tasks_before = next_task(spark)
        progress: list[Any] = []
        frame = stream_of(spark, data, topicsPattern="topic-.*")
        cost = cost_of(lambda: progress.extend(ran(frame, fresh(out))))
        assert sum(each["numInputRows"] for each in progress) == rows
        tasks.append(next_task(spark) - tasks_before - 1)
        batches.append(len(progress))
        durations.append(progress[0]["durationMs"])
        return cost

    (costs,) = in_turns(rounds, one_round)
    whole, planning = (
        Sample.of([each[part] for each in durations]).text(" ms")
        for part in ("triggerExecution", "latestOffset")
    )
    cpu = Sample.of([cost.cpu_s for cost in costs]).text(" s CPU")
    return (
        f"| {count:,} topics, {rows:,} messages | {Sample.of(batches).text()} micro-batches "
        f"| {Sample.of(tasks).text()} tasks | {whole}, of it planning {planning} | {cpu} |"
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
    add_rounds(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        out = Path(temporary)
        data = args.data or out / "data"
        fill(data, args.rows, [SHAPE])
        make_topics(out / "topics-data", args.topics)
        spark = local_session("bench", cores=args.cores, conf={"spark.driver.memory": "2g"})
        try:
            line = many_topics(spark, out / "topics-data", out, args.topics, args.rounds)
            columns = small_batches(spark, out / "topics-data", out, args.rounds)
            job = backlog(spark, data, out, args)
        finally:
            spark.stop()
    show("stream", [job], "Parquet files")
    mine, peer = (Sample.of(column).text(" ms") for column in columns)
    print(f"| micro-batch of one message | {mine} | {peer}: rate-micro-batch |")
    print(line)


if __name__ == "__main__":
    main()
