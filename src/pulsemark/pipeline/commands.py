"""The command lines of the jobs: their options, and the functions that they call.

A job's session starts when it is first used, so an error before that costs no start.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from ..audit.report import Labels
from ..until_signal import ended_by_signals, serve_metrics
from .arguments import (
    FIXED_RANGE,
    LOSSES,
    RANGE,
    TOKEN_VARIABLE,
    TOPICS,
    check_file,
    pairs,
    range_of,
    token_of,
)
from .audit import GAPS, audit
from .audit_report import Run, runs_in, write_report
from .columns import DEFAULT_COLUMNS
from .compact import compact_folder, estimate_compaction
from .errors import JobFailedError, OptionError, ProblemsFoundError
from .offload import (
    DeltaTarget,
    IcebergTarget,
    OffloadFollower,
    OffloadResult,
    offload,
    truncate_offloaded,
    verify_offload,
)
from .offload.follow import DEFAULT_EVERY_S
from .offload.job import DEFAULT_ROWS_PER_FILE, Upkeep
from .offload.table import OffloadTable, table_of
from .replay.job import replay
from .replay.options import ReplayOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AUDIT = f"""{RANGE}
--bucket WIDTH [1 minute]  bucket width (default: %(default)s)
--by TAGS []  divide the rows by tags, such as producer,service
--clock-errors  with --by producer: how far producers' clocks are off (p50, p99 and most, in ms)
--tier NAME [broker]  label (default: %(default)s)
--host NAME  label (default: this machine's name)
--datacenter NAME  label (default: none)
--application NAME  label (default: none)
--html FILE  write a page with plots, too
--append  with --html: keep the runs that the page has
"""


def run_audit(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """Run the audit, and write the page if one was asked for."""
    if given.append and given.html is None:
        raise OptionError("--append", "true", "needs --html, the page to append to")
    if given.html is not None:
        check_file("--html", given.html)
        runs_in(given.html) if given.append else None
    names = "tier", "host", "datacenter", "application"
    labels = Labels(**{name: getattr(given, name) for name in names})

    def audited(by: str, clock_errors: bool) -> DataFrame:
        return audit(
            spark, given.path, given.topic,
            bucket=given.bucket, by=by, clock_errors=clock_errors, labels=labels, **range_of(given),
        ).cache()  # fmt: skip

    rows = audited(given.by, given.clock_errors)
    if given.html is not None:
        # Only rows that are not divided by tags say what is missing.
        whole = audited("", False) if given.by else rows
        listed = [row.asDict() for row in whole.collect()]
        divided = [row.asDict() for row in rows.collect()] if given.by else ()
        title = f"Audit of {given.path}"
        write_report(given.html, title, Run(listed, divided), append=given.append)
    return _checked(rows, given.path)


def _checked(rows: DataFrame, path: str) -> DataFrame:
    """The rows. Raises ProblemsFoundError if they say that something is missing."""
    missing = " + ".join(f"coalesce({name}, 0)" for name in GAPS)
    lacking = rows.where(f"{missing} > 0 OR loss IS NOT NULL")
    ((places, messages),) = lacking.selectExpr("count(*)", f"sum({missing})").collect()
    if not places:
        return rows
    lost = [row[0] for row in lacking.select("loss").distinct().collect() if row[0] is not None]
    reasons = "".join(f"; {reason}" for reason in lost)
    reason = f"{messages} messages of {path} are missing, in {places} places{reasons}"
    raise ProblemsFoundError(reason, rows)


OFFLOAD = f"""{TOPICS}{LOSSES}
--format {{parquet,delta,iceberg}} [parquet]  of the table (default: %(default)s)
--storage-option KEY=VALUE...  for deltalake, for example AWS_REGION=eu-west-1; may be repeated
--table NAMESPACE.TABLE  of Iceberg; made if it is missing
--catalog NAME  of that table, in pyiceberg's configuration (default: default)
--catalog-property KEY=VALUE...  of that catalog, for example uri=sqlite:////srv/catalog.db; may
    be repeated
--ending-time TIME  copy up to here; ms since the epoch, ISO-8601, or relative: -1h
--columns NAMES [{",".join(DEFAULT_COLUMNS)}]  of the files (default: %(default)s)
--value-schema latest|N  columns of the topics' schema instead of a binary value
--registry-schemas PATH  with --value-schema: a schema registry's answer to GET /schemas, or a
    folder of them; values have the registry's ids in front
--mode FAILFAST|PERMISSIVE  with --value-schema: a value that does not fit is an error, or a row of
    the table TARGET_rejected (default: FAILFAST)
--write-mode append|upsert [append]  upsert: a row for each key, its latest message (default:
    %(default)s)
--partition-by hour|day|topic|bucket(N)  beside the topic: hour (default) or day of broker time; of
    an upsert topic alone (default), or so many buckets of keys
--compact-files  then make one file of several small ones (Delta, Iceberg)
--expire-snapshots AGE  then forget older states of the table, and their files, such as 7d (Delta,
    Iceberg)
--row-lifetime AGE  then remove rows whose hour or day of broker time ended so long ago, such as 90d
--rows-per-file N [{DEFAULT_ROWS_PER_FILE}]  a file ends at a multiple of so many messages (default:
    %(default)s)
--verify  then read the whole table back and check it; exit code 1 if it is bad
--truncate  then remove verified and acknowledged messages from the ledgers; the broker must be
    stopped
--follow  go on beside a broker that writes; SIGTERM ends it after the run under way
--every AGE  with --follow: between the beginnings of two runs, such as 30s (default: 10s)
--metrics-port PORT  with --follow: serve Prometheus metrics
--metrics-host HOST [127.0.0.1]  address of it
"""


def table_from(given: argparse.Namespace) -> OffloadTable:
    """The table that the options name. Raises OptionError, MissingExtraError."""
    only = {
        "--table": ("iceberg", given.table),
        "--catalog": ("iceberg", given.catalog),
        "--catalog-property": ("iceberg", given.catalog_property),
        "--storage-option": ("delta", given.storage_option),
    }
    for option, (kind, value) in only.items():
        if value is not None and given.format != kind:
            raise OptionError(option, str(value), f"is for --format {kind} only")
    if given.format == "iceberg":
        if given.target is not None:
            raise OptionError("target", given.target, "an Iceberg table is named by --table")
        if given.table is None:
            raise OptionError("--table", None, "is required for --format iceberg")
        properties = pairs("--catalog-property", given.catalog_property)
        return IcebergTarget(given.table, given.catalog or "default", properties)
    if not given.target:
        raise OptionError("target", given.target, "is required")
    if given.format == "delta":
        options = pairs("--storage-option", given.storage_option)
        return DeltaTarget(given.target, storage_options=options)
    return table_of(str(given.target))


def _check_follow(given: argparse.Namespace) -> None:
    """Raise OptionError for options that contradict --follow, or need it."""
    only = {"--every": given.every, "--metrics-port": given.metrics_port}
    never = {"--ending-time": given.ending_time, "--verify": given.verify or None}
    reason = f"{'is not' if given.follow else 'is'} for --follow"
    for option, value in (never if given.follow else only).items():
        if value is not None:
            raise OptionError(option, str(value), reason)


_SAME = (
    *("rows_per_file", "fail_on_data_loss", "value_schema", "registry_schemas", "mode"),
    *("write_mode", "partition_by"),
)
"""Options that are arguments of `offload` as they are."""
_OFFLOADED = (
    "topic string, files bigint, rows bigint, bytes bigint, rejected bigint,"
    " first_index_left bigint"
)


def run_offload(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """Copy, then verify and truncate if asked for. Return a row for each topic."""
    _check_follow(given)
    table = table_from(given)
    counts: dict[str, list[int]] = {}

    def count(result: OffloadResult) -> None:
        for file in result.files:
            sums = counts.setdefault(file.topic, [0, 0, 0, 0])
            for place, more in enumerate((1, file.rows, file.size_bytes, file.rejected)):
                sums[place] += more

    more: dict[str, Any] = {name: getattr(given, name) for name in _SAME}
    more["columns"] = given.columns.split(",")
    more["upkeep"] = Upkeep(given.compact_files, given.expire_snapshots, given.row_lifetime)
    if given.follow:
        every_s = DEFAULT_EVERY_S if given.every is None else given.every / 1000
        follower = OffloadFollower(
            spark, given.path, table, given.topic, every_s, on_run=count, more=more
        )
        if given.metrics_port is not None:
            serve_metrics(given.metrics_host, given.metrics_port, follower)
        with ended_by_signals(follower.stop):
            follower.run()
    else:
        count(offload(spark, given.path, table, given.topic, ending_time=given.ending_time, **more))
    left: dict[str, int] = {}
    if (given.verify or given.truncate) and table.load().head is not None:
        problems = [p for check in verify_offload(given.path, table) for p in check.problems]
        if problems:
            raise JobFailedError(f"{table.name} is not verified: {'; '.join(problems)}")
        if given.truncate:
            left = truncate_offloaded(given.path, table)
    rows = [
        (topic, *counts.get(topic, (0, 0, 0, 0)), left.get(topic))
        for topic in sorted({*left, *counts})
    ]
    return spark.createDataFrame(rows, _OFFLOADED)


COMPACT = f"""{TOPICS}{LOSSES}
--dry-run  print what would be kept, and write nothing
--tombstone-stage {{1,2}} [1]  what deletes a key in Kafka's magic 2: 1, the flag or a null value;
    2, the flag (default: %(default)s)
--tombstone-property NAME  a message deletes its key if this is 'true'
"""
_FIGURES = (
    "topic string, entries_before bigint, entries_after bigint, messages bigint, keys bigint,"
    " tombstones bigint, unkeyed bigint, unreadable bigint, damaged bigint, bytes_before bigint,"
    " bytes_after bigint"
)


def run_compact(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """Compact, or estimate a compaction. Return a row for each topic."""
    rule = {
        "tombstone_stage": int(given.tombstone_stage),
        "tombstone_property": given.tombstone_property,
    }
    if given.dry_run:
        fail = given.fail_on_data_loss
        figures = estimate_compaction(
            spark, given.path, given.topic, fail_on_data_loss=fail, **rule
        )
    else:
        figures = compact_folder(given.path, given.topic, **rule)
    rows = [
        (
            *(each.topic, each.entries_read, each.entries_kept, each.messages_read, each.keys),
            *(each.tombstones, each.unkeyed, each.unreadable, len(each.damaged)),
            *(each.bytes_read, each.bytes_written),
        )
        for each in figures
    ]
    return spark.createDataFrame(rows, _FIGURES)


REPLAY = f"""{FIXED_RANGE}{LOSSES}
--service-url URL!  the target: pulsar://HOST:PORT
--checkpoint FOLDER!  remembers how far the replay came; run the same command again to go on
--target-topic NAME  where all topics go (default: each to its own name); partitions keep their
    numbers
--token-file FILE  a token for the target (default: the variable {TOKEN_VARIABLE})
--messages-per-second RATE  a limit over all tasks
--bytes-per-second RATE  a limit over all tasks, such as 10M
--without-deduplication  replay also into a topic that does not deduplicate; a kill may then store
    an entry twice
--reconnect-s SECONDS [60]  how long the target may be away (default: %(default)s)
"""
_REPLAYED = (
    "topic string, target_topic string, first_index bigint, end_index bigint, messages bigint,"
    " entries bigint, bytes bigint, deduplicates boolean"
)


def run_replay(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """Replay. Return a row for each topic."""
    options = ReplayOptions(
        service_url=given.service_url,
        target_topic=given.target_topic,
        messages_per_s=given.messages_per_second,
        bytes_per_s=given.bytes_per_second,
        without_deduplication=given.without_deduplication,
        token=token_of(given.token_file),
        reconnect_s=given.reconnect_s,
    )
    more = {**range_of(given), "fail_on_data_loss": given.fail_on_data_loss}
    done = replay(spark, given.path, options, given.checkpoint, given.topic, **more)
    return spark.createDataFrame([astuple(each) for each in done.topics], _REPLAYED)


@dataclass(frozen=True, slots=True)
class Job:
    """One job: its summary, its options, and its function."""

    summary: str
    options: str
    """See `option_table`; without those of all jobs."""
    run: Callable[[SparkSession, argparse.Namespace], DataFrame]
    writes: bool = False
    """Whether it has a target, which is named without an option."""
    reads_stores: bool = False
    """Whether topics in BookKeeper can take the place of a data folder."""


JOBS: Mapping[str, Job] = {
    "audit": Job(
        "count messages by topic and time, and the ones that are missing",
        AUDIT,
        run_audit,
        reads_stores=True,
    ),
    "offload": Job(
        "copy what is new to a Parquet, Delta or Iceberg table, by hour of broker time",
        OFFLOAD,
        run_offload,
        writes=True,
    ),
    "compact": Job(
        "keep the latest message of each key in the topics' compacted views", COMPACT, run_compact
    ),
    "replay": Job(
        "publish a range of messages again, to another topic or broker", REPLAY, run_replay
    ),
}
