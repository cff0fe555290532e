"""What a data source in Java would give: the same scans by it, by the source in Python, by Parquet.

    python bench/bench_spark_java.py [--folder DIR] [--data DIR] [--rows N] [--cores N] [--rounds N]

`java_source/LedgerSource.java`, a DataSource V2 of only what this bench reads, is compiled against
pyspark's own jars by the machine's `javac` (a JDK of 17 or newer). It must give the same rows as
the source in Python, which is shown by a checksum of all columns. Then the queries of
:mod:`bench_spark` run in turns in one session. A ratio is that of a round to Parquet's; its cell
has the median of the rounds, in brackets the lowest and the highest.

The audit is a GROUP BY over index and time in Java and in Parquet, and in Python the job.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from bench_spark import BY_MINUTE, INDEX_AND_TIME, SUMS, Query, race
from rounds import Sample, add_rounds
from spark_report import fill, rows_of, topic_of

from pulsemark.pipeline import audit, local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE = Path(__file__).parent / "java_source" / "LedgerSource.java"
COLUMNS = ("value", *INDEX_AND_TIME)
CHECKSUM = f"bit_xor(xxhash64({', '.join(COLUMNS)}))"
SIDES = ("Parquet", "Python", "Java")


def compiled(folder: Path) -> Path:
    """The folder of the source's classes."""
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    command = ["javac", "-nowarn", "-cp", str(jars), "-d", str(folder), str(SOURCE)]
    subprocess.run(command, check=True)
    return folder


def measure_shape(
    spark: SparkSession, args: argparse.Namespace, data: Path, out: Path, shape: str
) -> None:
    """Every query on one topic by all three; prints its rows."""
    topic, count = topic_of(shape), rows_of(shape, args.rows)

    def python(*columns: str) -> DataFrame:
        reader = spark.read.format("pulsar-ledger").options(topic=topic, columns=",".join(columns))
        return reader.load(str(data))

    tasks = python("__index").rdd.getNumPartitions()

    def java(*columns: str) -> DataFrame:
        reader = spark.read.format("LedgerSource").options(topic=topic, tasks=tasks)
        return reader.load(str(data)).select(*columns)

    python(*COLUMNS).write.mode("overwrite").parquet(str(out))
    frames = [lambda *columns: spark.read.parquet(str(out)).select(*columns), python, java]
    sums = {each(*COLUMNS).selectExpr("count(*)", CHECKSUM).collect()[0] for each in frames}
    assert len(sums) == 1, f"the rows differ: {sums}"

    def row(job: str, *queries: Query) -> None:
        taken = race(queries, args.rounds)
        for side, costs in zip(SIDES, taken, strict=True):
            rates = Sample.of([count / each.wall_s / 1e6 for each in costs])
            used = Sample.of([each.cpu_s / count * 1e6 for each in costs])
            pairs = list(zip(costs, taken[0], strict=True))
            by_time = Sample.of([peer.wall_s / each.wall_s for each, peer in pairs])
            by_cpu = Sample.of([peer.cpu_s / each.cpu_s for each, peer in pairs])
            cells = [rates.text(), by_time.text("x"), used.text(" us"), by_cpu.text("x")]
            print(f"| {shape}: {job} | {side} | {' | '.join(cells)} |", flush=True)

    def summed(
        frame: Callable[..., DataFrame], columns: Sequence[str], sums: list[str]
    ) -> DataFrame:
        return frame(*columns).selectExpr(*sums)

    for job in ("index and time", "value and both"):
        row(job, *[partial(summed, each, *SUMS[job]) for each in frames])

    def by_minute(frame: Callable[..., DataFrame]) -> DataFrame:
        return spark.sql(BY_MINUTE, frame=frame(*INDEX_AND_TIME))

    def counted() -> DataFrame:
        return audit(spark, data, topic).select("bucket_start", "count")

    row("audit", partial(by_minute, frames[0]), counted, partial(by_minute, java))


def main() -> None:
    """Parse arguments, compile, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    parser.add_argument("--data", type=Path, help="topics to use, or to make and keep")
    parser.add_argument("--rows", type=int, default=10_000_000, help="messages per shape")
    add_rounds(parser, 5)
    parser.add_argument("--cores", type=int, help="tasks at once (default: all cores)")
    args = parser.parse_args()
    shapes = ["100 B", "100 B in batches"]
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        data, out = args.data or Path(temporary) / "data", Path(temporary) / "parquet"
        fill(data, args.rows, shapes)
        classes = compiled(Path(temporary) / "classes")
        conf = {"spark.driver.memory": "4g", "spark.driver.extraClassPath": str(classes)}
        spark = local_session("bench", cores=args.cores, conf=conf)
        print("| scan | source | M rows/s | of Parquet | CPU a row | of Parquet |")
        print("|---|---|---|---|---|---|")
        try:
            for shape in shapes:
                measure_shape(spark, args, data, out, shape)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
