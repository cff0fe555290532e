"""The audit by Spark: how many messages the data folder holds, and how many are missing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .publish import TOPIC


def audit_folder(data_dir: Path, log_path: Path) -> tuple[int, int]:
    """Count the messages, and those missing, in a folder that its broker still has open.

    What Spark has to say while it works goes to `log_path`.
    """
    from pulsemark.pipeline import audit, local_session

    with _stderr_into(log_path):
        spark = local_session("pulsemark demo")
        try:
            rows = audit(spark, data_dir, TOPIC, bucket="5 seconds").collect()
        finally:
            spark.stop()
    count = sum(row["count"] for row in rows)
    missing = sum(row["missing"] + row["missing_before"] + row["missing_after"] for row in rows)
    return count, missing


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
