"""The job `control`: the control entries of topics, which reads of messages leave out.

A row says where the entry is, in which leader epoch it was written, its type and name, and its
tags. docs/control-entries.md describes control entries.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from .arguments import Range, checked_options
from .session import require_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["control_entries"]


def control_entries(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    **bounds: Unpack[Range],
) -> DataFrame:
    """The control entries of a data folder's topics, by topic and position.

    ``bounds`` are those of `Range`; the errors are those of `audit`. Damaged entries are left
    out, with a warning in the workers' logs.
    """
    require_spark()
    options = checked_options(path, topics, **bounds)
    from .control_source import CONTROL_FORMAT, ControlSource

    spark.dataSource.register(ControlSource)
    rows = spark.read.format(CONTROL_FORMAT).options(**options).load()
    return rows.orderBy("topic", "ledger_id", "entry_id")
