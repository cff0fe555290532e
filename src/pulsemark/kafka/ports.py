"""The endpoint's side of the broker: what it needs of it, its settings, and what it counts for it.

`broker.kafka.ports` implements `Ports`, and the endpoint knows the broker by nothing else. Topics
have Kafka's names here. Where the broker refuses something, the port raises `KafkaError`.

**What a client may do** (`Access`). Kafka's operations become the broker's permissions:

==========  ===================================================================================
operation   allowed to
==========  ===================================================================================
WRITE       roles that may produce to the topic
READ        roles that may consume from it
DESCRIBE    both
ADMINISTER  administrators of the namespace's tenant: create, delete, alter, settings
==========  ===================================================================================

A group is a subscription of the namespace: a role may use it that may consume from one of its
topics at least, unless the subscription's roles exclude it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from ..connection_memory import InputMemory, OutputMemory, PublishBudget, Throttled
from ..ledger import ManagedLedger, Position
from .errors import Code, KafkaError
from .records import Producer, Work
from .sasl import Claim

if TYPE_CHECKING:
    from ..finder.stream import ReadForm


class Counters(Protocol):
    """A topic's counts, as the broker's statistics show them."""

    messages_in: int
    bytes_in: int
    failed_entries: int
    #: Record sets by the kind of request, its version, and whether they were converted. All of
    #: them come from `kafka.protocol`, so a topic has at most two for each version.
    kafka_sets: dict[tuple[str, int, bool], int]


class OpenTopic(Protocol):
    """A partition's topic, open in the broker."""

    @property
    def name(self) -> str:
        """The broker's full name."""

    @property
    def ledger(self) -> ManagedLedger:
        """Where its entries are."""

    @property
    def read_log(self) -> ManagedLedger | ReadForm:
        """What is read: the ledger, or its compacted form, if that is the topic's log."""

    @property
    def first_index(self) -> int:
        """The offset at which the topic begins."""

    @property
    def counters(self) -> Counters:
        """What statistics count."""

    @property
    def tombstone_property(self) -> str | None:
        """The property or header by which producers delete a key; None: there is none."""

    @property
    def schema_numbers(self) -> Mapping[int, int] | None:
        """Versions of its schemas by the ids of Kafka's serializers; None: there are no ids."""

    @property
    def is_open(self) -> bool:
        """False once it was closed, and from then on; the next use opens another one."""


class TopicsPort(Protocol):
    """The broker's topics by Kafka's names. Runs on the event loop."""

    def names(self) -> list[str]:
        """All topics that Kafka clients can use, sorted."""

    def count(self) -> int:
        """How many topics and partitions there are."""

    def partitions_of(self, topic: str) -> int:
        """How many partitions a topic has; 0: there is no such topic."""

    def opened(self, topic: str, index: int) -> OpenTopic | None:
        """The partition, if it is open."""

    async def open(self, topic: str, index: int) -> OpenTopic:
        """The partition, which is opened first where needed. Raises KafkaError."""

    def is_held(self, opened: OpenTopic) -> bool:
        """Whether `check_backlog` has to be asked before another set is stored."""

    async def check_backlog(self, opened: OpenTopic) -> None:
        """Raise KafkaError if the topic takes no messages until its consumers have caught up."""

    def check_set(self, opened: OpenTopic, size_bytes: int) -> None:
        """Raise KafkaError if the topic's policies refuse a record set of so many bytes."""

    def published(
        self, opened: OpenTopic, connection: Throttled, messages: int, size_bytes: int
    ) -> int:
        """Count a set. Returns for how many milliseconds the topic's rate pauses the connection."""

    def epoch_is_due(self, opened: OpenTopic) -> bool:
        """Whether the partition's leader epoch must begin before another set is stored."""

    async def begin_epoch(self, opened: OpenTopic) -> None:
        """Begin the partition's leader epoch, if one is due. Raises KafkaError if it cannot."""

    def joined(self, opened: OpenTopic, name: str, producer: Producer) -> str | None:
        """The id of a producer's transaction, if its coordinator said that it may write here."""

    async def join(
        self,
        opened: OpenTopic,
        partition: tuple[str, int],
        name: str,
        producer: Producer,
        *,
        adds: bool,
    ) -> None:
        """Ask the coordinating broker for that, or to add the partition. Raises KafkaError."""

    async def end_transaction(
        self, partition: tuple[str, int], transaction: str, *, commits: bool
    ) -> None:
        """End a transaction in a partition, once; durable on return. Raises KafkaError."""

    async def create(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Create a topic; durable on return. Raises KafkaError."""

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """Let a topic have so many partitions; durable on return. Raises KafkaError."""

    async def delete(self, topic: str) -> None:
        """Delete a topic with its data. Raises KafkaError."""

    def settings(self, topic: str) -> Mapping[str, str] | None:
        """A topic's own settings, one object until they change; None: Pulsar's entry format."""

    async def revise_settings(
        self, topic: str, revise: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """Replace a topic's own settings by what `revise` makes of them; durable on return.

        Raises KafkaError.
        """

    async def size_bytes(self, topic: str, index: int) -> int:
        """What a partition takes on the disk. Raises KafkaError."""

    def start(self, opened: OpenTopic) -> int:
        """The offset before which records were deleted; 0: none, but by whole entries."""

    async def delete_before(self, opened: OpenTopic, offset: int, position: Position) -> None:
        """Delete the records before an offset, at `position`; durable. Raises KafkaError."""


class AccessPort(Protocol):
    """What clients may do. A principal is the broker's; the endpoint only hands it back."""

    @property
    def is_on(self) -> bool:
        """Whether anything is refused at all."""

    @property
    def generation(self) -> int:
        """Counts the changes after which decisions may be others."""

    def topic(self, principal: Any, operation: str, topic: str) -> bool:
        """Whether a client may read, write, describe or administer a topic."""

    def group(self, principal: Any, group: str) -> bool:
        """Whether a client may use a group."""

    def writes_somewhere(self, principal: Any) -> bool:
        """Whether a client may write to at least one topic."""

    def broker(self, principal: Any) -> bool:
        """Whether a client may see the broker's own settings."""


#: Decisions that a connection remembers, and the longest name of which it does.
MAX_REMEMBERED = 1_000
MAX_NAME_LENGTH = 255


class Operation(Enum):
    """What a client does with a topic."""

    READ = "read"
    WRITE = "write"
    DESCRIBE = "describe"
    ADMINISTER = "administer"


class Access:
    """What the client of one connection may do."""

    def __init__(self, port: AccessPort, principal: Any) -> None:
        self._port = port
        self._is_on = port.is_on
        self._principal = principal
        self._generation = port.generation
        self._known: dict[tuple[Any, str], bool] = {}

    def may(self, operation: Operation, topic: str) -> bool:
        """Whether the client may do this with a topic, which need not exist."""
        if not self._is_on:
            return True
        return self._remembered(
            (operation, topic), lambda: self._port.topic(self._principal, operation.value, topic)
        )

    def may_use_group(self, group: str) -> bool:
        """Whether the client may use a group, or see it."""
        if not self._is_on:
            return True
        return self._remembered((None, group), lambda: self._port.group(self._principal, group))

    def _remembered(self, key: tuple[Any, str], decide: Callable[[], bool]) -> bool:
        generation = self._port.generation
        if generation != self._generation or len(self._known) >= MAX_REMEMBERED:
            self._generation = generation
            self._known.clear()
        known = self._known.get(key)
        if known is None:
            known = decide()
            if len(key[1]) <= MAX_NAME_LENGTH:
                self._known[key] = known
        return known

    @property
    def remembered(self) -> int:
        """How many decisions it remembers."""
        return len(self._known)

    def check(self, operation: Operation, topic: str | None) -> None:
        """Raise KafkaError (29) if the client may not do this with a topic."""
        if not self.may(operation, topic or ""):
            raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")

    def group_code(self, group: str) -> Code:
        """30 if the client may not use a group."""
        return Code.NONE if self.may_use_group(group) else Code.GROUP_AUTHORIZATION_FAILED

    def check_broker(self) -> None:
        """Raise KafkaError (31) if the client may not see the broker's settings."""
        if self._is_on and not self._port.broker(self._principal):
            raise KafkaError(Code.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")

    def check_writes_somewhere(self) -> None:
        """Raise KafkaError (31) if the client may write to no topic at all."""
        if self._is_on and not self._port.writes_somewhere(self._principal):
            raise KafkaError(Code.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")

    def check_transactional_id(self) -> None:
        """Raise KafkaError (53) if the client may have no transaction: it may write nowhere."""
        if self._is_on and not self._port.writes_somewhere(self._principal):
            raise KafkaError(
                Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactional id authorization failed."
            )


@dataclass(frozen=True, slots=True)
class Admitted:
    """A client that was admitted: as whom, and until when (Unix time; None: no limit)."""

    principal: Any
    role: str | None = None
    expires_at_ms: int | None = None


class AdmissionPort(Protocol):
    """Who clients are."""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The SASL mechanisms that are served."""

    def without_sasl(self, peer_certificate: Any) -> Admitted | None:
        """Who a client is that has not used SASL; None: it has to."""

    async def with_sasl(self, claim: Claim, peer_certificate: Any) -> Admitted:
        """Check credentials. Raises SaslError."""


class Turns(Protocol):
    """One time slice in each turn of the event loop, which all long work of the broker shares."""

    def has_time(self) -> bool:
        """Whether the slice of this turn has time left for another piece of work."""

    async def next(self) -> None:
        """Wait for a later turn, whose slice is the caller's."""

    def run_now(self, pieces: Iterator[object]) -> bool:
        """Run pieces in what this turn's slice has left. Return whether all are done."""

    async def work(self, pieces: Iterable[object]) -> None:
        """Run pieces in later turns. Return when all are done."""


NO_NODE = -1
"""No broker leads the partition, or coordinates the groups, at present."""
ALONE = 1
"""The number of a broker that has no others."""


@dataclass(frozen=True, slots=True)
class Node:
    """A broker: its number, and where clients reach it. None: the port they are connected to."""

    node_id: int
    host: str
    port: int | None
    tls_port: int | None

    def port_for(self, own_port: int, *, is_tls: bool) -> int:
        """The port of this broker for a client of that kind; -1: it has none."""
        if self.port is None and self.tls_port is None:
            return own_port
        port = self.tls_port if is_tls else self.port
        return -1 if port is None else port


class ClusterPort(Protocol):
    """The brokers that share the topics. Nothing raises: what is not known is `NO_NODE`."""

    @property
    def node_id(self) -> int:
        """This broker's number."""

    async def nodes(self) -> Mapping[int, Node]:
        """The brokers that live, by number."""

    async def leaders(self, topic: str, count: int) -> list[int]:
        """The number of each partition's leader."""

    async def coordinator(self) -> int:
        """The number of the broker that coordinates groups, and where topics are deleted."""

    def coordinates(self) -> bool:
        """Whether that is this broker."""

    def offer(self) -> None:
        """Begin to coordinate groups if no broker does."""

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change of what this broker leads or coordinates."""


class Alone:
    """`ClusterPort` of a broker that leads and coordinates everything."""

    node_id = ALONE

    def __init__(self, host: str) -> None:
        self._nodes = {ALONE: Node(ALONE, host, None, None)}

    async def nodes(self) -> Mapping[int, Node]:
        """This broker."""
        return self._nodes

    async def leaders(self, topic: str, count: int) -> list[int]:
        """This broker leads all."""
        return [ALONE] * count

    async def coordinator(self) -> int:
        """This broker."""
        return ALONE

    def coordinates(self) -> bool:
        """It does."""
        return True

    def offer(self) -> None:
        """It does already."""

    def follow(self, changed: Callable[[], None]) -> None:
        """Nothing ever changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """The settings of one endpoint; docs/limits.md explains the limits."""

    #: What Metadata and FindCoordinator answer.
    host: str
    cluster: str
    auto_create: bool
    default_partitions: int
    #: An empty group waits for so long after its first member, so that one rebalance is enough.
    group_initial_rebalance_delay_ms: int
    #: The session timeouts that members may ask for.
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    #: For members of the consumer protocol (KIP-848).
    consumer_heartbeat_interval_ms: int
    consumer_session_timeout_ms: int
    max_request_bytes: int
    max_fetch_bytes: int
    max_fetch_sessions: int
    max_fetch_session_partitions: int
    max_pending_requests: int
    max_groups: int
    max_group_members: int
    max_group_bytes: int
    max_committed_offsets: int
    max_producer_ids: int
    max_transactional_ids: int
    max_transaction_partitions: int
    max_transaction_timeout_ms: int
    max_partitions: int
    write_buffer_high_water_bytes: int
    idle_timeout_ms: int
    #: A client must be authenticated within this time.
    handshake_timeout_ms: int
    #: After so much silence the system asks a client's host whether it is there.
    keep_alive_interval_ms: int
    stalled_frame_timeout_ms: int
    min_frame_rate_bytes_per_s: int


@dataclass(slots=True)
class Figures:
    """Counts since the broker was started; `rows` says what each one is."""

    sets_in: int = 0
    sets_in_place: int = 0
    sets_out: int = 0
    sets_converted: int = 0
    compressions: int = 0
    decompressions: int = 0
    converted_records: int = 0

    def produced(self, counters: Counters, version: int, *, in_place: bool) -> None:
        """Count a set that was stored."""
        self.sets_in += 1
        self.sets_in_place += in_place
        _count(counters, ("produce", version, not in_place), 1)

    def fetched(self, counters: Counters, version: int, stored: int, converted: int) -> None:
        """Count the sets of an answer: those sent as they are stored, and those converted."""
        self.sets_out += stored
        self.sets_converted += converted
        _count(counters, ("fetch", version, False), stored)
        _count(counters, ("fetch", version, True), converted)

    def add(self, work: Work) -> None:
        """Count what one set cost."""
        self.compressions += work.compressions
        self.decompressions += work.decompressions
        self.converted_records += work.converted_records

    def rows(self) -> tuple[tuple[str, str, int], ...]:
        """Name and text of each metric, and its value."""
        texts = {
            "sets_in": "Record sets stored",
            "sets_in_place": "Record sets stored with the bytes of their records as sent",
            "sets_out": "Record sets sent as stored",
            "sets_converted": "Record sets converted for a client",
            "compressions": "Record sets compressed, on the way in or out",
            "decompressions": "Record sets decompressed, to check or to convert them",
            "converted_records": "Records written again",
        }
        return tuple(
            (f"pulsemark_kafka_{name}", texts[name], getattr(self, name)) for name in texts
        )


def _count(counters: Counters, use: tuple[str, int, bool], sets: int) -> None:
    if sets:
        counters.kafka_sets[use] = counters.kafka_sets.get(use, 0) + sets


class Ports(Protocol):
    """The broker."""

    topics: TopicsPort
    access: AccessPort
    admission: AdmissionPort
    turns: Turns
    budget: PublishBudget
    input: InputMemory
    output: OutputMemory

    #: The brokers that share the topics; None: this one is alone.
    cluster: ClusterPort | None

    #: The data folder, by which tools know the broker's disk.
    data_folder: str

    #: Runs a blocking function in the executor.
    run_blocking: Callable[..., Awaitable[Any]]

    def now_ms(self) -> int:
        """The broker's clock."""

    def storage_failed(self, error: BaseException) -> None:
        """An append failed."""

    async def disk_bytes(self) -> tuple[int, int]:
        """The size of the data folder's disk, and what is free; -1: not known. Raises OSError."""

    async def journal(self) -> ManagedLedger:
        """The endpoint's own log: committed offsets. Raises LedgerError."""

    async def next_producer_ids(self, count: int) -> int:
        """The first of `count` ids that were never given before; durable on return."""
