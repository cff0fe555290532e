"""The policy `mirrorSources`: from which clusters a topic accepts mirrors.

Its value is a list of cluster names; "*" allows every cluster, and an empty list none. It can be
set for a topic (with all of its partitions), for a namespace, and in the broker's configuration
(`mirror_sources`); the most specific one that is set applies. A change holds for the next entry
that a mirror sends.
"""

from __future__ import annotations

from typing import Any

from ...metadata.source_stamp import CLUSTER_SIZE_MAX_BYTES
from ...wire import TopicName
from ..errors import BrokerError
from .policy_store import PolicyStore

__all__ = ["MIRROR_SOURCES", "InvalidSourcesError", "MirrorPolicies", "check_sources"]

MIRROR_SOURCES = "mirrorSources"
MAX_SOURCES = 100


class InvalidSourcesError(BrokerError, ValueError):
    """A value that the policy cannot have: `value`, with the `reason`."""

    def __init__(self, value: object, reason: str) -> None:
        super().__init__(f"{MIRROR_SOURCES}: {reason}")
        self.value = value
        self.reason = reason


def check_sources(value: Any) -> list[str]:
    """The policy's value, sorted and without doubles. Raises `InvalidSourcesError`."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidSourcesError(value, "must be a list of cluster names")
    if len(value) > MAX_SOURCES:
        raise InvalidSourcesError(value, f"{len(value)} clusters; at most {MAX_SOURCES}")
    for name in value:
        if not 0 < len(name.encode(errors="replace")) <= CLUSTER_SIZE_MAX_BYTES:
            reason = f"{name[:40]!r} must have 1 to {CLUSTER_SIZE_MAX_BYTES} bytes"
            raise InvalidSourcesError(value, reason)
    return sorted(set(value))


class MirrorPolicies:
    """The policy at all levels. Everything runs on the event loop."""

    def __init__(self, default: tuple[str, ...], store: PolicyStore) -> None:
        self.default = tuple(default)
        self._store = store

    def of_namespace(self, namespace: str) -> list[str] | None:
        """The value set for a namespace; None if none is set."""
        found: list[str] | None = self._store.in_namespace(namespace, MIRROR_SOURCES)
        return found

    def of_topic(self, name: TopicName) -> list[str] | None:
        """The value set for a topic; None if none is set."""
        found: list[str] | None = self._store.in_topic(name, MIRROR_SOURCES)
        return found

    def applied(self, name: TopicName) -> list[str]:
        """The value that applies to a topic."""
        for found in (self.of_topic(name), self.of_namespace(name.namespace)):
            if found is not None:
                return found
        return list(self.default)

    def sources_of(self, name: TopicName) -> frozenset[str]:
        """The clusters from which a topic accepts mirrors."""
        return frozenset(self.applied(name))

    async def set_for_namespace(self, namespace: str, value: list[str] | None) -> None:
        """Set a namespace's value; None unsets it. Raises `RefusedError`, `LedgerError`."""
        await self._store.set_in_namespace(namespace, MIRROR_SOURCES, value)

    async def set_for_topic(self, name: TopicName, value: list[str] | None) -> None:
        """Set a topic's value, not a partition's; None unsets it.

        Raises `RefusedError` if the topic does not exist, and `LedgerError`.
        """
        await self._store.set_in_topic(name, MIRROR_SOURCES, value)
