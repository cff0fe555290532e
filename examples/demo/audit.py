"""Spark's jobs on the data folder, and what the broker itself has counted."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .answers import AuditCounts, Audited
from .publish import TOPIC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Offloaded:
    """What two runs of an offload have copied, and what was found in the table afterwards."""

    files: int
    rows: int
    size_bytes: int
    rows_of_second_run: int
    problems: tuple[str, ...]
    values_by_index: Mapping[int, bytes]


@contextmanager
def spark_session(log_path: Path) -> Iterator[SparkSession]:
    """The one session of the demo. What Spark has to say while it works goes to `log_path`."""
    from pulsemark.pipeline import local_session
    from pulsemark.pipeline.session import BRIEF_SETTINGS

    with _stderr_into(log_path):
        spark = local_session("pulsemark demo", conf=BRIEF_SETTINGS)
        try:
            yield spark
        finally:
            spark.stop()


def audit_folder(spark: SparkSession, data_dir: Path) -> tuple[int, int, Audited]:
    """Count the messages, those missing, and all rows by bucket and producer.

    The folder's broker still has it open.
    """
    from pulsemark.pipeline import audit

    rows = audit(spark, data_dir, TOPIC, by="producer").collect()
    count = sum(row["count"] for row in rows)
    # Indexes begin at 0, and a gap among them belongs to no producer.
    missing = max(row["max_index"] for row in rows) + 1 - count
    by_producer = {
        (round(row["bucket_start"].timestamp() * 1000), row["producer_name"]): AuditCounts(
            row["count"], row["bytes"], row["min_index"], row["max_index"], row["out_of_order"]
        )
        for row in rows
    }
    return count, missing, by_producer


def offload_folder(spark: SparkSession, data_dir: Path, target: Path) -> Offloaded:
    """Copy the topic to Parquet files, twice; then read them without Spark.

    The folder's broker still has it open.
    """
    import pyarrow.parquet as pq

    from pulsemark.pipeline import offload, verify_offload

    columns = ("value", "__index", "__brokerPublishTime")
    done = offload(spark, data_dir, target, TOPIC, columns=columns)
    again = offload(spark, data_dir, target, TOPIC, columns=columns)
    problems = [p for check in verify_offload(data_dir, target) for p in check.problems]
    rows = [pq.read_table(path, partitioning=None) for path in target.glob("topic=*/hour=*/*")]
    values = {
        index: value
        for table in rows
        for index, value in zip(
            table["__index"].to_pylist(), table["value"].to_pylist(), strict=True
        )
    }
    return Offloaded(
        len(done.files), done.rows, done.size_bytes, again.rows, tuple(problems), values
    )


def ask_broker(http_url: str) -> Audited:
    """The broker's rows by bucket and producer."""
    url = f"{http_url}/admin/v2/{TOPIC.replace('://', '/')}/audit?by=producer"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        rows = json.load(answer)["rows"]
    return {
        (row["bucket_start_ms"], row["tags"]["producer_name"]): AuditCounts(
            row["count"], row["bytes"], row["min_index"], row["max_index"], row["out_of_order"]
        )
        for row in rows
    }


@contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """Let this process and the JVM it starts write their stderr into a file."""
    sys.stderr.flush()
    before = os.dup(2)
    with path.open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)
