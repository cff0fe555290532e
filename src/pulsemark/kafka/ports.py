"""What the endpoint needs of the broker, and nothing else. `broker.kafka_bridge` implements it.

Topics have Kafka's names here. Where the broker refuses something, the port raises `KafkaError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..ledger import ManagedLedger, Position
from .nodes import ClusterPort
from .sasl import Claim

__all__ = [
    "AccessPort",
    "AdmissionPort",
    "Admitted",
    "Budget",
    "Counters",
    "Memory",
    "OpenTopic",
    "Ports",
    "Publisher",
    "TopicsPort",
    "Turns",
]


class Counters(Protocol):
    """A topic's counts, as the broker's statistics show them."""

    messages_in: int
    bytes_in: int
    failed_entries: int


class OpenTopic(Protocol):
    """A partition's topic, open in the broker."""

    @property
    def name(self) -> str:
        """The broker's full name."""
        ...

    @property
    def ledger(self) -> ManagedLedger:
        """Where its entries are."""
        ...

    @property
    def counters(self) -> Counters:
        """What statistics count."""
        ...

    @property
    def tombstone_property(self) -> str | None:
        """The property by which Pulsar's producers delete a key; None: there is none."""
        ...

    @property
    def is_open(self) -> bool:
        """False once it was closed, and from then on; the next use opens another one."""
        ...


class Throttled(Protocol):
    """A connection that can be paused."""

    def throttle(self) -> None:
        """Take no requests until `unthrottle`."""
        ...

    def unthrottle(self) -> None:
        """Take requests again."""
        ...


class TopicsPort(Protocol):
    """The broker's topics by Kafka's names. Runs on the event loop."""

    def names(self) -> list[str]:
        """All topics that Kafka clients can use, sorted."""
        ...

    def count(self) -> int:
        """How many topics and partitions there are."""
        ...

    def partitions_of(self, topic: str) -> int:
        """How many partitions a topic has; 0: there is no such topic."""
        ...

    def opened(self, topic: str, index: int) -> OpenTopic | None:
        """The partition, if it is open."""
        ...

    async def open(self, topic: str, index: int) -> OpenTopic:
        """The partition, which is opened first where needed. Raises KafkaError."""
        ...

    def is_held(self, opened: OpenTopic) -> bool:
        """Whether `check_backlog` has to be asked before another set is stored."""
        ...

    async def check_backlog(self, opened: OpenTopic) -> None:
        """Raise KafkaError if the topic takes no messages until its consumers have caught up."""
        ...

    def check_set(self, opened: OpenTopic, size_bytes: int) -> None:
        """Raise KafkaError if the topic's policies refuse a record set of so many bytes."""
        ...

    def published(
        self, opened: OpenTopic, connection: Throttled, messages: int, size_bytes: int
    ) -> int:
        """Count a set that was appended.

        Returns for how many milliseconds the topic's rate lets the connection send nothing more; it
        is paused for so long.
        """
        ...

    def epoch_is_due(self, opened: OpenTopic) -> bool:
        """Whether the partition's leader epoch must begin before another set is stored."""
        ...

    async def begin_epoch(self, opened: OpenTopic) -> None:
        """Begin the partition's leader epoch, if one is due. Raises KafkaError if it cannot."""
        ...

    async def create(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Create a topic; durable on return. Raises KafkaError."""
        ...

    async def add_partitions(self, topic: str, partitions: int) -> None:
        """Let a topic have so many partitions; durable on return. Raises KafkaError."""
        ...

    async def delete(self, topic: str) -> None:
        """Delete a topic with its data. Raises KafkaError."""
        ...

    def settings(self, topic: str) -> Mapping[str, str] | None:
        """The settings that a topic has of its own, by Kafka's names.

        The same object until they change. None: the topic's entries are in Pulsar's format.
        """
        ...

    async def set_settings(self, topic: str, settings: Mapping[str, str]) -> None:
        """Replace a topic's own settings; durable on return. Raises KafkaError."""
        ...

    async def size_bytes(self, topic: str, index: int) -> int:
        """What a partition takes on the disk. Raises KafkaError."""
        ...

    def start(self, opened: OpenTopic) -> int:
        """The offset before which records were deleted; 0: none, but by whole entries."""
        ...

    async def delete_before(self, opened: OpenTopic, offset: int, position: Position) -> None:
        """Delete the records before an offset, which the entry at `position` has, or the end.

        Durable on return. Raises KafkaError.
        """
        ...


class Publisher(Protocol):
    """A connection, as the budget of publishes sees it."""

    def write(self, data: bytes) -> None:
        """Send bytes."""
        ...

    def publishes_changed(self) -> None:
        """Publishes in flight changed: reading may have to stop, or may go on."""
        ...

    def storage_failed(self, error: BaseException) -> None:
        """Publishes could not be stored."""
        ...


class Budget(Protocol):
    """Bytes in flight between a publish and its answer, over all of the broker's connections."""

    bytes_in_flight: int

    def is_exhausted_for(self, session: Publisher) -> bool:
        """Whether a connection must stop reading; `publishes_changed` says when it may go on."""
        ...

    def give_back(self, size_bytes: int) -> None:
        """Subtract finished publishes."""
        ...

    def forget(self, session: Publisher) -> None:
        """The connection is gone."""
        ...


class Memory(Protocol):
    """Input or output memory over all of the broker's connections."""

    def forget(self, holder: Any) -> None:
        """The connection is gone."""
        ...


class InputMemory(Memory, Protocol):
    """Requests that are not complete."""

    def hold(self, holder: Any, size_bytes: int, *, begins: bool) -> None:
        """A connection holds so much. `begins`: its request has just begun to arrive."""
        ...


class OutputMemory(Memory, Protocol):
    """What sockets have not taken yet."""

    @property
    def is_scarce(self) -> bool:
        """Whether more than half of the limit is used."""
        ...

    def wrote(self, holder: Any) -> None:
        """Something was written to a connection."""
        ...

    def has_room(self, holder: Any) -> bool:
        """Whether more may be written; if not, `output_freed` is called later."""
        ...

    def reserve(self, wanted_bytes: int) -> int:
        """Set memory aside for what is read to be sent: so much; 0: wait for `room_freed`."""
        ...

    def room_freed(self) -> asyncio.Future[None]:
        """A future that is done when it is worth to try `reserve` again."""
        ...

    def reserve_more(self, size_bytes: int) -> None:
        """What was read is larger than what was reserved."""
        ...

    def give_back(self, size_bytes: int) -> None:
        """What was reserved is needed no longer."""
        ...


class AccessPort(Protocol):
    """What clients may do. A principal is the broker's; the endpoint only hands it back."""

    @property
    def is_on(self) -> bool:
        """Whether anything is refused at all."""
        ...

    @property
    def generation(self) -> int:
        """Counts the changes after which decisions may be others."""
        ...

    def topic(self, principal: Any, operation: str, topic: str) -> bool:
        """Whether a client may read, write, describe or administer a topic."""
        ...

    def group(self, principal: Any, group: str) -> bool:
        """Whether a client may use a group."""
        ...

    def writes_somewhere(self, principal: Any) -> bool:
        """Whether a client may write to at least one topic."""
        ...

    def broker(self, principal: Any) -> bool:
        """Whether a client may see the broker's own settings."""
        ...


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
        ...

    def without_sasl(self, peer_certificate: Any) -> Admitted | None:
        """Who a client is that has not used SASL; None: it has to."""
        ...

    async def with_sasl(self, claim: Claim, peer_certificate: Any) -> Admitted:
        """Check credentials. Raises SaslError."""


class Turns(Protocol):
    """One time slice in each turn of the event loop, which all long work of the broker shares."""

    def has_time(self) -> bool:
        """Whether the slice of this turn has time left for another piece of work."""
        ...

    async def next(self) -> None:
        """Wait for a later turn, whose slice is the caller's."""
        ...

    def run_now(self, pieces: Iterator[object]) -> bool:
        """Run pieces in what this turn's slice has left. Return whether all are done."""
        ...

    async def work(self, pieces: Iterable[object]) -> None:
        """Run pieces in later turns. Return when all are done."""
        ...


class Ports(Protocol):
    """The broker."""

    topics: TopicsPort
    access: AccessPort
    admission: AdmissionPort
    turns: Turns
    budget: Budget
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
        ...

    def storage_failed(self, error: BaseException) -> None:
        """An append failed."""
        ...

    async def disk_bytes(self) -> tuple[int, int]:
        """The size of the data folder's disk, and what is free; -1: not known. Raises OSError."""
        ...

    async def journal(self) -> ManagedLedger:
        """The endpoint's own log: committed offsets. Raises LedgerError."""
        ...

    async def next_producer_ids(self, count: int) -> int:
        """The first of `count` ids that were never given before; durable on return."""
        ...
