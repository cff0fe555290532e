"""Spark's own source and sink for Kafka against a broker's Kafka endpoint.

    python campaigns/spark_kafka.py --kills 3 --seed 1

Batches, ranges, micro-batches with Trigger.AvailableNow, streams from topic to topic, real-time
mode, and drivers that are killed (kill -9): what Spark reads has to be what was sent, each row
once. Prints a table and one line of JSON; the exit code is 1 if something differs. Needs Java 17
or newer. Spark's jars for Kafka (10 MB) come by Maven, the first time, into ~/.cache/spark-kafka.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bookkeeper_peer import jars
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pulsemark.broker import BrokerConfig, BrokerThread
from pulsemark.pipeline import local_session
from pulsemark.pipeline.session import BRIEF_SETTINGS

VERSION = "4.2.0"
"""The newest one at Maven Central; Spark 4.3 takes it."""
ARTIFACT = ("org.apache.spark", "spark-sql-kafka-0-10_2.13", VERSION)
OURS = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
"""The others are in pyspark."""
ROWS = 3000
PARTITIONS = 3
_WAIT_S = 900


def session() -> Any:
    """A Spark session with the jars."""
    folder = jars(Path.home() / ".cache" / "spark-kafka" / VERSION, [ARTIFACT])
    found = [str(path) for path in folder.glob("*.jar") if path.name.startswith(OURS)]
    return local_session("kafka", cores=2, conf={**BRIEF_SETTINGS, "spark.jars": ",".join(found)})


class World:
    """A broker, and a session that sees it as Kafka."""

    def __init__(self, broker: BrokerThread, spark: Any, folder: Path, seed: int) -> None:
        self.address = broker.kafka_url
        self.spark = spark
        self.folder = folder
        self.made = random.Random(seed)
        self._admin = AdminClient({"bootstrap.servers": self.address})
        self._data = folder / "data"

    def topic(self, name: str) -> str:
        """A new topic with partitions."""
        for created in self._admin.create_topics([NewTopic(name, PARTITIONS)]).values():
            created.result()
        return name

    def fill(self, topic: str, first: int = 0, count: int = ROWS) -> None:
        """Send rows by Spark's sink: keys, values, headers."""
        rows = self.spark.range(first, first + count).selectExpr(
            "CAST(id % 97 AS STRING) AS key",
            "CAST(id AS STRING) AS value",
            "array(named_struct('key', 'n', 'value', CAST(CAST(id AS STRING) AS BINARY)))"
            " AS headers",
        )
        self.kafka(rows.write).option("topic", topic).save()

    def kafka(self, call: Any) -> Any:
        """A reader or writer of Spark's, for this broker."""
        return call.format("kafka").option("kafka.bootstrap.servers", self.address)

    def values(self, topic: str, **options: object) -> list[int]:
        """The values of a batch read, sorted."""
        frame = self.kafka(self.spark.read).options(subscribe=topic, **options).load()
        return sorted(int(row[0]) for row in frame.select("value").collect())

    def stream(self, topic: str, **options: object) -> Any:
        """A stream from the topic's beginning."""
        options = {"subscribe": topic, "startingOffsets": "earliest", **options}
        return self.kafka(self.spark.readStream).options(**options).load()

    def ours(self, topic: str) -> list[int]:
        """The values as our own source reads them from the folder."""
        read = self.spark.read.format("pulsar-ledger").option("topic", topic)
        rows = read.option("columns", "value").load(str(self._data)).collect()
        return sorted(int(row[0]) for row in rows)


def batch(world: World) -> list[str]:
    """What a batch sends is what a batch reads, by Kafka and by the ledger's own source."""
    topic = world.topic("batch")
    world.fill(topic)
    wanted = list(range(ROWS))
    problems = [] if world.values(topic) == wanted else ["a batch read differs"]
    if world.ours(topic) != wanted:
        problems.append("the ledger's own source reads others")
    reader = world.kafka(world.spark.read).options(subscribePattern="bat.*", includeHeaders="true")
    rows = reader.load().collect()
    if any(row.headers[0].value != bytes(row.value) or row.headers[0].key != "n" for row in rows):
        problems.append("headers differ")
    if any(int(row.key) != int(row.value) % 97 for row in rows) or len(rows) != ROWS:
        problems.append("keys differ")
    return problems


def ranges(world: World) -> list[str]:
    """By offset and by timestamp, as Spark's guide has them."""
    topic = world.topic("ranges")
    world.fill(topic)
    time.sleep(0.05)  # the timestamps of both halves differ
    middle_ms = time.time_ns() // 1_000_000
    world.fill(topic, ROWS)
    places = {topic: {str(number): 10 for number in range(PARTITIONS)}}
    ends = {topic: dict.fromkeys(places[topic], 110)}
    found = {
        "offsets": len(
            world.values(topic, startingOffsets=json.dumps(places), endingOffsets=json.dumps(ends))
        )
        - 100 * PARTITIONS,
        "startingTimestamp": world.values(topic, startingTimestamp=middle_ms)
        != list(range(ROWS, 2 * ROWS)),
        "endingTimestamp": world.values(topic, endingTimestamp=middle_ms) != list(range(ROWS)),
        "minPartitions": world.values(topic, minPartitions=9) != list(range(2 * ROWS)),
    }
    return [f"a range by {name} differs" for name, differs in found.items() if differs]


def micro_batches(world: World) -> list[str]:
    """Two runs with Trigger.AvailableNow into Parquet, with growth between them."""
    topic, place = world.topic("micro"), world.folder / "micro"
    problems = []
    for run in range(2):
        world.fill(topic, run * ROWS)
        frame = world.stream(topic, maxOffsetsPerTrigger=700).selectExpr(
            "CAST(CAST(value AS STRING) AS INT) AS v"
        )
        writer = frame.writeStream.format("parquet").trigger(availableNow=True)
        query = writer.option("checkpointLocation", f"{place}/cp").start(f"{place}/out")
        query.awaitTermination()
        counts = [each["numInputRows"] for each in query.recentProgress]
        if max(counts) > 700 or sum(counts) != ROWS:
            problems.append(f"micro-batches of {counts} rows")
    if _written(world, place) != list(range(2 * ROWS)):
        problems.append("the rows differ")
    return problems


def _written(world: World, place: Path) -> list[int]:
    return sorted(row[0] for row in world.spark.read.parquet(f"{place}/out").collect())


def topic_to_topic(world: World, **trigger: object) -> list[str]:
    """A stream's sink writes what its source reads; in real-time mode too, with a realTime."""
    name = "real" if trigger else "copy"
    topic, copy, place = world.topic(f"{name}-in"), world.topic(f"{name}-out"), world.folder / name
    world.fill(topic)
    frame = world.stream(topic).select("key", "value")
    writer = world.kafka(frame.writeStream).option("topic", copy)
    if trigger:
        writer = writer.outputMode("update")
    writer = writer.trigger(**(trigger or {"availableNow": True}))
    query = writer.option("checkpointLocation", f"{place}/cp").start()
    if trigger:
        deadline = time.monotonic() + _WAIT_S
        while len(world.values(copy)) < ROWS and time.monotonic() < deadline and query.isActive:
            time.sleep(1)
        query.stop()
    else:
        query.awaitTermination()
    found = world.values(copy)
    if found == list(range(ROWS)):
        return []
    return [f"{copy} has {len(found)} rows, {len(set(found))} of {ROWS} different ones"]


_DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
from spark_kafka import session
spark = session()
frame = spark.readStream.format("kafka").option("kafka.bootstrap.servers", sys.argv[2]).options(
    subscribe=sys.argv[3], startingOffsets="earliest", maxOffsetsPerTrigger=100).load()
writer = frame.selectExpr("CAST(CAST(value AS STRING) AS INT) AS v").writeStream.format("parquet")
place = sys.argv[4]
writer.option("checkpointLocation", place + "/cp").start(place + "/out").awaitTermination()
"""


def kills(world: World, count: int) -> list[str]:
    """A driver is killed in a random micro-batch, some times; the last run has each row once."""
    topic, place = world.topic("kills"), world.folder / "kills"
    world.fill(topic)
    here = str(Path(__file__).parent)
    for number in range(1, count + 1):
        arguments = [sys.executable, "-c", _DRIVER, here, world.address, topic, str(place)]
        with subprocess.Popen(arguments) as driver:
            deadline = time.monotonic() + _WAIT_S
            while not (place / "cp" / "offsets" / str(4 * number)).exists():
                if driver.poll() is not None or time.monotonic() > deadline:
                    driver.kill()
                    return ["a driver ended by itself, or did nothing"]
                time.sleep(0.01)
            time.sleep(world.made.random() * 0.5)
            driver.send_signal(signal.SIGKILL)
    frame = world.stream(topic).selectExpr("CAST(CAST(value AS STRING) AS INT) AS v")
    writer = frame.writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", f"{place}/cp").start(f"{place}/out")
    query.awaitTermination()
    return [] if _written(world, place) == list(range(ROWS)) else ["the rows differ after kills"]


def example(world: World) -> list[str]:
    """The example of docs/spark.md, as it stands."""
    document = (Path(__file__).parents[1] / "docs" / "spark.md").read_text()
    section = document[document.index("## Through Kafka's door") :]
    code = section[section.index("```py\n") + 6 : section.index("```\n\n")]
    code = code.replace("127.0.0.1:9092", world.address).replace("/mnt/", f"{world.folder}/mnt/")
    world.fill(world.topic("orders"))
    names: dict[str, Any] = {"spark": world.spark}
    exec(code, names)
    names["query"].awaitTermination()
    copied = world.spark.read.parquet(f"{world.folder}/mnt/kafka-orders").count()
    return [] if copied == names["orders"].count() == ROWS else ["the example has other rows"]


def main() -> int:
    """Run all checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = BrokerConfig(data_dir=folder / "data", port=0, http_port=None, kafka_port=0)
        with BrokerThread(config) as broker:
            world = World(broker, session(), folder, arguments.seed)
            checks: dict[str, Callable[[World], list[str]]] = {
                "batch": batch,
                "ranges": ranges,
                "micro-batches": micro_batches,
                "topic to topic": topic_to_topic,
                "real-time mode": lambda w: topic_to_topic(w, realTime="5 seconds"),
                "example": example,
                "kills": lambda w: kills(w, arguments.kills),
            }
            for name, check in checks.items():
                found[name] = check(world)
                print(f"{name:18} {'; '.join(found[name]) or 'good'}", flush=True)
            world.spark.stop()
    print(json.dumps({"campaign": "Spark through Kafka's door", "found": found}))
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
