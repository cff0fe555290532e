"""Which rules hold for the schemas of a topic: its own, its namespace's, or the broker's.

The keys are those under which the policies are stored.
"""

from __future__ import annotations

from typing import Any

from ...wire import TopicName
from ..configuration.config import BrokerConfig
from .policy_store import PolicyStore

__all__ = ["SchemaRules"]

STRATEGY = "schema_compatibility_strategy"
OLD_STRATEGY = "schema_auto_update_compatibility_strategy"
ALLOWS_UPDATE = "is_allow_auto_update_schema"
ENFORCED = "schema_validation_enforced"
#: The strategy that the older policy means, by its value.
OF_OLD = {
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE",
    "Backward": "BACKWARD",
    "Forward": "FORWARD",
    "Full": "FULL",
    "AlwaysCompatible": "ALWAYS_COMPATIBLE",
    "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE",
    "FullTransitive": "FULL_TRANSITIVE",
}
UNDEFINED = "UNDEFINED"


class SchemaRules:
    """The rules for the schemas of any topic, as they are now."""

    def __init__(self, config: BrokerConfig, store: PolicyStore) -> None:
        self._config = config
        self._store = store

    def strategy(self, name: TopicName) -> str:
        """The compatibility strategy, one of `policies.schema_rules.STRATEGIES`."""
        namespace = name.namespace
        for found in (
            self._store.in_topic(name, STRATEGY),
            self._store.in_namespace(namespace, STRATEGY),
            OF_OLD.get(self._store.in_namespace(namespace, OLD_STRATEGY) or ""),
            self._config.schema_compatibility_strategy,
        ):
            if found is not None and found != UNDEFINED:
                return str(found)
        return "FULL"

    def allows_update(self, name: TopicName) -> bool:
        """Whether a producer or consumer may add a schema."""
        return bool(
            self._set(name, ALLOWS_UPDATE, self._config.is_allow_auto_update_schema_enabled)
        )

    def is_enforced(self, name: TopicName) -> bool:
        """Whether a producer needs a schema where the topic has one."""
        return self._config.is_schema_validation_enforced or bool(self._set(name, ENFORCED, False))

    def _set(self, name: TopicName, key: str, default: bool) -> Any:
        for found in (
            self._store.in_topic(name, key),
            self._store.in_namespace(name.namespace, key),
        ):
            if found is not None:
                return found
        return default
