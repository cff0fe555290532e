"""The permissions of roles in a namespace: Pulsar's `auth_policies` and `subscription_auth_mode`.

Both are among the namespace's policies, in Pulsar's form::

    "auth_policies": {
        "namespace_auth": {ROLE: [ACTION, ...]},
        "destination_auth": {FULL TOPIC NAME: {ROLE: [ACTION, ...]}},
        "subscription_auth_roles": {SUBSCRIPTION: [ROLE, ...]}
    },
    "subscription_auth_mode": "Prefix"

A list in `subscription_auth_roles` restricts a subscription to these roles; an empty one does not.
The mode `Prefix` asks that a subscription's name begins with its consumer's role.

The functions here take a namespace's policies and return changed ones. They change nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any

from ...records import FactsError
from ..errors import BrokerError

AUTH_POLICIES = "auth_policies"
AUTH_MODE = "subscription_auth_mode"
NAMESPACE, TOPIC, SUBSCRIPTION = "namespace_auth", "destination_auth", "subscription_auth_roles"
PARTS = (NAMESPACE, TOPIC, SUBSCRIPTION)
MODES = ("None", "Prefix")
MAX_NAME_LENGTH = 1_024
#: Permissions of a namespace: roles of the namespace, of its topics and of its subscriptions.
MAX_ROLES = 10_000

Policies = Mapping[str, Any]
Grants = Mapping[str, Collection[str]]


class Action(StrEnum):
    """An action that a permission allows. The order is Pulsar's."""

    PRODUCE = "produce"
    CONSUME = "consume"
    FUNCTIONS = "functions"
    SOURCES = "sources"
    SINKS = "sinks"
    PACKAGES = "packages"


class InvalidPermissionError(FactsError, BrokerError, ValueError, text="{reason}: {value!s:.200}"):
    """A permission that cannot be granted."""

    value: object
    reason: str


# -- asking ---------------------------------------------------------------------------------------


def part_of(policies: Policies, part: str) -> dict[str, Any]:
    """One of the three parts of a namespace's permissions; empty if it has a wrong form."""
    auth = policies.get(AUTH_POLICIES)
    found = auth.get(part) if isinstance(auth, dict) else None
    return found if isinstance(found, dict) else {}


def holds(grants: Grants, role: str, action: Action, *, wildcards: bool) -> bool:
    """Whether a role has an action. With `wildcards` a granted role may be `*X` or `X*`."""
    if action in grants.get(role, ()):
        return True
    return wildcards and any(
        action in actions and _matches(pattern, role) for pattern, actions in grants.items()
    )


def _matches(pattern: str, role: str) -> bool:
    if pattern.startswith("*"):
        return role.endswith(pattern[1:])
    return pattern.endswith("*") and role.startswith(pattern[:-1])


def of_topic(policies: Policies, names: Collection[str]) -> dict[str, list[str]]:
    """The roles and their actions on a topic, as `topics permissions` shows them.

    `names` are the topic's full name and that of its partitioned topic.
    """
    found: dict[str, list[str]] = dict(part_of(policies, NAMESPACE))
    by_topic = part_of(policies, TOPIC)
    for name in dict.fromkeys(names):
        for role, actions in by_topic.get(name, {}).items():
            found[role] = check_actions([*found.get(role, ()), *actions])
    return found


# -- checking -------------------------------------------------------------------------------------


def check_role(role: Any) -> str:
    """The role. Raises InvalidPermissionError."""
    return _text("role", role)


def check_roles(value: Any) -> list[str]:
    """A list of roles, sorted and without doubles. Raises InvalidPermissionError."""
    if not isinstance(value, list) or len(value) > MAX_ROLES:
        raise InvalidPermissionError(value, "must be a list of roles")
    return sorted({check_role(role) for role in value})


def check_actions(value: Any) -> list[str]:
    """Actions in Pulsar's order, without doubles. Raises InvalidPermissionError."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidPermissionError(value, "must be a list of actions")
    for each in value:
        if each not in tuple(Action):
            raise InvalidPermissionError(each, f"not one of the actions {', '.join(Action)}")
    return [action.value for action in Action if action in value]


def check_auth_policies(value: Any) -> dict[str, Any]:
    """All permissions of a namespace, complete. Raises InvalidPermissionError."""
    if not isinstance(value, dict) or set(value) - set(PARTS):
        raise InvalidPermissionError(value, f"auth_policies must have {', '.join(PARTS)} only")
    checked: dict[str, Any] = {part: {} for part in PARTS}
    checked[NAMESPACE] = _grants(value.get(NAMESPACE, {}))
    for topic, grants in _members(value.get(TOPIC, {})):
        checked[TOPIC][_text("topic", topic)] = _grants(grants)
    for name, roles in _members(value.get(SUBSCRIPTION, {})):
        checked[SUBSCRIPTION][_text("subscription", name)] = check_roles(roles)
    _check_count(checked)
    return checked


def _grants(value: Any) -> dict[str, list[str]]:
    return {check_role(role): check_actions(actions) for role, actions in _members(value)}


def _members(value: Any) -> Collection[tuple[Any, Any]]:
    if not isinstance(value, dict):
        raise InvalidPermissionError(value, "must be an object")
    return list(value.items())


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_NAME_LENGTH:
        raise InvalidPermissionError(value, f"the {what} must be a text of 1 to {MAX_NAME_LENGTH}")
    if any(ord(sign) < 32 or 0xD800 <= ord(sign) < 0xE000 for sign in value):
        raise InvalidPermissionError(ascii(value), f"the {what} has characters that are not text")
    return value


def _check_count(auth: Mapping[str, Any]) -> None:
    by_name = [*auth[TOPIC].values(), *auth[SUBSCRIPTION].values()]
    if len(auth[NAMESPACE]) + sum(map(len, by_name)) > MAX_ROLES:
        reason = f"a namespace has at most {MAX_ROLES} permissions"
        raise InvalidPermissionError(len(by_name), reason)


# -- changing -------------------------------------------------------------------------------------


def grant_namespace(policies: Policies, role: str, actions: list[str] | None) -> dict[str, Any]:
    """Give a role exactly these actions in the namespace; None takes all of them away."""
    return _changed(policies, NAMESPACE, role, actions)


def grant_topic(
    policies: Policies, topic: str, role: str, actions: list[str] | None
) -> dict[str, Any]:
    """Give a role exactly these actions on a topic (full name); None takes all of them away."""
    grants = _with(part_of(policies, TOPIC).get(topic, {}), role, actions)
    return _changed(policies, TOPIC, topic, grants or None)


def forget_topic(policies: Policies, topic: str) -> dict[str, Any]:
    """Remove the grants on a topic (full name) that was deleted."""
    return _changed(policies, TOPIC, topic, None)


def grant_subscription(policies: Policies, name: str, roles: list[str]) -> dict[str, Any]:
    """Restrict a subscription to these roles, in place of those before."""
    return _changed(policies, SUBSCRIPTION, name, roles)


def revoke_subscription(policies: Policies, name: str, role: str) -> dict[str, Any]:
    """Take a role out of a subscription's roles. Raises InvalidPermissionError without any."""
    roles = part_of(policies, SUBSCRIPTION).get(name)
    if roles is None:
        raise InvalidPermissionError(name, "couldn't find subscription")
    left = [each for each in roles if each != role]
    return _changed(policies, SUBSCRIPTION, name, left or None)


def _changed(policies: Policies, part: str, key: str, value: Any) -> dict[str, Any]:
    auth = {name: part_of(policies, name) for name in PARTS}
    auth[part] = _with(auth[part], key, value)
    _check_count(auth)
    return {**policies, AUTH_POLICIES: auth}


def _with(members: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    changed = {name: old for name, old in members.items() if name != key}
    if value is not None:
        changed[key] = value
    return changed
