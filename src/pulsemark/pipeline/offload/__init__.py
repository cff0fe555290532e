"""Offload: copy topics into a table, by hour of broker time, each message once.

offload             copy what is new, in a SparkSession (see `job`)
OffloadFollower     copy again and again, beside a broker that writes (see `follow`)
verify_offload      compare the table with its manifest (see `verification`)
truncate_offloaded  remove from the ledgers what is verified there (see `verification`)
DeltaTarget         a Delta table as the target; a path or URI is a folder of Parquet files
IcebergTarget       an Iceberg table as the target
"""

from __future__ import annotations

from .delta_table import DeltaTarget
from .follow import OffloadFollower
from .iceberg_table import IcebergTarget
from .job import OffloadResult, Upkeep, offload
from .manifest import OffloadedFile
from .verification import TopicCheck, truncate_offloaded, verify_offload

__all__ = [
    "DeltaTarget",
    "IcebergTarget",
    "OffloadFollower",
    "OffloadResult",
    "OffloadedFile",
    "TopicCheck",
    "Upkeep",
    "offload",
    "truncate_offloaded",
    "verify_offload",
]
