"""An offload's speed, beside Spark writing the same rows to Parquet by itself.

    python bench/bench_offload.py [--folder DIR] [--data DIR] [--rows N] [--cores N] [--rounds N]

For each shape of topic (messages of 100 B with an entry each, batches of 100, messages of 1 KiB)
and, for the first shape, each choice of columns and each format, in the same session and in turns,
the median of some rounds with the lowest and the highest:

    offload     the job: workers read ledgers and write Parquet, Delta or Iceberg by themselves
    verify      what an offload with --verify adds: the table read back, beside no peer
    Spark       spark.read.format("pulsar-ledger").load().write.parquet(), the same columns

With --data, the topics are made in that folder, or used if they are there. The defaults are several
minutes of work for two quiet cores.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rounds import add_rounds, in_turns
from spark_report import SHAPES, Cost, Job, cost_of, fill, rows_of, show, topic_of

from pulsemark.pipeline import local_session, offload
from pulsemark.pipeline.columns import DEFAULT_COLUMNS
from pulsemark.pipeline.offload import DeltaTarget, IcebergTarget, verify_offload
from pulsemark.pipeline.offload.table import OffloadTable, ParquetFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NARROW = ("value", "__key", "__publishTime", "__index", "__brokerPublishTime")
LEAST = ("value", "__index", "__brokerPublishTime")
WIDTHS = {"3 columns": LEAST, "5 columns": NARROW, "12 columns": DEFAULT_COLUMNS}


def target_of(kind: str, folder: Path) -> OffloadTable:
    """A new table of one format."""
    if kind == "delta":
        return DeltaTarget(folder / "table")
    if kind == "iceberg":
        uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
        return IcebergTarget(
            "bench.table", "bench", {"type": "sql", "uri": uri, "warehouse": warehouse}
        )
    return ParquetFolder(folder / "table")


def cost_in(folder: Path, run: Callable[[Path], object]) -> Cost:
    """What a run takes that writes into this folder; the folder is empty before."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return cost_of(partial(run, folder))


def measure(spark: SparkSession, args: argparse.Namespace, data: Path, out: Path) -> list[Job]:
    """Every shape; for the first one every format and choice of columns."""
    jobs = []
    for shape in args.shapes.split(","):
        first = shape == next(iter(SHAPES))
        for width in WIDTHS if first else ["5 columns"]:
            for kind in args.kinds.split(",") if first and width == "5 columns" else ["parquet"]:
                jobs += measure_one(spark, args, data, out, (shape, width, kind))
    return jobs


def measure_one(
    spark: SparkSession, args: argparse.Namespace, data: Path, out: Path, what: Sequence[str]
) -> list[Job]:
    """One job and its peer in turns, and the check of the table that the job made last."""
    shape, width, kind = what
    columns, topic, count = WIDTHS[width], topic_of(shape), rows_of(shape, args.rows)

    def by_spark(folder: Path) -> None:
        reader = spark.read.format("pulsar-ledger").option("topic", topic)
        frame = reader.option("columns", ",".join(columns)).load(str(data))
        frame.write.parquet(str(folder / "table"))

    def by_us(folder: Path) -> None:
        assert offload(spark, data, target_of(kind, folder), topic, columns=columns).rows == count

    def check() -> None:
        assert all(each.good for each in verify_offload(data, target_of(kind, out / "ours")))

    runs = [partial(cost_in, out / "ours", by_us)]
    has_peer = width == "5 columns" and kind == "parquet"
    if has_peer:
        runs.append(partial(cost_in, out / "spark", by_spark))
    jobs = [Job(f"{shape}: {kind}, {width}", count, *in_turns(args.rounds, *runs))]
    if has_peer:
        jobs.append(Job(f"{shape}: verify", count, *in_turns(args.rounds, partial(cost_of, check))))
    shutil.rmtree(out)
    return jobs


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    parser.add_argument("--data", type=Path, help="topics to use, or to make and keep")
    parser.add_argument("--rows", type=int, default=10_000_000, help="messages per shape")
    add_rounds(parser)
    parser.add_argument("--cores", type=int, help="tasks at once (default: all cores)")
    parser.add_argument("--kinds", default="parquet,delta,iceberg", help="formats to measure")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="topics to measure")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        data, out = args.data or Path(temporary) / "data", Path(temporary) / "out"
        fill(data, args.rows, args.shapes.split(","))
        spark = local_session("bench", cores=args.cores, conf={"spark.driver.memory": "2g"})
        try:
            jobs = measure(spark, args, data, out)
        finally:
            spark.stop()
    show("offload", jobs, "Spark")


if __name__ == "__main__":
    main()
