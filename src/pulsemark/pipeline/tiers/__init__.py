"""Comparing tiers: what a folder has, message by message, and what another tier has of it.

ranges    ranges of indexes, and what is in one list of them and not in another
ledger    the indexes of a folder's messages by bucket, found by Spark's tasks
others    other tiers: another folder, a lakehouse table, counts in a file
compare   the differences
report    an audit and its differences as a page of HTML
job       the driver's part
"""

from .job import TierComparison, compare_tiers
from .report import write_report

__all__ = ["TierComparison", "compare_tiers", "write_report"]
