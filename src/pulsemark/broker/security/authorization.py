"""Decides what a client may do, by Pulsar's rules.

    authorizer.allows(principal, need, Target(topic=name, subscription="s"))

Without `authorization_enabled` everything is allowed. With it everything is refused that no rule
allows (`needs` has the rules):

1. A role in `super_user_roles` may do everything.
2. A role in a tenant's `adminRoles` may do everything in that tenant.
3. Other roles may do what their permissions in the namespace, or on the topic or its partitioned
   topic, allow (`permissions`).
4. If another package's provider is configured (`providers`), it is asked after rule 1. Its True and
   False decide; with None the rules above do. If it fails, the operation is refused.
5. A client with a role in `proxy_roles` acts for another role, which it has to name. Both roles
   must be allowed. No other role may name another role, and no proxy may act for a proxy.

Decisions read what is in memory, and hold for the moment. `generation` counts changes that may
have changed a decision; a caller that remembers decisions compares it. `on_change` is called after
each change, so that producers and consumers of roles that lost their permission are closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from ...records import record
from ...wire import TopicName
from ..configuration.security_config import SecurityConfig
from .authentication import Principal
from .needs import LOOKUPS, READS, Need, Scope
from .permissions import AUTH_MODE, NAMESPACE, SUBSCRIPTION, TOPIC, Action, holds, part_of

log = logging.getLogger(__name__)

#: Operations on a namespace that need an action in it: at least one of these.
IN_NAMESPACE: Mapping[str, tuple[Action, ...]] = {
    "GET_TOPIC": (Action.PRODUCE, Action.CONSUME),
    "GET_TOPICS": (Action.PRODUCE, Action.CONSUME),
    "GET_BUNDLE": (Action.PRODUCE, Action.CONSUME),
    "CLEAR_BACKLOG": (Action.CONSUME,),
    "UNSUBSCRIBE": (Action.CONSUME,),
    "TRIM_TOPIC": (Action.CONSUME,),
    "PACKAGES": (Action.PACKAGES,),
}
#: Of these, operations on one subscription of all topics, or on all subscriptions.
OF_SUBSCRIPTIONS = frozenset({"CLEAR_BACKLOG", "UNSUBSCRIBE"})
OF_SUPER_USERS = frozenset({Scope.SUPER, Scope.CLUSTER, Scope.BROKER})


class Policies(Protocol):
    """Tenants and namespaces, as the broker has them in memory."""

    #: Settings of tenants, by name.
    tenants: dict[str, dict[str, Any]]

    def get(self, namespace: str, /) -> dict[str, Any] | None:
        """A namespace's policies, by `tenant/namespace`."""
        ...


@record(frozen=True)
class Target:
    """The object of an operation: a topic, subscription, namespace or tenant."""

    tenant: str = ""
    #: With its tenant: `tenant/namespace`.
    namespace: str = ""
    topic: TopicName | None = None
    subscription: str | None = None

    @classmethod
    def of_topic(cls, topic: TopicName, subscription: str | None = None) -> Target:
        """A topic, and one of its subscriptions."""
        return cls(topic.tenant, topic.namespace, topic, subscription)

    @classmethod
    def of_namespace(cls, namespace: str) -> Target:
        """A namespace."""
        return cls(namespace.partition("/")[0], namespace)


NOTHING = Target()


@runtime_checkable
class AuthorizationProvider(Protocol):
    """Another package's rules of what a role may do."""

    def allows(self, role: str, need: Need, target: Target) -> bool | None:
        """Whether a role may do something; None: Pulsar's rules decide.

        It runs on the event loop and must not block. Super users are not asked about. `need.scope`
        and `need.operation` say what is to be done, `target` with what. A target without `topic`
        in the scope "topic" stands for any topic of the namespace. A connection keeps a decision
        for as long as its producer or consumer exists.
        """
        ...


class Authorizer:
    """The decisions for one broker. Everything runs on the event loop."""

    def __init__(
        self,
        config: SecurityConfig,
        policies: Policies,
        provider: AuthorizationProvider | None = None,
    ) -> None:
        self._provider = provider
        self.is_on = config.authorization_enabled
        self._policies = policies
        self._super_users = frozenset(config.super_user_roles)
        self._proxies = frozenset(config.proxy_roles)
        self._wildcards = config.authorization_allow_wildcards_matching
        #: Counts the changes that may change decisions.
        self.generation = 0
        #: Called after each such change with its namespace; None: any.
        self.on_change: list[Callable[[str | None], None]] = []

    def changed(self, namespace: str | None = None) -> None:
        """Note that permissions, administrators or a namespace's existence changed."""
        self.generation += 1
        if self.is_on:
            for call in self.on_change:
                call(namespace)

    # -- roles ----------------------------------------------------------------------------------

    def is_valid(self, principal: Principal) -> bool:
        """Whether a client may act for the role that it names, if it names one."""
        if principal.role is not None and principal.role in self._proxies:
            original = principal.original_role
            return bool(original and original.strip()) and original not in self._proxies
        return not principal.original_role

    def _all_roles(self, principal: Principal, check: Callable[[str], bool]) -> bool:
        """Whether the check holds for the client, and for the role for which it asks."""
        if principal.role is None or not self.is_valid(principal) or not check(principal.role):
            return False
        return principal.original_role is None or check(principal.original_role)

    # -- decisions ------------------------------------------------------------------------------

    def allows(self, principal: Principal, need: Need, target: Target = NOTHING) -> bool:
        """Whether a client may do something. False, too, for operations that no rule knows."""
        if need.scope is Scope.OPEN or not self.is_on:
            return True
        if need.scope in (Scope.AUTHENTICATED, Scope.OWN):
            return principal.role is not None and self.is_valid(principal)
        return self._all_roles(principal, lambda role: self._allows(role, need, target))

    def _allows(self, role: str, need: Need, target: Target) -> bool:
        if role in self._super_users:
            return True
        decided = self._provided(role, need, target)
        if decided is not None:
            return decided
        if need.scope in OF_SUPER_USERS or not target.tenant:
            return False
        if self._is_admin(role, target.tenant):
            return True
        policies = self._policies.get(target.namespace)
        if policies is None:
            return False
        if need.scope is Scope.NAMESPACE:
            actions = IN_NAMESPACE.get(need.operation, ())
            allowed = self._in_namespace(role, policies, *actions)
            if need.operation in OF_SUBSCRIPTIONS:
                return allowed and _may_use(policies, target.subscription, role)
            return allowed
        if need.scope is Scope.TOPIC and target.topic is not None:
            return self._on_topic(role, need, policies, target.topic, target.subscription)
        return False

    def _provided(self, role: str, need: Need, target: Target) -> bool | None:
        """The decision of another package's provider; None: it has none, or there is no such."""
        if self._provider is None:
            return None
        try:
            decided = self._provider.allows(role, need, target)
        except Exception:
            log.exception("the authorisation provider failed; %s of %s is refused", need, role)
            return False
        return None if decided is None else bool(decided)

    def _is_admin(self, role: str, tenant: str) -> bool:
        settings = self._policies.tenants.get(tenant)
        # A tenant of an earlier version may have anything there.
        admins = settings.get("adminRoles") if settings is not None else None
        return isinstance(admins, list) and role in admins

    def _on_topic(
        self,
        role: str,
        need: Need,
        policies: Mapping[str, Any],
        topic: TopicName,
        subscription: str | None,
    ) -> bool:
        if need.operation == "PRODUCE":
            return self._may(role, Action.PRODUCE, policies, topic)
        if need.operation in LOOKUPS:
            produces = self._may(role, Action.PRODUCE, policies, topic)
            return produces or self._may(role, Action.CONSUME, policies, topic)
        if need.operation not in READS or not self._may(role, Action.CONSUME, policies, topic):
            return False
        if need.all_subscriptions or subscription is not None:
            return _may_use(policies, subscription, role)
        return True

    def _may(
        self, role: str, action: Action, policies: Mapping[str, Any], topic: TopicName
    ) -> bool:
        if self._in_namespace(role, policies, action):
            return True
        by_topic = part_of(policies, TOPIC)
        return bool(by_topic) and any(
            holds(by_topic[name], role, action, wildcards=self._wildcards)
            for name in (str(topic), str(topic.partitioned))
            if name in by_topic
        )

    def _in_namespace(self, role: str, policies: Mapping[str, Any], *actions: Action) -> bool:
        grants = part_of(policies, NAMESPACE)
        return any(holds(grants, role, action, wildcards=self._wildcards) for action in actions)

    def allows_somewhere(
        self, principal: Principal, action: Action, namespace: str, subscription: str | None = None
    ) -> bool:
        """Whether a client has an action in a namespace, or on one of its topics at least."""
        return not self.is_on or self._all_roles(
            principal, lambda role: self._somewhere(role, action, namespace, subscription)
        )

    def _somewhere(
        self, role: str, action: Action, namespace: str, subscription: str | None
    ) -> bool:
        if role in self._super_users:
            return True
        need = Need(Scope.TOPIC, action.value.upper())
        target = Target(namespace.partition("/")[0], namespace, None, subscription)
        decided = self._provided(role, need, target)
        if decided is not None:
            return decided
        if self._is_admin(role, namespace.partition("/")[0]):
            return True
        policies = self._policies.get(namespace)
        if policies is None:
            return False
        grants = (part_of(policies, NAMESPACE), *part_of(policies, TOPIC).values())
        has_action = any(holds(each, role, action, wildcards=self._wildcards) for each in grants)
        allowed = subscription is None or subscription_allows(policies, subscription, role)
        return has_action and allowed


def _may_use(policies: Mapping[str, Any], subscription: str | None, role: str) -> bool:
    """Whether a role may use a subscription; without a name, all of them, whatever their names."""
    if subscription is None and policies.get(AUTH_MODE) == "Prefix":
        return False
    names = part_of(policies, SUBSCRIPTION) if subscription is None else (subscription,)
    return all(subscription_allows(policies, name, role) for name in names)


def subscription_allows(policies: Mapping[str, Any], subscription: str, role: str) -> bool:
    """Whether a subscription's roles, and the namespace's mode, let a role use it."""
    roles = part_of(policies, SUBSCRIPTION).get(subscription)
    if roles and role not in roles:
        return False
    return policies.get(AUTH_MODE) != "Prefix" or subscription.startswith(role)
