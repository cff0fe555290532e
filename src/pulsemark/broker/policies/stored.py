"""Policies that this broker only stores and shows: what they are about is not there.

It has no bookies, does not offload, and does not replicate to other clusters; entry filters are
Java classes. Values are checked and completed as Pulsar does with these features off.
"""

from __future__ import annotations

from typing import Any

from ..configuration.config import BrokerConfig
from ..security.permissions import MODES
from .policy import (
    InvalidValueError,
    Place,
    Policy,
    UnreadableValueError,
    any_of,
    boolean,
    decimal,
    fields,
    integer,
    long_integer,
    names,
)

__all__ = ["OFFLOAD", "STORED"]

#: managedLedgerMaxEnsembleSize and the like, which have this value in Pulsar.
MAX_QUORUM = 5
_PERSISTENCE = {
    "bookkeeperEnsemble": (integer, 2),
    "bookkeeperWriteQuorum": (integer, 2),
    "bookkeeperAckQuorum": (integer, 2),
    "managedLedgerMaxMarkDeleteRate": (decimal, 0.0),
}


def _read_persistence(value: Any) -> Any:
    if value is None:
        reason = "persistence policies should not be null"
        raise InvalidValueError("persistence", value, reason, status=400)
    found = fields("persistence", _PERSISTENCE)(value)
    ensemble, writes, acks = (found[name] for name in list(_PERSISTENCE)[:3])
    parts = {"Ensemble": ensemble, "WriteQuorum": writes, "AckQuorum": acks}
    for part, number in parts.items():
        if not 0 < number <= MAX_QUORUM:
            reason = f"Bookkeeper-{part} must be <= {MAX_QUORUM} and > 0."
            raise InvalidValueError("persistence", value, reason, status=400)
    if not ensemble >= writes >= acks:
        reason = f"Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({writes}) >= AckQuorum ({acks})"
        raise InvalidValueError("persistence", value, reason, status=400)
    return found


PERSISTENCE = Policy(
    name="persistence",
    key="persistence",
    what="how many bookies store an entry",
    read=_read_persistence,
    default=lambda config: {
        "bookkeeperEnsemble": 1,
        "bookkeeperWriteQuorum": 1,
        "bookkeeperAckQuorum": 1,
        "managedLedgerMaxMarkDeleteRate": 0.1,
    },
    namespace=Place("persistence", empty="null"),
    topic=Place("persistence", empty="null"),
    is_stored_only=True,
)

DRIVERS = "S3,aws-s3,google-cloud-storage,filesystem,azureblob,aliyun-oss"
_OFFLOAD: dict[str, Any] = {
    "offloadersDirectory": "./offloaders",
    "managedLedgerOffloadMaxThreads": 2,
    "managedLedgerOffloadReadThreads": 2,
    "managedLedgerOffloadPrefetchRounds": 1,
    "managedLedgerExtraConfigurations": {},
    "s3ManagedLedgerOffloadMaxBlockSizeInBytes": 67_108_864,
    "s3ManagedLedgerOffloadReadBufferSizeInBytes": 1_048_576,
    "s3ManagedLedgerOffloadRoleSessionName": "pulsar-s3-offload",
    "gcsManagedLedgerOffloadMaxBlockSizeInBytes": 134_217_728,
    "gcsManagedLedgerOffloadReadBufferSizeInBytes": 1_048_576,
}
_MAX_FIELDS = 100


def _read_offload(value: Any) -> Any:
    if value is None:
        reason = "The offloadPolicies must be specified for namespace offload."
        raise InvalidValueError("offloadPolicies", value, reason)
    if not isinstance(value, dict) or len(value) > _MAX_FIELDS:
        raise UnreadableValueError("offloadPolicies", value, "must be an object")
    driver = value.get("managedLedgerOffloadDriver")
    if driver not in DRIVERS.split(","):
        reason = f"The driver is not supported, support value: {DRIVERS}"
        raise InvalidValueError("offloadPolicies", value, reason)
    given = {name: each for name, each in value.items() if each is not None}
    kinds = {
        "s3Driver": driver in ("S3", "aws-s3"),
        "gcsDriver": driver == "google-cloud-storage",
        "fileSystemDriver": driver == "filesystem",
    }
    return {**_OFFLOAD, **given, **kinds}


OFFLOAD = Policy(
    name="offloadPolicies",
    key="offload_policies",
    what="where old entries are offloaded",
    read=_read_offload,
    default=lambda config: None,
    namespace=Place("offloadPolicies", empty="null", is_removable=False),
    topic=Place("offloadPolicies", empty="null"),
    is_stored_only=True,
)


def _long(name: str, key: str, place: Place, absent: int | None = None) -> Policy:
    return Policy(
        name=name,
        key=key,
        what="when old entries are offloaded, or deleted after that",
        read=lambda value: long_integer(name, value),
        default=lambda config: None,
        namespace=place,
        topic=None,
        absent=absent,
        is_stored_only=True,
    )


OFFLOAD_THRESHOLDS = (
    _long(
        "offloadThreshold",
        "offload_threshold",
        Place("offloadThreshold", "PUT", unset=-1, is_removable=False),
        -1,
    ),
    _long(
        "offloadThresholdInSeconds",
        "offload_threshold_in_seconds",
        Place("offloadThresholdInSeconds", "PUT", unset=-1, set_status=200, is_removable=False),
        -1,
    ),
    _long(
        "offloadDeletionLagMs",
        "offload_deletion_lag_ms",
        Place("offloadDeletionLagMs", "PUT"),
    ),
)

_known_auth_mode = any_of(*MODES)


def _auth_mode(value: Any) -> str | None:
    """Unlike Pulsar, which takes an unknown mode for None: a typing error would open everything."""
    mode: str | None = _known_auth_mode("subscriptionAuthMode", value)
    if mode is None and value is not None:
        raise UnreadableValueError("subscriptionAuthMode", value, "must be None or Prefix")
    return mode


AUTH_MODE = Policy(
    name="subscriptionAuthMode",
    key="subscription_auth_mode",
    what="whether a subscription's name must begin with the role",
    read=_auth_mode,
    default=lambda config: "None",
    namespace=Place("subscriptionAuthMode", empty="removes", unset="None", is_removable=False),
    topic=None,
    absent="None",
)


def _read_filters(value: Any) -> Any:
    found = value if isinstance(value, str) else None
    if isinstance(value, dict):
        found = str(value.get("entryFilterNames") or "")
    if found is None:
        raise UnreadableValueError("entryFilters", value, "must be an object")
    name = found.split(",")[0].strip()
    reason = (
        f"Entry filter '{name}' not found"
        if name
        else "entryFilterNames can't be empty. To remove entry filters use the remove method."
    )
    raise InvalidValueError("entryFilters", value, reason, status=400)


ENTRY_FILTERS = Policy(
    name="entryFilters",
    key="entryFilters",
    what="the filters of entries; this broker has none, so that no name is found",
    read=_read_filters,
    default=lambda config: {"entryFilterNames": ""},
    namespace=Place("entryFilters", empty="removes"),
    topic=Place("entryFilters", empty="removes"),
    is_stored_only=True,
)
PAUSE_ON_ACK_STATE = Policy(
    name="dispatcherPauseOnAckStatePersistent",
    key="dispatcherPauseOnAckStatePersistentEnabled",
    what="whether dispatch waits until acknowledgements are stored",
    read=lambda value: value is None or boolean("dispatcherPauseOnAckStatePersistent", value),
    default=lambda config: False,
    namespace=Place("dispatcherPauseOnAckStatePersistent", has_body=False, unset=False),
    topic=Place(
        "dispatcherPauseOnAckStatePersistent", has_body=False, unset=False, shows_applied=False
    ),
    is_stored_only=True,
)


def _read_clusters(value: Any) -> list[str]:
    found = sorted(set(names("replication", value)))
    if not found:
        raise InvalidValueError("replication", value, "ClusterIds should not be null or empty")
    return found


def _check_clusters(value: Any, config: BrokerConfig, of_topic: bool) -> None:
    if "global" in value:
        reason = "Cannot specify global in the list of replication clusters"
        raise InvalidValueError("replication", value, reason)
    if value == [config.cluster]:
        return
    if of_topic:
        reason = (
            "Can not remove local cluster from the local topic-level replication clusters policy"
        )
        raise InvalidValueError("replication", value, reason)
    unknown = next(name for name in value if name != config.cluster)
    raise InvalidValueError("replication", value, f"Invalid cluster id: {unknown}", status=403)


def _check_allowed(value: Any, config: BrokerConfig, of_topic: bool) -> None:
    if not value:
        reason = (
            f"Allowed clusters do not contain the replication cluster [{config.cluster}]. Please "
            "remove the replication cluster if the cluster is not allowed for this namespace"
        )
        raise InvalidValueError("allowedClusters", value, reason, status=400)
    for name in value:
        if name != config.cluster:
            reason = f"Cluster [{name}] is not in the list of allowed clusters list for tenant"
            raise InvalidValueError("allowedClusters", value, reason, status=403)


REPLICATION = Policy(
    name="replication",
    key="replication_clusters",
    what="the clusters to which a topic is replicated: only this one",
    read=_read_clusters,
    default=lambda config: [config.cluster],
    check=_check_clusters,
    namespace=Place(
        "replication", empty="null", shows_default=True, set_status=200, is_removable=False
    ),
    topic=Place("replication", empty="null"),
    is_stored_only=True,
)
ALLOWED_CLUSTERS = Policy(
    name="allowedClusters",
    key="allowed_clusters",
    what="the clusters that may have a namespace's topics: only this one",
    read=lambda value: sorted(set(names("allowedClusters", value))),
    default=lambda config: [],
    check=_check_allowed,
    namespace=Place("allowedClusters", empty="null", unset=[], set_status=200, is_removable=False),
    topic=None,
    absent=[],
    is_stored_only=True,
)
STORED = (
    PERSISTENCE,
    OFFLOAD,
    *OFFLOAD_THRESHOLDS,
    AUTH_MODE,
    ENTRY_FILTERS,
    PAUSE_ON_ACK_STATE,
    REPLICATION,
    ALLOWED_CLUSTERS,
)
