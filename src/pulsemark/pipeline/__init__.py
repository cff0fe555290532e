"""Spark over data folders: a source, jobs, and a session to run them in.

It needs the extra ``spark`` (pyspark, pyarrow, numpy, cramjam, and a Java for machines without
one). Importing this package loads none of them: each is imported when it is first used. If one is
not installed, :class:`MissingExtraError` names it.

    from pulsemark.pipeline import local_session

    spark = local_session()
    spark.read.format("pulsar-ledger").option("topic", "orders").load("/path/to/data").show()
"""

from __future__ import annotations

from ..audit.report import Labels as AuditLabels
from .audit import audit
from .audit_report import write_report
from .commands import JOBS, Job
from .compact import (
    compact_folder,
    estimate_compaction,
)
from .errors import (
    DataLossError,
    DecodeError,
    JavaNotFoundError,
    JobFailedError,
    MissingExtraError,
    OptionError,
    PipelineError,
    ReplayError,
)
from .jobs import run_job
from .offload import (
    DeltaTarget,
    IcebergTarget,
    OffloadFollower,
    OffloadResult,
    Upkeep,
    offload,
    truncate_offloaded,
    verify_offload,
)
from .replay import ReplayOptions, ReplayResult, replay
from .session import Java, find_java, local_session, register

__all__ = [
    "JOBS",
    "AuditLabels",
    "DataLossError",
    "DecodeError",
    "DeltaTarget",
    "IcebergTarget",
    "Java",
    "JavaNotFoundError",
    "Job",
    "JobFailedError",
    "MissingExtraError",
    "OffloadFollower",
    "OffloadResult",
    "OptionError",
    "PipelineError",
    "ReplayError",
    "ReplayOptions",
    "ReplayResult",
    "Upkeep",
    "audit",
    "compact_folder",
    "estimate_compaction",
    "find_java",
    "local_session",
    "offload",
    "register",
    "replay",
    "run_job",
    "truncate_offloaded",
    "verify_offload",
    "write_report",
]
