"""The broker as the Kafka endpoint sees it, and the endpoint's listener.

A Kafka topic T is the partitioned topic T of `kafka_namespace`; its partition P is the topic
`T-partition-P`. A topic without partitions is one with a single partition, the topic itself.

The settings that a topic has by Kafka's names are its policy `kafka` (`topics.entry_formats`).

A client's principal and permissions are the broker's (`BrokerAccess`, `BrokerAdmission`): Kafka's
clients see one namespace, whose permissions and those of its topics hold for them, and a group is a
subscription of that name (`kafka.ports` says which operation needs what).

In a cluster (`BrokerCluster`) a partition's leader is the broker that owns its bundle. Groups go
with the log of their offsets, which has a bundle by its name, as topics have. A bundle without an
owner is taken over by the broker that a client is sent to.

Importing this module imports kafka-python, so the broker imports it only if a port is configured.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ...kafka.endpoint import Endpoint, Handler
from ...kafka.errors import Code, KafkaError
from ...kafka.ports import NO_NODE, Admitted, KafkaOptions, Node, Ports
from ...kafka.records import Producer, producer_of
from ...kafka.sasl import OAUTHBEARER, PLAIN, TOKEN, Claim, SaslError
from ...kafka.topic_settings import FORMAT_VERSION, SETTINGS, is_name
from ...ledger import LedgerError, ManagedLedger, Position
from ...proto.pulsar_api_pb2 import ServerError
from ...wire import TopicName, check_namespace
from ..configuration.config import BrokerConfig
from ..connection.closing import Ending
from ..connection.services import Services
from ..cooperative import Background
from ..errors import RefusedError
from ..metrics.stats import segment_size_bytes
from ..ownership import Cluster
from ..policies.pulsar_policies import HOLD
from ..security.authentication import (
    UNAUTHENTICATED,
    Authenticated,
    AuthenticationFailed,
    Authenticator,
    Principal,
)
from ..security.authorization import Authorizer, Target
from ..security.needs import SUPER_USER, tenant_admin, topic
from ..security.permissions import Action
from ..topics.catalog_writer import CatalogWriter
from ..topics.entry_formats import KAFKA_POLICY, policies_of, revise_entry_format
from ..topics.registry import MAX_PARTITIONS
from ..topics.topic import Topic

if TYPE_CHECKING:
    from ...connection_memory import Throttled

T = TypeVar("T")

log = logging.getLogger(__name__)

JOURNAL = "kafka-groups"
#: What brokers ask the one that coordinates: whether a batch may be stored, and whether a
#: transaction has ended.
CHECK, STATE = "check of a Kafka client's transaction", "state of a Kafka client's transaction"
#: The kind of the catalog's properties that only this endpoint uses.
PROPERTY_KIND = "kafka"

CODES = {
    ServerError.TopicNotFound: Code.UNKNOWN_TOPIC_OR_PARTITION,
    ServerError.InvalidTopicName: Code.INVALID_TOPIC_EXCEPTION,
    ServerError.NotAllowedError: Code.POLICY_VIOLATION,
    ServerError.PersistenceError: Code.KAFKA_STORAGE_ERROR,
    ServerError.ServiceNotReady: Code.NOT_LEADER_OR_FOLLOWER,
}


async def _translated(work: Awaitable[T]) -> T:
    """What `work` returns; the broker's refusals as Kafka's."""
    try:
        return await work
    except RefusedError as refusal:
        code = CODES.get(refusal.code, Code.UNKNOWN_SERVER_ERROR)
        raise KafkaError(code, refusal.message) from refusal
    except (LedgerError, OSError) as error:
        raise KafkaError(Code.KAFKA_STORAGE_ERROR, str(error)) from error


class KafkaServer:
    """The endpoint for Kafka's clients. Their ports are bound before it is made."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._endpoint: Endpoint | None = None

    def session(self, port: int) -> asyncio.BaseProtocol:
        """The protocol of a new connection, whose client is told that port."""
        assert self._endpoint is not None, "connections are accepted after `open`"
        return self._endpoint.session(port)

    async def open(self, services: Services, host: str, handlers: Mapping[int, Handler]) -> None:
        """Read what the endpoint has stored. Raises LedgerError, OSError."""
        ports = BrokerPorts(services)
        await ports.topics.load()
        endpoint = Endpoint(cast("Ports", ports), kafka_options(self._config, host), handlers)
        await endpoint.start()
        services.inner.answering[CHECK] = partial(_checked, endpoint)
        services.inner.answering[STATE] = partial(_state_of, endpoint)
        journal = ports.topics.name_of(JOURNAL)

        async def has_ended(_topic: Topic, transaction: str) -> bool | None:
            if producer_of(transaction) is None:
                return None  # not one of Kafka's clients
            ended = await services.inner.ask(journal, STATE, transaction=transaction)
            return bool(ended)

        services.participants.coordinators.append(has_ended)
        services.kafka = self._endpoint = endpoint

    async def close(self) -> None:
        """Answer what was taken, and close the connections, within `shutdown_timeout_ms`."""
        endpoint = self._endpoint
        if endpoint is None:
            return
        ending = Ending.begin(self._config.shutdown_timeout_ms)
        endpoint.stop_reading()
        await ending.answered(lambda: endpoint.is_busy)
        endpoint.finish()
        await ending.sent(endpoint.sessions)
        await endpoint.close()


async def _checked(
    endpoint: Endpoint,
    _journal: TopicName,
    *,
    transactional_id: str,
    producer: Sequence[int],
    partition: Sequence[Any],
    adds: bool,
) -> tuple[int, str]:
    """The answer to a broker that has a batch of a transaction: a code and a text, or its id."""
    topic, index = partition
    try:
        coordinator = endpoint.transactions
        if adds:
            if not 0 <= index < endpoint.ports.topics.partitions_of(topic):
                # Its creation was not heard of yet: to end a transaction there would do nothing.
                raise KafkaError(Code.NOT_ENOUGH_REPLICAS, f"{topic} is not known here yet")
            await coordinator.add(transactional_id, Producer(*producer), [(topic, index)])
        found = coordinator.check_write(transactional_id, Producer(*producer), (topic, index))
    except KafkaError as refusal:
        passes = refusal.code in (Code.NOT_COORDINATOR, Code.COORDINATOR_LOAD_IN_PROGRESS)
        return Code.NOT_ENOUGH_REPLICAS if passes else refusal.code, refusal.message
    return 0, found


async def _state_of(endpoint: Endpoint, _journal: TopicName, *, transaction: str) -> bool:
    """The answer to a broker with an open transaction: whether it has ended everywhere else."""
    try:
        return endpoint.transactions.has_ended(transaction)
    except KafkaError as refusal:
        raise RefusedError(ServerError.ServiceNotReady, refusal.message) from refusal


def kafka_options(config: BrokerConfig, host: str) -> KafkaOptions:
    """The settings of the endpoint, and the name by which it tells clients to reach it."""
    return KafkaOptions(
        host=host,
        cluster=config.cluster,
        auto_create=config.allow_auto_topic_creation,
        default_partitions=config.kafka_default_partitions,
        group_initial_rebalance_delay_ms=config.kafka_group_initial_rebalance_delay_ms,
        group_min_session_timeout_ms=config.kafka_group_min_session_timeout_ms,
        group_max_session_timeout_ms=config.kafka_group_max_session_timeout_ms,
        consumer_heartbeat_interval_ms=config.kafka_group_consumer_heartbeat_interval_ms,
        consumer_session_timeout_ms=config.kafka_group_consumer_session_timeout_ms,
        max_request_bytes=config.max_kafka_request_bytes,
        max_fetch_bytes=config.max_kafka_fetch_bytes,
        max_fetch_sessions=config.max_kafka_fetch_sessions,
        max_fetch_session_partitions=config.max_kafka_fetch_session_partitions,
        max_pending_requests=config.max_kafka_pending_requests_per_connection,
        max_groups=config.max_kafka_groups,
        max_group_members=config.max_kafka_group_members,
        max_group_bytes=config.max_kafka_group_bytes,
        max_committed_offsets=config.max_kafka_committed_offsets,
        max_producer_ids=config.max_kafka_producer_ids_per_partition,
        max_transactional_ids=config.max_kafka_transactional_ids,
        max_transaction_partitions=config.max_kafka_transaction_partitions,
        max_transaction_timeout_ms=config.max_kafka_transaction_timeout_ms,
        max_partitions=MAX_PARTITIONS,
        write_buffer_high_water_bytes=config.write_buffer_high_water_bytes,
        idle_timeout_ms=config.kafka_idle_timeout_ms,
        handshake_timeout_ms=config.handshake_timeout_ms,
        keep_alive_interval_ms=config.keep_alive_interval_ms,
        stalled_frame_timeout_ms=config.stalled_frame_timeout_ms,
        min_frame_rate_bytes_per_s=config.min_frame_rate_bytes_per_s,
    )


class BrokerPorts:
    """`Ports` over a broker's services."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.topics = BrokerTopics(services)
        self.access = BrokerAccess(services.authorizer, services.config.kafka_namespace)
        self.admission = BrokerAdmission(services.authenticator)
        self.budget = services.budget
        self.input = services.input
        self.output = services.output
        self.turns = services.topics.turns
        self.run_blocking = services.run_blocking
        config = services.config
        self.cluster: BrokerCluster | None = None
        self._journal = JOURNAL
        if services.cluster is not None:
            # In a cluster the log has a bundle by its name, whose owner coordinates groups.
            journal = self.topics.name_of(JOURNAL)
            self._journal = str(journal)
            partition = self.topics.name_of_partition
            self.cluster = BrokerCluster(services.cluster, journal, partition)
        self.data_folder = str(config.data_dir or config.bookkeeper.store_address or "memory")

    def now_ms(self) -> int:
        """The broker's clock."""
        return self._services.config.clock.now_ms()

    def storage_failed(self, error: BaseException) -> None:
        """An append failed."""
        self._services.storage.failed(error)

    async def disk_bytes(self) -> tuple[int, int]:
        """The size of the data folder's disk, and what is free."""
        folder = self._services.config.data_dir
        if folder is None:
            return -1, -1
        usage = await self.run_blocking(shutil.disk_usage, folder)
        return usage.total, usage.free

    async def journal(self) -> ManagedLedger:
        """The endpoint's own log."""
        return await self._services.topics.open_internal(self._journal)

    async def next_producer_ids(self, count: int) -> int:
        """The first of `count` ids that were never given before."""
        writer = self._services.topics.catalog_writer

        async def take() -> int:
            stored = await writer.read(PROPERTY_KIND, "next-producer-id")
            # Without a number (the folder is new, or its catalog was lost) ids begin above those
            # that were given before: at most 1,000 in each millisecond.
            first = self.now_ms() * 1_000 if stored is None else int(stored)
            await writer.write((PROPERTY_KIND, "next-producer-id", str(first + count).encode()))
            return first

        return await writer.revising(take)


class BrokerTopics:
    """`TopicsPort` over the broker's registry."""

    def __init__(self, services: Services) -> None:
        topics, config = services.topics, services.config
        self._topics = topics
        self._cluster, self._cleaning = services.cluster, services.cleaning
        self._inner, self._participants = services.inner, services.participants
        self._run_blocking = services.run_blocking
        self._backlogs = services.lifetimes.backlogs
        self._policies = topics.policies
        self._namespace = config.kafka_namespace
        self._format_version = config.kafka_message_format_version
        self._tenant, self._local = check_namespace(self._namespace)
        self._prefix = f"persistent://{self._namespace}/"
        self._creating = asyncio.Lock()
        self._starts = LogStarts(topics.catalog_writer)

    async def load(self) -> None:
        """Read what was stored. Raises LedgerError, OSError."""
        if self._cluster is not None:
            self._cluster.hear(LOG_START_KIND, self._starts.take)
        await self._starts.load(lambda name: self._topics.exists(TopicName.parse(name)))

    def name_of(self, topic: str) -> TopicName:
        """The broker's name of a topic."""
        return TopicName("persistent", self._tenant, self._local, topic)

    def name_of_partition(self, topic: str, index: int) -> TopicName | None:
        """The name of a partition; None: there is none."""
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
        """How many topics and partitions there are."""
        return self._topics.names.count_of(self._namespace)

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
        """The partition, which is opened first where needed."""
        name = self.name_of_partition(topic, index) if is_name(topic) else None
        if name is None:
            text = f"there is no partition {index} of {topic!r}"
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, text)
        if self._cluster is not None and str(name) not in self._topics.open_topics:
            await _translated(self._cluster.serve(name))
        return await _translated(self._topics.open(name, create=False))

    def is_held(self, opened: Topic) -> bool:
        """Whether the topic's backlog was above its quota."""
        return opened.has_full_backlog

    async def check_backlog(self, opened: Topic) -> None:
        """Raise KafkaError if the topic's backlog was above its quota, and still is."""
        if not opened.has_full_backlog:
            return
        excess = await _translated(self._backlogs.refusing(opened))
        opened.has_full_backlog = excess is not None
        if excess is not None:
            is_held = excess.policy == HOLD
            code = Code.NOT_ENOUGH_REPLICAS if is_held else Code.POLICY_VIOLATION
            raise KafkaError(code, f"the backlog of {opened.name} exceeds its quota")

    def check_set(self, opened: Topic, size_bytes: int) -> None:
        """Raise KafkaError if the topic does not take a record set of so many bytes."""
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

    def published(
        self, opened: Topic, connection: Throttled, messages: int, size_bytes: int
    ) -> int:
        """Count a set that was appended; how many milliseconds its connection is not read."""
        limit = None if opened.admission is None else opened.admission.publish_limit
        if limit is None:
            return 0
        limit.published(connection, messages, size_bytes)
        return math.ceil(limit.debt_ms()) if limit.is_exceeded() else 0

    def epoch_is_due(self, opened: Topic) -> bool:
        """Whether the partition's leader epoch must begin before another set is stored."""
        return self._topics.leader_epochs.is_due(opened)

    async def begin_epoch(self, opened: Topic) -> None:
        """Begin the partition's leader epoch, if one is due."""
        await _translated(self._topics.leader_epochs.begin_if_due(opened))

    def joined(self, opened: Topic, name: str, producer: Producer) -> str | None:
        """The id of a producer's transaction, if its coordinator said that it may write here."""
        return opened.joined.get((name, producer))

    async def join(
        self,
        opened: Topic,
        partition: tuple[str, int],
        name: str,
        producer: Producer,
        *,
        adds: bool,
    ) -> None:
        """Ask the broker that coordinates for that, or to add the partition (``adds``)."""
        journal = self.name_of(JOURNAL)
        facts: dict[str, Any] = {"transactional_id": name, "producer": producer}
        facts |= {"partition": partition, "adds": adds}

        async def ask() -> str:
            code, answer = await _translated(self._inner.ask(journal, CHECK, **facts))
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
            await _translated(self._participants.end(name, transaction, commits=commits))

    async def create(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Create a topic whose entries are in Kafka's format.

        What `settings` leave open is the namespace's `entryFormat`, else the broker's setting. The
        topic keeps it: a later change of these concerns later topics.
        """
        wider = self._policies.in_namespace(self._namespace, KAFKA_POLICY) or {}
        settings = {FORMAT_VERSION: self._format_version, **wider, **settings}
        if settings[FORMAT_VERSION] == SETTINGS[FORMAT_VERSION].default:
            del settings[FORMAT_VERSION]
        async with self._creating:
            if self.partitions_of(topic):
                raise KafkaError(Code.TOPIC_ALREADY_EXISTS, f"topic {topic} exists")
            policies = policies_of(settings)
            work = self._topics.create_partitioned(self.name_of(topic), partitions, policies)
            await _translated(work)

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """Let a partitioned topic have more partitions."""
        name = self.name_of(topic)
        async with self._creating:
            if not self._topics.partitioned.count_of(name):
                raise KafkaError(Code.INVALID_PARTITIONS, f"{topic} was made without partitions")
            await _translated(self._topics.create_partitioned(name, partitions, only_adds=True))

    async def delete(self, topic: str) -> None:
        """Delete a topic, also if clients use it, as Kafka does."""
        name = self.name_of(topic)
        if self._topics.partitioned.count_of(name):
            await _translated(self._topics.delete_partitioned(name, force=True))
        else:
            await _translated(self._topics.delete(name, force=True))

    def settings(self, topic: str) -> Mapping[str, str] | None:
        """The policy `kafka`."""
        policies = self._policies.of_topics.get(self._prefix + topic)
        return None if policies is None else policies.get(KAFKA_POLICY)

    async def revise_settings(
        self, topic: str, revise: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """Change the policy `kafka`, and the policies that follow from it.

        A topic that did not have it may hold entries in Kafka's format from then on.
        """
        name = self.name_of(topic)
        await _translated(revise_entry_format(self._topics, name, revise))

    async def size_bytes(self, topic: str, index: int) -> int:
        """What a partition takes on the disk."""
        opened = await self.open(topic, index)

        def measure() -> int:
            view = None if opened.cleaned is None else opened.cleaned.view
            in_log = sum(map(segment_size_bytes, opened.ledger.segments()))
            return in_log + (0 if view is None else view.size_bytes)

        size_bytes: int = await _translated(self._run_blocking(measure))
        return size_bytes

    def start(self, opened: Topic) -> int:
        """The offset before which records were deleted."""
        return self._starts.of(opened.ledger)

    async def delete_before(self, opened: Topic, offset: int, position: Position) -> None:
        """Remove the entries before a position, also for Pulsar's subscriptions; keep the offset.

        Pulsar's consumers still get the whole entry that has the offset.
        """
        await _translated(self._cleaning.truncate(opened, position))
        await _translated(self._starts.move(opened, offset))


LOG_START_KIND = "kafka-log-start"


class LogStarts:
    """The first offsets of all partitions of which a part of an entry was deleted."""

    def __init__(self, writer: CatalogWriter) -> None:
        self._writer = writer
        #: By topic's name; with its id.
        self._offsets: dict[str, tuple[int, int]] = {}

    async def load(self, exists: Callable[[str], bool]) -> None:
        """Read the catalog, and remove what it has of topics that are gone. Raises CatalogError."""

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
        """Know what the catalog has of a topic."""
        if value is None:
            self._offsets.pop(name, None)
        else:
            record = json.loads(value)
            self._offsets[name] = record["topicId"], record["offset"]

    def of(self, ledger: ManagedLedger) -> int:
        """A partition's first offset; 0 if it begins with the log's first entry."""
        topic_id, offset = self._offsets.get(ledger.name, (-1, 0))
        return offset if topic_id == ledger.topic_id else 0

    async def move(self, opened: Topic, offset: int) -> None:
        """Let a partition begin at an offset, durably. It never moves back. Raises CatalogError."""
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


NEEDS = {
    "read": topic("CONSUME"),
    "write": topic("PRODUCE"),
    "describe": topic("LOOKUP"),
    "administer": tenant_admin(),
}
BASIC, TLS = "basic", "tls"


class BrokerAccess:
    """`AccessPort` over the broker's authorizer."""

    def __init__(self, authorizer: Authorizer, namespace: str) -> None:
        """`namespace`: the one whose topics Kafka's clients see."""
        self._authorizer = authorizer
        self._namespace = namespace
        self._tenant, self._local = check_namespace(namespace)

    @property
    def is_on(self) -> bool:
        """Whether anything is refused at all."""
        return self._authorizer.is_on

    @property
    def generation(self) -> int:
        """Counts the changes after which decisions may be others."""
        return self._authorizer.generation

    def topic(self, principal: Principal, operation: str, name: str) -> bool:
        """Whether a client may do this with a topic. The name need not be a valid one."""
        target = Target.of_topic(TopicName("persistent", self._tenant, self._local, name))
        return self._authorizer.allows(principal, NEEDS[operation], target)

    def group(self, principal: Principal, group: str) -> bool:
        """Whether a client may use a group."""
        return self._authorizer.allows_somewhere(principal, Action.CONSUME, self._namespace, group)

    def writes_somewhere(self, principal: Principal) -> bool:
        """Whether a client may write to at least one topic."""
        return self._authorizer.allows_somewhere(principal, Action.PRODUCE, self._namespace)

    def broker(self, principal: Principal) -> bool:
        """Whether a client may see the broker's own settings."""
        return self._authorizer.allows(principal, SUPER_USER)


class BrokerAdmission:
    """`AdmissionPort` over the broker's authenticator."""

    def __init__(self, authenticator: Authenticator | None) -> None:
        """None: the broker has no authentication."""
        self._authenticator = authenticator

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The SASL mechanisms for which the broker has a provider."""
        methods = () if self._authenticator is None else self._authenticator.methods
        plain = (PLAIN,) if TOKEN in methods or BASIC in methods else ()
        return (*plain, OAUTHBEARER) if TOKEN in methods else plain

    def without_sasl(self, peer_certificate: Any) -> Admitted | None:
        """Everyone without authentication; else who the certificate says, or the anonymous role."""
        authenticator = self._authenticator
        if authenticator is None:
            return Admitted(UNAUTHENTICATED)
        method = TLS if peer_certificate and TLS in authenticator.methods else "none"
        try:
            return _admitted(authenticator.authenticate(method, b"", peer_certificate))
        except AuthenticationFailed:
            return None

    async def with_sasl(self, claim: Claim, peer_certificate: Any) -> Admitted:
        """Check credentials by the provider of their method. Raises SaslError."""
        authenticator = self._authenticator
        if authenticator is None or claim.method not in authenticator.methods:
            raise SaslError(f"this broker has no provider for {claim.method}")
        what = claim.method, claim.credentials, peer_certificate
        check = partial(authenticator.authenticate, *what)
        try:
            if authenticator.is_slow_for(claim.method):
                return _admitted(await authenticator.in_thread(check))
            return _admitted(check())
        except AuthenticationFailed as failure:
            raise SaslError(str(failure)) from failure


def _admitted(found: Authenticated) -> Admitted:
    return Admitted(Principal(found.role), found.role, found.expires_at_ms)


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
        self._nodes: dict[int, Node] = {}

    @property
    def node_id(self) -> int:
        """This broker's number."""
        return self._cluster.kafka_node

    async def nodes(self) -> Mapping[int, Node]:
        """The brokers with a Kafka port, by number; as known before, if that cannot be asked."""
        try:
            places = await self._cluster.kafka_nodes()
        except RefusedError as refusal:
            log.info("brokers are not known: %s", refusal.message)
        else:
            self._nodes = {
                number: Node(number, one.host, one.port, one.tls_port)
                for number, one in places.items()
            }
        return self._nodes

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
