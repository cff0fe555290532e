"""An offload's speed, beside Spark writing the same rows to Parquet by itself.

    python bench/bench_offload.py [--folder DIR] [--rows N] [--cores N]

For each shape of topic (messages of 100 B with an entry each, batches of 100, messages of 1 KiB)
and each choice of columns, in the same session, best of some rounds:

    offload     the job: workers read ledgers and write Parquet, Delta or Iceberg by themselves
    Spark       spark.read.format("pulsar-ledger").load().write.parquet(), the same columns
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench_spark import SHAPES, fill, rows_of
from report import Figure, higher, show

from pulsemark.pipeline import local_session, offload
from pulsemark.pipeline.columns import DEFAULT_COLUMNS
from pulsemark.pipeline.offload import DeltaTarget, IcebergTarget
from pulsemark.pipeline.offload.parquet_folder import ParquetFolder
from pulsemark.pipeline.offload.table import OffloadTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 3
NARROW = ("value", "__key", "__publishTime", "__index", "__brokerPublishTime")
COLUMNS = {"5 columns": NARROW, "all columns": DEFAULT_COLUMNS}


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


def best_s(folder: Path, run: Callable[[], object]) -> float:
    """Seconds of the best round, each in an empty folder."""
    taken = []
    for _ in range(ROUNDS):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return min(taken)


def measure(
    spark: SparkSession, data: Path, out: Path, name: str, rows: int, kinds: Sequence[str]
) -> list[Figure]:
    """Every format and choice of columns for one shape of topic."""
    number, (size, batch) = list(SHAPES).index(name), SHAPES[name]
    topic = f"shape-{number}"
    count = rows_of(size, rows) // batch * batch
    figures = []
    for width, columns in COLUMNS.items():

        def by_spark(columns: Sequence[str] = columns) -> None:
            reader = spark.read.format("pulsar-ledger").option("topic", topic)
            frame = reader.option("columns", ",".join(columns)).load(str(data))
            frame.write.parquet(str(out / "spark"))

        peer_s = best_s(out, by_spark)
        for kind in kinds if columns is NARROW else kinds[:1]:

            def by_us(kind: str = kind, columns: Sequence[str] = columns) -> None:
                done = offload(spark, data, target_of(kind, out), topic, columns=columns)
                assert done.rows == count

            mine_s = best_s(out, by_us)
            rates = (count / mine_s / 1e6, count / peer_s / 1e6)
            figures.append(higher(f"{name}: {kind}, {width}", *rates, "M rows/s", "Spark"))
    return figures


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: temporary")
    parser.add_argument("--rows", type=int, default=5_000_000, help="messages per shape")
    parser.add_argument("--cores", type=int, help="tasks at once (default: all cores)")
    parser.add_argument("--kinds", default="parquet,delta,iceberg", help="formats to measure")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        data, out = Path(temporary) / "data", Path(temporary) / "out"
        fill(data, args.rows)
        spark = local_session("bench", cores=args.cores, conf={"spark.driver.memory": "2g"})
        try:
            kinds = args.kinds.split(",")
            figures = [
                f for name in SHAPES for f in measure(spark, data, out, name, args.rows, kinds)
            ]
        finally:
            spark.stop()
    show("offload", figures)


if __name__ == "__main__":
    main()
