"""The command lines of the jobs: their options, what is checked before Spark starts, what is shown.

Of each job there are `add_..._options`, `check_...` and `run_...`; :data:`.jobs.JOBS` lists them.
"""

from __future__ import annotations

import argparse
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import (
    TIMES,
    TOKEN_VARIABLE,
    add_fail_on_data_loss,
    add_fixed_range,
    add_range,
    add_topics,
    check_file,
    check_folder,
    check_range,
    checked_options,
    moment,
    pairs,
    positive,
    range_of,
    rate,
    token_of,
)
from .audit import GAPS, AuditLabels, audit, check_clock_errors, parse_bucket_ms, parse_by
from .audit_report import runs_in, write_report
from .columns import DEFAULT_COLUMNS
from .compact import (
    CompactedTopic,
    compact_by_broker,
    compact_folder,
    estimate_compaction,
)
from .compact.job import STAGES
from .compact.views import check_admin_url
from .errors import JobFailedError, OptionError, ProblemsFoundError
from .inspection import verify
from .offload import (
    DeltaTarget,
    IcebergTarget,
    OffloadFollower,
    OffloadResult,
    offload,
    truncate_offloaded,
    verify_offload,
)
from .offload.follow import ended_by_signals
from .offload.job import DEFAULT_ROWS_PER_FILE, check_table, layout_of
from .offload.table import OffloadTable, table_of
from .options import ReadOptions, parse_duration_ms
from .replay.job import replay
from .replay.options import ReplayOptions, load_function, packed
from .tier_comparison import TierComparison, compare_tiers, kind_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def add_audit_options(parser: argparse.ArgumentParser) -> None:
    """The options of the job."""
    add_range(parser, store=True)
    parser.add_argument("--bucket", default="1 minute", help="bucket width (default: %(default)s)")
    parser.add_argument(
        "--by", default="", metavar="TAGS", help="divide the rows by tags, such as producer,service"
    )
    parser.add_argument(
        "--clock-errors",
        action="store_true",
        help="with --by producer: how far producers' clocks are off (p50, p99 and most, in ms)",
    )
    parser.add_argument("--tier", default="broker", help="label (default: %(default)s)")
    parser.add_argument("--host", help="label (default: this machine's name)")
    parser.add_argument("--datacenter", help="label (default: none)")
    parser.add_argument("--application", help="label (default: none)")
    _add_other_tier(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots, too")
    parser.add_argument(
        "--append", action="store_true", help="with --html: keep the runs that the page has"
    )


def _add_other_tier(parser: argparse.ArgumentParser) -> None:
    """The options that name the tier to compare with."""
    parser.add_argument(
        "--against",
        metavar="PLACE",
        help="list what another tier has not: another data folder, an offload's target, or counts"
        " in a .json or .csv file; exit code 1 if something is missing or doubled",
    )
    _add_iceberg_options(
        parser, "--against-", "compare with a table of Iceberg that an offload wrote"
    )
    parser.add_argument(
        "--by-source",
        action="store_true",
        help="the other folder is a mirror's target: compare by the indexes of its source",
    )


def check_audit(given: argparse.Namespace) -> None:
    """Check the arguments before a session is started."""
    check_range(given)
    parse_bucket_ms(given.bucket)
    check_clock_errors(given.clock_errors, parse_by(given.by))
    other = _other_tier(given)
    if other is not None and given.by:
        raise OptionError("by", given.by, "cannot be used with --against")
    kind = None if other is None else kind_of(other)
    if given.by_source and kind != "folder":
        raise OptionError("bySource", "true", "needs --against with another data folder")
    if isinstance(other, IcebergTarget):
        other.load()
    if given.append and given.html is None:
        raise OptionError("--append", "true", "needs --html, the page to append to")
    if given.html is not None:
        check_file("--html", given.html)
        runs_in(given.html) if given.append else None


def _other_tier(given: argparse.Namespace) -> str | IcebergTarget | None:
    """The other tier that was named. Raises OptionError, MissingExtraError."""
    of_table = (given.against_catalog, given.against_catalog_property)
    if given.against_table is None:
        if of_table != (None, None):
            reason = "is required with the options of its catalog"
            raise OptionError("--against-table", None, reason)
        against: str | None = given.against
        return against
    if given.against is not None:
        raise OptionError("--against-table", given.against_table, "cannot be used with --against")
    return _iceberg_target("--against-", given)


def run_audit(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """Count, and compare if another tier was named."""
    other = _other_tier(given)
    rows = None if other is not None and given.html is None else _audited(spark, given).cache()
    compared = None if other is None else _compared(spark, given, other)
    if given.html is not None and rows is not None:
        # Only rows that are not divided by tags say what is missing.
        whole = _audited(spark, given, by="") if given.by else rows
        listed = [row.asDict() for row in whole.collect()]
        divided = [row.asDict() for row in rows.collect()] if given.by else ()
        title = f"Audit of {given.path}"
        write_report(given.html, title, listed, compared, divided=divided, append=given.append)
    if compared is None:
        assert rows is not None, "one of the two was asked for"
        return _checked(rows, given.path)
    differences = compared.frame(spark)
    if compared.problems:
        messages = sum(each.messages for each in compared.problems)
        reason = (
            f"{given.path} and {compared.other_tier} differ in {messages} messages,"
            f" in {len(compared.problems)} places"
        )
        raise ProblemsFoundError(differences, reason)
    return differences


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
    raise ProblemsFoundError(rows, reason)


def _audited(spark: SparkSession, given: argparse.Namespace, by: str | None = None) -> DataFrame:
    return audit(
        spark,
        given.path,
        given.topic,
        bucket=given.bucket,
        by=given.by if by is None else by,
        clock_errors=given.clock_errors and by is None,
        labels=AuditLabels(given.tier, given.host, given.datacenter, given.application),
        **range_of(given),
    )


def _compared(
    spark: SparkSession, given: argparse.Namespace, other: str | IcebergTarget
) -> TierComparison:
    return compare_tiers(
        spark,
        given.path,
        other,
        given.topic,
        bucket=given.bucket,
        tier=given.tier,
        by_source=given.by_source,
        **range_of(given),
    )


FORMATS = ("parquet", "delta", "iceberg")
_OFFLOADED = (
    "topic string, files bigint, rows bigint, bytes bigint, rejected bigint,"
    " first_index_left bigint"
)


def _add_storage_option(parser: argparse.ArgumentParser) -> None:
    """How a Delta table's storage is reached."""
    parser.add_argument(
        "--storage-option",
        action="append",
        metavar="KEY=VALUE",
        help="for deltalake, for example AWS_REGION=eu-west-1; may be repeated",
    )


def _add_iceberg_options(parser: argparse.ArgumentParser, prefix: str, what: str) -> None:
    """The options that name a table of Iceberg."""
    parser.add_argument(f"{prefix}table", metavar="NAMESPACE.TABLE", help=what)
    parser.add_argument(
        f"{prefix}catalog",
        metavar="NAME",
        help="of that table, in pyiceberg's configuration (default: default)",
    )
    parser.add_argument(
        f"{prefix}catalog-property",
        action="append",
        metavar="KEY=VALUE",
        help="of that catalog, for example uri=sqlite:////srv/catalog.db; may be repeated",
    )


def _iceberg_target(prefix: str, given: argparse.Namespace) -> IcebergTarget:
    """The table of Iceberg that was named. Raises OptionError, MissingExtraError."""
    table, catalog, texts = (
        getattr(given, f"{prefix}{name}".strip("-").replace("-", "_"))
        for name in ("table", "catalog", "catalog-property")
    )
    properties = pairs(f"{prefix}catalog-property", texts)
    return IcebergTarget(table, catalog or "default", properties)


def _delta_target(given: argparse.Namespace) -> DeltaTarget:
    """The Delta table that was named. Raises OptionError, MissingExtraError."""
    options = pairs("--storage-option", given.storage_option)
    return DeltaTarget(given.target, storage_options=options)


def add_table_options(parser: argparse.ArgumentParser) -> None:
    """The options that name a data folder, and a table in one of the formats."""
    add_topics(
        parser,
        target="path or URI of the folder of the Parquet files or of the Delta table; made if it is"
        " missing",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="parquet", help="of the table (default: %(default)s)"
    )
    _add_storage_option(parser)
    _add_iceberg_options(parser, "--", "of Iceberg; made if it is missing")


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
        return _iceberg_target("--", given)
    if not given.target:
        raise OptionError("target", given.target, "is required")
    if given.format == "delta":
        return _delta_target(given)
    return table_of(str(given.target))


def add_offload_options(parser: argparse.ArgumentParser) -> None:
    """All options of the command."""
    add_table_options(parser)
    add_fail_on_data_loss(parser)
    parser.add_argument(
        "--ending-time", type=moment, metavar="TIME", help=f"copy up to here; {TIMES}"
    )
    parser.add_argument(
        "--columns", default=",".join(DEFAULT_COLUMNS), help="of the files (default: %(default)s)"
    )
    _add_typed_options(parser)
    parser.add_argument(
        "--rows-per-file",
        type=positive,
        default=DEFAULT_ROWS_PER_FILE,
        metavar="N",
        help="a file ends at a multiple of so many messages (default: %(default)s)",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="then read the whole table back and check it; exit code 1 if it is bad",
    )
    parser.add_argument(
        "--truncate",
        action="store_true",
        help="then remove verified and acknowledged messages from the ledgers; the broker must be"
        " stopped",
    )
    _add_follow_options(parser)


def _add_follow_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--follow",
        action="store_true",
        help="go on beside a broker that writes; SIGTERM ends it after the run under way",
    )
    parser.add_argument(
        "--every",
        metavar="TIME",
        help="with --follow: between the beginnings of two runs, such as 30s (default: 10s)",
    )
    parser.add_argument(
        "--metrics-port", type=int, metavar="PORT", help="with --follow: serve Prometheus metrics"
    )
    parser.add_argument("--metrics-host", default="127.0.0.1", metavar="HOST", help="address of it")


def _every_s(given: argparse.Namespace) -> float:
    """The pause of a follower. Raises OptionError, also for options that do not fit --follow."""
    only = {"--every": given.every, "--metrics-port": given.metrics_port}
    never = {
        "--ending-time": given.ending_time,
        "--verify": given.verify or None,
        "--truncate": given.truncate or None,
    }
    for option, value in (never if given.follow else only).items():
        if value is not None:
            raise OptionError(
                option, str(value), f"{'is not' if given.follow else 'is'} for --follow"
            )
    if given.metrics_port is not None and not 0 <= given.metrics_port < 1 << 16:
        raise OptionError("--metrics-port", str(given.metrics_port), "is not a port (0 to 65535)")
    try:
        return parse_duration_ms(given.every or "10s") / 1000
    except ValueError as error:
        raise OptionError("--every", given.every, str(error)) from error


def _add_typed_options(parser: argparse.ArgumentParser) -> None:
    """How values become columns, and how the table is divided."""
    parser.add_argument(
        "--value-schema",
        metavar="latest|N|JSON",
        help="columns of the topics' schema instead of a binary value (default: the value)",
    )
    parser.add_argument(
        "--registry-schemas",
        metavar="PATH",
        help="with --value-schema: a schema registry's answer to GET /schemas, or a folder of them;"
        " values have the registry's ids in front",
    )
    parser.add_argument(
        "--mode",
        metavar="FAILFAST|PERMISSIVE",
        help="with --value-schema: a value that does not fit is an error, or a row of the table"
        " TARGET_rejected (default: FAILFAST)",
    )
    parser.add_argument(
        "--write-mode",
        default="append",
        metavar="append|upsert",
        help="upsert: a row for each key, its latest message (default: %(default)s)",
    )
    parser.add_argument(
        "--partition-by",
        metavar="hour|day|topic|bucket(N)",
        help="beside the topic: hour (default) or day of broker time; of an upsert topic alone"
        " (default), or so many buckets of keys",
    )


def _offload_arguments(given: argparse.Namespace) -> dict[str, Any]:
    names = ("value_schema", "registry_schemas", "mode", "write_mode", "partition_by")
    return {name: getattr(given, name) for name in names}


def check_offload(given: argparse.Namespace) -> None:
    """What can be checked before a session is started."""
    texts = checked_options(given.path, given.topic, ending_time=given.ending_time)
    _every_s(given)
    more = {"valueSchema": given.value_schema, "registrySchemas": given.registry_schemas}
    upserts = given.write_mode == "upsert" and given.value_schema is None
    more |= {"mode": None if upserts else given.mode, "columns": given.columns}
    texts |= {name: value for name, value in more.items() if value is not None}
    options = ReadOptions.parse(texts)
    table = table_from(given)
    check_table(table, options, layout_of(options, given.write_mode, given.partition_by))
    table.load()


def run_offload(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """Copy, then verify and truncate if it is wished; a row for each topic."""
    table = table_from(given)
    counts: dict[str, list[int]] = {}

    def count(result: OffloadResult) -> None:
        for file in result.files:
            sums = counts.setdefault(file.topic, [0, 0, 0, 0])
            for place, more in enumerate((1, file.rows, file.size_bytes, file.rejected)):
                sums[place] += more

    more: dict[str, Any] = {
        "columns": given.columns.split(","),
        "rows_per_file": given.rows_per_file,
        "fail_on_data_loss": given.fail_on_data_loss,
        **_offload_arguments(given),
    }
    if given.follow:
        follower = OffloadFollower(
            spark, given.path, table, given.topic, _every_s(given), on_run=count, more=more
        )
        if given.metrics_port is not None:
            follower.serve_metrics(given.metrics_host, given.metrics_port)
        with ended_by_signals(follower.stop):
            follower.run()
    else:
        count(offload(spark, given.path, table, given.topic, ending_time=given.ending_time, **more))
    if (given.verify or given.truncate) and table.load().head is not None:
        problems = [p for check in verify_offload(given.path, table) for p in check.problems]
        if problems:
            raise JobFailedError(f"{table.name} is not verified: {'; '.join(problems)}")
    left: dict[str, int] = {}
    if given.truncate and table.load().head is not None:
        left = truncate_offloaded(given.path, table)
    rows = [
        (topic, *counts.get(topic, (0, 0, 0, 0)), left.get(topic))
        for topic in sorted({*left, *counts})
    ]
    return spark.createDataFrame(rows, _OFFLOADED)


_FIGURES = (
    "topic string, entries_before bigint, entries_after bigint, messages bigint, keys bigint,"
    " tombstones bigint, unkeyed bigint, unreadable bigint, damaged bigint, bytes_before bigint,"
    " bytes_after bigint"
)


def add_compact_options(parser: argparse.ArgumentParser) -> None:
    """All options of the command."""
    add_topics(parser)
    add_fail_on_data_loss(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be kept, and write nothing"
    )
    parser.add_argument(
        "--admin-url",
        metavar="URL",
        help="of the broker that has the folder open: it makes the views, by its own policies",
    )
    parser.add_argument(
        "--tombstone-stage",
        type=int,
        choices=STAGES,
        help="what deletes a key in Kafka's magic 2: 1, the flag or a null value; 2, the flag"
        " (default: 1)",
    )
    parser.add_argument(
        "--tombstone-property", metavar="NAME", help="a message deletes its key if this is 'true'"
    )


def check_compact(given: argparse.Namespace) -> None:
    """What can be checked before a session is started."""
    checked_options(given.path, given.topic)
    if given.admin_url is not None:
        others = {
            "--dry-run": given.dry_run or None,
            "--tombstone-stage": given.tombstone_stage,
            "--tombstone-property": given.tombstone_property,
        }
        for option, value in others.items():
            if value is not None:
                raise OptionError(option, str(value), "is not for --admin-url")
        check_admin_url(given.admin_url)
    if given.tombstone_property == "":
        raise OptionError("--tombstone-property", "", "is empty")


def run_compact(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """Compact, or say what a compaction would do; a row for each topic."""
    rule = {
        "tombstone_stage": given.tombstone_stage or 1,
        "tombstone_property": given.tombstone_property,
    }
    if given.dry_run:
        fail = given.fail_on_data_loss
        figures = estimate_compaction(
            spark, given.path, given.topic, fail_on_data_loss=fail, **rule
        )
        return _figures(spark, figures)
    if given.admin_url is not None:
        return _figures(spark, compact_by_broker(given.admin_url, given.path, given.topic))
    return _figures(spark, compact_folder(given.path, given.topic, **rule))


def _figures(spark: SparkSession, figures: list[CompactedTopic]) -> DataFrame:
    return spark.createDataFrame([astuple(each) for each in figures], _FIGURES)


_REPLAYED = (
    "topic string, target_topic string, first_index bigint, end_index bigint, messages bigint,"
    " entries bigint, bytes bigint, deduplicates boolean"
)


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    """The options of the job."""
    add_fixed_range(parser)
    add_fail_on_data_loss(parser)
    _add_target(parser)
    _add_limits(parser)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--service-url", required=True, metavar="URL", help="the target: pulsar://HOST:PORT"
    )
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="FOLDER",
        help="remembers how far the replay came; run the same command again to go on",
    )
    parser.add_argument(
        "--target-topic",
        metavar="NAME",
        help="where all topics go (default: each to its own name); partitions keep their numbers",
    )
    parser.add_argument(
        "--function",
        metavar="MODULE:FUNCTION",
        help="maps each message (default: entries go untouched)",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"a token for the target (default: the variable {TOKEN_VARIABLE})",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--messages-per-second", type=rate, metavar="N", help="a limit over all tasks"
    )
    parser.add_argument(
        "--bytes-per-second", type=rate, metavar="N", help="a limit over all tasks, such as 10M"
    )
    parser.add_argument(
        "--without-deduplication",
        action="store_true",
        help="replay also into a topic that does not deduplicate; a kill may then store an entry"
        " twice",
    )
    parser.add_argument(
        "--reconnect-s",
        type=float,
        default=60.0,
        metavar="S",
        help="how long the target may be away (default: %(default)g)",
    )


def _replay_options_of(given: argparse.Namespace) -> ReplayOptions:
    """The options that were given, checked. Raises OptionError."""
    return ReplayOptions(
        service_url=given.service_url,
        target_topic=given.target_topic,
        function=None if given.function is None else load_function(given.function),
        messages_per_s=given.messages_per_second,
        bytes_per_s=given.bytes_per_second,
        without_deduplication=given.without_deduplication,
        token=token_of(given.token_file),
        reconnect_s=given.reconnect_s,
    ).checked()


def check_replay(given: argparse.Namespace) -> None:
    """Check the arguments before a session is started."""
    check_range(given)
    check_folder("checkpoint", given.checkpoint)
    options = _replay_options_of(given)
    if options.function is not None:
        packed(options.function)


def run_replay(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """Replay, and one row for each topic."""
    done = replay(
        spark,
        given.path,
        _replay_options_of(given),
        given.checkpoint,
        given.topic,
        fail_on_data_loss=given.fail_on_data_loss,
        **range_of(given),
    )
    rows = [
        (
            each.topic,
            each.target_topic,
            each.first_index,
            each.end_index,
            each.messages,
            each.entries,
            each.size_bytes,
            each.deduplicates,
        )
        for each in done.topics
    ]
    return spark.createDataFrame(rows, _REPLAYED)


def check_verify(given: argparse.Namespace) -> None:
    """Check the arguments before a session is started."""
    checked_options(given.path, given.topic)


def run_verify(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """List what is wrong. Raises ProblemsFoundError for damage."""
    rows = verify(spark, given.path, given.topic).orderBy("topic", "ledger_id", "entry_id").cache()
    damages = rows.where("severity = 'damage'").count()
    if damages:
        raise ProblemsFoundError(rows, f"places of damage in {given.path}: {damages}")
    return rows
