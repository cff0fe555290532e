"""The values of a policy at its levels: broker, namespace, topic. The most specific one applies.

Values are stored by a `PolicyStore`, as JSON. A subclass of `Levels` may use a type of its own, and
do something when a value changes. Everything here runs on the event loop; reading is possible from
any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from ...wire import TopicName
from ..configuration.config import BrokerConfig
from .policy import Policy

__all__ = ["Levels", "Policies"]

V = TypeVar("V")


class PolicyStore(Protocol):
    """Where values are kept; `topics.policy_store.PolicyStore` is one."""

    def in_namespace(self, namespace: str, policy: str) -> Any:
        """The value set for a namespace; None if none is set."""

    def in_topic(self, name: TopicName, policy: str) -> Any:
        """The value set for a topic; None if none is set."""

    def policies_of_topic(self, name: TopicName) -> Mapping[str, Any]:
        """All values set for a topic."""

    def owners(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """All namespaces and topics with values."""

    async def set_in_namespace(self, namespace: str, policy: str, value: Any) -> None:
        """Set a namespace's value; None unsets it. Raises RefusedError, LedgerError."""

    async def set_in_topic(self, name: TopicName, policy: str, value: Any) -> None:
        """Set a topic's value; None unsets it. Raises RefusedError, LedgerError."""

    def announce(self, policy: str, concerns: Callable[[TopicName], bool]) -> None:
        """Tell who listens that a policy has changed for the topics that it concerns."""


class Levels(Generic[V]):
    """One policy at all levels."""

    def __init__(self, policy: Policy, default: V, store: PolicyStore) -> None:
        """`default` is the broker's value."""
        self.policy = policy
        self.default = default
        self._store = store

    # -- what a policy with values of another type, or with effects, replaces -------------------

    def parse(self, stored: Any) -> V:
        """The value from its stored JSON."""
        value: V = stored
        return value

    def show(self, value: V) -> Any:
        """The value's JSON, as it is stored."""
        return value

    async def changed_in_namespace(self, namespace: str) -> None:
        """A namespace's value has changed."""

    async def changed_in_topic(self, name: TopicName) -> None:
        """A topic's value has changed; it holds for the topic's partitions, too."""

    # -- asking ---------------------------------------------------------------------------------

    def of_namespace(self, namespace: str) -> V | None:
        """The value set for a namespace; None if none is set."""
        stored = self._store.in_namespace(namespace, self.policy.key)
        return None if stored is None else self.parse(stored)

    def of_topic(self, name: TopicName, *, is_global: bool = False) -> V | None:
        """The value set for a topic; None if none is set.

        A topic may have a second, global value (PIP-92). It applies if the first one is not set.
        """
        stored = self._store.in_topic(name, self._key(is_global))
        return None if stored is None else self.parse(stored)

    def _key(self, is_global: bool) -> str:
        return f"global:{self.policy.key}" if is_global else self.policy.key

    def default_of(self, name: TopicName) -> V:
        """The broker's value for a topic."""
        return self.default

    def applied(self, name: TopicName) -> V:
        """The value that applies to a topic."""
        policies = self._store.policies_of_topic(name)
        key = self.policy.key
        stored = policies.get(key)
        if stored is None:
            stored = policies.get(f"global:{key}")
        if stored is None:
            stored = self._store.in_namespace(name.namespace, key)
        return self.default_of(name) if stored is None else self.parse(stored)

    # -- changing -------------------------------------------------------------------------------

    async def set_for_namespace(self, namespace: str, value: V | None) -> None:
        """Set a namespace's value; None unsets it. Raises `RefusedError`, `LedgerError`."""
        stored = None if value is None else self.show(value)
        await self._store.set_in_namespace(namespace, self.policy.key, stored)
        await self.changed_in_namespace(namespace)

    async def set_for_topic(
        self, name: TopicName, value: V | None, *, is_global: bool = False
    ) -> None:
        """Set a topic's value, not a partition's; None unsets it.

        Raises `RefusedError` if the topic does not exist, and `LedgerError`.
        """
        stored = None if value is None else self.show(value)
        await self._store.set_in_topic(name, self._key(is_global), stored)
        await self.changed_in_topic(name)


class Policies:
    """All policies of one broker, each with its levels."""

    def __init__(
        self, policies: Iterable[Policy], config: BrokerConfig, store: PolicyStore
    ) -> None:
        self.store = store
        self._levels: dict[str, Levels[Any]] = {
            policy.key: Levels(policy, policy.default(config), store) for policy in policies
        }

    def __getitem__(self, policy: Policy) -> Levels[Any]:
        return self._levels[policy.key]

    def use(self, *levels: Levels[Any]) -> None:
        """Use these levels for their policies, whose values have a type or effects of their own."""
        self._levels.update((each.policy.key, each) for each in levels)

    def use_defaults(self, config: BrokerConfig) -> None:
        """Use another configuration's values where no namespace and no topic has one."""
        for key, levels in self._levels.items():
            # Levels with a type or effects of their own keep the value of the broker's start.
            if type(levels) is not Levels:
                continue
            default = levels.policy.default(config)
            if default != levels.default:
                levels.default = default
                self.store.announce(key, lambda _: True)

    def applied(self, name: TopicName, policy: Policy) -> Any:
        """The value that applies to a topic."""
        return self._levels[policy.key].applied(name)

    def is_used(self, policy: Policy) -> bool:
        """Whether the broker, a namespace or a topic has a value that is not 0, false or empty."""
        settings = (values for _, values in self.store.owners())
        default = self._levels[policy.key].default
        keys = (policy.key, f"global:{policy.key}")
        return bool(default) or any(values.get(key) for values in settings for key in keys)
