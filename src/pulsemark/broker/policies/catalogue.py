"""All policies, in the order in which a new namespace's values are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .own_policies import EPOCHS, MIRRORS, STAMPS
from .pulsar_policies import (
    AUTH_MODE,
    BACKLOG_QUOTAS,
    CLEANING,
    DELIVERY,
    LIFETIMES,
    LIMITS,
    PROPERTIES,
    RATES,
    REPLICATION,
    SCHEMA_RULES,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .policy import Policy

POLICIES: tuple[Policy, ...] = (
    STAMPS,
    MIRRORS,
    EPOCHS,
    *CLEANING,
    BACKLOG_QUOTAS,
    *LIMITS,
    *RATES,
    *LIFETIMES,
    *DELIVERY,
    *SCHEMA_RULES,
    AUTH_MODE,
    REPLICATION,
    PROPERTIES,
)


def read_settings(settings: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """A new namespace's settings, with its policies as they are stored. May block.

    Raises `PolicyValueError`.
    """
    checked = {name: value for name, value in settings.items() if name in _KNOWN}
    for policy in POLICIES:
        if policy.key not in settings:
            continue
        value = settings[policy.key]
        if policy.by_cluster and isinstance(value, dict):
            value = value.get(cluster)
        stored = None if value is None else policy.read(value)
        if stored is None:
            del checked[policy.key]
        else:
            checked[policy.key] = stored
    return checked


#: What Pulsar's namespace policies have, too, in a broker without these features.
_ALWAYS: dict[str, Any] = {
    "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
    "bundles": {
        "boundaries": ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"],
        "numBundles": 4,
    },
    "latency_stats_sample_rate": {},
    "deleted": False,
    "migrated": False,
}


#: The fields of Pulsar's namespace policies. Others in a new namespace's settings are ignored.
_KNOWN = frozenset({*_ALWAYS, *(policy.key for policy in POLICIES)})


def shown_settings(settings: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """A namespace's settings in the format of Pulsar's namespace policies."""
    shown: dict[str, Any] = {
        **_ALWAYS,
        "replication_clusters": [cluster],
        "clusterThatCanDeleteNamespace": cluster,
    }
    for policy in POLICIES:
        stored = settings.get(policy.key)
        value = policy.absent if stored is None else stored
        if policy.by_cluster and stored is not None:
            value = {cluster: stored}
        if value is not None:
            shown.update(dict.fromkeys((policy.key, *policy.shown_as), value))
    known = _KNOWN - {policy.key for policy in POLICIES}
    return shown | {name: each for name, each in settings.items() if name in known}
