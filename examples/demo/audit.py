"""The audits: what Spark counts from the data folder, and what the broker itself has counted."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .answers import AuditCounts, Audited
from .publish import TOPIC

TIMEOUT_S = 60


def audit_folder(data_dir: Path, log_path: Path) -> tuple[int, int, Audited]:
    """Count the messages, those missing, and all rows by bucket and producer, with Spark.

    The folder's broker still has it open. What Spark has to say while it works goes to `log_path`.
    """
    from pulsemark.pipeline import audit, local_session

    with _stderr_into(log_path):
        spark = local_session("pulsemark demo")
        try:
            rows = audit(spark, data_dir, TOPIC, by="producer").collect()
        finally:
            spark.stop()
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
