"""Policies about schemas. `topics/schemas.py` goes by them."""

from __future__ import annotations

from typing import Any

from ..configuration.policy_defaults import CHOICES
from .policy import Place, Policy
from .values import any_of, boolean

__all__ = [
    "ALLOWS_AUTO_UPDATE",
    "AUTO_UPDATE_STRATEGY",
    "COMPATIBILITY_STRATEGY",
    "SCHEMA_RULES",
    "STRATEGIES",
    "VALIDATION_ENFORCED",
]

#: In the order of Pulsar's enumeration: a number in JSON chooses one.
STRATEGIES = ("UNDEFINED", *CHOICES["schema_compatibility_strategy"])
AUTO_UPDATE_STRATEGIES = (
    "AutoUpdateDisabled",
    "Backward",
    "Forward",
    "Full",
    "AlwaysCompatible",
    "BackwardTransitive",
    "ForwardTransitive",
    "FullTransitive",
)
_strategy = any_of(*STRATEGIES)
_update_strategy = any_of(*AUTO_UPDATE_STRATEGIES)


def _read_strategy(value: Any) -> str | None:
    found = _strategy("schemaCompatibilityStrategy", value)
    return None if found == "UNDEFINED" else found


COMPATIBILITY_STRATEGY = Policy(
    name="schemaCompatibilityStrategy",
    key="schema_compatibility_strategy",
    what="which new schemas are compatible with a topic's earlier ones",
    read=_read_strategy,
    default=lambda config: config.schema_compatibility_strategy,
    namespace=Place(
        "schemaCompatibilityStrategy",
        "PUT",
        empty="removes",
        unset="UNDEFINED",
        is_removable=False,
    ),
    topic=Place("schemaCompatibilityStrategy", "PUT", empty="removes", has_global=False),
    absent="UNDEFINED",
)
AUTO_UPDATE_STRATEGY = Policy(
    name="schemaAutoUpdateCompatibilityStrategy",
    key="schema_auto_update_compatibility_strategy",
    what="the older form of schemaCompatibilityStrategy, which counts if that is not set",
    read=lambda value: _update_strategy("schemaAutoUpdateCompatibilityStrategy", value),
    default=lambda config: None,
    namespace=Place(
        "schemaAutoUpdateCompatibilityStrategy",
        "PUT",
        empty="removes",
        unset_status=204,
        is_removable=False,
    ),
    topic=None,
)
ALLOWS_AUTO_UPDATE = Policy(
    name="isAllowAutoUpdateSchema",
    key="is_allow_auto_update_schema",
    what="whether producers and consumers may add a schema",
    read=lambda value: boolean("isAllowAutoUpdateSchema", value),
    default=lambda config: config.is_allow_auto_update_schema_enabled,
    namespace=Place("isAllowAutoUpdateSchema", unset=True, is_removable=False),
    topic=None,
    absent=True,
)
VALIDATION_ENFORCED = Policy(
    name="schemaValidationEnforced",
    key="schema_validation_enforced",
    what="whether producers without a schema are refused on a topic that has one",
    read=lambda value: boolean("schemaValidationEnforced", value),
    default=lambda config: config.is_schema_validation_enforced,
    namespace=Place("schemaValidationEnforced", unset=False, is_removable=False),
    topic=Place("schemaValidationEnforced", unset=False, is_removable=False, has_global=False),
    absent=False,
)
SCHEMA_RULES = (
    COMPATIBILITY_STRATEGY,
    AUTO_UPDATE_STRATEGY,
    ALLOWS_AUTO_UPDATE,
    VALIDATION_ENFORCED,
)
