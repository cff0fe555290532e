"""Kinds of JSON that routes take as their bodies, and the check that goes before the handler.

Pulsar reads a body into a Java object before its handler looks at anything. So a body of a wrong
kind is 400, whatever else is wrong with the request; texts of numbers, fractions, nulls and unknown
members are read. The same bodies are taken and refused here; the texts of the errors are our own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .messages import JSON_TYPE, HttpError, Request

EMPTY = "The request entity cannot be empty."
#: The content type of a number of partitions with properties.
METADATA_TYPE = "application/vnd.partitioned-topic-metadata+json"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of JSON value. null is of every kind."""

    #: What errors call it.
    name: str
    takes: Callable[[Any], bool]
    #: The kind of a member of an object, or of a list; None is any.
    member: Callable[[Any], Kind | None] = lambda _: None
    #: Whether there must be a body.
    is_required: bool = False

    def check(self, value: Any, place: str = "the body") -> None:
        """Raise `HttpError` 400, with the place, if the value is of another kind."""
        if value is None:
            return
        if not self.takes(value):
            names = {"dict": "an object", "list": "a list"}
            shown = names.get(type(value).__name__) or f"{value!r:.80}"
            reason = f"{place} must be {self.name}, not {shown}"
            raise HttpError(400, reason, text_type="text/plain")
        if isinstance(value, dict | list):
            for key, found in value.items() if isinstance(value, dict) else enumerate(value):
                kind = self.member(key)
                if kind is not None:
                    kind.check(found, f"{key!r:.80} of {place}")


def _is_empty(value: Any) -> bool:
    """Whether a text stands for null where a number or a boolean is expected."""
    return isinstance(value, str) and value.strip() in ("", "null")


def _whole(bits: int, *, is_required: bool = False) -> Kind:
    def takes(value: Any) -> bool:
        if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]{1,25}", value.strip()):
            value = int(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return _is_empty(value) or (is_number and -(1 << bits - 1) <= value < 1 << bits - 1)

    return Kind(f"a whole number of {bits} bits", takes, is_required=is_required)


def _takes_decimal(value: Any) -> bool:
    if isinstance(value, str) and not _is_empty(value):
        try:
            float(value)
        except ValueError:
            return False
    return not isinstance(value, bool | list | dict)


def _takes_boolean(value: Any) -> bool:
    if isinstance(value, str):
        return _is_empty(value) or value.strip() in (
            "true",
            "True",
            "TRUE",
            "false",
            "False",
            "FALSE",
        )
    return not isinstance(value, float | list | dict)


def _object(made_from: Callable[[Any], bool] = lambda _: False, /, **members: Kind) -> Kind:
    """An object with these members, and others of any kind; `made_from` are values that will do."""
    return Kind("an object", lambda value: isinstance(value, dict) or made_from(value), members.get)


def _list(of: Kind | None = None) -> Kind:
    return Kind("a list", lambda value: isinstance(value, list), lambda _: of or TEXT)


INT, LONG = _whole(32, is_required=True), _whole(64, is_required=True)
BOXED_INT, BOXED_LONG = _whole(32), _whole(64)
DOUBLE = Kind("a number", _takes_decimal, is_required=True)
BOOLEAN = Kind("true or false", _takes_boolean, is_required=True)
BOXED_BOOLEAN = Kind("true or false", _takes_boolean)
TEXT = Kind("a text", lambda value: not isinstance(value, list | dict))
#: A name of an enumeration; a name or number that it has not is null.
CHOICE = Kind("a text", lambda value: not isinstance(value, bool | float | list | dict))
TEXTS = Kind("an object", lambda value: isinstance(value, dict), lambda _: TEXT)
LIST = _list()

TENANT = _object(adminRoles=LIST, allowedClusters=LIST)
RETENTION = _object(retentionTimeInMinutes=INT, retentionSizeInMB=LONG)
QUOTA = _object(
    limit=LONG,
    limitSize=LONG,
    limitTime=INT,
    policy=CHOICE,
)
BUNDLES = _object(boundaries=LIST, numBundles=INT)
NAMESPACE_POLICIES = _object(
    bundles=BUNDLES,
    replication_clusters=LIST,
    allowed_clusters=LIST,
    message_ttl_in_seconds=BOXED_INT,
    retention_policies=RETENTION,
    deduplicationEnabled=BOXED_BOOLEAN,
    compaction_threshold=BOXED_LONG,
    max_producers_per_topic=BOXED_INT,
    max_consumers_per_topic=BOXED_INT,
    max_consumers_per_subscription=BOXED_INT,
    encryption_required=BOOLEAN,
    properties=TEXTS,
)
SETTINGS: Mapping[str, Kind] = {
    "messageTTL": INT,
    "maxProducersPerTopic": INT,
    "maxConsumersPerTopic": INT,
    "maxConsumersPerSubscription": INT,
    "maxSubscriptionsPerTopic": INT,
    "maxTopicsPerNamespace": INT,
    "maxUnackedMessagesPerConsumer": INT,
    "maxUnackedMessagesPerSubscription": INT,
    "maxProducers": INT,
    "maxConsumers": INT,
    "maxMessageSize": INT,
    "maxUnackedMessagesOnConsumer": BOXED_INT,
    "maxUnackedMessagesOnSubscription": BOXED_INT,
    "subscriptionExpirationTime": INT,
    "compactionThreshold": LONG,
    "deduplicationEnabled": BOXED_BOOLEAN,
    "deduplicationSnapshotInterval": BOXED_INT,
    "deduplication": BOOLEAN,
    "encryptionRequired": BOOLEAN,
    "isAllowAutoUpdateSchema": BOOLEAN,
    "schemaValidationEnforced": BOOLEAN,
    "retention": RETENTION,
    "backlogQuota": QUOTA,
    "publishRate": _object(publishThrottlingRateInMsg=INT, publishThrottlingRateInByte=LONG),
    "subscribeRate": _object(subscribeThrottlingRatePerConsumer=INT, ratePeriodInSecond=INT),
    "autoTopicCreation": _object(
        allowAutoTopicCreation=BOOLEAN,
        topicType=TEXT,
        defaultNumPartitions=BOXED_INT,
    ),
    "autoSubscriptionCreation": _object(
        lambda value: isinstance(value, bool), allowAutoSubscriptionCreation=BOOLEAN
    ),
    "inactiveTopicPolicies": _object(
        inactiveTopicDeleteMode=CHOICE,
        maxInactiveDurationSeconds=INT,
        deleteWhileInactive=BOOLEAN,
    ),
    "delayedDelivery": _object(
        tickTime=LONG,
        active=BOOLEAN,
        maxDeliveryDelayInMillis=LONG,
    ),
    "subscriptionTypesEnabled": _list(CHOICE),
    "schemaCompatibilityStrategy": CHOICE,
    "schemaAutoUpdateCompatibilityStrategy": CHOICE,
    "subscriptionAuthMode": CHOICE,
    "replication": LIST,
    **dict.fromkeys(
        ("dispatchRate", "subscriptionDispatchRate"),
        _object(
            dispatchThrottlingRateInMsg=INT,
            dispatchThrottlingRateInByte=LONG,
            relativeToPublishRate=BOOLEAN,
            ratePeriodInSecond=INT,
        ),
    ),
}
"""The kind of a policy's value, by the last part of its path."""

PLACE = _object(
    lambda value: value in ("latest", "earliest"),
    ledgerId=LONG,
    entryId=LONG,
    partitionIndex=INT,
    batchIndex=INT,
    properties=TEXTS,
)
MESSAGE_ID = _object(ledgerId=LONG, entryId=LONG, partitionIndex=INT)
SCHEMA = _object(type=TEXT, schema=TEXT, properties=TEXTS)
ACTIONS = _list(CHOICE)
LONGS = _list(BOXED_LONG)


def check_body(request: Request, kind: Kind | None) -> None:
    """Raise `HttpError` 400 if the body is not of a route's kind."""
    if kind is None or request.headers.get("content-type", "").startswith(METADATA_TYPE):
        return
    if request.body.strip():
        kind.check(request.json())
    elif kind.is_required:
        raise HttpError(400, EMPTY, text_type=JSON_TYPE)
