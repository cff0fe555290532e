"""The brokers that run, and their leader: ephemeral nodes, as in Pulsar.

/loadbalance/brokers/HOST:PORT   the broker's URLs, and the bundles that it owns
/loadbalance/leader              the broker that chooses owners

A broker's addresses for Kafka's clients are kept for a while after it has gone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .. import coordination
from ..broker.ownership import NO_GRPC, Found, GrpcPlace, KafkaPlace, Registered

if TYPE_CHECKING:
    from ..broker.connection.services import Services

log = logging.getLogger(__name__)


# The numbers that brokers have in Kafka's protocol.
#
# A worker's number is its own plus 1. Other brokers get theirs when they first join, and keep it:
# the shared catalog has them all in one value, by the brokers' ids.


KIND, KEY = "kafka", "node-ids"
KEPT_NUMBERS = 1_000
"""So many brokers' numbers are remembered; those that joined first are forgotten."""


async def kafka_node_id(services: Services, broker_id: str, worker: int | None) -> int:
    """This broker's number in Kafka's protocol. Raises CatalogError."""
    if worker is not None:
        return worker + 1
    writer = services.topics.catalog_writer

    async def take() -> int:
        stored = await writer.read(KIND, KEY)
        numbers: dict[str, int] = {} if stored is None else json.loads(stored)
        if broker_id not in numbers:
            numbers[broker_id] = max(numbers.values(), default=0) + 1
            kept = dict(list(numbers.items())[-KEPT_NUMBERS:])
            await writer.write((KIND, KEY, json.dumps(kept).encode()))
        return numbers[broker_id]

    return await writer.revising(take)


SECRET_KEY = "inner-calls"  # noqa: S105 - where it is kept


async def inner_secret(services: Services) -> bytes:
    """The secret that signs the brokers' calls to each other. Raises CatalogError."""
    writer = services.topics.catalog_writer

    async def take() -> bytes:
        secret = await writer.read(KIND, SECRET_KEY)
        if secret is None:
            secret = os.urandom(32)
            await writer.write((KIND, SECRET_KEY, secret))
        return secret

    return await writer.revising(take)


BROKERS = "/loadbalance/brokers"
LEADER = "/loadbalance/leader"
KAFKA = "/pulsemark/kafka"
"""Below it are the places of brokers with a Kafka port, by number: those that run or have gone."""
#: How long Kafka's clients are told of a broker that has gone, as by Kafka
#: (broker.session.timeout.ms). Those with librdkafka 2.10 and newer may never find a coordinator or
#: leader again that was missing once.
GONE_NAMED_S = 9.0
#: Names in the nodes (Pulsar's LocalBrokerData) and what they are in `Found`.
FIELDS = {
    "pulsarServiceUrl": "service_url",
    "pulsarServiceUrlTls": "service_url_tls",
    "webServiceUrl": "http_url",
    "webServiceUrlTls": "http_url_tls",
}
#: How long after a request without an answer the next attempt is made.
AGAIN_S = 0.5
#: How long a broker's node of another session may stay; its last run's session ends before.
LEFT_LIMIT_S = 30.0
LOOK_S = 0.1

OTHER_BROKER = "another broker runs that advertises the same address"


class Registration:
    """This broker's nodes, and its view of the other brokers. On the event loop."""

    def __init__(self, session: coordination.Coordination, me: Found, worker: int | None) -> None:
        self.me = me
        self._session = session
        self._worker = worker
        self._bundles: tuple[str, ...] = ()
        self._changing = asyncio.Lock()
        self._watches: list[coordination.Watch] = []
        self._electing: asyncio.Task[None] | None = None
        self.is_leader = False
        self._is_over = False
        #: This broker's address for Kafka's clients; None: it has none.
        self.kafka: KafkaPlace | None = None
        #: When a broker was found to have gone, by the name and version of its node in `KAFKA`.
        self._gone_since_s: dict[tuple[str, int], float] = {}
        #: The address of its seek service.
        self.grpc = NO_GRPC

    @property
    def _path(self) -> str:
        return f"{BROKERS}/{self.me.broker_id}"

    async def register(self) -> None:
        """Make this broker known, and take part in the election. Raises CoordinationError.

        Waits for the end of the session of this broker's last run, which may have left a node. A
        node that stays belongs to another broker: NodeExistsError.
        """
        await self._wait_for_last_run()
        if self.kafka is not None:
            place = json.dumps(asdict(self.kafka)).encode()
            await self._put(f"{KAFKA}/{self.kafka.node_id}", place)
        await self._put_me()
        if not self._watches:
            self._watches.append(await self._session.watch(LEADER, self._leader_changed))
        await self._elect()

    async def again(self) -> None:
        """Create the nodes again in a new session. Returns once they are there.

        It retries by itself: a failed request need not change the session's state, which would call
        this again.
        """
        self.is_leader = False
        await self._until_done(self.register, f"{self.me.broker_id} is not registered yet")

    async def _until_done(self, work: Callable[[], Awaitable[None]], what: str) -> None:
        while not self._is_over:
            try:
                await work()
                return
            except coordination.CoordinationError as error:
                log.warning("%s: %s", what, error)
            await asyncio.sleep(AGAIN_S)

    async def show_bundles(self, bundles: list[str]) -> None:
        """Publish the bundles that this broker owns."""
        self._bundles = tuple(sorted(bundles))
        await self._put_me()

    async def _put_me(self) -> None:
        async with self._changing:
            document = {
                **{name: getattr(self.me, value) or None for name, value in FIELDS.items()},
                "bundles": list(self._bundles),
                "worker": self._worker,
                "kafka": None if self.kafka is None else asdict(self.kafka),
                "grpc": asdict(self.grpc),
            }
            data = json.dumps(document).encode()
            if self._is_over:
                return
            if await self._is_mine() is False:
                raise coordination.NodeExistsError(self._path, OTHER_BROKER)
            await self._put(self._path, data, ephemeral=True)

    async def _put(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        try:
            await self._session.set(path, data)
        except coordination.NodeMissingError:
            await self._session.create(path, data, ephemeral=ephemeral, make_parents=True)

    async def _is_mine(self) -> bool | None:
        """Whether this broker's node belongs to this session; None without a node."""
        stat = await self._session.exists(self._path)
        return None if stat is None else stat.ephemeral_owner == self._session.session_id

    async def _wait_for_last_run(self) -> None:
        loop = asyncio.get_running_loop()
        limit_s = loop.time() + max(LEFT_LIMIT_S, 2 * self._session.session_timeout_ms / 1000)
        while await self._is_mine() is False and not self._is_over:
            if loop.time() > limit_s:
                raise coordination.NodeExistsError(self._path, OTHER_BROKER)
            await asyncio.sleep(LOOK_S)

    async def withdraw(self) -> None:
        """Stop being a candidate for bundles."""
        self._is_over = True
        for watch in self._watches:
            watch.close()
        if self._electing is not None:
            self._electing.cancel()
        async with self._changing:
            mine = [self._path] if await self._is_mine() else []
            for path in (*mine, *([LEADER] if self.is_leader else [])):
                with suppress(coordination.NodeMissingError):
                    await self._session.delete(path)
        self.is_leader = False

    # -- the leader -------------------------------------------------------------------------------

    def _leader_changed(self) -> None:
        if self._electing is None or self._electing.done():
            electing = self._until_done(self._elect, "no leader was elected yet")
            self._electing = asyncio.get_running_loop().create_task(electing)

    async def _elect(self) -> None:
        if self._is_over:
            return
        data = json.dumps({"serviceUrl": self.me.http_url, "brokerId": self.me.broker_id}).encode()
        try:
            await self._session.create(LEADER, data, ephemeral=True, make_parents=True)
        except coordination.NodeExistsError:
            stat = await self._session.exists(LEADER)
            self.is_leader = stat is not None and stat.ephemeral_owner == self._session.session_id
        else:
            self.is_leader = True
            log.info("%s is the leader now", self.me.broker_id)

    async def leader(self) -> Found | None:
        """The leader; None while one is being elected."""
        try:
            data, _ = await self._session.get(LEADER)
        except coordination.NodeMissingError:
            return None
        found = (await self.brokers()).get(json.loads(data)["brokerId"])
        return None if found is None else found.found

    # -- the others -------------------------------------------------------------------------------

    async def brokers(self) -> dict[str, Registered]:
        """All brokers that run, by id."""
        read = await asyncio.gather(*(self._broker(name) for name in await self._children(BROKERS)))
        return {one.found.broker_id: one for one in read if one is not None}

    async def _children(self, path: str) -> list[str]:
        with suppress(coordination.NodeMissingError):
            return await self._session.children(path)
        return []

    async def _broker(self, name: str) -> Registered | None:
        try:
            data, _ = await self._session.get(f"{BROKERS}/{name}")
        except coordination.NodeMissingError:
            return None
        facts = json.loads(data)
        urls: dict[str, Any] = {value: facts.get(key) or "" for key, value in FIELDS.items()}
        kafka, grpc = facts.get("kafka"), facts.get("grpc")
        return Registered(
            Found(name, **urls),
            tuple(facts.get("bundles", ())),
            facts.get("worker"),
            None if kafka is None else KafkaPlace(**kafka),
            NO_GRPC if grpc is None else GrpcPlace(**grpc),
        )

    async def kafka_nodes(self) -> dict[int, KafkaPlace]:
        """The brokers with a Kafka port, by number: running ones, and those that just went.

        The time counts from the moment when this broker missed it.
        """
        brokers = (await self.brokers()).values()
        nodes = {one.kafka.node_id: one.kafka for one in brokers if one.kafka is not None}
        now_s = asyncio.get_running_loop().time()
        gone_since_s: dict[tuple[str, int], float] = {}
        for name in set(await self._children(KAFKA)) - set(map(str, nodes)):
            # Another broker may remove the node, or the broker may return, at any time.
            with suppress(coordination.NodeMissingError, coordination.VersionConflictError):
                data, version = await self._session.get(f"{KAFKA}/{name}")
                since_s = self._gone_since_s.get((name, version), now_s)
                if now_s - since_s < GONE_NAMED_S:
                    nodes[int(name)] = KafkaPlace(**json.loads(data))
                    gone_since_s[name, version] = since_s
                else:
                    await self._session.delete(f"{KAFKA}/{name}", version)
        self._gone_since_s = gone_since_s
        return nodes
