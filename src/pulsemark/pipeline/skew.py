"""The job `skew`: producers' clocks against the broker's clock.

The skew of a message is its publish time, by the producer's clock, minus its broker time (PIP-70).
If the clocks agree, it is about minus the time on the way. An inversion is a message whose publish
time is lower than that of an earlier message of the same producer: its clock was set back, or its
messages came out of order.

Reads only headers. Entries without a stamp are left out: they have no broker time.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from .arguments import Range, check_file, checked_options
from .errors import MissingExtraError, OptionError
from .job_files import write_durably
from .session import register, require_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

__all__ = ["SKEW_COLUMNS", "draw_skew", "skew"]

_QUANTILES = {"p01_ms": 0.01, "p50_ms": 0.5, "p99_ms": 0.99}
SKEW_COLUMNS = (
    *("topic", "producer", "messages"),
    *("min_ms", *_QUANTILES, "max_ms"),
    *("inversions", "largest_inversion_ms", "first_time", "last_time"),
)
"""The columns of the report. Times are broker times, milliseconds are skews."""
_ACCURACY = 10_000
"""Quantiles are wrong by at most 1/10,000 of the messages."""


def skew(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    **bounds: Unpack[Range],
) -> DataFrame:
    """One row for each topic and producer, sorted by both; `SKEW_COLUMNS` are the columns.

    ``bounds`` are those of `Range`; the errors are those of `audit`. Damaged entries are left
    out, with a warning in the workers' logs.
    """
    require_spark()
    options = checked_options(path, topics, **bounds)
    from pyspark.sql import functions as f

    register(spark)
    columns = "__topic,__producerName,__index,__publishTime,__brokerPublishTime"
    reader = spark.read.format("pulsemark").options(**options, columns=columns)
    rows = (
        reader.option("failOnDataLoss", "false")
        .load()
        .where("__brokerPublishTime IS NOT NULL AND __publishTime IS NOT NULL")
        .select(
            f.col("__topic").alias("topic"),
            f.col("__producerName").alias("producer"),
            "__index",
            f.unix_millis("__publishTime").alias("published_ms"),
            f.unix_millis("__brokerPublishTime").alias("stored_ms"),
        )
    )
    return _report(rows)


def _report(rows: DataFrame) -> DataFrame:
    """The report of rows of (topic, producer, __index, published_ms, stored_ms)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    before = Window.partitionBy("topic", "producer").orderBy("__index")
    latest = f.max("published_ms").over(before.rowsBetween(Window.unboundedPreceding, -1))
    rows = rows.withColumn("skew_ms", f.col("published_ms") - f.col("stored_ms"))
    rows = rows.withColumn("back_ms", latest - f.col("published_ms"))
    report = rows.groupBy("topic", "producer").agg(
        f.count("*").alias("messages"),
        f.min("skew_ms").alias("min_ms"),
        *(
            f.percentile_approx("skew_ms", quantile, _ACCURACY).alias(name)
            for name, quantile in _QUANTILES.items()
        ),
        f.max("skew_ms").alias("max_ms"),
        f.count_if(f.col("back_ms") > 0).alias("inversions"),
        f.greatest(f.max("back_ms"), f.lit(0)).alias("largest_inversion_ms"),
        f.timestamp_millis(f.min("stored_ms")).alias("first_time"),
        f.timestamp_millis(f.max("stored_ms")).alias("last_time"),
    )
    return report.select(*SKEW_COLUMNS).orderBy("topic", "producer")


def draw_skew(report: DataFrame, image: str | os.PathLike[str], *, max_producers: int = 40) -> None:
    """Draw each producer's skew from its 1st to its 99th percentile, the widest first.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OptionError: the image cannot be written, or its ending is no format of images.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("plot", "matplotlib") from error
    rows = sorted(report.collect(), key=lambda row: max(abs(row["p01_ms"]), abs(row["p99_ms"])))
    rows = rows[-max_producers:]
    figure = Figure(figsize=(9, 1.2 + 0.3 * max(1, len(rows))), layout="constrained")
    axes = figure.subplots()
    places = range(len(rows))
    low, middle, high = ([row[name] for row in rows] for name in _QUANTILES)
    axes.hlines(places, low, high, linewidth=6, color="tab:blue", alpha=0.5)
    axes.plot(middle, places, "|", color="black", markersize=10)
    axes.axvline(0, color="tab:gray", linewidth=0.8)
    axes.set_yticks(places, [_label(row) for row in rows], fontsize=6)
    axes.set_xscale("symlog", linthresh=100)
    axes.set_xlabel("publish time - broker time, ms (1st to 99th percentile; line: median)")
    picture = io.BytesIO()
    try:
        figure.savefig(picture, dpi=120, format=Path(image).suffix[1:] or None)
        write_durably(Path(image).absolute(), picture.getvalue())
    except (OSError, ValueError) as error:
        reason = f"cannot be written: {getattr(error, 'strerror', None) or error}"
        raise OptionError("--plot", str(image), reason) from error


def _label(row: Row) -> str:
    # A dollar begins a formula, which may be a wrong one.
    return f"{row['producer']}\n{row['topic']}".replace("$", r"\$")


def check_plot(image: Path) -> None:
    """Check before a long job that the picture can be drawn and written.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OptionError: the file cannot be written, or its ending is no format of images.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("plot", "matplotlib") from error
    known = Figure().canvas.get_supported_filetypes()
    if image.suffix[1:].lower() not in known:
        raise OptionError(
            "--plot", str(image), f"must end with one of .{', .'.join(sorted(known))}"
        )
    check_file("--plot", image)
