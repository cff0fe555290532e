"""Policies about what is taken from producers and how it is delivered."""

from __future__ import annotations

from .policy import Place, Policy
from .values import boolean, fields, long_integer, not_negative

__all__ = ["DEDUPLICATION", "DELAYED_DELIVERY", "DELIVERY", "ENCRYPTION", "SNAPSHOT_INTERVAL"]

DEDUPLICATION = Policy(
    name="deduplication",
    key="deduplicationEnabled",
    what="whether messages that a producer sends again are dropped",
    read=lambda value: boolean("deduplication", value),
    default=lambda config: config.broker_deduplication_enabled,
    namespace=Place("deduplication"),
    topic=Place("deduplicationEnabled", empty="removes"),
)
SNAPSHOT_INTERVAL = Policy(
    name="deduplicationSnapshotInterval",
    key="deduplicationSnapshotIntervalSeconds",
    what="after how many seconds the producers' sequence ids are stored; 0: only by entries",
    read=not_negative("deduplicationSnapshotInterval", "interval must be 0 or more"),
    default=lambda config: config.broker_deduplication_snapshot_interval_s,
    namespace=Place(
        "deduplicationSnapshotInterval",
        negative="interval must be greater than or equal to 0",
        empty="removes",
        names_policies=True,
        is_removable=False,
    ),
    topic=Place("deduplicationSnapshotInterval", empty="removes", shows_applied=False),
)
DELAYED_DELIVERY = Policy(
    name="delayedDelivery",
    key="delayed_delivery_policies",
    what="whether messages wait for their delivery time, and how long at most (0: no limit)",
    read=fields(
        "delayedDelivery",
        {
            "tickTime": (long_integer, 0),
            "active": (boolean, False),
            "maxDeliveryDelayInMillis": (long_integer, 0),
        },
    ),
    default=lambda config: {
        "tickTime": config.delayed_delivery_tick_time_ms,
        "active": config.delayed_delivery_enabled,
        "maxDeliveryDelayInMillis": config.delayed_delivery_max_delay_ms,
    },
    namespace=Place("delayedDelivery", empty="removes", names_policies=True),
    topic=Place("delayedDelivery", empty="removes"),
)
ENCRYPTION = Policy(
    name="encryptionRequired",
    key="encryption_required",
    what="whether only encrypted messages are taken",
    read=lambda value: boolean("encryptionRequired", value),
    default=lambda config: False,
    namespace=Place("encryptionRequired", unset=False, is_removable=False),
    topic=None,
    absent=False,
)
DELIVERY = (DEDUPLICATION, SNAPSHOT_INTERVAL, DELAYED_DELIVERY, ENCRYPTION)
