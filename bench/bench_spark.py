"""Spark reading a data folder, compared with Spark reading the same rows from Parquet.

    python bench/bench_spark.py [--folder DIR] [--data DIR] [--rows N] [--cores N] [--rounds N]

For each shape of topic (messages of 100 B with an entry each, batches of 100, messages of 1 KiB,
and of 50 to 150 B)
the same query runs on both sources in the same session, in turns, and the median of some rounds is
shown with the lowest and the highest:

    index and time   sum(__index), max(__brokerPublishTime)        no entry is opened
    value            sum(length(value))                            first shape only
    value and both   all three
    12 columns       the usual ones                                first shape only
    audit            count, lowest and highest index by minute     the job, beside a GROUP BY

A second table compares scans with their limit: Spark takes ready batches of the same columns from
the same workers (:mod:`spark_limit`). No source in Python is faster.

With --data, the topics are made in that folder, or used if they are there. Ten million rows take
about five minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rounds import add_rounds, in_turns
from spark_limit import FORMAT, register_limit
from spark_report import SHAPES, Cost, Job, cost_of, fill, rows_of, show, topic_of

from pulsemark.pipeline import audit, local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Query: TypeAlias = "Callable[[], DataFrame]"

INDEX_AND_TIME = ("__index", "__brokerPublishTime")
SUMS = {
    "index and time": (INDEX_AND_TIME, ["sum(__index)", "max(__brokerPublishTime)"]),
    "value": (("value",), ["sum(length(value))"]),
    "value and both": (
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


def race(queries: Sequence[Query], rounds: int) -> list[list[Cost]]:
    """All rounds of each, in turns.

    Each must give the same answer every time, and all the same number of rows.
    """
    answers: dict[Query, list[Any]] = {query: [] for query in queries}

    def collect(query: Query) -> None:
        answers[query].append(sorted(tuple(row) for row in query().collect()))

    sides = (partial(cost_of, partial(collect, query)) for query in queries)
    taken = in_turns(rounds, *sides)
    for given in answers.values():
        assert all(answer == given[0] for answer in given), "one question, one answer"
    assert len({len(given[0]) for given in answers.values()}) == 1
    return taken


def measure_shape(
    spark: SparkSession, args: argparse.Namespace, data: Path, out: Path, shape: str
) -> list[tuple[Job, Job | None]]:
    """Every query on one topic, beside Parquet, and beside the limit if it is a scan."""
    topic, count = topic_of(shape), rows_of(shape, args.rows)
    first = shape == next(iter(SHAPES))

    def ours(*columns: str) -> DataFrame:
        reader = spark.read.format("pulsar-ledger").option("topic", topic)
        if columns:
            reader = reader.option("columns", ",".join(columns))
        return reader.load(str(data))

    def theirs(*columns: str) -> DataFrame:
        return spark.read.parquet(str(out)).select(*columns or ["*"])

    (ours() if first else ours("value", *INDEX_AND_TIME)).write.mode("overwrite").parquet(str(out))
    jobs: list[tuple[Job, Job | None]] = []
    tasks = ours("__index").rdd.getNumPartitions()

    def limit(*columns: str) -> DataFrame:
        reader = spark.read.format(FORMAT).option("topic", topic)
        if columns:
            reader = reader.option("columns", ",".join(columns))
        return reader.options(rows=count, tasks=tasks).load(str(data))

    def add(job: str, *queries: Query) -> None:
        name = f"{shape}: {job}"
        mine, peer, *least = race(queries, args.rounds)
        jobs.append(
            (Job(name, count, mine, peer), Job(name, count, mine, *least) if least else None)
        )

    def add_sums(job: str, columns: tuple[str, ...], sums: list[str]) -> None:
        add(
            job,
            lambda: ours(*columns).selectExpr(*sums),
            lambda: theirs(*columns).selectExpr(*sums),
            lambda: limit(*columns).selectExpr(*sums),
        )

    for job, (columns, sums) in SUMS.items():
        if first or job != "value":
            add_sums(job, columns, sums)
    if first:
        add_sums("12 columns", (), EVERYTHING)
    add(
        "audit",
        lambda: audit(spark, data, topic).select("bucket_start", "count"),
        lambda: spark.sql(BY_MINUTE, frame=theirs(*INDEX_AND_TIME)),
    )
    return jobs


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    parser.add_argument("--data", type=Path, help="topics to use, or to make and keep")
    parser.add_argument("--rows", type=int, default=10_000_000, help="messages per shape")
    add_rounds(parser)
    parser.add_argument("--cores", type=int, help="tasks at once (default: all cores)")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="topics to measure")
    args = parser.parse_args()
    shapes = args.shapes.split(",")
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        data, out = args.data or Path(temporary) / "data", Path(temporary) / "parquet"
        fill(data, args.rows, shapes)
        spark = local_session("bench", cores=args.cores, conf={"spark.driver.memory": "4g"})
        register_limit(spark)
        try:
            jobs = [job for shape in shapes for job in measure_shape(spark, args, data, out, shape)]
        finally:
            spark.stop()
    show("scan", [job for job, _ in jobs], "Parquet")
    show("scan beside the limit", [job for _, job in jobs if job is not None], "ready batches")


if __name__ == "__main__":
    main()
