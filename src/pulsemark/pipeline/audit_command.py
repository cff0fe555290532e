"""The job `audit` on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import add_range, check_file, check_range, pairs, range_of
from .audit import GAPS, AuditLabels, audit, check_clock_errors, parse_bucket_ms, parse_by
from .audit_report import write_report
from .errors import OptionError, ProblemsFoundError
from .offload import IcebergTarget
from .tier_comparison import TierComparison, compare_tiers, kind_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["add_options", "check", "run"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the job."""
    add_range(parser)
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


def _add_other_tier(parser: argparse.ArgumentParser) -> None:
    """The options that name the tier to compare with."""
    parser.add_argument(
        "--against",
        metavar="PLACE",
        help="list what another tier has not: another data folder, an offload's target, or counts"
        " in a .json or .csv file; exit code 1 if something is missing or doubled",
    )
    parser.add_argument(
        "--against-table",
        metavar="NAMESPACE.TABLE",
        help="compare with a table of Iceberg that an offload wrote",
    )
    parser.add_argument(
        "--against-catalog",
        metavar="NAME",
        help="of that table, in pyiceberg's configuration (default: default)",
    )
    parser.add_argument(
        "--against-catalog-property",
        action="append",
        metavar="KEY=VALUE",
        help="of that catalog, for example uri=sqlite:////srv/catalog.db; may be repeated",
    )
    parser.add_argument(
        "--by-source",
        action="store_true",
        help="the other folder is a mirror's target: compare by the indexes of its source",
    )


def check(given: argparse.Namespace) -> None:
    """Check the arguments before a session is started."""
    check_range(given)
    parse_bucket_ms(given.bucket)
    check_clock_errors(given.clock_errors, parse_by(given.by))
    other = _other(given)
    if other is not None and given.by:
        raise OptionError("by", given.by, "cannot be used with --against")
    kind = None if other is None else kind_of(other)
    if given.by_source and kind != "folder":
        raise OptionError("bySource", "true", "needs --against with another data folder")
    if isinstance(other, IcebergTarget):
        other.load()
    if given.html is not None:
        check_file("--html", given.html)


def _other(given: argparse.Namespace) -> str | IcebergTarget | None:
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
    properties = pairs("--against-catalog-property", given.against_catalog_property)
    return IcebergTarget(given.against_table, given.against_catalog or "default", properties)


def run(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """Count, and compare if another tier was named."""
    other = _other(given)
    rows = None if other is not None and given.html is None else _audited(spark, given).cache()
    compared = None if other is None else _compared(spark, given, other)
    if given.html is not None and rows is not None:
        # Only rows that are not divided by tags say what is missing.
        whole = _audited(spark, given, by="") if given.by else rows
        listed = [row.asDict() for row in whole.collect()]
        divided = [row.asDict() for row in rows.collect()] if given.by else ()
        write_report(given.html, f"Audit of {given.path}", listed, compared, divided=divided)
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
