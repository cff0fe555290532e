"""The stream in a real Spark session: queries with checkpoints, against what was sent."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.metadata import StamperChain
from pulsemark.testing.raw_messages import BatchMember, unbatched_message

pytestmark = pytest.mark.timeout(300)

_QUERY = """
import sys
from pulsemark.pipeline import local_session
from pulsemark.pipeline.session import BRIEF_SETTINGS

folder, out, checkpoint = sys.argv[1:]
spark = local_session("killed", cores=2, conf=BRIEF_SETTINGS)
frame = (
    spark.readStream.format("pulsar-ledger")
    .options(topicsPattern=".*", startingOffsets="earliest", maxOffsetsPerTrigger=10,
             columns="__topic,__index,value")
    .load(folder)
)
query = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint).start(out)
query.awaitTermination()
"""


def completed(writer: Any, *target: str) -> Any:
    """Start a query that ends by itself, and wait for its end.

    Spark gives a source's process 10 s to start, which other work on the machine can take up. It
    has read nothing then, and the query is started again.
    """
    for attempt in range(5):
        query = writer.start(*target)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if attempt == 4 or "connect back" not in str(error):
                raise
        else:
            break
    return query


class Sink:
    """A query that writes Parquet, with its checkpoint."""

    def __init__(self, spark: Any, folder: Any, place: Path) -> None:
        self._spark = spark
        self._folder = folder
        self.out, self.checkpoint = place / "out", place / "checkpoint"

    def run(self, **options: object) -> Any:
        """Read what is there now (Trigger.AvailableNow); returns the query, which has ended."""
        if "grpcUrl" not in options:
            options["path"] = self._folder.path
        options = {"startingOffsets": "earliest", "columns": "__topic,__index,value", **options}
        frame = self._spark.readStream.format("pulsemark").options(**options)
        writer = frame.load().writeStream.format("parquet").trigger(availableNow=True)
        return completed(writer.option("checkpointLocation", str(self.checkpoint)), str(self.out))

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows that were written, sorted."""
        return sorted(tuple(row) for row in self._spark.read.parquet(str(self.out)).collect())


def truth(*topics: Any) -> list[tuple[Any, ...]]:
    """The rows that a sink must have."""
    columns = ("__topic", "__index", "value")
    return sorted(tuple(row[name] for name in columns) for topic in topics for row in topic.rows)


def fill(topic: Any, count: int) -> None:
    """Batches with `count` messages in all."""
    for number in range(0, count, 5):
        topic.batch([BatchMember(payload=b"%d" % (number + place)) for place in range(5)])


def test_a_query_goes_on_where_it_was(spark: Any, folder: Any, tmp_path: Path) -> None:
    """Each run has what came since the last one: growth, a rolled ledger, and a new topic."""
    sink = Sink(spark, folder, tmp_path)
    topic = folder.topic("a")
    fill(topic, 20)
    first = sink.run(topicsPattern=".*", maxOffsetsPerTrigger=7)
    assert [each["numInputRows"] for each in first.recentProgress if each["numInputRows"]] == [
        7, 7, 6
    ]  # fmt: skip
    assert sink.rows() == truth(topic)
    topic.ledger.roll()
    fill(topic, 10)
    other = folder.topic("b")
    fill(other, 5)
    sink.run(topicsPattern=".*")
    sink.run(topicsPattern=".*")
    assert sink.rows() == truth(topic, other)


def test_a_killed_query_writes_each_row_once(spark: Any, folder: Any, tmp_path: Path) -> None:
    """kill -9 of the driver between micro-batches, entries meanwhile, and a new query."""
    sink = Sink(spark, folder, tmp_path)
    topics = [folder.topic("a"), folder.topic("b")]
    for topic in topics:
        fill(topic, 100)
    arguments = [str(folder.path), str(sink.out), str(sink.checkpoint)]
    with subprocess.Popen([sys.executable, "-c", _QUERY, *arguments]) as killed:
        try:
            _wait_for_batch(sink.checkpoint / "commits" / "3", killed)
        finally:
            killed.send_signal(signal.SIGKILL)
    for topic in topics:
        fill(topic, 15)
    sink.run(topicsPattern=".*")
    assert sink.rows() == truth(*topics)


def _wait_for_batch(commit: Path, query: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 100
    while not commit.exists():
        assert query.poll() is None, "the query has ended by itself"
        assert time.monotonic() < deadline, "the query has not come to this micro-batch in 100 s"
        time.sleep(0.02)


def test_a_thousand_topics_are_few_tasks(spark: Any, folder: Any, tmp_path: Path) -> None:
    """Each micro-batch has a handful of tasks, and all of them have all rows, each once."""
    for number in range(1000):
        topic = folder.store.open_topic(f"persistent://public/default/t{number}")
        topic.stampers = StamperChain.from_names(["broker-time", "index"])
        for each in range(2):
            last = topic.append(unbatched_message(b"%d" % each, publish_time_ms=1))
    last.commit.wait(60)
    frame = spark.readStream.format("pulsemark").options(
        topicsPattern="t.*", startingOffsets="earliest", maxOffsetsPerTrigger="1200"
    )
    frame = frame.option("columns", "__topic,__index,value").load(str(folder.path))
    frame = frame.selectExpr("spark_partition_id() AS task", "*")
    writer = frame.writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = completed(writer, str(tmp_path / "out"))
    counts = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
    assert counts == [1200, 800]
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {row["task"] for row in rows} <= {0, 1, 2, 3}
    assert sorted(tuple(row)[1:] for row in rows) == sorted(
        (f"persistent://public/default/t{number}", each, b"%d" % each)
        for number in range(1000)
        for each in range(2)
    )


def test_a_query_goes_on_over_grpc(spark: Any, folder: Any, tools: Any, tmp_path: Path) -> None:
    """Without the folder: limits, growth between two runs, and each row once."""
    sink = Sink(spark, folder, tmp_path)
    topics = [folder.topic("a"), folder.topic("b")]
    for topic in topics:
        fill(topic, 20)
    with tools.serving(folder.path) as target:
        places = {"grpcUrl": f"grpc://{target}", "topics": "a,b"}
        first = sink.run(**places, maxOffsetsPerTrigger=25)
        counts = [each["numInputRows"] for each in first.recentProgress if each["numInputRows"]]
        assert sum(counts) == 40
        assert max(counts) <= 25
        for topic in topics:
            topic.ledger.roll()
            fill(topic, 10)
        sink.run(**places)
        sink.run(**places)
    assert sink.rows() == truth(*topics)


def test_a_loss_ends_the_query_with_its_name(spark: Any, folder: Any, tmp_path: Path) -> None:
    """What retention removed before it was read fails the query, unless failOnDataLoss is false."""
    sink = Sink(spark, folder, tmp_path)
    topic = folder.topic("a")
    fill(topic, 10)
    sink.run(topic="a")
    fill(topic, 10)
    topic.ledger.roll()
    fill(topic, 5)
    topic.ledger.trim(topic.ledger.segments()[-1].first_position)
    with pytest.raises(StreamingQueryException, match=r"DataLossError.*trimmed"):
        sink.run(topic="a")
    sink.run(topic="a", failOnDataLoss="false")
    assert sink.rows() == [row for row in truth(topic) if row[1] < 10 or row[1] >= 20]


def test_a_stream_s_options_are_checked(spark: Any, folder: Any, tmp_path: Path) -> None:
    """A stream with an end is refused when it begins, by the option's name."""
    folder.topic("a").single(b"x")
    with pytest.raises(StreamingQueryException, match="a stream has no end"):
        Sink(spark, folder, tmp_path).run(topic="a", endingOffsets="5")


def test_rows_are_published_by_batches_and_streams(spark: Any, folder: Any, tmp_path: Path) -> None:
    """A DataFrame, and a stream from a folder, arrive in the topics of a broker."""
    topic = folder.topic("a")
    fill(topic, 40)
    target = tmp_path / "target"
    with BrokerThread(BrokerConfig(data_dir=target, port=0, http_port=0)) as broker:
        rows = spark.range(25).selectExpr(
            "CAST(id AS STRING) AS value", "CAST(id AS STRING) AS key"
        )
        writer = rows.repartition(2).write.format("pulsar-ledger").mode("append")
        writer.options(serviceUrl=broker.service_url, topic="batch").save()
        frame = spark.readStream.format("pulsemark").options(topic="a", startingOffsets="earliest")
        stream = frame.option("maxOffsetsPerTrigger", 15).load(str(folder.path)).writeStream
        writer = stream.format("pulsemark").trigger(availableNow=True)
        writer.options(serviceUrl=broker.service_url, topic="stream")
        completed(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
        with pytest.raises(AnalysisException, match="'colour': the sink's columns are"):
            spark.sql("SELECT 'x' AS value, 1 AS colour").write.format("pulsemark").mode(
                "append"
            ).options(serviceUrl=broker.service_url, topic="t").save()
    read = spark.read.format("pulsemark").option("topicsPattern", "batch|stream")
    found = read.option("columns", "__topic,value").load(str(target)).collect()
    assert sorted(int(row[1]) for row in found if row[0].endswith("batch")) == list(range(25))
    assert [row[1] for row in found if row[0].endswith("stream")] == [
        row["value"] for row in topic.rows
    ]
