"""Figures of what this broker does not do: offloading, transactions, replication, filters.

Pulsar shows them in every answer, and they are zero in a Pulsar that does not do it either.
"""

from __future__ import annotations

__all__ = ["NOT_DRAINING", "NOT_FILTERED", "NOT_OFFLOADED", "NOT_THROTTLED", "NO_RANGES"]

NOT_OFFLOADED = dict.fromkeys(
    (
        "offloadedStorageSize",
        "lastOffloadLedgerId",
        "lastOffloadSuccessTimeStamp",
        "lastOffloadFailureTimeStamp",
        "ongoingTxnCount",
        "abortedTxnCount",
        "committedTxnCount",
    ),
    0,
)
NOT_THROTTLED = {
    f"dispatchThrottled{what}EventsBy{who}Limit": 0
    for who in ("Subscription", "Topic", "Broker")
    for what in ("Msg", "Bytes")
}
NOT_FILTERED = {
    f"filter{what}MsgCount": 0 for what in ("Processed", "Accepted", "Rejected", "Rescheduled")
}
NOT_DRAINING = dict.fromkeys(
    ("drainingHashesCount", "drainingHashesClearedTotal", "drainingHashesUnackedMessages"), 0
)
NO_RANGES = {
    "nonContiguousDeletedMessagesRanges": 0,
    "nonContiguousDeletedMessagesRangesSerializedSize": 0,
    "delayedMessageIndexSizeInBytes": 0,
}
