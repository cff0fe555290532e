"""The audit trail: messages counted by time bucket and tags, at several tiers, and compared.

A tier is a place that messages pass: the broker, a consumer. Each tier counts what it saw, by the
same buckets of the broker's time. A comparison of the counts shows where messages were lost,
doubled or late (KAFKA-260).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names
from .report import Comparison, Report, compare, report
from .rows import AuditInputError, AuditPostError, AuditRow, parse_bucket_ms, parse_tags
from .trail import Trail, count_log

if TYPE_CHECKING:
    from .consumer import ConsumerAudit

# Applications use it, and brokers do not.
__getattr__, __dir__ = lazy_names(__name__, {"consumer": ("ConsumerAudit",)})

__all__ = [
    "AuditInputError",
    "AuditPostError",
    "AuditRow",
    "Comparison",
    "ConsumerAudit",
    "Report",
    "Trail",
    "compare",
    "count_log",
    "parse_bucket_ms",
    "parse_tags",
    "report",
]
