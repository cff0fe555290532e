"""Creation of topics: which ones are created when clients use them, and how that is stored.

Each change of the catalog is a synced transaction. A client that opens thousands of topics would
wait for thousands of them; names that arrive during one transaction share the next one
(`Additions`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ...ledger import LedgerError
from ...proto.pulsar_api_pb2 import ServerError
from ...wire import TopicName
from ..errors import LimitReachedError
from ..policies.pulsar_policies import AUTO_TOPIC_CREATION, MAX_TOPICS
from ..storage import Storage

if TYPE_CHECKING:
    from .registry import Topics

__all__ = ["Additions", "check_room", "creates", "is_beyond_partitions", "partitions_created"]

log = logging.getLogger(__name__)

MAX_AT_ONCE = 1_000


def creates(topics: Topics, name: TopicName) -> bool:
    """Whether a topic is created when a client produces to it or subscribes."""
    return bool(topics.policies.applied(name, AUTO_TOPIC_CREATION)["allowAutoTopicCreation"])


def partitions_created(topics: Topics, name: TopicName) -> int:
    """With how many partitions a topic is created when a client uses it; 0: without partitions."""
    policy = topics.policies.applied(name, AUTO_TOPIC_CREATION)
    if name.partition_index >= 0 or policy.get("topicType") != "partitioned":
        return 0
    return int(policy.get("defaultNumPartitions") or 1)


def is_beyond_partitions(topics: Topics, name: TopicName) -> bool:
    """Whether this names a partition that its partitioned topic does not have."""
    count = topics.partitions_of(name.partitioned)
    return bool(count) and name.partition_index >= count


def check_room(topics: Topics, namespace: str, more: int) -> None:
    """Raise `LimitReachedError` if a namespace may not have so many more topics."""
    levels = topics.policies[MAX_TOPICS]
    most = levels.of_namespace(namespace)
    most = levels.default if most is None else most
    if most and topics.names.count_of(namespace) + more > most:
        reason = "Exceed maximum number of topics in namespace."
        raise LimitReachedError(ServerError.NotAllowedError, reason)


class Additions:
    """The topics that are being created."""

    def __init__(self, store: Storage, run_blocking: Callable[..., Awaitable[Any]]) -> None:
        self._store = store
        self._run_blocking = run_blocking
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._running: asyncio.Task[None] | None = None

    async def add(self, name: str) -> None:
        """Return when the topic is in the catalog, or could not be created.

        Opening it tries again if it is not there, and reports what is wrong.
        """
        if name not in self._waiting:
            self._waiting[name] = asyncio.get_running_loop().create_future()
        waiting = self._waiting[name]
        if self._running is None:
            self._running = asyncio.ensure_future(self._run())
        await asyncio.shield(waiting)

    async def _run(self) -> None:
        try:
            while self._waiting:
                names = list(self._waiting)[:MAX_AT_ONCE]
                taken = [self._waiting.pop(name) for name in names]
                try:
                    await self._run_blocking(self._store.add_topics, names)
                except (LedgerError, OSError):
                    pass  # opening each of them says what is wrong
                except Exception:
                    log.exception("%d topics could not be created together", len(names))
                finally:
                    for waiting in taken:
                        waiting.set_result(None)
        finally:
            self._running = None
