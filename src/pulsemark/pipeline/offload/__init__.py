"""Offload: copy topics into Parquet files, by hour of broker time, each message once.

offload             copy what is new, in a SparkSession (see `job`)
verify_offload      compare the files with their manifest (see `verification`)
truncate_offloaded  remove from the ledgers what is verified there (see `verification`)
"""

from __future__ import annotations

from .job import OffloadResult, offload
from .manifest import OffloadedFile
from .verification import TopicCheck, truncate_offloaded, verify_offload

__all__ = [
    "OffloadResult",
    "OffloadedFile",
    "TopicCheck",
    "offload",
    "truncate_offloaded",
    "verify_offload",
]
