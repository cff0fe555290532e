"""Spark reading a data folder, compared with Spark reading the same rows from Parquet.

    python bench/bench_spark.py [--folder DIR] [--rows N] [--cores N]

For each shape of topic (messages of 100 B with an entry each, batches of 100, messages of 1 KiB)
the same query runs on both sources in the same session, best of some rounds:

    index and time   sum(__index), max(__brokerPublishTime)        no entry is opened
    value            sum(length(value))
    both             all three
    all columns      the usual twelve columns
    audit            count, lowest and highest index by minute     the job, beside a GROUP BY
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from report import Figure, higher, show

from pulsemark.ledger import LocalStore
from pulsemark.metadata import StamperChain
from pulsemark.pipeline import audit, local_session
from pulsemark.testing.raw_messages import batched_message, unbatched_message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Query: TypeAlias = "Callable[[], DataFrame]"

ROUNDS = 5
SHAPES = {"100 B": (100, 1), "100 B in batches": (100, 100), "1 KiB": (1024, 1)}
INDEX_AND_TIME = ("__index", "__brokerPublishTime")
SUMS = {
    "index and time": (INDEX_AND_TIME, ["sum(__index)", "max(__brokerPublishTime)"]),
    "value": (("value",), ["sum(length(value))"]),
    "both": (
        ("value", *INDEX_AND_TIME),
        ["sum(length(value))", "sum(__index)", "max(__brokerPublishTime)"],
    ),
}
EVERYTHING = [
    *("sum(length(value))", "sum(length(__key))", "count(__topic)", "sum(length(__messageId))"),
    *("max(__publishTime)", "max(__eventTime)", "sum(cardinality(__messageProperties))"),
    *("sum(__index)", "max(__brokerPublishTime)", "sum(__ledgerId)", "sum(__entryId)"),
    "sum(__batchIndex)",
]
BY_MINUTE = """
    SELECT date_trunc('minute', __brokerPublishTime) AS minute,
           count(*), min(__index), max(__index)
    FROM {frame} GROUP BY minute
"""


def fill(path: Path, rows: int) -> None:
    """A folder with one topic of each shape; no two payloads are alike."""
    with LocalStore.open(path) as store:
        for number, (size, batch) in enumerate(SHAPES.values()):
            topic = store.open_topic(f"persistent://public/default/shape-{number}")
            topic.stampers = StamperChain.from_names(["broker-time", "index"])
            appended = None
            for at in range(0, rows_of(size, rows), batch):
                payloads = [os.urandom(size) for _ in range(batch)]
                publish_time_ms = 1_700_000_000_000 + at
                appended = topic.append(
                    unbatched_message(payloads[0], publish_time_ms=publish_time_ms)
                    if batch == 1
                    else batched_message(payloads, publish_time_ms=publish_time_ms),
                    message_count=batch,
                )
            if appended is not None:
                appended.commit.wait()


def rows_of(size: int, rows: int) -> int:
    """The rows of a shape: fewer for large messages, so that all shapes have a similar size."""
    return rows if size < 1000 else rows // 4


def race(mine: Query, peer: Query) -> tuple[float, float]:
    """Seconds of the best round of each. They alternate, so that other load affects both.

    Each must give the same answer every time, and both the same number of rows.
    """
    taken: dict[Query, list[float]] = {mine: [], peer: []}
    answers: dict[Query, list[Any]] = {mine: [], peer: []}
    for _ in range(ROUNDS):
        for query in (mine, peer):
            start = time.perf_counter()
            rows = query().collect()
            taken[query].append(time.perf_counter() - start)
            answers[query].append(sorted(tuple(row) for row in rows))
    for rounds in answers.values():
        assert all(answer == rounds[0] for answer in rounds), "one question, one answer"
    assert len(answers[mine][0]) == len(answers[peer][0])
    return min(taken[mine]), min(taken[peer])


def measure_shape(spark: SparkSession, folder: Path, name: str, rows: int) -> list[Figure]:
    """Every query on one topic."""
    number, (size, batch) = list(SHAPES).index(name), SHAPES[name]
    count = rows_of(size, rows) // batch * batch
    parquet_path = str(folder.parent / f"parquet-{number}")

    def ours(*columns: str) -> DataFrame:
        reader = spark.read.format("pulsar-ledger").option("topic", f"shape-{number}")
        if columns:
            reader = reader.option("columns", ",".join(columns))
        return reader.load(str(folder))

    def theirs(*columns: str) -> DataFrame:
        return spark.read.parquet(parquet_path).select(*columns or ["*"])

    ours().write.parquet(parquet_path)
    figures = []

    def add(job: str, mine: Query, peer: Query) -> None:
        mine_s, peer_s = race(mine, peer)
        rates = (count / mine_s / 1e6, count / peer_s / 1e6)
        figures.append(higher(f"{name}: {job}", *rates, "M rows/s", "Parquet"))

    def add_sums(job: str, columns: tuple[str, ...], sums: list[str]) -> None:
        add(
            job,
            lambda: ours(*columns).selectExpr(*sums),
            lambda: theirs(*columns).selectExpr(*sums),
        )

    for job, (columns, sums) in SUMS.items():
        add_sums(job, columns, sums)
    add_sums("all columns", (), EVERYTHING)
    add(
        "audit",
        lambda: audit(spark, folder, f"shape-{number}").select("bucket_start", "count"),
        lambda: spark.sql(BY_MINUTE, frame=theirs(*INDEX_AND_TIME)),
    )
    return figures


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    parser.add_argument("--rows", type=int, default=2_000_000, help="messages per shape")
    parser.add_argument("--cores", type=int, help="tasks at once (default: all cores)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = Path(temporary) / "data"
        fill(folder, args.rows)
        spark = local_session("bench", cores=args.cores, conf={"spark.driver.memory": "4g"})
        try:
            figures = [f for name in SHAPES for f in measure_shape(spark, folder, name, args.rows)]
        finally:
            spark.stop()
    show("spark", figures)


if __name__ == "__main__":
    main()
