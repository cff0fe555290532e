"""Stores the policies of namespaces and topics.

A policy is a value with a name. In the catalog, the policies of a namespace are among its settings,
and those of a topic are under the kind `topic-policy`, by the topic's full name. Partitions have no
own policies: those of the partitioned topic apply.

The caller checks a change, this module makes it durable, and only then calls the listeners with the
topics that the change concerns.

Everything here runs on the event loop, except `load`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...proto.pulsar_api_pb2 import ServerError
from ...wire import TopicName
from ..errors import RefusedError
from .catalog_writer import CatalogWriter

if TYPE_CHECKING:
    from ...ledger.store import MetadataStore
    from .namespaces import Namespaces
    from .partitioned_topics import PartitionedTopics
    from .topic_names import TopicNames

__all__ = ["TOPIC_POLICY_KIND", "Concerns", "PolicyStore", "stored_policies"]

TOPIC_POLICY_KIND = "topic-policy"

_NO_POLICIES: Mapping[str, Any] = {}

Concerns = Callable[[TopicName], bool]
"""Whether a change concerns a topic."""


class PolicyStore:
    """The policies of one registry's namespaces and topics."""

    def __init__(
        self,
        namespaces: Namespaces,
        names: TopicNames,
        partitioned: PartitionedTopics,
        writer: CatalogWriter,
    ) -> None:
        self._namespaces = namespaces
        self._names = names
        self._partitioned = partitioned
        self._writer = writer
        #: Settings of topics by full name; those of partitions are the partitioned topic's.
        self.of_topics: dict[str, dict[str, Any]] = {}
        #: Called after each change with the policy's name and the topics that it concerns.
        self.listeners: list[Callable[[str, Concerns], None]] = []
        #: Called with the policy's name and the topic, in the same turn as the change.
        self.of_topic_changed: list[Callable[[str, TopicName], None]] = []

    def _exists(self, name: TopicName) -> bool:
        return str(name) in self._names or name in self._partitioned

    def load(self, catalog: MetadataStore) -> None:
        """Read the policies from the catalog. Blocks."""
        for name, value in catalog.items(TOPIC_POLICY_KIND):
            if self._exists(TopicName.parse(name)):
                self.of_topics[name] = json.loads(value)
            else:
                # Left by a crash while the topic was being deleted.
                catalog.delete(TOPIC_POLICY_KIND, name)

    # -- asking ---------------------------------------------------------------------------------

    def in_namespace(self, namespace: str, policy: str) -> Any:
        """The policy set for a namespace; None if none is set."""
        return self._namespaces.get(namespace, {}).get(policy)

    def in_topic(self, name: TopicName, policy: str) -> Any:
        """The policy set for a topic; None if none is set."""
        return self.of_topics.get(str(name.partitioned), {}).get(policy)

    def policies_of_topic(self, name: TopicName) -> Mapping[str, Any]:
        """All policies set for a topic; those of a partition are the partitioned topic's."""
        return self.of_topics.get(str(name.partitioned), _NO_POLICIES)

    def owners(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """A copy of all namespaces and topics with their settings. Call it from any thread."""
        return (*self._namespaces.snapshot(), *tuple(self.of_topics.items()))

    def is_set(self, policy: str) -> bool:
        """Whether any namespace or topic has a value of this policy."""
        keys = (policy, f"global:{policy}")
        return any(key in values for _, values in self.owners() for key in keys)

    # -- changing -------------------------------------------------------------------------------

    async def set_in_namespace(self, namespace: str, policy: str, value: Any) -> None:
        """Set a namespace's policy; None unsets it. Raises `RefusedError`, `LedgerError`."""
        await self._namespaces.change(namespace, lambda old: _with(old, policy, value))
        self.announce(policy, lambda name: name.namespace == namespace)

    async def set_in_topic(self, name: TopicName, policy: str, value: Any) -> None:
        """Set a topic's policy, not a partition's; None unsets it.

        Raises `RefusedError` if the topic does not exist, and `LedgerError`.
        """
        await self.change_in_topic(name, {policy: value})

    async def change_in_topic(self, name: TopicName, changes: Mapping[str, Any]) -> None:
        """As `set_in_topic`, for several policies at once."""
        await self._writer.revising(lambda: self._change(name, changes))

    async def revise_in_topic(
        self, name: TopicName, policy: str, revise: Callable[[Any], Any]
    ) -> None:
        """Set a topic's policy to what `revise` makes of its value, which may be None.

        Revisions at once are made one after the other. Raises as `set_in_topic`, and as `revise`.
        """
        await self._writer.revising(
            lambda: self._change(name, {policy: revise(self.in_topic(name, policy))})
        )

    async def _change(self, name: TopicName, changes: Mapping[str, Any]) -> None:
        if not self._exists(name):
            raise RefusedError(ServerError.TopicNotFound, f"Topic {name} not found")
        full = str(name)
        settings = self.of_topics.get(full, {})
        for policy, value in changes.items():
            settings = _with(settings, policy, value)
        await self._writer.write((TOPIC_POLICY_KIND, full, stored_policies(settings)))
        self.show(name, settings)
        for policy in changes:
            for changed in self.of_topic_changed:
                changed(policy, name)
            self.announce(policy, lambda other: other.partitioned == name)

    def show(self, name: TopicName, settings: dict[str, Any]) -> None:
        """Show a topic's new settings; empty settings are removed."""
        if settings:
            self.of_topics[str(name)] = settings
        else:
            self.of_topics.pop(str(name), None)

    def take(self, full: str, value: bytes | None) -> None:
        """Show the policies of a topic that another broker has stored; None: it has none now."""
        name = TopicName.parse(full)
        before, after = self.of_topics.get(full, {}), {} if value is None else json.loads(value)
        self.show(name, after)
        for policy in _differing(before, after):
            for changed in self.of_topic_changed:
                changed(policy, name)
            self.announce(policy, lambda other: other.partitioned == name)

    def took_namespace(
        self, namespace: str, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> None:
        """Another broker has changed a namespace's policies, which are shown already."""
        for policy in _differing(before, after):
            self.announce(policy, lambda name: name.namespace == namespace)

    async def forget(self, name: TopicName) -> None:
        """Forget the policies of a deleted topic; a partition has none."""
        await self._writer.in_turn(lambda: self._forget(name))

    async def _forget(self, name: TopicName) -> None:
        settings = self.of_topics.get(str(name))
        if settings is not None:
            await self._writer.write((TOPIC_POLICY_KIND, str(name), None))
        self.show(name, {})
        for policy in settings or ():
            # A producer may have created the topic again already.
            for changed in self.of_topic_changed:
                changed(policy, name)
            self.announce(policy, lambda other: other.partitioned == name)

    def announce(self, policy: str, concerns: Concerns) -> None:
        """Tell the listeners that a policy has another value for the topics that it concerns."""
        for listener in self.listeners:
            listener(policy, concerns)


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return [key for key in {**before, **after} if before.get(key) != after.get(key)]


def stored_policies(settings: Mapping[str, Any]) -> bytes | None:
    """A topic's policies as the catalog has them; None without any."""
    return json.dumps(settings, sort_keys=True).encode() if settings else None


def _with(settings: dict[str, Any], policy: str, value: Any) -> dict[str, Any]:
    """The settings with the policy set, or without it."""
    changed = {name: old for name, old in settings.items() if name != policy}
    if value is not None:
        changed[policy] = value
    return changed
