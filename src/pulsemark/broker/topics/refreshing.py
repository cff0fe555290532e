"""Shows what other brokers of a cluster have changed in the settings that all share.

Each part of the registry keeps a copy in memory of what the catalog has. This broker's own changes
go through `CatalogWriter` and are shown by their parts; those of others arrive here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ...ledger.store import NAMESPACE_KIND, PARTITIONED_KIND, TENANT_KIND
from .partitioned_topics import RETIRED_KIND
from .policy_store import TOPIC_POLICY_KIND
from .schemas import STORED_KINDS
from .topic_marks import EPOCH_KIND, TERMINATED_KIND

if TYPE_CHECKING:
    from .registry import Topics
    from .schemas import Schemas

__all__ = ["TOPIC_KIND", "Refreshing"]

TOPIC_KIND = "topic"
"""Kind of the values, by full name, that say which topics a cluster has."""


class Refreshing:
    """Brings changes of the shared catalog into one broker's registry. On the event loop."""

    def __init__(self, topics: Topics, schemas: Schemas) -> None:
        self._topics = topics
        partitioned = topics.partitioned
        self._takers: dict[str, Callable[[str, bytes | None], None]] = {
            TENANT_KIND: partial(topics.namespaces.take, TENANT_KIND),
            NAMESPACE_KIND: self._namespace,
            TOPIC_KIND: self._topic,
            PARTITIONED_KIND: partial(partitioned.take, PARTITIONED_KIND),
            RETIRED_KIND: partial(partitioned.take, RETIRED_KIND),
            TOPIC_POLICY_KIND: topics.policy_store.take,
            EPOCH_KIND: partial(topics.marks.take, EPOCH_KIND),
            TERMINATED_KIND: partial(topics.marks.take, TERMINATED_KIND),
            **dict.fromkeys(STORED_KINDS, lambda key, value: schemas.take(key)),
        }

    def changed(self, kind: str, key: str, value: bytes | None) -> None:
        """Another broker has stored this value, or removed it (None)."""
        taker = self._takers.get(kind)
        if taker is not None:
            taker(key, value)

    def _namespace(self, namespace: str, value: bytes | None) -> None:
        topics = self._topics
        before = topics.namespaces.get(namespace, {})
        topics.namespaces.take(NAMESPACE_KIND, namespace, value)
        after = topics.namespaces.get(namespace, {})
        topics.policy_store.took_namespace(namespace, before, after)

    def _topic(self, full: str, value: bytes | None) -> None:
        if value is None:
            self._topics.names.discard(full)
        else:
            self._topics.names.add(full)
