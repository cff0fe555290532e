"""The audit job: count, by topic and time bucket, the messages that exist and that are missing.

The design follows Kafka's audit trail (KAFKA-260). Every tier counts its messages by the same time
buckets. A comparison of the counts shows where messages were lost. This job counts for the broker's
tier, from the stored entries. It can also check itself: indexes have no gaps, so every bucket must
hold ``max_index - min_index + 1`` messages. For missing messages before a topic's first bucket and
after its last one, it uses the indexes that the plan expects there.

docs/spark.md says what each column means (`AUDIT_COLUMNS`). A bucket's time is that of
`audit_source.counts`. The labels `host`, `datacenter` and `application` are for a comparison of
several audits; the job does not use them itself.

The rows can be divided further by tags of the entries' stamps (``by``): the producer, or any other
tag that the topic's policy asks for. Each tag is a column after ``application``, named as by
`metadata.tags_of`; null if the entry does not have it. A gap in the indexes has no tags, so the
three ``missing`` columns are null then. The broker keeps the same rows (`pulsemark.audit`).

With ``clock_errors``, rows by the producer also have the error of the producer's clock: of each
message with a stamp, its publish time, by the producer's clock, minus its broker time (PIP-70). If
the clocks agree, it is about minus the time on the way. The producer's name is then the one in its
header. A Kafka record set has neither outside of its stamp: there the tags `producer_name` and
`send_time_ms` say it, and without the latter nothing is known of the clock.

A topic without entries has one row, without a bucket. A damaged entry counts as missing, because no
reader can read it. Payloads are not read, so damage to only the payload is not noticed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Unpack

from ..audit.report import Labels as AuditLabels
from ..audit.rows import AuditInputError, parse_bucket_ms, parse_tags
from .arguments import Range, checked_options, option_texts
from .errors import OptionError
from .session import register, require_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AUDIT_COLUMNS = (
    *("time", "topic", "tier", "bucket_start", "bucket_end"),
    *("host", "datacenter", "application", "count", "doubtful_count", "control_count", "bytes"),
    *("min_index", "max_index", "missing", "missing_before", "missing_after", "out_of_order"),
    "loss",
)
"""The columns of a report that is not divided by tags."""
CLOCK_COLUMNS = ("clock_error_p50_ms", "clock_error_p99_ms", "clock_error_most_ms")
"""The columns after them with ``clock_errors``."""
_PRODUCER = "producer_name"
_ACCURACY = 10_000
"""Quantiles are wrong by at most 1/10,000 of the messages."""
GAPS = ("missing", "missing_before", "missing_after")
"""The columns with numbers of missing messages."""


def audit(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    *,
    bucket: str = "1 minute",
    by: str | Sequence[str] = (),
    labels: AuditLabels | None = None,
    clock_errors: bool = False,
    **bounds: Unpack[Range],
) -> DataFrame:
    """Count a data folder's messages by topic and time bucket; see the module for the columns.

    Args:
        spark: the Spark session.
        path: the data folder. If a broker is using it, the audit ends at the last entry that was
            there when it began.
        topics: names; all topics by default.
        bucket: width, like ``1 minute``, ``30 seconds``, ``1 day``; buckets begin at multiples of
            it since 1970, UTC.
        by: tags to divide the rows by, such as ``producer``; names, or a text with commas.
        labels: the values of the label columns; without a ``host``, it is this machine's name.
        clock_errors: add the error of producers' clocks; ``by`` must have the producer. Entries are
            then read as a whole.
        bounds: which entries are counted, see `Range`.

    Returns:
        One row for each topic and bucket with entries, sorted by both.

    Raises:
        MissingExtraError: pyspark, pyarrow or numpy is not installed.
        OptionError: an argument is malformed or out of range.
        ForeignFolderError: the path is not a data folder.
        UnsupportedVersionError: a newer version wrote the folder.
        TopicNotFoundError: a named topic does not exist.
    """
    require_spark()
    bucket_ms, tags = _buckets_of(bucket, by)
    if clock_errors and _PRODUCER not in tags:
        raise OptionError("clockErrors", "true", "needs rows by producer: by=producer")
    options = option_texts(path, topics, **bounds)
    read = checked_options(options)
    from .audit_source import COUNTS, audit_tasks, counted
    from .workers import rows_of

    work = partial(counted, read, bucket_ms, tags, clock_errors)
    parts = rows_of(spark, work, audit_tasks(read), COUNTS)
    rows = _merged(parts, bucket_ms, tags, labels or AuditLabels())
    if clock_errors:
        errors = _clock_errors(spark, options, bucket_ms)
        rows = rows.join(errors, ["topic", "bucket_start", _PRODUCER], "left")
        rows = rows.select(*_columns(tags), *CLOCK_COLUMNS)
    return rows.orderBy("topic", "bucket_start", *(_quoted(name) for name in tags))


def _columns(tags: Sequence[str]) -> list[str]:
    """The report's columns, with the tags before `count`."""
    at = AUDIT_COLUMNS.index("application") + 1
    return [*AUDIT_COLUMNS[:at], *map(_quoted, tags), *AUDIT_COLUMNS[at:]]


def _quoted(name: str) -> str:
    return f"`{name}`"


def _clock_errors(spark: SparkSession, options: dict[str, str], bucket_ms: int) -> DataFrame:
    """The errors of producers' clocks by topic, bucket and producer."""
    from pyspark.sql import functions as f

    register(spark)
    columns = "__topic,__producerName,__publishTime,__brokerPublishTime,__tags"
    reader = spark.read.format("pulsemark").options(**options, columns=columns)
    stored_ms = f.unix_millis("__brokerPublishTime")
    # A record set's publish time is the broker's, unless the stamp has the producer's.
    tags = f.col("__tags")
    sent_ms = f.when(tags["source_format"].isNull(), f.unix_millis("__publishTime")).otherwise(
        tags["send_time_ms"].cast("bigint")
    )
    error_ms = sent_ms - stored_ms
    rows = (
        reader.option("failOnDataLoss", "false")
        .load()
        .where(stored_ms.isNotNull() & sent_ms.isNotNull())
        .select(
            f.col("__topic").alias("topic"),
            f.timestamp_millis(stored_ms - f.pmod(stored_ms, f.lit(bucket_ms))).alias(
                "bucket_start"
            ),
            f.col("__producerName").alias(_PRODUCER),
            error_ms.alias("error_ms"),
            f.abs(error_ms).alias("size_ms"),
        )
    )
    p50, p99, most = CLOCK_COLUMNS
    return rows.groupBy("topic", "bucket_start", _PRODUCER).agg(
        f.percentile_approx("error_ms", 0.5, _ACCURACY).alias(p50),
        f.percentile_approx("size_ms", 0.99, _ACCURACY).alias(p99),
        f.max("size_ms").alias(most),
    )


def _buckets_of(bucket: str, by: str | Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """A bucket's width in milliseconds, and the full names of the tags to divide by.

    Raises OptionError: no such width, or a name is bad, given twice, or that of another column.
    """
    try:
        bucket_ms, tags = parse_bucket_ms(bucket), parse_tags(by)
    except AuditInputError as error:
        option = "bucket" if error.field == "bucket" else "by"
        raise OptionError(option, str(error.value), error.reason) from error
    for name in tags:
        if name in AUDIT_COLUMNS:
            raise OptionError("by", name, "is a column of the report already")
    return bucket_ms, tags


def _merged(
    parts: DataFrame, bucket_ms: int, tags: Sequence[str], labels: AuditLabels
) -> DataFrame:
    """Merge the buckets of all slices into the report."""
    from pyspark.sql import functions as f

    sums = ("count", "doubtful_count", "control_count", "bytes", "out_of_order")
    lowest, highest = ("min_index", "expected_first", "loss"), ("max_index", "expected_end")
    merged = (
        _ordered(parts)
        .groupBy("topic", "bucket_start_ms", "tag_values")
        .agg(
            *(f.sum(name).alias(name) for name in sums),
            *(f.min(name).alias(name) for name in lowest),
            *(f.max(name).alias(name) for name in highest),
        )
    )
    return _reported(_placed(merged), bucket_ms, tags, labels)


def _ordered(parts: DataFrame) -> DataFrame:
    """Note in the partial rows what is out of order.

    Each is of consecutive entries in one bucket. If a row before it, in the order of positions, is
    of a later bucket, its messages are out of order.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    in_log = Window.partitionBy("topic").orderBy("ledger_id", "entry_id")
    is_late = f.max("bucket_start_ms").over(in_log) > f.col("bucket_start_ms")
    return parts.withColumn("out_of_order", f.when(is_late, f.col("count")).otherwise(0))


def _placed(merged: DataFrame) -> DataFrame:
    """Each bucket with its number in the topic, and the index that it should begin with."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    topic = Window.partitionBy("topic")
    in_order = topic.orderBy(f.col("bucket_start_ms").asc_nulls_first())
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    # Rows without a bucket hold the expected indexes. Such a row is kept only if its topic has no
    # other row.
    return merged.withColumns(
        {
            "expected_first": f.min("expected_first").over(topic),
            "expected_end": f.max("expected_end").over(topic),
            "loss": f.min("loss").over(topic),
            "buckets": f.count("bucket_start_ms").over(topic),
            "number": f.count("bucket_start_ms").over(in_order),
            "next_index": f.max("max_index").over(before) + 1,
        }
    ).where("bucket_start_ms IS NOT NULL OR buckets = 0")


def _reported(
    placed: DataFrame, bucket_ms: int, tags: Sequence[str], labels: AuditLabels
) -> DataFrame:
    """The report's columns."""
    from pyspark.sql import functions as f

    is_last = f.col("number") == f.col("buckets")
    reached = f.greatest("max_index", f.col("next_index") - 1)
    expected_next = f.coalesce("next_index", "expected_first")
    spanned = f.coalesce(f.col("max_index") - f.col("min_index") + 1, f.lit(0))
    gaps = {
        "missing": spanned - f.col("count") - f.col("control_count"),
        "missing_before": f.coalesce(f.col("min_index") - expected_next, f.lit(0)),
        "missing_after": f.when(
            is_last, f.col("expected_end") - f.coalesce(reached + 1, "expected_first")
        ).otherwise(0),
    }
    no_gap = f.lit(None).cast("bigint")
    rows = placed.withColumns(
        {
            "time": f.lit(datetime.now(UTC)),
            "tier": f.lit(labels.tier),
            "bucket_start": f.timestamp_millis("bucket_start_ms"),
            "bucket_end": f.timestamp_millis(f.col("bucket_start_ms") + bucket_ms),
            "host": f.lit(labels.host or socket.gethostname()),
            "datacenter": f.lit(labels.datacenter).cast("string"),
            "application": f.lit(labels.application).cast("string"),
            **{name: no_gap if tags else gap for name, gap in gaps.items()},
        }
    )
    values = {name: f.col("tag_values")[place] for place, name in enumerate(tags)}
    return rows.withColumns(values).select(*_columns(tags))
