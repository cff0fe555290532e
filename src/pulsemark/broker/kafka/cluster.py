"""The cluster's brokers for the Kafka endpoint: who leads a partition, who coordinates groups.

A partition's leader is the broker that owns its bundle. Groups go with the log of their offsets,
which has a bundle by its name, as topics have. A bundle without an owner is taken over by the
broker that a client is sent to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ...kafka.ports import NO_NODE, Node
from ...wire import TopicName
from ..cooperative import Background
from ..errors import RefusedError

if TYPE_CHECKING:
    from ..ownership import Cluster

__all__ = ["BrokerCluster"]

log = logging.getLogger(__name__)


class BrokerCluster:
    """`ClusterPort` over the broker's cluster."""

    def __init__(
        self,
        cluster: Cluster,
        journal: TopicName,
        partition: Callable[[str, int], TopicName | None],
    ) -> None:
        """`journal`: the log of offsets; `partition` names a topic's partition."""
        self._cluster = cluster
        self._journal = journal
        self._partition = partition
        self._background = Background()
        self._offering: asyncio.Task[None] | None = None
        self._known: dict[int, Node] = {}

    @property
    def node_id(self) -> int:
        """This broker's number."""
        return self._cluster.kafka_node

    async def nodes(self) -> Mapping[int, Node]:
        """The brokers with a Kafka port, by number; those known before if there is no answer."""
        try:
            places = await self._cluster.kafka_places()
        except RefusedError as refusal:
            log.info("brokers are not known: %s", refusal.message)
        else:
            self._known = {
                one.node_id: Node(one.node_id, one.host, one.port, one.tls_port)
                for one in places.values()
            }
        return self._known

    async def leaders(self, topic: str, count: int) -> list[int]:
        """The number of each partition's leader."""
        found: dict[str, int] = {}
        leaders = []
        for index in range(count):
            name = self._partition(topic, index)
            if name is None:
                leaders.append(NO_NODE)
                continue
            bundle = self._cluster.bundle_of(name)
            if bundle not in found:
                found[bundle] = await self._leader_of(name)
            leaders.append(found[bundle])
        return leaders

    async def _leader_of(self, name: TopicName) -> int:
        try:
            broker = await self._cluster.likely_owner(name)
            if broker is None:
                return NO_NODE
            place = (await self._cluster.kafka_places()).get(broker)
        except RefusedError as refusal:
            log.debug("%s: its leader is not known: %s", name, refusal.message)
            return NO_NODE
        return NO_NODE if place is None else place.node_id

    async def coordinator(self) -> int:
        """The number of the broker that coordinates groups."""
        return await self._leader_of(self._journal)

    def coordinates(self) -> bool:
        """Whether this broker coordinates groups."""
        return self._cluster.owns(self._journal)

    def offer(self) -> None:
        """Begin to coordinate groups if no broker does."""
        if self._offering is None or self._offering.done():
            self._offering = self._background.start(self._offer())

    async def _offer(self) -> None:
        try:
            await self._cluster.serve(self._journal)
        except RefusedError as refusal:
            log.debug("groups are not coordinated here: %s", refusal.message)

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change of what this broker owns, and now."""
        self._cluster.follow(changed)
        changed()
