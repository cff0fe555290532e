"""The sums of partitions' stats: the stats of a partitioned topic.

As in Pulsar publishers and consumers have one row for each place in the partitions' lists: the
first ones of all partitions are one row, the second ones, and so on. Such rows have no address, and
points in time are left at zero.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

__all__ = ["sum_of_partitions"]

#: Figures of which the smallest that is not zero counts.
EARLIEST = frozenset({"earliestMsgPublishTimeInBacklogs", "earliestMsgPublishTimeInBacklog"})
#: Figures of which the largest counts: limits.
LARGEST = frozenset({"backlogQuotaLimitSize", "backlogQuotaLimitTime", "averageMsgSize"})
#: What Pulsar shows of a partition alone.
OF_ONE = frozenset(
    {"topicEpoch", "ownerBroker", "durability", "activeConsumerName", "keySharedMode"}
)
#: What Pulsar does not add up.
NOT_ADDED = frozenset({"msgChunkPublished", "blockedSubscriptionOnUnackedMsgs"})
PUBLISHER = ("msgRateIn", "msgThroughputIn", "averageMsgSize", "chunkedMessageRate")
CONSUMER = (
    "msgRateOut",
    "msgThroughputOut",
    "bytesOutCounter",
    "msgOutCounter",
    "msgRateRedeliver",
    "messageAckRate",
    "availablePermits",
    "unackedMessages",
    "drainingHashesClearedTotal",
)
#: Of these the last partition's counts.
LAST = (
    "consumerName",
    "blockedConsumerOnUnackedMsgs",
    "drainingHashesCount",
    "drainingHashesUnackedMessages",
    "drainingHashes",
    "keyHashRangeArrays",
)
#: What a row of a single consumer has, and a sum has not.
OF_A_CLIENT = frozenset({"address", "connectedSince", "clientVersion", "metadata"})


def sum_of_partitions(
    rows: Sequence[dict[str, Any]],
) -> Generator[object, None, dict[str, Any]]:
    """The stats of all partitions together, made in pieces."""
    total: dict[str, Any] = {}
    for row in rows:
        subscriptions = total.get("subscriptions", {})
        for name, one in row["subscriptions"].items():
            subscriptions[name] = _added(subscriptions.get(name, {}), one)
            yield None
        total = _added(total, {**row, "subscriptions": {}})
        total["subscriptions"] = subscriptions
        yield None
    total["oldestBacklogMessageAgeSeconds"] = 0
    total["deduplicationStatus"] = None
    return {name: value for name, value in total.items() if value is not None}


def _added(total: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    found = dict(total)
    for name, value in row.items():
        if name not in OF_ONE:
            found[name] = _both(name, total.get(name), value)
    return found


def _both(name: str, before: Any, value: Any) -> Any:
    if isinstance(value, list):
        return _clients(name, before or [], value)
    if isinstance(value, dict):
        return _zeros(value) if name == "compaction" else _added(before or {}, value)
    if isinstance(value, bool):
        return False if name in NOT_ADDED else bool(before) or value
    if isinstance(value, int) and ("Timestamp" in name or "TimeStamp" in name):
        return 0
    if not isinstance(value, int | float) or before is None:
        return value
    if name in EARLIEST:
        return min(filter(None, (before, value)), default=0)
    return max(before, value) if name in LARGEST else before + value


def _zeros(row: dict[str, Any]) -> dict[str, Any]:
    return dict.fromkeys(row, 0)


def _clients(name: str, before: list[Any], rows: list[Any]) -> list[Any]:
    """The rows of publishers or consumers with those of one more partition."""
    if name == "publishers":
        return [
            _publisher(before[at] if at < len(before) else {}, rows[at] if at < len(rows) else {})
            for at in range(max(len(before), len(rows)))
        ]
    if name != "consumers":
        return []
    if len(before) != len(rows):
        return [*before, *(_consumer({}, row) for row in rows)]
    return [_consumer(one, row) for one, row in zip(before, rows, strict=True)]


def _publisher(total: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    sums = {name: total.get(name, 0.0) + row.get(name, 0.0) for name in PUBLISHER}
    return {**sums, "producerId": 0, "supportsPartialProducer": False}


def _consumer(total: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in row.items():
        if name in CONSUMER:
            found[name] = total.get(name, 0) + value
        elif name in LAST or name in ("lastAckedTime", "lastConsumedTime"):
            found[name] = value if name in LAST else "1970-01-01T00:00:00Z"
        elif name not in OF_A_CLIENT:
            found[name] = 0.0 if isinstance(value, float) else 0
    return found
