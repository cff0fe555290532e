"""The sums of partitions' stats: the stats of a partitioned topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["sum_of_partitions"]

#: Figures of which the smallest that is not zero counts.
EARLIEST = frozenset({"earliestMsgPublishTimeInBacklogs", "earliestMsgPublishTimeInBacklog"})
#: Figures of which the largest counts: limits and points in time.
LARGEST = frozenset(
    {"backlogQuotaLimitSize", "backlogQuotaLimitTime", "averageMsgSize", "avgMessagesPerEntry"}
)
#: What Pulsar shows of a partition alone.
OF_ONE = frozenset({"topicEpoch", "ownerBroker", "durability"})


def sum_of_partitions(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The stats of all partitions together. Lists of publishers and consumers are left out."""
    total: dict[str, Any] = {}
    for row in rows:
        total = _added(total, {name: value for name, value in row.items() if name not in OF_ONE})
    total["oldestBacklogMessageAgeSeconds"] = 0
    total["deduplicationStatus"] = None
    return {name: value for name, value in total.items() if value is not None}


def _added(total: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    return {
        **total,
        **{name: _both(name, total.get(name), value) for name, value in row.items()},
    }


def _both(name: str, before: Any, value: Any) -> Any:
    if isinstance(value, list):
        return []
    if isinstance(value, dict):
        return _added(before or {}, value)
    if isinstance(value, bool):
        return bool(before) or value
    if not isinstance(value, int | float) or before is None:
        return value
    if name in EARLIEST:
        return min(filter(None, (before, value)), default=0)
    if name in LARGEST or "Timestamp" in name or "TimeStamp" in name:
        return max(before, value)
    return before + value
