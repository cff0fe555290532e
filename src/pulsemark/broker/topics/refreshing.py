"""Keeps a broker in step with the others of a cluster: their changes, and topics given away.

Each part of the registry keeps a copy in memory of what the catalog has. This broker's own changes
go through `CatalogWriter` and are shown by their parts; those of others arrive here.

A topic that is given away is closed so that another broker can serve it. Clients are disconnected
as by an unload: they look the topic up again. What was appended before gets its receipts, and the
cursors are durable before the next owner reads them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ...ledger import LedgerError
from ...ledger.store import NAMESPACE_KIND, PARTITIONED_KIND, TENANT_KIND
from ...wire import TopicName
from ..errors import RefusedError
from ..storage import durable
from .partitioned_topics import RETIRED_KIND
from .policy_store import TOPIC_POLICY_KIND
from .schemas import STORED_KINDS
from .topic_marks import EPOCH_KIND, TERMINATED_KIND

if TYPE_CHECKING:
    from .registry import Topics
    from .schemas import Schemas
    from .topic import Topic


log = logging.getLogger(__name__)

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


async def unload(
    topics: Topics, belongs: Callable[[TopicName], bool], *, is_lost: bool = False
) -> int:
    """Close the open topics that belong to it, and return how many there were.

    `Topics.check_owned` must refuse them already. Those that are being opened just now are waited
    for: each holds the lock of its name. `is_lost`: another broker owns them already, so nothing
    can be stored any more.
    """
    count = 0
    for name in dict.fromkeys((*topics.open_topics, *topics.locks.names())):
        if belongs(TopicName.parse(name)):
            async with topics.locks.held(name):
                topic = topics.open_topics.get(name)
                if topic is not None:
                    await _close(topics, topic, is_lost=is_lost)
                    count += 1
    for other in tuple(topics.non_persistent.open_topics.values()):
        if belongs(other.topic_name):
            await topics.turns.work(topics.non_persistent.remove(other.topic_name, force=True))
            count += 1
    return count


async def _close(topics: Topics, topic: Topic, *, is_lost: bool) -> None:
    if not is_lost:
        for subscription in tuple(topic.subscriptions.values()):
            subscription.work.finish()
    notifying = topics.close_topic(topic)
    if not is_lost:
        await _store_cursors(topic)
    await topics.turns.work(notifying)
    await topic.producers.settled()


async def _store_cursors(topic: Topic) -> None:
    """The last of its cursors' commits is after all appends, so these are durable, too."""
    for cursor in tuple(topic.ledger.cursors.values()):
        if cursor.durable:
            try:
                await durable(cursor.persist())
            except (RefusedError, LedgerError) as error:
                log.warning(
                    "%s: a cursor was not stored; acknowledged messages may be delivered again: %s",
                    topic.name,
                    error,
                )
