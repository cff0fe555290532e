"""The broker's topics by Kafka's names, and the brokers that lead and coordinate.

A Kafka topic T is the partitioned topic T of `kafka_namespace`; its partition P is the topic
`T-partition-P`. A topic without partitions is shown with a single partition, the topic itself.

A topic's Kafka settings are stored in its policy `kafka` (`topics.entry_formats`).

In a cluster (`Brokers`) a partition's leader is the broker that owns its bundle. The coordinator of
groups is the owner of the offsets' log, which has a bundle by its name, as topics have. A bundle
without an owner is taken over by the broker that a client is sent to.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ...kafka.errors import Code, KafkaError
from ...kafka.records import Producer
from ...kafka.topic_settings import FORMAT_VERSION, SETTINGS, is_name
from ...ledger import LedgerError, ManagedLedger, Position
from ...proto.pulsar_api_pb2 import ServerError
from ...wire import TopicName, check_namespace
from ..connection.services import Services
from ..cooperative import Background
from ..errors import RefusedError
from ..metrics.stats import segment_size_bytes
from ..ownership import Cluster, KafkaPlace
from ..policies.pulsar_policies import HOLD
from ..topics.catalog_writer import CatalogWriter
from ..topics.entry_formats import KAFKA_POLICY, policies_of, revise_entry_format
from ..topics.topic import Topic

if TYPE_CHECKING:
    from ...connection_memory import Throttled

T = TypeVar("T")

log = logging.getLogger(__name__)

JOURNAL = "kafka-groups"
#: The question to the coordinator, whether a batch may be stored.
CHECK = "check of a Kafka client's transaction"

CODES = {
    ServerError.TopicNotFound: Code.UNKNOWN_TOPIC_OR_PARTITION,
    ServerError.InvalidTopicName: Code.INVALID_TOPIC_EXCEPTION,
    ServerError.NotAllowedError: Code.POLICY_VIOLATION,
    ServerError.PersistenceError: Code.KAFKA_STORAGE_ERROR,
    ServerError.ServiceNotReady: Code.NOT_LEADER_OR_FOLLOWER,
}


async def translated(work: Awaitable[T]) -> T:
    """Return what `work` returns; raise the broker's refusals as KafkaError."""
    try:
        return await work
    except RefusedError as refusal:
        code = CODES.get(refusal.code, Code.UNKNOWN_SERVER_ERROR)
        raise KafkaError(code, refusal.message) from refusal
    except (LedgerError, OSError) as error:
        raise KafkaError(Code.KAFKA_STORAGE_ERROR, str(error)) from error


class KafkaTopics:
    """The topics that Kafka's clients see. Refusals of the broker are raised as KafkaError."""

    def __init__(self, services: Services) -> None:
        config = services.config
        self._services = services
        self._topics = services.topics
        self._policies = services.topics.policies
        self._namespace = config.kafka_namespace
        self._format_version = config.kafka_message_format_version
        self._tenant, self._local = check_namespace(self._namespace)
        self._prefix = f"persistent://{self._namespace}/"
        #: The log of committed offsets, whose bundle's owner coordinates groups in a cluster.
        self.journal_name = self.name_of(JOURNAL)
        self._creating = asyncio.Lock()
        self.starts = LogStarts(services.topics.catalog_writer)

    async def load(self) -> None:
        """Read the log starts from the catalog. Raises LedgerError, OSError."""
        if self._services.cluster is not None:
            self._services.cluster.hear(LOG_START_KIND, self.starts.take)
        await self.starts.load(lambda name: self._topics.exists(TopicName.parse(name)))

    def name_of(self, topic: str) -> TopicName:
        """The broker's name of a topic."""
        return TopicName("persistent", self._tenant, self._local, topic)

    def name_of_partition(self, topic: str, index: int) -> TopicName | None:
        """The name of a partition; None: the topic has no such partition."""
        name = self.name_of(topic)
        count = self._topics.partitioned.count_of(name)
        if count:
            return name.partition(index) if 0 <= index < count else None
        return name if index == 0 and self._topics.exists(name) else None

    def names(self) -> list[str]:
        """All topics that Kafka clients can use, sorted."""
        topics, namespace = self._topics, self._namespace
        listed = (*topics.partitioned.in_namespace(namespace), *topics.names_in(namespace))
        return sorted(filter(is_name, {name.rpartition("/")[2] for name in listed}))

    def count(self) -> int:
        """The number of topics and partitions."""
        return self._topics.names.count_of(self._namespace)

    @property
    def changes(self) -> int:
        """Counts the topics and partitions that were created and deleted, in any namespace."""
        return self._topics.names.changes

    def partitions_of(self, topic: str) -> int:
        """How many partitions a topic has; 0: there is no such topic."""
        if not is_name(topic):
            return 0
        name = self.name_of(topic)
        return self._topics.partitioned.count_of(name) or int(self._topics.exists(name))

    def opened(self, topic: str, index: int) -> Topic | None:
        """The partition, if it is open."""
        name = self.name_of_partition(topic, index) if is_name(topic) else None
        return None if name is None else self._topics.open_topics.get(str(name))

    async def open(self, topic: str, index: int) -> Topic:
        """The partition; opens its topic if needed."""
        name = self.name_of_partition(topic, index) if is_name(topic) else None
        if name is None:
            text = f"there is no partition {index} of {topic!r}"
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, text)
        cluster = self._services.cluster
        if cluster is not None and str(name) not in self._topics.open_topics:
            await translated(cluster.serve(name))
        return await translated(self._topics.open(name, create=False))

    async def check_backlog(self, opened: Topic) -> None:
        """Raise KafkaError if the topic's backlog was above its quota, and still is."""
        if not opened.has_full_backlog:
            return
        excess = await translated(self._services.lifetimes.backlogs.refusing(opened))
        opened.has_full_backlog = excess is not None
        if excess is not None:
            is_held = excess.policy == HOLD
            code = Code.NOT_ENOUGH_REPLICAS if is_held else Code.POLICY_VIOLATION
            raise KafkaError(code, f"the backlog of {opened.name} exceeds its quota")

    async def begin_epoch(self, opened: Topic) -> None:
        """Begin the partition's leader epoch, if one is due."""
        await translated(self._topics.leader_epochs.begin_if_due(opened))

    async def join(
        self,
        opened: Topic,
        partition: tuple[str, int],
        name: str,
        producer: Producer,
        *,
        adds: bool,
    ) -> None:
        """Ask the coordinator whether a producer's transaction may write here.

        ``adds``: also add the partition to the transaction.
        """
        facts: dict[str, Any] = {"transactional_id": name, "producer": producer}
        facts |= {"partition": partition, "adds": adds}

        async def ask() -> str:
            code, answer = await translated(
                self._services.inner.ask(self.journal_name, CHECK, **facts)
            )
            if code:
                raise KafkaError(Code(code), answer)
            return str(answer)

        await opened.joined.join((name, producer), ask)

    async def end_transaction(
        self, partition: tuple[str, int], transaction: str, *, commits: bool
    ) -> None:
        """End a transaction in a partition; nothing happens if it was deleted."""
        name = self.name_of_partition(*partition)
        if name is not None:
            await translated(self._services.participants.end(name, transaction, commits=commits))

    async def create(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Create a topic whose entries are in Kafka's format.

        Defaults of `settings` come from the namespace's `entryFormat`, else from the broker's
        setting, and are stored with the topic: later changes there do not affect it.
        """
        wider = self._policies.value_of(self._namespace, KAFKA_POLICY) or {}
        settings = {FORMAT_VERSION: self._format_version, **wider, **settings}
        if settings[FORMAT_VERSION] == SETTINGS[FORMAT_VERSION].default:
            del settings[FORMAT_VERSION]
        async with self._creating:
            if self.partitions_of(topic):
                raise KafkaError(Code.TOPIC_ALREADY_EXISTS, f"topic {topic} exists")
            policies = policies_of(settings)
            work = self._topics.create_partitioned(self.name_of(topic), partitions, policies)
            await translated(work)

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """Let a partitioned topic have more partitions."""
        name = self.name_of(topic)
        async with self._creating:
            if not self._topics.partitioned.count_of(name):
                raise KafkaError(Code.INVALID_PARTITIONS, f"{topic} was made without partitions")
            await translated(self._topics.create_partitioned(name, partitions, only_adds=True))

    async def delete(self, topic: str) -> None:
        """Delete a topic, also if clients use it, as Kafka does."""
        name = self.name_of(topic)
        if self._topics.partitioned.count_of(name):
            await translated(self._topics.delete_partitioned(name, force=True))
        else:
            await translated(self._topics.delete(name, force=True))

    def settings(self, topic: str) -> Mapping[str, str] | None:
        """The topic's policy `kafka`; None without one."""
        policies = self._policies.of_topics.get(self._prefix + topic)
        return None if policies is None else policies.get(KAFKA_POLICY)

    async def revise_settings(
        self, topic: str, revise: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """Change the policy `kafka`, and the policies that follow from it.

        Setting it for the first time allows entries in Kafka's format in the topic.
        """
        name = self.name_of(topic)
        await translated(revise_entry_format(self._topics, name, revise))

    async def size_bytes(self, topic: str, index: int) -> int:
        """A partition's size on the disk."""
        opened = await self.open(topic, index)

        def measure() -> int:
            view = None if opened.cleaned is None else opened.cleaned.view
            in_log = sum(map(segment_size_bytes, opened.ledger.segments()))
            return in_log + (0 if view is None else view.size_bytes)

        size_bytes: int = await translated(self._services.run_blocking(measure))
        return size_bytes

    async def delete_before(self, opened: Topic, offset: int, position: Position) -> None:
        """Remove the entries before a position, also for Pulsar's subscriptions; keep the offset.

        Pulsar's consumers still get the whole entry that has the offset.
        """
        await translated(self._services.cleaning.truncate(opened, position))
        await translated(self.starts.move(opened, offset))


def check_set(opened: Topic, size_bytes: int) -> None:
    """Raise KafkaError if a record set of this size exceeds the topic's limits."""
    if opened.terminated_at is not None:
        raise KafkaError(Code.POLICY_VIOLATION, f"{opened.name} was terminated")
    if opened.admission is None:
        return
    limit_bytes = opened.rules.max_message_size_bytes
    if limit_bytes and size_bytes > limit_bytes:
        text = f"{size_bytes} bytes: maxMessageSize is {limit_bytes}"
        raise KafkaError(Code.MESSAGE_TOO_LARGE, text)
    if opened.rules.needs_encryption:
        raise KafkaError(Code.POLICY_VIOLATION, f"{opened.name} takes encrypted messages only")


def published(opened: Topic, connection: Throttled, messages: int, size_bytes: int) -> int:
    """Count an appended set. Return for how many milliseconds the connection is not read."""
    limit = None if opened.admission is None else opened.admission.publish_limit
    if limit is None:
        return 0
    limit.published(connection, messages, size_bytes)
    return math.ceil(limit.debt_ms()) if limit.is_exceeded() else 0


LOG_START_KIND = "kafka-log-start"


class LogStarts:
    """First offsets of partitions whose first entry was deleted in part."""

    def __init__(self, writer: CatalogWriter) -> None:
        self._writer = writer
        #: Topic id and first offset, by the topic's name.
        self._offsets: dict[str, tuple[int, int]] = {}

    async def load(self, exists: Callable[[str], bool]) -> None:
        """Read the catalog, and remove the offsets of deleted topics. Raises CatalogError."""

        async def take() -> None:
            gone = []
            for name, value in await self._writer.items(LOG_START_KIND):
                if exists(name):
                    self.take(name, value)
                else:
                    gone.append((LOG_START_KIND, name, None))
            if gone:
                await self._writer.write(*gone)

        await self._writer.in_turn(take)

    def take(self, name: str, value: bytes | None) -> None:
        """Take a topic's value from the catalog, or its removal."""
        if value is None:
            self._offsets.pop(name, None)
        else:
            record = json.loads(value)
            self._offsets[name] = record["topicId"], record["offset"]

    def of(self, ledger: ManagedLedger) -> int:
        """A partition's first offset; 0 if that is the first entry's."""
        topic_id, offset = self._offsets.get(ledger.name, (-1, 0))
        return offset if topic_id == ledger.topic_id else 0

    async def move(self, opened: Topic, offset: int) -> None:
        """Set a partition's first offset durably. It never moves back. Raises CatalogError."""
        ledger, name = opened.ledger, opened.name

        async def change() -> None:
            known = self.of(ledger)
            if offset <= max(opened.first_index, known):
                # The log's own start says it, so nothing has to be kept.
                if name in self._offsets and known <= opened.first_index:
                    await self._writer.write((LOG_START_KIND, name, None))
                    self._offsets.pop(name, None)
                return
            record = json.dumps({"topicId": ledger.topic_id, "offset": offset}).encode()
            await self._writer.write((LOG_START_KIND, name, record), frees=True)
            self._offsets[name] = ledger.topic_id, offset

        await self._writer.in_turn(change)


NO_NODE = -1
"""No broker leads the partition, or coordinates the groups, at present."""
ALONE = 1
"""The number of a broker that has no others."""


class Brokers:
    """The brokers that share the topics. No call raises: `NO_NODE` stands for an unknown broker."""

    def __init__(self, cluster: Cluster | None, topics: KafkaTopics, host: str) -> None:
        """`cluster`: None for a broker alone, whose host is `host`."""
        self._cluster = cluster
        self._topics = topics
        self._background = Background()
        self._offering: asyncio.Task[None] | None = None
        self._nodes = {ALONE: KafkaPlace(ALONE, host, None, None)} if cluster is None else {}

    @property
    def node_id(self) -> int:
        """This broker's number."""
        return ALONE if self._cluster is None else self._cluster.kafka_node

    async def nodes(self) -> Mapping[int, KafkaPlace]:
        """The brokers with a Kafka port, by number; the last known ones if asking fails."""
        if self._cluster is not None:
            try:
                self._nodes = await self._cluster.kafka_nodes()
            except RefusedError as refusal:
                log.info("brokers are not known: %s", refusal.message)
        return self._nodes

    async def leaders(self, topic: str, count: int) -> list[int]:
        """The number of each partition's leader."""
        cluster = self._cluster
        if cluster is None:
            return [ALONE] * count
        found: dict[str, int] = {}
        leaders = []
        for index in range(count):
            name = self._topics.name_of_partition(topic, index)
            if name is None:
                leaders.append(NO_NODE)
                continue
            bundle = cluster.bundle_of(name)
            if bundle not in found:
                found[bundle] = await _leader_of(cluster, name)
            leaders.append(found[bundle])
        return leaders

    async def coordinator(self) -> int:
        """The number of the broker that coordinates groups, and where topics are deleted."""
        if self._cluster is None:
            return ALONE
        return await _leader_of(self._cluster, self._topics.journal_name)

    def coordinates(self) -> bool:
        """Whether this broker coordinates groups."""
        return self._cluster is None or self._cluster.owns(self._topics.journal_name)

    def offer(self) -> None:
        """Begin to coordinate groups if no broker does."""
        if self._cluster is None or (self._offering is not None and not self._offering.done()):
            return
        self._offering = self._background.start(_offer(self._cluster, self._topics.journal_name))

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` now, and after each change of the bundles that this broker owns."""
        if self._cluster is not None:
            self._cluster.follow(changed)
            changed()


async def _leader_of(cluster: Cluster, name: TopicName) -> int:
    try:
        broker = await cluster.likely_owner(name)
        if broker is None:
            return NO_NODE
        found = (await cluster.brokers()).get(broker)
    except RefusedError as refusal:
        log.debug("%s: its leader is not known: %s", name, refusal.message)
        return NO_NODE
    return NO_NODE if found is None or found.kafka is None else found.kafka.node_id


async def _offer(cluster: Cluster, journal: TopicName) -> None:
    try:
        await cluster.serve(journal)
    except RefusedError as refusal:
        log.debug("groups are not coordinated here: %s", refusal.message)
