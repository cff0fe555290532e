"""The job `audit` on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .audit import AuditLabels, audit, parse_bucket_ms, parse_by
from .errors import OptionError, ProblemsFoundError
from .job_arguments import add_range, check_file, check_range, range_of
from .tiers import TierComparison, compare_tiers, write_report
from .tiers.others import kind_of

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
    parser.add_argument("--tier", default="broker", help="label (default: %(default)s)")
    parser.add_argument("--host", help="label (default: this machine's name)")
    parser.add_argument("--datacenter", help="label (default: none)")
    parser.add_argument("--application", help="label (default: none)")
    parser.add_argument(
        "--against",
        metavar="PLACE",
        help="list what another tier has not: another data folder, an offload's target, or counts"
        " in a .json or .csv file; exit code 1 if something differs",
    )
    parser.add_argument(
        "--by-source",
        action="store_true",
        help="the other folder is a mirror's target: compare by the indexes of its source",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots, too")


def check(given: argparse.Namespace) -> None:
    """Check the arguments before a session is started."""
    check_range(given)
    parse_bucket_ms(given.bucket)
    parse_by(given.by)
    if given.against is not None and given.by:
        raise OptionError("by", given.by, "cannot be used with --against")
    if given.by_source and (given.against is None or kind_of(given.against) != "folder"):
        raise OptionError("bySource", "true", "needs --against with another data folder")
    if given.against is not None:
        kind_of(given.against)
    if given.html is not None:
        check_file("--html", given.html)


def run(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    """Count, and compare if another tier was named."""
    if given.against is None and given.html is None:
        return _audited(spark, given)
    rows = None if given.html is None else _audited(spark, given).cache()
    compared = None if given.against is None else _compared(spark, given)
    if given.html is not None and rows is not None:
        listed = [row.asDict() for row in rows.collect()]
        write_report(given.html, f"Audit of {given.path}", listed, compared)
    if compared is None:
        assert rows is not None, "one of the two was asked for"
        return rows
    differences = compared.frame(spark)
    if compared.problems:
        messages = sum(each.messages for each in compared.problems)
        reason = (
            f"{given.path} and {given.against} differ in {messages} messages,"
            f" in {len(compared.problems)} places"
        )
        raise ProblemsFoundError(differences, reason)
    return differences


def _audited(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    return audit(
        spark,
        given.path,
        given.topic,
        bucket=given.bucket,
        by=given.by,
        labels=AuditLabels(given.tier, given.host, given.datacenter, given.application),
        **range_of(given),
    )


def _compared(spark: SparkSession, given: argparse.Namespace) -> TierComparison:
    bounds = range_of(given)
    return compare_tiers(
        spark,
        given.path,
        given.against,
        given.topic,
        bucket=given.bucket,
        tier=given.tier,
        by_source=given.by_source,
        **bounds,
    )
